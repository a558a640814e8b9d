/* fa_cpu_algorithm.h - the CPU kernel: one tile of packed rows against the keys of one split.
 *
 * Included once by each fa_cpu_<set>.c, which says FAI_LANES and may override operations of
 * fa_cpu_vector.h. It changes when the algorithm does; masks and addresses come from fa_mask.h.
 *
 * The rows of a tile lie in the lanes. Q, the scores S and O are kept transposed ([dim][row],
 * [key][row], [dim][row]), so that maxima, sums and rescaling go down the lanes without a single
 * shuffle, and an element of K or V is a scalar that is read once for 8 to 24 rows. K and V need
 * no packing: a block of keys is a list of pointers to float32 rows, which are the caller's own
 * where that is possible and scratch where they are converted.
 *
 * With up to FAI_FEW_ROWS rows most lanes would be idle: then the lanes run along head_dim (S) and
 * along the keys (softmax), each row of K and V being read once for all rows of the tile.
 *
 * Sums over keys are made in blocks, each from zero, so that rounding grows with the number of
 * blocks and not of keys. */
#include "fa_cpu.h"
#include "fa_cpu_vector.h"

/* head_dim is padded to whole vectors of any width; keys to what one step of a micro-kernel takes.
 * Both are at least 8. */
#define FAI_PAD (FAI_LANES > 8 ? FAI_LANES : 8)
#define FAI_FEW_ROWS 4
#define FAI_MAX_SPAN 3 /* vectors of rows that one micro-kernel holds */
#define FAI_Q_FLOATS (FAI_CPU_TILE_ROWS * 128)
#define FAI_KV_FLOATS (FAI_CPU_TILE_KEYS * 256)

/* What a tile keeps on the stack: 187 KB. */
typedef struct fai_scratch {
    float q[FAI_Q_FLOATS] FAI_ALIGNED;
    float o[FAI_Q_FLOATS] FAI_ALIGNED;
    float
        kv[FAI_KV_FLOATS] FAI_ALIGNED; /* a block of K, then of V, where it is not read in place */
    float s[FAI_CPU_TILE_KEYS * FAI_CPU_TILE_ROWS] FAI_ALIGNED;
    float max[FAI_CPU_TILE_ROWS] FAI_ALIGNED;
    float sum[FAI_CPU_TILE_ROWS] FAI_ALIGNED;
    float factor[FAI_CPU_TILE_ROWS] FAI_ALIGNED;  /* what a new maximum makes of sum and o */
    int32_t limit[FAI_CPU_TILE_ROWS] FAI_ALIGNED; /* keys of the block that each row sees */
    const float *rows[FAI_CPU_TILE_KEYS];         /* the block that is worked on, in float32 */
    const void *ahead[FAI_CPU_TILE_KEYS];         /* the block after it, as the caller has it */
    int32_t ahead_count;
} fai_scratch;

/* A tile, or a part of it, in the packed rows of one (sequence, kv head). */
typedef struct fai_tile {
    const fa_args *a;
    const fai_plan *plan;
    fai_cpu_task task;
    fai_range q_rows, k_rows; /* of the sequence, as places in the views */
    int64_t q_len, kv_len, offset, group;
    int64_t first; /* packed row: query first / group, head first % group of the group */
    int32_t rows;
    int32_t width;    /* rows, padded to whole vectors */
    int32_t dim;      /* head_dim, padded */
    int32_t few;      /* 1: the lanes do not hold rows */
    int32_t row_size; /* bytes of a row of K or V */
} fai_tile;

/* Rows [at, at + width) of a tile, which one micro-kernel takes. Their q, o and s lie together:
 * q + at * dim + d * width, likewise o, and s + at * FAI_CPU_TILE_KEYS + key * width. */
typedef struct fai_panel {
    int32_t at;
    int32_t width;
} fai_panel;

