/* fa_cpu_tile.h - what a tile of packed rows is, what it keeps on the stack, and how its rows of q,
 * K and V come in. Part of fa_cpu_algorithm.h; it changes when the layout of that scratch does. */
#ifndef FA_CPU_TILE_H
#define FA_CPU_TILE_H

#include "fa_cpu.h"
#include "fa_cpu_vector.h"

/* head_dim is padded to whole vectors of any width; keys to what one step of a micro-kernel takes.
 * Both are at least 8. */
#define FAI_PAD (FAI_LANES > 8 ? FAI_LANES : 8)
#ifdef FAI_PAIRS /* q, K and V stay bfloat16, neighbours along a product's sum side by side */
#define FAI_FEW_ROWS 0
#define FAI_MAX_SPAN 2 /* vectors of rows that one micro-kernel holds */
#else
#define FAI_PAIRS 0
#define FAI_FEW_ROWS (FAI_LANES > 8 ? 16 : 4)
#define FAI_MAX_SPAN 3
#endif
/* Up to these head_dims a tile has all its rows and a block all its keys. Beyond, the rows are
 * halved with each doubling of head_dim, and so are the keys. */
#define FAI_TILE_ROWS FAI_CPU_TILE_ROWS(FAI_LANES)
#define FAI_TILE_KEYS FAI_CPU_TILE_KEYS(FAI_LANES)
#define FAI_WHOLE_ROWS_DIM 128
#define FAI_WHOLE_KEYS_DIM (FAI_LANES > 8 ? 128 : 256)
/* Elements of a row of V that lie side by side where it is packed (fai_pack_values). */
#define FAI_RUN 8
/* K of a narrow tile's block, of all heads; V is as large, and so is what is ahead of either. */
#define FAI_NARROW_BLOCK_BYTES 65536
/* K and V of a call that are not fetched ahead: what an L2 of 1 MB or a part of an L3 holds from
 * the last call on. There each fetch is a load for nothing (8 % of a decode step over 1024
 * keys). */
#define FAI_CACHED_BYTES (1 << 20)
#define FAI_Q_FLOATS (FAI_TILE_ROWS * FAI_WHOLE_ROWS_DIM)
#define FAI_STATE_FLOATS (FAI_TILE_ROWS / 8 * FAI_PAD) /* a whole vector for few rows too */
#define FAI_KV_FLOATS (FAI_TILE_KEYS * FAI_WHOLE_KEYS_DIM)
FA_STATIC_ASSERT(FAI_MAX_HEAD_DIM_CPU <= 4 * FAI_WHOLE_ROWS_DIM &&
                     FAI_MAX_HEAD_DIM_CPU <= 4 * FAI_WHOLE_KEYS_DIM && FAI_TILE_ROWS % 4 == 0 &&
                     FAI_TILE_KEYS % 32 == 0 && FAI_CPU_NARROW_KEYS <= FAI_TILE_KEYS,
                 the_scratch_holds_every_head_dim);

/* What a task keeps on the stack: 191 KB, with 16 lanes 365 KB. The heads of a narrow tile share
 * it. */
typedef struct fai_scratch {
    float q_of_heads[FAI_Q_FLOATS] FAI_ALIGNED;
    float o_of_heads[FAI_Q_FLOATS] FAI_ALIGNED;
    /* A block of K, then of V, unless it is read in place. */
    float kv[FAI_KV_FLOATS + FAI_MAX_HEAD_DIM_CPU / FAI_RUN * 16] FAI_ALIGNED;
    float s_of_heads[FAI_TILE_KEYS * FAI_TILE_ROWS] FAI_ALIGNED;
    float max_of_heads[FAI_STATE_FLOATS] FAI_ALIGNED;
    float sum_of_heads[FAI_STATE_FLOATS] FAI_ALIGNED;
    float factor_of_heads[FAI_STATE_FLOATS] FAI_ALIGNED;
    int32_t limit[FAI_TILE_ROWS] FAI_ALIGNED; /* keys of the block that each row sees */
    /* Rows of K or V of the first head, as the caller has them: of the block that is worked on, and
     * of the one after it; the last one repeated to the end. */
    const char *rows_of_caller[2][FAI_TILE_KEYS + 1], **here, **ahead;
    int64_t here_stride, ahead_stride; /* bytes from a head's row to the next head's */
    int32_t ahead_count;
    int32_t ahead_together; /* its rows of all heads lie side by side */
    const char *copies[FAI_TILE_KEYS];
    /* The head in turn. Row j of its keys is at rows[j] + rows_at: the caller's or a copy in
     * float32. */
    float *q, *o, *s, *max, *sum;
    float *factor; /* what a new maximum makes of sum and o */
    const char *const *rows;
    int64_t rows_at;
    int64_t run_bytes; /* from the first FAI_RUN elements of a row of V to the next ones */
    int32_t rows_dtype;
    /* What is fetched meanwhile. Where the block ahead lies together, its share of it, in the order
     * of memory, which reaches the full rate of reading; `fetch` is where it begins. Else (NULL)
     * row j of the next head, or after the last head row j of the first one ahead, at
     * next[j] + next_at. */
    const char *fetch, *const *next;
    int64_t next_at;
} fai_scratch;

