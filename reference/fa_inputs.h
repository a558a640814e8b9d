/* fa_inputs.h - the input rule: element `index` of a tensor is a function of (rule, tensor, index).
 *
 * The same bits in C, in CUDA and in generate.py: a 64-bit integer hash, an exact conversion to
 * float32, one multiplication by the rule's scale. Golden files hold outputs only because of it, so
 * a changed bit here makes every one of them wrong: this file does not change.
 *
 *     key       = mix(seed + (tensor + 1) * C)          C = 2^64 / golden ratio, odd
 *     word(n)   = mix(key + (n + 1) * C)                SplitMix64 as a function of its counter
 *     NORMAL    = sum of the twelve 16-bit fields of word(3 index + 0, 1, 2), less its mean, / 2^16
 *     UNIFORM   = word(index) / 2^40 - 2^23, / 2^23     24 bits in [-1, 1)
 *     SMALL_INT = word(index) / 2^32 * 9 / 2^32 - 4     integers from -4 to 4
 *
 * Divisions of words drop the remainder; the last one of NORMAL and UNIFORM is exact. Twelve
 * uniforms of variance (2^32 - 1) / 12 make a variance of 1 - 2^-32 within [-6, 6]. */
#ifndef FA_INPUTS_H
#define FA_INPUTS_H

#include "fa_dtype.h"

typedef enum fa_input_kind {
    FA_INPUT_NORMAL = 0,
    FA_INPUT_UNIFORM = 1,
    FA_INPUT_SMALL_INT = 2
} fa_input_kind;

typedef enum fa_input_tensor { FA_INPUT_Q = 0, FA_INPUT_K = 1, FA_INPUT_V = 2 } fa_input_tensor;

typedef struct fa_input_rule {
    fa_input_kind kind;
    uint64_t seed;
    float scale; /* 1 changes nothing */
} fa_input_rule;

FA_DTYPE_HD uint64_t fa_input_mix(uint64_t word) {
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
}

/* tensor is a fa_input_tensor, or any other number for a stream of its own. */
FA_DTYPE_HD uint64_t fa_input_word(uint64_t seed, uint64_t tensor, uint64_t counter) {
    const uint64_t step = 0x9e3779b97f4a7c15u;
    return fa_input_mix(fa_input_mix(seed + (tensor + 1) * step) + (counter + 1) * step);
}

FA_DTYPE_HD float fa_input_value(fa_input_rule rule, uint64_t tensor, uint64_t index) {
    if (rule.kind == FA_INPUT_NORMAL) {
        const uint64_t fields = 0x0000ffff0000ffffu;
        uint64_t sums = 0; /* of six fields in either half */
        for (uint64_t n = 0; n < 3; n++) {
            const uint64_t word = fa_input_word(rule.seed, tensor, 3 * index + n);
            sums += (word & fields) + ((word >> 16) & fields);
        }
        const int32_t sum = (int32_t)((sums >> 32) + (sums & 0xffffffffu));
        return (float)(sum - 6 * 65535) * (1.0f / 65536) * rule.scale;
    }
    const uint64_t word = fa_input_word(rule.seed, tensor, index);
    if (rule.kind == FA_INPUT_UNIFORM)
        return (float)((int32_t)(word >> 40) - (1 << 23)) * (1.0f / (1 << 23)) * rule.scale;
    return (float)((int32_t)((word >> 32) * 9 >> 32) - 4) * rule.scale;
}

/* Elements 0 to count - 1 of a tensor, rounded to dtype. */
static inline void fa_input_fill(fa_input_rule rule, uint64_t tensor, int32_t dtype, void *data,
                                 int64_t count) {
    for (int64_t at = 0; at < count; at++)
        fa_dtype_set(dtype, data, at, fa_input_value(rule, tensor, (uint64_t)at));
}

#endif /* FA_INPUTS_H */