static inline int32_t fai_round_up(int32_t x, int32_t unit) { return (x + unit - 1) / unit * unit; }
static inline int64_t fai_query(const fai_tile *t, int32_t row) {
    return (t->first + row) / t->group;
}
static inline int64_t fai_head(const fai_tile *t, int32_t row) {
    return t->task.head_kv * t->group + (t->first + row) % t->group;
}
static inline const void *fai_element(const void *data, int64_t at, int32_t dtype) {
    return (const char *)data + at * (dtype == FA_DTYPE_F32 ? 4 : 2);
}

/* Vectors are taken in threes, but so that none is left alone: two sums in flight for each scalar
 * do not hide the latency of an FMA as well as three. */
static inline fai_panel fai_panel_at(const fai_tile *t, int32_t at) {
    const int32_t left = (t->width - at) / FAI_LANES;
    const int32_t span = left == 2 || left == 4 ? 2 : (left < 3 ? left : 3);
    const fai_panel panel = {at, span * FAI_LANES};
    return panel;
}
static inline fai_panel fai_panel_of(const fai_tile *t, int32_t row) {
    fai_panel panel = fai_panel_at(t, 0);
    while (row >= panel.at + panel.width) panel = fai_panel_at(t, panel.at + panel.width);
    return panel;
}

/* ---- loading ----------------------------------------------------------------------------------
 */

static void fai_load_q(const fai_tile *t, fai_scratch *w) {
    const fa_args *a = t->a;
    float row[FAI_MAX_HEAD_DIM_CPU];
    memset(w->q, 0, sizeof(float) * (size_t)t->width * (size_t)t->dim);
    memset(w->o, 0, sizeof(float) * (size_t)t->width * (size_t)t->dim);
    for (int32_t r = 0; r < t->width; ++r) {
        w->max[r] = -INFINITY;
        w->sum[r] = 0;
    }
    for (int32_t r = 0; r < t->rows; ++r) {
        const int64_t at =
            fai_q_offset(a, &a->q, t->task.seq, fai_head(t, r), t->q_rows.begin + fai_query(t, r));
        const void *from = fai_element(a->q.data, at, a->dtype);
        if (t->few) {
            fai_row_to_float(w->q + r * t->dim, from, a->head_dim, a->dtype);
            continue;
        }
        const fai_panel panel = fai_panel_of(t, r);
        float *to = w->q + panel.at * t->dim + (r - panel.at);
        fai_row_to_float(row, from, a->head_dim, a->dtype);
        for (int32_t d = 0; d < a->head_dim; ++d) to[d * panel.width] = row[d];
    }
}

/* Notes where the next `keys` rows of K or V lie; the micro-kernels then fetch them while they work
 * on the block before. */
static void fai_look_ahead(const fai_tile *t, const fa_view *view, int64_t key, int32_t keys,
                           fai_scratch *w) {
    const fa_args *a = t->a;
    for (int32_t j = 0; j < keys; ++j)
        w->ahead[j] = fai_element(
            view->data,
            fai_kv_offset(a, view, t->task.seq, t->task.head_kv, t->k_rows.begin + key + j),
            a->dtype);
    w->ahead_count = keys;
}
static inline void fai_fetch(const fai_tile *t, const fai_scratch *w, int32_t begin, int32_t end) {
    for (int32_t j = begin; j < end && j < w->ahead_count; ++j)
        for (int32_t at = 0; at < t->row_size; at += 64)
            FAI_PREFETCH((const char *)w->ahead[j] + at);
}

/* Makes the block that was ahead the one to work on, and repeats its last row up to a whole step.
 * Float32 rows of whole vectors are read where they are when the tile is narrow; otherwise copies
 * are better: rows that lie a power of two apart fall on few lines of the cache. */
static void fai_take_block(const fai_tile *t, fai_scratch *w) {
    const fa_args *a = t->a;
    const int in_place =
        a->dtype == FA_DTYPE_F32 && a->head_dim == t->dim && t->width <= FAI_MAX_SPAN * FAI_LANES;
    int32_t j = 0;
    for (; j < w->ahead_count; ++j) {
        if (in_place) {
            w->rows[j] = (const float *)w->ahead[j];
            continue;
        }
        float *to = w->kv + j * t->dim;
        fai_row_to_float(to, w->ahead[j], a->head_dim, a->dtype);
        for (int32_t d = a->head_dim; d < t->dim; ++d) to[d] = 0;
        w->rows[j] = to;
    }
    for (; j % FAI_PAD != 0; ++j) w->rows[j] = w->rows[j - 1];
}