/* A tile, or a part of it, in the packed rows of one (sequence, kv head). */
typedef struct fai_tile {
    const fai_cpu_call *call;
    const fa_args *a;
    const fai_plan *plan;
    fai_cpu_task task;
    fai_range q_rows, k_rows; /* of the sequence, as places in the views */
    int64_t q_len, kv_len, offset, group;
    int64_t head_kv; /* in turn */
    int64_t first;   /* packed row: query first / group, head first % group of the group */
    int32_t rows;
    int32_t width; /* rows, padded to whole vectors */
    int32_t dim;   /* head_dim, padded */
    int32_t few;   /* rows as a step for few rows takes them: 1, 2, 4 ..; 0: the lanes hold rows */
    int32_t row_size; /* bytes of a row of K or V */
    int32_t fetches;  /* 0: K and V of the call are so few that they are in a cache anyway */
} fai_tile;

/* Rows [at, at + width) of a tile, which one micro-kernel takes. Their q, o and s lie together:
 * q + at * dim + d * width, likewise o, and s + at * FAI_TILE_KEYS + key * width. */
typedef struct fai_panel {
    int32_t at;
    int32_t width;
} fai_panel;

/* Whole vectors of rows. */
static inline int32_t fai_part_rows(int32_t dim) {
    const int32_t rows = dim <= FAI_WHOLE_ROWS_DIM       ? FAI_TILE_ROWS
                         : dim <= 2 * FAI_WHOLE_ROWS_DIM ? FAI_TILE_ROWS / 2
                                                         : FAI_TILE_ROWS / 4;
    return rows - rows % FAI_LANES;
}
/* Fewer keys where those of many heads go through the L2 together. */
static inline int32_t fai_block_keys(const fai_tile *t) {
    int32_t keys = FAI_TILE_KEYS;
    for (int32_t dim = FAI_WHOLE_KEYS_DIM; dim < t->dim; dim *= 2) keys /= 2;
    if (t->q_len * t->group > FAI_CPU_NARROW_ROWS) return keys;
    if (keys > FAI_CPU_NARROW_KEYS) keys = FAI_CPU_NARROW_KEYS;
    const int64_t key_bytes = (int64_t)t->row_size * t->a->heads_kv;
    while (keys > FAI_PAD && keys * key_bytes > FAI_NARROW_BLOCK_BYTES) keys /= 2;
    return keys;
}
static inline int32_t fai_round_up(int32_t x, int32_t unit) { return (x + unit - 1) / unit * unit; }
static inline int64_t fai_query(const fai_tile *t, int32_t row) {
    return (t->first + row) / t->group;
}
static inline int64_t fai_head(const fai_tile *t, int32_t row) {
    return t->head_kv * t->group + (t->first + row) % t->group;
}
static inline int32_t fai_element_size(int32_t dtype) { return dtype == FA_DTYPE_F32 ? 4 : 2; }
static inline const void *fai_element(const void *data, int64_t at, int32_t dtype) {
    return (const char *)data + at * fai_element_size(dtype);
}

/* Vectors are taken in threes, but so that none is left alone: two sums in flight for each scalar
 * do not hide the latency of an FMA as well as three. */
static inline fai_panel fai_panel_at(const fai_tile *t, int32_t at) {
    const int32_t left = (t->width - at) / FAI_LANES;
    const int32_t most = left == 4 ? 2 : FAI_MAX_SPAN, span = left < most ? left : most;
    const fai_panel panel = {at, span * FAI_LANES};
    return panel;
}
static inline fai_panel fai_panel_of(const fai_tile *t, int32_t row) {
    fai_panel panel = fai_panel_at(t, 0);
    while (row >= panel.at + panel.width) panel = fai_panel_at(t, panel.at + panel.width);
    return panel;
}

