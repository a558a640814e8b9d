/* fa_cpu_few.h - the kernel for up to FAI_FEW_ROWS rows: the lanes run along head_dim for S and O.
 * Every row of K and V is read once for all rows of the tile.
 *
 * The tile's rows are filled up to 1, 2 or 4. Scores and weights of one key lie side by side,
 * s[key * rows + row], so that a vector holds those of several keys and the softmax takes all rows
 * at once.
 *
 * Part of fa_cpu_algorithm.h; it changes when a micro-kernel does. */
#ifndef FA_CPU_FEW_H
#define FA_CPU_FEW_H

#include "fa_cpu_softmax.h"

/* A lane holds one of `run` neighbouring elements of one row: those of K are repeated for every
 * row, q lies so already. Eight keys in turn, each with a sum of its own, hide the latency of an
 * FMA; the run of each row is then added up for several keys at once. */
FAI_INLINE void fai_scores_few(const fai_tile *t, fai_scratch *w, int32_t keys, const int rows) {
    enum { kKeys = 8 };
    const int run = FAI_LANES / rows;
    for (int32_t j = 0; j < keys; j += kKeys) {
        const float *const *k = w->rows + j;
        const float *q = w->q;
        fai_vec sum[kKeys];
        for (int i = 0; i < kKeys; ++i) sum[i] = fai_splat(0);
        fai_fetch(t, w, kKeys);
        for (int32_t d = 0; d < t->dim; d += run, q += FAI_LANES) {
            const fai_vec x = fai_load(q);
            for (int i = 0; i < kKeys; ++i) sum[i] = FAI_FMA(fai_repeat(k[i] + d, run), x, sum[i]);
        }
        for (int left = run, count = kKeys; left > 1; left /= 2, count /= 2)
            for (int i = 0; i < count / 2; ++i) sum[i] = fai_pair_sums(sum[2 * i], sum[2 * i + 1]);
        for (int i = 0; i < kKeys / run; ++i)
            fai_store(w->s + j * rows + i * FAI_LANES, sum[i] * fai_splat(t->a->scale));
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
        if (at == 0) fai_fetch(t, w, 1);
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

/* Lane i of vector j holds row i % rows, of key j * FAI_LANES / rows + i / rows. */
FAI_INLINE void fai_softmax_few(fai_scratch *w, int32_t keys, const int rows) {
    const int step = FAI_LANES / rows;
    int32_t limit[FAI_LANES], least, most;
    fai_range_of_limits(w->limit, rows, &least, &most);
    for (int i = 0; i < FAI_LANES; ++i)
        limit[i] = (w->limit[i % rows] - i / rows + step - 1) / step;
    fai_softmax(w->s, fai_round_up(keys, 8) / step, FAI_LANES,
                least < fai_round_up(keys, 8) ? limit : NULL, w->max, w->sum, w->factor, rows);
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
    static const fai_few_step weights[] = {fai_weights_of_1, fai_weights_of_2, fai_weights_of_4};
    weights[t->few / 2](t, w, keys);
}
static void fai_few_outputs(const fai_tile *t, fai_scratch *w, int32_t keys) {
    static const fai_few_step outputs[] = {fai_outputs_of_1, fai_outputs_of_2, fai_outputs_of_4};
    outputs[t->few / 2](t, w, keys);
}

#endif /* FA_CPU_FEW_H */