/* ---- many rows: the rows in the lanes ---------------------------------------------------------
 */

/* S[key][row] = scale * K[key] . Q[row] for `step` keys and `span` vectors of rows. */
FAI_INLINE void fai_score_step(const float *const *rows, const float *q, int32_t dim, float scale,
                               float *s, const int step, const int span) {
    fai_vec sum[8][FAI_MAX_SPAN];
    const float *k[8];
    for (int i = 0; i < step; ++i) {
        k[i] = rows[i];
        for (int c = 0; c < span; ++c) sum[i][c] = fai_splat(0);
    }
    for (int32_t d = 0; d < dim; ++d, q += span * FAI_LANES) {
        fai_vec x[FAI_MAX_SPAN];
        for (int c = 0; c < span; ++c) x[c] = fai_load(q + c * FAI_LANES);
        for (int i = 0; i < step; ++i)
            for (int c = 0; c < span; ++c) sum[i][c] = FAI_FMA(fai_splat(k[i][d]), x[c], sum[i][c]);
    }
    for (int i = 0; i < step; ++i)
        for (int c = 0; c < span; ++c)
            fai_store(s + (i * span + c) * FAI_LANES, sum[i][c] * fai_splat(scale));
}

/* O[dim][row] = O * factor + sum over the keys of V[key][dim] * P[key][row], for `step` dims. */
FAI_INLINE void fai_output_step(const float *const *rows, int32_t at, const float *p, int32_t keys,
                                const float *factor, float *o, const int step, const int span) {
    fai_vec sum[8][FAI_MAX_SPAN];
    for (int i = 0; i < step; ++i)
        for (int c = 0; c < span; ++c) sum[i][c] = fai_splat(0);
    for (int32_t j = 0; j < keys; ++j, p += span * FAI_LANES) {
        const float *v = rows[j] + at;
        fai_vec x[FAI_MAX_SPAN];
        for (int c = 0; c < span; ++c) x[c] = fai_load(p + c * FAI_LANES);
        for (int i = 0; i < step; ++i)
            for (int c = 0; c < span; ++c) sum[i][c] = FAI_FMA(fai_splat(v[i]), x[c], sum[i][c]);
    }
    for (int i = 0; i < step; ++i)
        for (int c = 0; c < span; ++c) {
            float *to = o + (i * span + c) * FAI_LANES;
            fai_store(to, FAI_FMA(fai_load(to), fai_load(factor + c * FAI_LANES), sum[i][c]));
        }
}

/* Makes weights of one vector of rows' scores. Where a limit is given, key j of the block counts
 * for a row when j < limit: others become -inf, whatever they were. While a row has seen nothing
 * but -inf, 0 stands in for its maximum, for -inf - -inf is NaN. */
FAI_INLINE void fai_softmax_lanes(float *s, int32_t keys, int32_t width, const int32_t *limit,
                                  float *max, float *sum, float *factor) {
    const fai_vec nothing = fai_splat(-INFINITY), old_max = fai_load(max);
    fai_vec new_max = old_max;
    fai_ints seen = {0};
    if (limit) memcpy(&seen, limit, sizeof(seen));
    for (int32_t j = 0; j < keys; ++j) {
        fai_vec x = fai_load(s + j * width);
        if (limit) {
            x = fai_select(fai_less_ints(j - (fai_ints){0}, seen), x, nothing);
            fai_store(s + j * width, x);
        }
        new_max = FAI_MAX(new_max, x);
    }
    const fai_vec base = fai_select(fai_less(new_max, fai_splat(-FLT_MAX)), fai_splat(0), new_max);
    const fai_vec change = fai_exp2((old_max - base) * fai_splat(FAI_LOG2_E));
    fai_vec block = fai_splat(0);
    for (int32_t j = 0; j < keys; ++j) {
        const fai_vec p = fai_exp2((fai_load(s + j * width) - base) * fai_splat(FAI_LOG2_E));
        fai_store(s + j * width, p);
        block += p;
    }
    fai_store(max, new_max);
    fai_store(factor, change);
    fai_store(sum, FAI_FMA(fai_load(sum), change, block));
}

