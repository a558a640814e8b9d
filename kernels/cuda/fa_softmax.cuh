/* fa_softmax.cuh - online softmax over the score fragments of a warp: init, raise, weigh, finish,
 * and the merge of results that saw different keys. Exponentials are powers of 2: the scores stay
 * unscaled and c = scale * log2(e) is folded into the exponent.
 *
 * The reference that is subtracted need not be the row's maximum, since every factor of it cancels.
 * It is raised, row by row, when a key's weight would pass a quarter of the lane's sum so far, or
 * 2^8. So no weight overflows; a key that dominates its row is its reference and has weight 1,
 * which the rounding to 16 bits leaves exact; and on spread-out rows most steps neither exchange
 * maxima between lanes nor rescale o. A row that has seen no key keeps reference -inf and sum 0.
 * NaN scores reach the sum and stay there. */
#ifndef FA_SOFTMAX_CUH
#define FA_SOFTMAX_CUH

#include "../fa_internal.h"
#include "fa_ptx.cuh"

#include <math.h>

#define FAI_LN2 0.693147180559945309f

/* A row's reference as the exponent to add: 0 for -inf, so that masked scores give 2^-inf = 0 and
 * never -inf + inf. */
FAI_DEVICE float fai_bias(float reference, float c) {
    return reference == -INFINITY ? 0.f : -reference * c;
}

/* All four lanes of a quad hold columns of the same rows. */
FAI_DEVICE float fai_quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
FAI_DEVICE float fai_quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* c * reference rounds to within 2^-13 octaves below this; beyond it the reference is subtracted
 * from the scores first, so that the weight of the reference's own key is 1 however large the
 * logits. */
#define FAI_FAR_OCTAVES 2048.f

/* kTiles row tiles of 16; a lane has rows g and g + 8 of each. sum is the lane's own share until
 * finish. */
template <int kTiles> struct fai_softmax {
    float reference[kTiles][2];
    float sum[kTiles][2];

    __device__ __forceinline__ void init() {
#pragma unroll
        for (int i = 0; i < kTiles * 2; ++i) {
            reference[i / 2][i % 2] = -INFINITY;
            sum[i / 2][i % 2] = 0;
        }
    }

    /* Raises the references that the new scores pass, and rescales what was summed below them.
     * octave = 1 / c is the step of a score that doubles its weight. */
    template <int kKeyTiles, int kDimTiles>
    __device__ __forceinline__ void raise(const float (&s)[kTiles][kKeyTiles][4],
                                          float (&o)[kTiles][kDimTiles][4], float c, float octave) {
        float most[kTiles][2], excess[kTiles][2];
        bool passed = false;
#pragma unroll
        for (int i = 0; i < kTiles * 2; ++i) {
            const int tile = i / 2, half = i % 2;
            float m = fmaxf(s[tile][0][half * 2], s[tile][0][half * 2 + 1]);
#pragma unroll
            for (int n = 1; n < kKeyTiles; ++n)
                m = fmaxf(m, fmaxf(s[tile][n][half * 2], s[tile][n][half * 2 + 1]));
            const float headroom = fminf(fmaxf(fai_log2(sum[tile][half]) - 2.f, 0.f), 8.f);
            most[tile][half] = m;
            excess[tile][half] = m - fmaf(headroom, octave, reference[tile][half]);
            passed |= excess[tile][half] > 0;
        }
        if (!__any_sync(~0u, passed)) return;
#pragma unroll
        for (int i = 0; i < kTiles * 2; ++i) {
            const int tile = i / 2, half = i % 2;
            const float m = fai_quad_max(most[tile][half]);
            const bool raised = fai_quad_max(excess[tile][half]) > 0;
            const float old = reference[tile][half];
            const float factor = raised ? fai_exp2((old - m) * c) : 1.f; /* 0 for a first key */
            reference[tile][half] = raised ? m : old;
            sum[tile][half] *= factor;
#pragma unroll
            for (int n = 0; n < kDimTiles; ++n) {
                o[tile][n][half * 2] *= factor;
                o[tile][n][half * 2 + 1] *= factor;
            }
        }
    }

    /* Turns scores into weights and adds them up, before they are rounded to 16 bits. */
    template <int kKeyTiles>
    __device__ __forceinline__ void weigh(float (&s)[kTiles][kKeyTiles][4], float c) {
        float bias[kTiles][2], farthest = 0;
#pragma unroll
        for (int i = 0; i < kTiles * 2; ++i) {
            bias[i / 2][i % 2] = fai_bias(reference[i / 2][i % 2], c);
            farthest = fmaxf(farthest, fabsf(bias[i / 2][i % 2]));
        }
        if (farthest > FAI_FAR_OCTAVES) {
#pragma unroll
            for (int i = 0; i < kTiles * 2; ++i) {
                const int tile = i / 2, half = i % 2;
                if (!(fabsf(bias[tile][half]) > FAI_FAR_OCTAVES)) continue;
                bias[tile][half] = 0;
#pragma unroll
                for (int n = 0; n < kKeyTiles * 2; ++n)
                    s[tile][n / 2][half * 2 + n % 2] -= reference[tile][half];
            }
        }
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
            for (int i = 0; i < kTiles * 2; ++i) {
                const int tile = i / 2, half = i % 2;
                float *pair = &s[tile][n][half * 2];
                pair[0] = fai_exp2(fmaf(pair[0], c, bias[tile][half]));
                pair[1] = fai_exp2(fmaf(pair[1], c, bias[tile][half]));
                sum[tile][half] += pair[0] + pair[1];
            }
    }
};

/* The factor that turns a row's weighted sum into its o. Only a row without keys has sum 0. */
FAI_DEVICE float fai_finish(float sum) { return sum == 0.f ? 0.f : 1.f / sum; }

/* ln of the sum of exp; -inf for a row without keys. */
FAI_DEVICE float fai_lse(float reference, float sum, float c) {
    return (log2f(sum) - fai_bias(reference, c)) * FAI_LN2;
}

/* The weight of a partial result against the largest of its kind, both in octaves. */
FAI_DEVICE float fai_merge_weight(float part, float most) {
    return part == -INFINITY ? 0.f : fai_exp2(part - most);
}

#endif /* FA_SOFTMAX_CUH */
