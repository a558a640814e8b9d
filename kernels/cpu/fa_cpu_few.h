/* fa_cpu_few.h - the kernel for up to FAI_FEW_ROWS rows: the lanes run along head_dim for S and O.
 * Every row of K and V is read once for all rows of the tile.
 *
 * The tile's rows are filled up to 1, 2 or 4, and with sixteen lanes up to 8 or 16. Scores and
 * weights of one key lie side by side, s[key * rows + row], so that a vector holds those of several
 * keys and the softmax takes all rows at once.
 *
 * Loops know at compile time whether they fetch: where K and V are in a cache, a loop that is cut
 * into lines for fetches alone takes a fifth longer.
 *
 * Part of fa_cpu_algorithm.h; it changes when a micro-kernel does. */
#ifndef FA_CPU_FEW_H
#define FA_CPU_FEW_H

#include "fa_cpu_softmax.h"

/* Products of q with `keys` rows of K from row j on, for each of them and each vector of q. A
 * vector holds `run` neighbouring elements of one row, or fewer of as many rows as it has room for:
 * those of K are repeated for every row, q lies so already. Each key has sums of its own, which
 * hide the latency of an FMA. */
FAI_INLINE void fai_multiply_few(const fai_tile *t, const fai_scratch *w, int32_t j, fai_vec *sum,
                                 const int keys, const int rows, const int dtype,
                                 const int fetches) {
    const int vectors = fai_few_vectors(rows), run = fai_few_run(rows);
    const int size = fai_element_size(dtype);
    const char *k[FAI_PAD];
    const float *q = w->q;
    /* On and on, or the rows of as many keys, as far apart as the first two: so it is in a page. */
    const char *fetch = w->fetch ? w->fetch + j * t->row_size : w->next[j] + w->next_at;
    const int64_t fetch_key = w->fetch ? 64 : w->next[j + 1] - w->next[j];
    const int64_t fetch_line = w->fetch ? 64 * keys : 64;
    const int32_t dim = t->dim, line = fetches ? 64 / size : dim;
    fai_vec part[FAI_PAD][4];
    for (int i = 0; i < keys; ++i) {
        k[i] = w->rows[j + i] + w->rows_at;
        for (int v = 0; v < vectors; ++v) part[i][v] = fai_splat(0);
    }
    for (int32_t begin = 0; begin < dim; begin += line) {
        const int32_t end = begin + line < dim ? begin + line : dim;
        if (fetches)
            for (int i = 0; i < keys; ++i) FAI_PREFETCH(fetch + i * fetch_key);
        fetch += fetch_line;
        for (int32_t d = begin; d < end; d += run, q += vectors * FAI_LANES) {
            fai_vec x[4];
            for (int v = 0; v < vectors; ++v) x[v] = fai_load(q + v * FAI_LANES);
            for (int i = 0; i < keys; ++i) {
                const fai_vec y = fai_repeat(k[i] + d * size, run, dtype);
                for (int v = 0; v < vectors; ++v) part[i][v] = FAI_FMA(y, x[v], part[i][v]);
            }
        }
    }
    for (int i = 0; i < keys; ++i)
        for (int v = 0; v < vectors; ++v) sum[i * vectors + v] = part[i][v];
}

/* The run of each row is added up for as many keys at once as make whole vectors, from as many sums
 * as leave registers for the operands. */
FAI_INLINE void fai_scores_few(const fai_tile *t, fai_scratch *w, int32_t keys, const int rows,
                               const int dtype, const int fetches) {
    const int vectors = fai_few_vectors(rows);
    const int step = rows == 1 ? FAI_PAD : rows == 2 ? 8 : rows <= 8 ? FAI_PAD / 2 : FAI_PAD / 4;
    for (int32_t j = 0; j < keys; j += step) {
        fai_vec sum[FAI_PAD];
        fai_multiply_few(t, w, j, sum, step, rows, dtype, fetches);
        int count = step * vectors;
        for (int left = fai_few_run(rows); left > 1; left /= 2, count /= 2)
            for (int i = 0; i < count / 2; ++i) sum[i] = fai_pair_sums(sum[2 * i], sum[2 * i + 1]);
        for (int i = 0; i < count; ++i)
            fai_store(w->s + j * rows + i * FAI_LANES, sum[i] * fai_splat(t->a->scale));
    }
}