/* A panel's scores, and its share of o. The block ahead is fetched along with the first panel. */
FAI_INLINE void fai_scores(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys,
                           const int step, const int span) {
    for (int32_t j = 0; j < keys; j += step) {
        if (at == 0) fai_fetch(t, w, j, j + step);
        fai_score_step(w->rows + j, w->q + at * t->dim, t->a->head_dim, t->a->scale,
                       w->s + at * FAI_CPU_TILE_KEYS + j * span * FAI_LANES, step, span);
    }
}
FAI_INLINE void fai_outputs(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys,
                            const int step, const int span) {
    const int32_t fetched = fai_round_up(FAI_CPU_TILE_KEYS * step, t->dim) / t->dim;
    for (int32_t d = 0; d < t->dim; d += step) {
        if (at == 0) fai_fetch(t, w, d / step * fetched, (d / step + 1) * fetched);
        fai_output_step(w->rows, d, w->s + at * FAI_CPU_TILE_KEYS, keys, w->factor + at,
                        w->o + at * t->dim + d * span * FAI_LANES, step, span);
    }
}

static void fai_range_of_limits(const int32_t *limit, int32_t count, int32_t *least,
                                int32_t *most) {
    *least = *most = limit[0];
    for (int32_t r = 1; r < count; ++r) {
        *least = limit[r] < *least ? limit[r] : *least;
        *most = limit[r] > *most ? limit[r] : *most;
    }
}

/* Scores and weights of the keys that a panel sees. Eight to twelve sums in flight hide the latency
 * of an FMA. */
static void fai_weights_lanes(const fai_tile *t, fai_scratch *w, int32_t keys) {
    int32_t least, most;
    for (fai_panel p = fai_panel_at(t, 0); p.at < t->width; p = fai_panel_at(t, p.at + p.width)) {
        fai_range_of_limits(w->limit + p.at, p.width, &least, &most);
        if (p.width == 3 * FAI_LANES)
            fai_scores(t, w, p.at, most, 4, 3);
        else if (p.width == 2 * FAI_LANES)
            fai_scores(t, w, p.at, most, 4, 2);
        else
            fai_scores(t, w, p.at, most, 8, 1);
        for (int32_t c = 0; c < p.width; c += FAI_LANES)
            fai_softmax_lanes(w->s + p.at * FAI_CPU_TILE_KEYS + c, most, p.width,
                              least < keys ? w->limit + p.at + c : NULL, w->max + p.at + c,
                              w->sum + p.at + c, w->factor + p.at + c);
    }
}
static void fai_outputs_lanes(const fai_tile *t, fai_scratch *w) {
    int32_t least, most;
    for (fai_panel p = fai_panel_at(t, 0); p.at < t->width; p = fai_panel_at(t, p.at + p.width)) {
        fai_range_of_limits(w->limit + p.at, p.width, &least, &most);
        if (most == 0) continue;
        if (p.width == 3 * FAI_LANES)
            fai_outputs(t, w, p.at, most, 4, 3);
        else if (p.width == 2 * FAI_LANES)
            fai_outputs(t, w, p.at, most, 4, 2);
        else
            fai_outputs(t, w, p.at, most, 8, 1);
    }
}

/* ---- few rows: head_dim, then the keys in the lanes -------------------------------------------
 */