/* In the kernel for few rows: how many rows a tile is filled up to, how many elements of a row lie
 * side by side in a vector of q, and how many such vectors there are. */
static inline int32_t fai_few_rows(int32_t rows) {
    int32_t few = 1;
    while (few < rows) few *= 2;
    return few;
}
static inline int fai_few_run(const int rows) {
    return rows == 1 ? FAI_LANES : rows <= 4 ? FAI_LANES / 2 : FAI_LANES / 4;
}
static inline int fai_few_vectors(const int rows) { return rows * fai_few_run(rows) / FAI_LANES; }

/* The head's part of what the heads share. */
static void fai_turn_to_head(fai_tile *t, fai_scratch *w, int64_t index) {
    const int64_t at = index * (t->few ? t->few : t->width);
    t->head_kv = t->task.head_kv + index;
    w->q = w->q_of_heads + at * t->dim;
    w->o = w->o_of_heads + at * t->dim;
    w->s = w->s_of_heads + at * FAI_TILE_KEYS;
    w->max = w->max_of_heads + index * t->width;
    w->sum = w->sum_of_heads + index * t->width;
    w->factor = w->factor_of_heads + index * t->width;
}

/* Words of 32 bits that a row of q, K or V is: elements, or pairs of them up to whole tiles. */
static inline int32_t fai_row_words(const fai_tile *t) {
    return FAI_PAIRS ? fai_round_up(t->dim, 32) / 2 : t->dim;
}

/* Row r of q as float32 or in pairs, zeros beyond head_dim; none beyond the tile's rows. */
static void fai_load_q_row(const fai_tile *t, int32_t r, float *to) {
    const fa_args *a = t->a;
    memset(to, 0, sizeof(float) * (size_t)fai_row_words(t));
    if (r >= t->rows) return;
    const int64_t at =
        fai_q_offset(a, &a->q, t->task.seq, fai_head(t, r), t->q_rows.begin + fai_query(t, r));
    if (FAI_PAIRS)
        memcpy(to, fai_element(a->q.data, at, a->dtype), (size_t)t->row_size);
    else
        fai_row_to_float(to, fai_element(a->q.data, at, a->dtype), a->head_dim, a->dtype);
}

static void fai_load_q(const fai_tile *t, fai_scratch *w) {
    float rows[FAI_LANES][FAI_MAX_HEAD_DIM_CPU];
    memset(w->o, 0, sizeof(float) * (size_t)(t->few ? t->few : t->width) * (size_t)t->dim);
    for (int32_t r = 0; r < t->width; ++r) {
        w->max[r] = -INFINITY;
        w->sum[r] = 0;
    }
    for (int32_t r = 0; r < t->few; ++r) {
        const int32_t run = fai_few_run(t->few), turn = run * t->few;
        fai_load_q_row(t, r, rows[0]);
        float *to = w->q + r * run;
        for (int32_t d = 0; d < t->dim; d += run, to += turn) {
            if (run == FAI_LANES) /* of a size that is not constant, a copy starts in 20 ns */
                memcpy(to, rows[0] + d, sizeof(fai_vec));
            else if (run == FAI_LANES / 2)
                memcpy(to, rows[0] + d, sizeof(fai_vec) / 2);
            else
                memcpy(to, rows[0] + d, sizeof(fai_vec) / 4);
        }
    }
    for (int32_t r = 0; !t->few && r < t->width; r += FAI_LANES) {
        const fai_panel panel = fai_panel_of(t, r);
        float *to = w->q + panel.at * t->dim + (r - panel.at);
        for (int32_t i = 0; i < FAI_LANES; ++i) fai_load_q_row(t, r + i, rows[i]);
        for (int32_t d = 0; d < fai_row_words(t); d += FAI_LANES)
            fai_transpose(to + d * panel.width, panel.width, rows[0] + d, FAI_MAX_HEAD_DIM_CPU);
    }
}

/* Makes the block that was ahead the one to work on. */
static void fai_step_ahead(fai_scratch *w) {
    const char **const done = w->here;
    w->here = w->ahead;
    w->ahead = done;
    w->here_stride = w->ahead_stride;
}