/* Columns [at, at + span vectors) of rows [first, first + part) of o. */
FAI_INLINE void fai_output_chunk(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys,
                                 const int rows, const int first, const int part, const int span,
                                 const int dtype, const int fetches) {
    const int size = fai_element_size(dtype);
    fai_vec sum[16][8];
    for (int r = 0; r < part; ++r)
        for (int c = 0; c < span; ++c) sum[r][c] = fai_splat(0);
    const float *p = w->s + first;
    const char *const *row = w->rows;
    const int64_t row_at = w->rows_at + at * size;
    const int bytes = span * FAI_LANES * size;
    const int32_t group = fetches ? 8 : keys;
    for (int32_t begin = 0; begin < keys; begin += group) {
        const char *fetch = w->fetch ? w->fetch + keys * at * size + begin * bytes
                                     : w->next[begin] + w->next_at + at * size;
        const int64_t fetch_key = w->fetch ? bytes : w->next[begin + 1] - w->next[begin];
        const int32_t end = begin + group < keys ? begin + group : keys;
        for (int32_t j = begin; j < end; ++j, p += rows, fetch += fetch_key) {
            const char *v = row[j] + row_at;
            if (fetches)
                for (int c = 0; c < bytes; c += 64) FAI_PREFETCH(fetch + c);
            fai_vec x[8];
            for (int c = 0; c < span; ++c)
                x[c] = fai_repeat(v + c * FAI_LANES * size, FAI_LANES, dtype);
            for (int r = 0; r < part; ++r)
                for (int c = 0; c < span; ++c)
                    sum[r][c] = FAI_FMA(fai_splat(p[r]), x[c], sum[r][c]);
        }
    }
    for (int r = 0; r < part; ++r)
        for (int c = 0; c < span; ++c) {
            float *to = w->o + (first + r) * t->dim + at + c * FAI_LANES;
            fai_store(to, FAI_FMA(fai_load(to), fai_splat(w->factor[first + r]), sum[r][c]));
        }
}
/* What is ahead is fetched with the first rows. */
FAI_INLINE void fai_output_span(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys,
                                const int rows, const int part, const int span, const int dtype,
                                const int fetches) {
    for (int r = 0; r < rows; r += part)
        fai_output_chunk(t, w, at, keys, rows, r, part, span, dtype, fetches && r == 0);
}
FAI_INLINE void fai_outputs_few(const fai_tile *t, fai_scratch *w, int32_t keys, const int rows,
                                const int part, const int span, const int dtype,
                                const int fetches) {
    int32_t d = 0;
    for (; d + span * FAI_LANES <= t->dim; d += span * FAI_LANES)
        fai_output_span(t, w, d, keys, rows, part, span, dtype, fetches);
    for (; span > 2 && d + 2 * FAI_LANES <= t->dim; d += 2 * FAI_LANES)
        fai_output_span(t, w, d, keys, rows, part, 2, dtype, fetches);
    for (; d < t->dim; d += FAI_LANES)
        fai_output_span(t, w, d, keys, rows, part, 1, dtype, fetches);
}

/* Lane i of vector j holds row i % rows, of key j * FAI_LANES / rows + i / rows. */
FAI_INLINE void fai_softmax_few(fai_scratch *w, int32_t keys, const int rows) {
    const int step = FAI_LANES / rows;
    int32_t limit[FAI_LANES], least, most;
    fai_range_of_limits(w->limit, rows, &least, &most);
    for (int i = 0; i < FAI_LANES; ++i)
        limit[i] = (w->limit[i % rows] - i / rows + step - 1) / step;
    fai_softmax(w->s, fai_round_up(keys, FAI_PAD) / step, FAI_LANES,
                least < fai_round_up(keys, FAI_PAD) ? limit : NULL, w->max, w->sum, w->factor,
                rows);
}