FAI_INLINE void fai_scores_few(const fai_tile *t, fai_scratch *w, int32_t keys, const int rows) {
    const int32_t dim = t->dim;
    for (int32_t j = 0; j < keys; ++j) {
        const float *k = w->rows[j];
        fai_fetch(t, w, j, j + 1);
        fai_vec sum[FAI_FEW_ROWS];
        for (int r = 0; r < rows; ++r) sum[r] = fai_splat(0);
        for (int32_t d = 0; d < dim; d += FAI_LANES) {
            const fai_vec x = fai_load(k + d);
            for (int r = 0; r < rows; ++r)
                sum[r] = FAI_FMA(x, fai_load(w->q + r * dim + d), sum[r]);
        }
        for (int r = 0; r < rows; ++r)
            w->s[r * FAI_CPU_TILE_KEYS + j] = fai_sum(sum[r]) * t->a->scale;
    }
}

FAI_INLINE void fai_output_few(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys,
                               const int rows, const int span) {
    fai_vec sum[FAI_FEW_ROWS][8];
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < span; ++c) sum[r][c] = fai_splat(0);
    for (int32_t j = 0; j < keys; ++j) {
        if (at == 0) fai_fetch(t, w, j, j + 1);
        for (int c = 0; c < span; ++c) {
            const fai_vec v = fai_load(w->rows[j] + at + c * FAI_LANES);
            for (int r = 0; r < rows; ++r)
                sum[r][c] = FAI_FMA(fai_splat(w->s[r * FAI_CPU_TILE_KEYS + j]), v, sum[r][c]);
        }
    }
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < span; ++c) {
            float *to = w->o + r * t->dim + at + c * FAI_LANES;
            fai_store(to, FAI_FMA(fai_load(to), fai_splat(w->factor[r]), sum[r][c]));
        }
}
FAI_INLINE void fai_output_rows(const fai_tile *t, fai_scratch *w, int32_t keys, const int rows,
                                const int span) {
    int32_t d = 0;
    for (; d + span * FAI_LANES <= t->dim; d += span * FAI_LANES)
        fai_output_few(t, w, d, keys, rows, span);
    for (; d < t->dim; d += FAI_LANES) fai_output_few(t, w, d, keys, rows, 1);
}

/* As fai_softmax_lanes, for one row whose scores lie along the lanes. */
static void fai_softmax_row(fai_scratch *w, int32_t row, int32_t keys) {
    float *s = w->s + row * FAI_CPU_TILE_KEYS;
    const int32_t padded = fai_round_up(keys, FAI_LANES);
    for (int32_t j = w->limit[row]; j < padded; ++j) s[j] = -INFINITY;
    fai_vec lanes = fai_splat(w->max[row]);
    for (int32_t j = 0; j < padded; j += FAI_LANES) lanes = FAI_MAX(lanes, fai_load(s + j));
    const float max = fai_largest(lanes), base = max < -FLT_MAX ? 0 : max;
    const fai_vec change = fai_exp2(fai_splat((w->max[row] - base) * FAI_LOG2_E));
    fai_vec block = fai_splat(0);
    for (int32_t j = 0; j < padded; j += FAI_LANES) {
        const fai_vec p = fai_exp2((fai_load(s + j) - fai_splat(base)) * fai_splat(FAI_LOG2_E));
        fai_store(s + j, p);
        block += p;
    }
    w->max[row] = max;
    w->factor[row] = fai_largest(change);
    w->sum[row] = w->sum[row] * w->factor[row] + fai_sum(block);
}

static void fai_weights_few(const fai_tile *t, fai_scratch *w, int32_t keys) {
    if (t->rows == 1)
        fai_scores_few(t, w, keys, 1);
    else if (t->rows == 2)
        fai_scores_few(t, w, keys, 2);
    else if (t->rows == 3)
        fai_scores_few(t, w, keys, 3);
    else
        fai_scores_few(t, w, keys, 4);
    for (int32_t r = 0; r < t->rows; ++r) fai_softmax_row(w, r, keys);
}
static void fai_outputs_few(const fai_tile *t, fai_scratch *w, int32_t keys) {
    if (t->rows == 1)
        fai_output_rows(t, w, keys, 1, 8);
    else if (t->rows == 2)
        fai_output_rows(t, w, keys, 2, 4);
    else if (t->rows == 3)
        fai_output_rows(t, w, keys, 3, 2);
    else
        fai_output_rows(t, w, keys, 4, 2);
}