/* Notes where the next `keys` rows of K or V lie. Rows are a stride apart, up to a page's end. */
static void fai_look_ahead(const fai_tile *t, const fa_view *view, int64_t key, int32_t keys,
                           fai_scratch *w) {
    const fa_args *a = t->a;
    const int64_t size = fai_element_size(a->dtype);
    int32_t j = 0;
    while (j < keys) {
        const int64_t row = t->k_rows.begin + key + j;
        const int64_t run = a->page_size > 0 ? a->page_size - row % a->page_size : keys;
        const int32_t end = (int32_t)fai_min64(j + run, keys);
        const char *from = (const char *)fai_element(
            view->data, fai_kv_offset(a, view, t->task.seq, t->task.head_kv, row), a->dtype);
        for (int64_t at = 0; j < end; ++j, at += view->stride_seq * size) w->ahead[j] = from + at;
    }
    for (; j <= fai_round_up(keys, 32); ++j) w->ahead[j] = w->ahead[j > 0 ? j - 1 : 0];
    w->ahead_stride = view->stride_head * size;
    w->ahead_count = keys;
    w->ahead_together = a->page_size == 0 && view->stride_seq == t->task.heads * a->head_dim &&
                        (t->task.heads == 1 || view->stride_head == a->head_dim);
}

/* V of a wide tile: FAI_RUN elements of each key in turn, then the next ones of each. A step for
 * outputs takes so many columns of o; of rows as the caller has them it would read a part of a line
 * each, on few lines of the cache. Runs are a line more apart, for the same reason. */
static void fai_pack_values(const fai_tile *t, fai_scratch *w, int32_t keys, int64_t from_at) {
    const fa_args *a = t->a;
    const int32_t pitch = keys * FAI_RUN + 16;
    float padded[FAI_MAX_HEAD_DIM_CPU] = {0};
    w->run_bytes = pitch * (int64_t)sizeof(float);
    for (int32_t j = 0; j < keys; ++j) {
        const float *row = (const float *)(const void *)(w->here[j] + from_at);
        float *to = w->kv + j * FAI_RUN;
        if (a->dtype != FA_DTYPE_F32 || a->head_dim != t->dim) {
            fai_row_to_float(padded, row, a->head_dim, a->dtype);
            row = padded;
        }
        w->copies[j] = (const char *)to;
        for (int32_t d = 0; d < t->dim; d += FAI_RUN, to += pitch)
            memcpy(to, row + d, FAI_RUN * sizeof(float));
    }
}

/* The rows of K, or the values, of the head in turn, the last one repeated up to a whole step. Rows
 * of whole vectors are read where they are when the tile is narrow or they lie side by side, 16-bit
 * ones only for up to four rows; otherwise copies are better: rows that lie a power of two apart
 * fall on few lines of the cache. */
static void fai_take_rows(const fai_tile *t, fai_scratch *w, int32_t keys, const int values) {
    const fa_args *a = t->a;
    const int64_t head = t->head_kv - t->task.head_kv, from_at = head * w->here_stride;
    const int is_last = head + 1 == t->task.heads;
    const int in_place = t->few > 0 && (t->few <= 4 || a->dtype == FA_DTYPE_F32);
    const int in_panels = a->dtype == FA_DTYPE_F32 && (t->width <= FAI_MAX_SPAN * FAI_LANES ||
                                                       w->here[1] - w->here[0] == t->row_size);
    const int is_packed = FAI_LANES > 8 && values && t->width > FAI_MAX_SPAN * FAI_LANES;
    w->next = is_last ? w->ahead : w->here;
    w->next_at = is_last ? 0 : from_at + w->here_stride;
    w->fetch = w->ahead_together ? w->ahead[0] + head * keys * t->row_size : NULL;
    w->run_bytes = FAI_RUN * sizeof(float);
    if (FAI_PAIRS || (a->head_dim == t->dim && (in_place || in_panels) && !is_packed)) {
        w->rows = w->here;
        w->rows_at = from_at;
        w->rows_dtype = a->dtype;
        return;
    }
    w->rows = w->copies;
    w->rows_at = 0;
    w->rows_dtype = FA_DTYPE_F32;
    if (is_packed) {
        fai_pack_values(t, w, keys, from_at);
        return;
    }
    int32_t j = 0;
    for (; j < keys; ++j) {
        float *to = w->kv + j * t->dim;
        fai_row_to_float(to, w->here[j] + from_at, a->head_dim, a->dtype);
        for (int32_t d = a->head_dim; d < t->dim; ++d) to[d] = 0;
        w->copies[j] = (const char *)to;
    }
    for (; j < fai_round_up(keys, FAI_PAD); ++j) w->copies[j] = w->copies[j - 1];
}

#endif /* FA_CPU_TILE_H */
