/* fa_cpu_few.h - the kernel for up to FAI_FEW_ROWS rows: the lanes run along head_dim for S and O.
 * Every row of K and V is read once for all rows of the tile.
 *
 * The tile's rows are filled up to 1, 2 or 4. Scores and weights of one key lie side by side,
 * s[key * rows + row], so that a vector holds those of several keys: the softmax takes all rows at
 * once, and a vector comes out of one tree of sums.
 *
 * Part of fa_cpu_algorithm.h; it changes when a micro-kernel does. */
#ifndef FA_CPU_FEW_H
#define FA_CPU_FEW_H

#include "fa_cpu_tile.h"

/* FAI_PAD sums, of FAI_PAD / rows keys, go through one tree. At most two rows of K are read in turn,
 * and one where there is little else to do: more is faster from the cache, but a fifth slower from
 * memory. */
FAI_INLINE void fai_scores_few(const fai_tile *t, fai_scratch *w, int32_t keys, const int rows) {
    const int32_t dim = t->dim;
    const int step = FAI_PAD / rows, turn = rows > 1 ? 2 : 1;
    for (int32_t j = 0; j < keys; j += step) {
        fai_vec sum[FAI_PAD];
        for (int i = 0; i < FAI_PAD; ++i) sum[i] = fai_splat(0);
        for (int i = 0; i < step; i += turn) {
            const float *const *k = w->rows + j + i;
            fai_vec *to = sum + i * rows;
            fai_fetch(t, w, j + i, j + i + turn);
            for (int32_t d = 0; d < dim; d += FAI_LANES)
                for (int n = 0; n < turn; ++n) {
                    const fai_vec x = fai_load(k[n] + d);
                    for (int r = 0; r < rows; ++r)
                        to[n * rows + r] =
                            FAI_FMA(x, fai_load(w->q + r * dim + d), to[n * rows + r]);
                }
        }
        for (int i = 0; i < FAI_PAD; i += FAI_LANES)
            fai_store(w->s + j * rows + i, fai_sums(sum + i) * fai_splat(t->a->scale));
    }
}

FAI_INLINE void fai_output_chunk(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys,
                                 const int rows, const int span) {
    fai_vec sum[FAI_FEW_ROWS][8];
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < span; ++c) sum[r][c] = fai_splat(0);
    const float *p = w->s;
    for (int32_t j = 0; j < keys; ++j, p += rows) {
        const float *v = w->rows[j] + at;
        if (at == 0) fai_fetch(t, w, j, j + 1);
        fai_vec x[8];
        for (int c = 0; c < span; ++c) x[c] = fai_load(v + c * FAI_LANES);
        for (int r = 0; r < rows; ++r)
            for (int c = 0; c < span; ++c) sum[r][c] = FAI_FMA(fai_splat(p[r]), x[c], sum[r][c]);
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
    for (; d + 2 * FAI_LANES <= t->dim; d += 2 * FAI_LANES)
        fai_output_chunk(t, w, d, keys, rows, 2);
    for (; d < t->dim; d += FAI_LANES) fai_output_chunk(t, w, d, keys, rows, 1);
}

/* As fai_softmax_lanes: lane i holds row i % rows, of key i / rows after the vector's first. */
FAI_INLINE void fai_softmax_few(fai_scratch *w, int32_t keys, const int rows) {
    const int32_t count = fai_round_up(keys, FAI_PAD / rows) * rows;
    float *s = w->s, lane[FAI_LANES], total[FAI_LANES], change[FAI_LANES] = {0};
    int32_t left[FAI_LANES];
    fai_ints seen;
    fai_vec lanes = fai_splat(-INFINITY), block = fai_splat(0);
    for (int i = 0; i < FAI_LANES; ++i) left[i] = w->limit[i % rows] * rows - i / rows * rows;
    memcpy(&seen, left, sizeof(seen));
    for (int32_t j = 0; j < count; j += FAI_LANES) {
        const fai_bits visible = fai_less_ints(j - (fai_ints){0}, seen);
        const fai_vec x = fai_select(visible, fai_load(s + j), fai_splat(-INFINITY));
        fai_store(s + j, x);
        lanes = FAI_MAX(lanes, x);
    }
    memcpy(lane, &lanes, sizeof(lane));
    for (int r = 0; r < rows; ++r) {
        float max = w->max[r];
        for (int i = r; i < FAI_LANES; i += rows) max = max < lane[i] ? lane[i] : max;
        const float base = max < -FLT_MAX ? 0 : max;
        change[r] = (w->max[r] - base) * FAI_LOG2_E;
        w->max[r] = max;
        for (int i = r; i < FAI_LANES; i += rows) lane[i] = base;
    }
    const fai_vec base = fai_load(lane);
    for (int32_t j = 0; j < count; j += FAI_LANES) {
        const fai_vec p = fai_exp2((fai_load(s + j) - base) * fai_splat(FAI_LOG2_E));
        fai_store(s + j, p);
        block += p;
    }
    fai_store(w->factor, fai_exp2(fai_load(change)));
    memcpy(total, &block, sizeof(total));
    for (int r = 0; r < rows; ++r) {
        float sum = total[r];
        for (int i = r + rows; i < FAI_LANES; i += rows) sum += total[i];
        w->sum[r] = w->sum[r] * w->factor[r] + sum;
    }
}

/* Functions of their own, for a compiler that inlines them together runs out of registers. */
static void fai_weights_of_1(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_scores_few(t, w, keys, 1);
    fai_softmax_few(w, keys, 1);
}
static void fai_weights_of_2(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_scores_few(t, w, keys, 2);
    fai_softmax_few(w, keys, 2);
}
static void fai_weights_of_4(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_scores_few(t, w, keys, 4);
    fai_softmax_few(w, keys, 4);
}
static void fai_outputs_of_1(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_outputs_few(t, w, keys, 1, 8);
}
static void fai_outputs_of_2(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_outputs_few(t, w, keys, 2, 4);
}
/* Without an FMA the product needs a register of its own, so four lanes hold fewer sums. */
static void fai_outputs_of_4(const fai_tile *t, fai_scratch *w, int32_t keys) {
    fai_outputs_few(t, w, keys, 4, FAI_LANES > 4 ? 3 : 2);
}

typedef void (*fai_few_step)(const fai_tile *t, fai_scratch *w, int32_t keys);

static void fai_few_weights(const fai_tile *t, fai_scratch *w, int32_t keys) {
    static const fai_few_step weights[FAI_FEW_ROWS] = {fai_weights_of_1, fai_weights_of_2,
                                                       fai_weights_of_4, fai_weights_of_4};
    weights[t->rows - 1](t, w, keys);
}
static void fai_few_outputs(const fai_tile *t, fai_scratch *w, int32_t keys) {
    static const fai_few_step outputs[FAI_FEW_ROWS] = {fai_outputs_of_1, fai_outputs_of_2,
                                                       fai_outputs_of_4, fai_outputs_of_4};
    outputs[t->rows - 1](t, w, keys);
}

#endif /* FA_CPU_FEW_H */