/* ---- a tile -----------------------------------------------------------------------------------
 */

/* Divides row r of o by its sum and writes it and its lse, to the caller's tensors or to the
 * split's share of the workspace. A sum of 0 means no key, or none but -inf: o is 0 and lse -inf.
 */
static void fai_write_row(const fai_tile *t, const fai_scratch *w, int32_t r) {
    const fa_args *a = t->a;
    float row[FAI_MAX_HEAD_DIM_CPU];
    const float sum = w->sum[r], divisor = sum == 0 ? 1 : sum;
    const fai_panel panel = fai_panel_of(t, r);
    const float *o = t->few ? w->o + r * t->dim : w->o + panel.at * t->dim + (r - panel.at);
    const int32_t next = t->few ? 1 : panel.width;
    for (int32_t d = 0; d < a->head_dim; ++d) row[d] = o[d * next] / divisor;
    const float lse = fai_log_sum(w->max[r], sum);
    const int64_t head = fai_head(t, r), query = fai_query(t, r);
    if (t->plan->splits > 1) {
        const int64_t rows = (int64_t)a->batch * a->heads_q * a->q_len;
        const int64_t at =
            t->task.split * rows + (t->task.seq * a->heads_q + head) * a->q_len + query;
        char *space = (char *)a->workspace;
        memcpy(space + t->plan->partial_o_at + (size_t)at * (size_t)a->head_dim * sizeof(float),
               row, (size_t)a->head_dim * sizeof(float));
        memcpy(space + t->plan->partial_lse_at + (size_t)at * sizeof(float), &lse, sizeof(float));
        return;
    }
    const int64_t place = t->q_rows.begin + query;
    const int64_t at = fai_q_offset(a, &a->o, t->task.seq, head, place);
    fai_row_from_float((void *)fai_element(a->o.data, at, a->dtype), row, a->head_dim, a->dtype);
    if (a->lse.data)
        ((float *)a->lse.data)[fai_q_offset(a, &a->lse, t->task.seq, head, place)] = lse;
}

/* Keys of the block at `key` that each row sees; rows that only fill a vector see what the last row
 * sees. */
static void fai_set_limits(const fai_tile *t, fai_scratch *w, int64_t key, int32_t keys) {
    for (int32_t r = 0; r < t->width; ++r) {
        const int64_t query = fai_query(t, r < t->rows ? r : t->rows - 1);
        const int64_t seen = fai_visible_keys(query, t->offset, t->kv_len) - key;
        w->limit[r] = (int32_t)fai_clamp64(seen, 0, keys);
    }
}

/* Step 1: q. Step 2: the blocks of keys that any row sees. Step 3: o and lse. */
static void fai_run_part(const fai_tile *t, fai_scratch *w) {
    const fa_args *a = t->a;
    const int64_t block = a->head_dim <= 256 ? FAI_CPU_TILE_KEYS : FAI_CPU_TILE_KEYS / 2;
    const fai_range queries = {fai_query(t, 0), fai_query(t, t->rows - 1) + 1};
    const fai_range split = fai_split_keys(t->task.split, t->plan->splits, a->split_keys, t->kv_len,
                                           t->plan->tile_keys);
    const fai_blocks blocks = fai_key_blocks(queries, split, t->offset, t->kv_len, block);
    const int64_t end =
        fai_min64(split.end, fai_visible_keys(queries.end - 1, t->offset, t->kv_len));
    fai_load_q(t, w);
    if (blocks.end > 0)
        fai_look_ahead(t, &a->k, split.begin, (int32_t)fai_min64(block, end - split.begin), w);
    for (int64_t b = 0; b < blocks.end; ++b) {
        const int64_t key = split.begin + b * block, next = key + block;
        const int32_t keys = w->ahead_count;
        if (b == 0 || b >= blocks.full) fai_set_limits(t, w, key, keys);
        fai_take_block(t, w);
        fai_look_ahead(t, &a->v, key, keys, w);
        if (t->few)
            fai_weights_few(t, w, keys);
        else
            fai_weights_lanes(t, w, keys);
        fai_take_block(t, w);
        fai_look_ahead(t, &a->k, next, (int32_t)fai_clamp64(end - next, 0, block), w);
        if (t->few)
            fai_outputs_few(t, w, keys);
        else
            fai_outputs_lanes(t, w);
    }
    for (int32_t r = 0; r < t->rows; ++r) fai_write_row(t, w, r);
}

