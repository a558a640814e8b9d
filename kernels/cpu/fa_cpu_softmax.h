/* fa_cpu_softmax.h - the online softmax of one block of keys, and what rows of a block may see.
 * Part of fa_cpu_algorithm.h; it changes when the numerics do. */
#ifndef FA_CPU_SOFTMAX_H
#define FA_CPU_SOFTMAX_H

#include "fa_cpu_tile.h"

/* Makes -inf, whatever they were, of the scores that a row does not see: those of vector j in lanes
 * whose limit is at most j. */
FAI_INLINE void fai_hide(float *s, int32_t vectors, int32_t pitch, const int32_t *limit) {
    fai_ints seen;
    memcpy(&seen, limit, sizeof(seen));
    for (int32_t j = 0; j < vectors; ++j) {
        const fai_bits sees = fai_less_ints(j - (fai_ints){0}, seen);
        fai_store(s + j * pitch, fai_select(sees, fai_load(s + j * pitch), fai_splat(-INFINITY)));
    }
}

/* Makes weights of the scores in `vectors` vectors, `pitch` floats apart, whose lanes hold `rows`
 * rows over and over; where a limit is given, of those below it. While a row has seen nothing but
 * -inf, 0 stands in for its maximum, for -inf - -inf is NaN. All lanes of a row get its maximum and
 * factor; of the sum each keeps its own share. */
FAI_INLINE void fai_softmax(float *s, int32_t vectors, int32_t pitch, const int32_t *limit,
                            float *max, float *sum, float *factor, const int rows) {
    const fai_vec old_max = fai_load(max);
    if (limit) fai_hide(s, vectors, pitch, limit);
    /* Four maxima, for one would wait for itself at every key. */
    fai_vec most[4] = {old_max, old_max, old_max, old_max};
    int32_t at = 0;
    for (; at + 4 <= vectors; at += 4)
        for (int i = 0; i < 4; ++i) most[i] = FAI_MAX(most[i], fai_load(s + (at + i) * pitch));
    for (; at < vectors; ++at) most[0] = FAI_MAX(most[0], fai_load(s + at * pitch));
    fai_vec new_max = FAI_MAX(FAI_MAX(most[0], most[1]), FAI_MAX(most[2], most[3]));
    for (int step = FAI_LANES / 2; step >= rows; step /= 2)
        new_max = FAI_MAX(new_max, fai_swap(new_max, step));
    const fai_vec base = fai_select(fai_less(new_max, fai_splat(-FLT_MAX)), fai_splat(0), new_max);
    const fai_vec change = fai_exp2((old_max - base) * fai_splat(FAI_LOG2_E));
    fai_vec block = fai_splat(0);
    for (int32_t j = 0; j < vectors; ++j) {
        const fai_vec p = fai_exp2((fai_load(s + j * pitch) - base) * fai_splat(FAI_LOG2_E));
        fai_store(s + j * pitch, p);
        block += p;
    }
    fai_store(max, new_max);
    fai_store(factor, change);
    fai_store(sum, FAI_FMA(fai_load(sum), change, block));
}

static void fai_range_of_limits(const int32_t *limit, int32_t count, int32_t *least,
                                int32_t *most) {
    *least = *most = limit[0];
    for (int32_t r = 1; r < count; ++r) {
        *least = limit[r] < *least ? limit[r] : *least;
        *most = limit[r] > *most ? limit[r] : *most;
    }
}

#endif /* FA_CPU_SOFTMAX_H */