/* Functions of their own, for a compiler that inlines them together runs out of registers: one for
 * each number of rows and type. A step of outputs takes `span` vectors of `part` rows. Without an
 * FMA the product needs a register of its own, so with four lanes it holds fewer sums. With 16 rows
 * it takes one vector of all of them, so that each line of V is read once: rows of V lie a power of
 * two apart, and a block of them does not stay in the L1. */
#define FAI_FEW_STEPS(rows, part, span, name, dtype)                                              \
    static void fai_weights_of_##rows##_##name(const fai_tile *t, fai_scratch *w, int32_t keys) { \
        if (t->fetches)                                                                           \
            fai_scores_few(t, w, keys, rows, dtype, 1);                                           \
        else                                                                                      \
            fai_scores_few(t, w, keys, rows, dtype, 0);                                           \
        fai_softmax_few(w, keys, rows);                                                           \
    }                                                                                             \
    static void fai_outputs_of_##rows##_##name(const fai_tile *t, fai_scratch *w, int32_t keys) { \
        if (t->fetches)                                                                           \
            fai_outputs_few(t, w, keys, rows, part, span, dtype, 1);                              \
        else                                                                                      \
            fai_outputs_few(t, w, keys, rows, part, span, dtype, 0);                              \
    }
#define FAI_FEW_TYPES(rows, part, span)                  \
    FAI_FEW_STEPS(rows, part, span, f16, FA_DTYPE_F16)   \
    FAI_FEW_STEPS(rows, part, span, bf16, FA_DTYPE_BF16) \
    FAI_FEW_STEPS(rows, part, span, f32, FA_DTYPE_F32)
FAI_FEW_TYPES(1, 1, (FAI_LANES > 8 ? 4 : 8))
FAI_FEW_TYPES(2, 2, 4)
FAI_FEW_TYPES(4, 4, (FAI_LANES > 8 ? 4 : FAI_LANES > 4 ? 3 : 2))
#if FAI_FEW_ROWS > 4
FAI_FEW_STEPS(8, 4, 4, f32, FA_DTYPE_F32)
FAI_FEW_STEPS(16, 16, 1, f32, FA_DTYPE_F32)
#endif

typedef void (*fai_few_step)(const fai_tile *t, fai_scratch *w, int32_t keys);
#define FAI_FEW_ROW(step, rows) \
    { step##_of_##rows##_f16, step##_of_##rows##_bf16, step##_of_##rows##_f32 }

/* More than four rows take float32 only: fai_take_rows converts a block once, where a step would
 * convert a quarter of a vector at a time. */
#if FAI_FEW_ROWS > 4
#define FAI_FEW_TABLE(step)                                               \
    {                                                                     \
        FAI_FEW_ROW(step, 1), FAI_FEW_ROW(step, 2), FAI_FEW_ROW(step, 4), \
            {NULL, NULL, step##_of_8_f32}, {                              \
            NULL, NULL, step##_of_16_f32                                  \
        }                                                                 \
    }
#else
#define FAI_FEW_TABLE(step) \
    { FAI_FEW_ROW(step, 1), FAI_FEW_ROW(step, 2), FAI_FEW_ROW(step, 4) }
#endif

static void fai_take_few_step(const fai_few_step table[][3], const fai_tile *t, fai_scratch *w,
                              int32_t keys) {
    const int type = w->rows_dtype == FA_DTYPE_F32 ? 2 : w->rows_dtype == FA_DTYPE_BF16;
    const int rows = t->few <= 4 ? t->few / 2 : t->few == 8 ? 3 : 4;
    table[rows][type](t, w, keys);
}
static void fai_few_weights(const fai_tile *t, fai_scratch *w, int32_t keys) {
    static const fai_few_step weights[][3] = FAI_FEW_TABLE(fai_weights);
    fai_take_few_step(weights, t, w, keys);
}
static void fai_few_outputs(const fai_tile *t, fai_scratch *w, int32_t keys) {
    static const fai_few_step outputs[][3] = FAI_FEW_TABLE(fai_outputs);
    fai_take_few_step(outputs, t, w, keys);
}

#endif /* FA_CPU_FEW_H */