static void fai_run_tile(const fa_args *a, const fai_plan *plan, const fai_cpu_task *task) {
    fai_scratch scratch;
    fai_tile t;
    t.a = a;
    t.plan = plan;
    t.task = *task;
    t.q_rows = fai_q_rows(a, task->seq);
    t.k_rows = fai_k_rows(a, task->seq);
    t.q_len = t.q_rows.end - t.q_rows.begin;
    t.kv_len = t.k_rows.end - t.k_rows.begin;
    t.offset = fai_offset(a, task->seq, t.q_len, t.kv_len);
    t.group = a->heads_q / a->heads_kv;
    t.dim = fai_round_up(a->head_dim, FAI_PAD);
    t.row_size = a->head_dim * (a->dtype == FA_DTYPE_F32 ? 4 : 2);
    const int64_t begin = task->tile * plan->tile_rows;
    const int64_t end = fai_min64(begin + plan->tile_rows, t.q_len * t.group);
    const int64_t part = t.dim <= 128
                             ? FAI_CPU_TILE_ROWS
                             : (t.dim <= 256 ? FAI_CPU_TILE_ROWS / 2 : FAI_CPU_TILE_ROWS / 4);
    for (t.first = begin; t.first < end; t.first += part) {
        t.rows = (int32_t)fai_min64(part, end - t.first);
        t.few = t.rows <= FAI_FEW_ROWS;
        t.width = fai_round_up(t.rows, FAI_LANES);
        fai_run_part(&t, &scratch);
    }
}

/* Joins the splits of one row in their order: weights exp(lse - max) over the splits that saw a
 * key. What a split without keys left in the workspace is not looked at. */
static void fai_merge_row(const fa_args *a, const fai_plan *plan, int64_t seq, int64_t head,
                          int64_t query) {
    const int64_t rows = (int64_t)a->batch * a->heads_q * a->q_len;
    const int64_t flat = (seq * a->heads_q + head) * a->q_len + query;
    const float *o = (const float *)((const char *)a->workspace + plan->partial_o_at);
    const float *lse = (const float *)((const char *)a->workspace + plan->partial_lse_at);
    float row[FAI_MAX_HEAD_DIM_CPU] = {0}, max = -INFINITY, sum = 0;
    for (int32_t s = 0; s < plan->splits; ++s) {
        const float x = lse[s * rows + flat];
        max = max < x ? x : max;
    }
    for (int32_t s = 0; s < plan->splits; ++s) {
        const float x = lse[s * rows + flat];
        if (x == -INFINITY) continue;
        const float weight = fai_largest(fai_exp2(fai_splat((x - max) * FAI_LOG2_E)));
        const float *part = o + (s * rows + flat) * a->head_dim;
        sum += weight;
        for (int32_t d = 0; d < a->head_dim; ++d) row[d] += weight * part[d];
    }
    const float divisor = sum == 0 ? 1 : sum;
    for (int32_t d = 0; d < a->head_dim; ++d) row[d] /= divisor;
    const int64_t place = fai_q_rows(a, seq).begin + query;
    const int64_t at = fai_q_offset(a, &a->o, seq, head, place);
    fai_row_from_float((void *)fai_element(a->o.data, at, a->dtype), row, a->head_dim, a->dtype);
    if (a->lse.data)
        ((float *)a->lse.data)[fai_q_offset(a, &a->lse, seq, head, place)] = fai_log_sum(max, sum);
}
