/* fa_cpu_few.h - the kernel for up to FAI_FEW_ROWS rows: the lanes run along head_dim for S and O,
 * and along the keys for the softmax. Every row of K and V is read once for all rows of the tile.
 *
 * Part of fa_cpu_algorithm.h; it changes when a micro-kernel does. */
#ifndef FA_CPU_FEW_H
#define FA_CPU_FEW_H

#include "fa_cpu_tile.h"

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

FAI_INLINE void fai_output_chunk(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys,
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
FAI_INLINE void fai_outputs_few(const fai_tile *t, fai_scratch *w, int32_t keys, const int rows,
                                const int span) {
    int32_t d = 0;
    for (; d + span * FAI_LANES <= t->dim; d += span * FAI_LANES)
        fai_output_chunk(t, w, d, keys, rows, span);
    for (; d < t->dim; d += FAI_LANES) fai_output_chunk(t, w, d, keys, rows, 1);
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

/* Functions of their own, for a compiler that inlines them together runs out of registers. */
static void fai_scores_of_1(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_scores_few(t, w, keys, 1);
}
static void fai_scores_of_2(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_scores_few(t, w, keys, 2);
}
static void fai_scores_of_3(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_scores_few(t, w, keys, 3);
}
static void fai_scores_of_4(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_scores_few(t, w, keys, 4);
}
static void fai_outputs_of_1(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_outputs_few(t, w, keys, 1, 8);
}
static void fai_outputs_of_2(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_outputs_few(t, w, keys, 2, 4);
}
static void fai_outputs_of_3(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_outputs_few(t, w, keys, 3, 2);
}
static void fai_outputs_of_4(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_outputs_few(t, w, keys, 4, 2);
}

typedef void (*fai_few_step)(const fai_tile *t, fai_scratch *w, int32_t keys);

static void fai_few_weights(const fai_tile *t, fai_scratch *w, int32_t keys) {
    static const fai_few_step scores[FAI_FEW_ROWS] = {fai_scores_of_1, fai_scores_of_2,
                                                      fai_scores_of_3, fai_scores_of_4};
    scores[t->rows - 1](t, w, keys);
    for (int32_t r = 0; r < t->rows; ++r) fai_softmax_row(w, r, keys);
}
static void fai_few_outputs(const fai_tile *t, fai_scratch *w, int32_t keys) {
    static const fai_few_step outputs[FAI_FEW_ROWS] = {fai_outputs_of_1, fai_outputs_of_2,
                                                       fai_outputs_of_3, fai_outputs_of_4};
    outputs[t->rows - 1](t, w, keys);
}

#endif /* FA_CPU_FEW_H */
