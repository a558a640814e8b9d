/* fa_dtype.h - the three element types of the contract as bit patterns, for host and device.
 *
 * Conversions round to nearest, ties to even, by integer operations only: no compiler's half type
 * and no instruction of the machine has a say in what the tests' inputs and roundings are. NaN
 * stays NaN, quiet and of the same sign. This file changes only when a dtype is added. */
#ifndef FA_DTYPE_H
#define FA_DTYPE_H

#include <stdint.h>
#include <string.h>

#include "fa_fwd_causal.h"

#ifdef __CUDACC__
#define FA_DTYPE_HD __host__ __device__ static inline
#else
#define FA_DTYPE_HD static inline
#endif

FA_DTYPE_HD uint32_t fa_f32_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

FA_DTYPE_HD float fa_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* bits / 2^shift, to nearest even; shift from 1 to 31. */
FA_DTYPE_HD uint32_t fa_dtype_shift(uint32_t bits, uint32_t shift) {
    const uint32_t odd = (bits >> shift) & 1;
    return (bits + (((uint32_t)1 << (shift - 1)) - 1) + odd) >> shift;
}

FA_DTYPE_HD uint16_t fa_bf16_from_f32(float value) {
    const uint32_t bits = fa_f32_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)fa_dtype_shift(bits, 16);
}

FA_DTYPE_HD float fa_bf16_to_f32(uint16_t bits) { return fa_f32_from_bits((uint32_t)bits << 16); }

FA_DTYPE_HD uint16_t fa_f16_from_f32(float value) {
    const uint32_t bits = fa_f32_to_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t size = bits & 0x7fffffffu;
    const uint32_t exponent = size >> 23;
    if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((size >> 13) & 0x3ffu));
    /* 65520 lies halfway between the largest finite half and the next power of two. */
    if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (exponent >= 113) return (uint16_t)(sign | fa_dtype_shift(size - (112u << 23), 13));
    /* Below 2^-25 everything rounds to 0. Else count in the unit of the subnormal halves. */
    if (exponent < 102) return (uint16_t)sign;
    return (uint16_t)(sign | fa_dtype_shift((size & 0x7fffffu) | 0x800000u, 126 - exponent));
}

/* Without a branch, so that a compiler vectorises a loop over it. A subnormal half is the fraction
 * of a float32 at 2^-14, less that 2^-14; the difference is exact. */
FA_DTYPE_HD float fa_f16_to_f32(uint16_t bits) {
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t size = (uint32_t)(bits & 0x7fffu) << 13;
    const uint32_t excess = exponent == 0 ? 113u << 23 : 0;
    const uint32_t infinity = exponent == 31 ? 0x7f800000u : 0;
    const float raised = fa_f32_from_bits(size + (exponent == 0 ? 113u << 23 : 112u << 23));
    const float value = raised - fa_f32_from_bits(excess);
    return fa_f32_from_bits((uint32_t)(bits & 0x8000u) << 16 | infinity | fa_f32_to_bits(value));
}

FA_DTYPE_HD int64_t fa_dtype_size(int32_t dtype) { return dtype == FA_DTYPE_F32 ? 4 : 2; }

FA_DTYPE_HD float fa_dtype_get(int32_t dtype, const void *data, int64_t at) {
    if (dtype == FA_DTYPE_F32) return ((const float *)data)[at];
    const uint16_t bits = ((const uint16_t *)data)[at];
    return dtype == FA_DTYPE_F16 ? fa_f16_to_f32(bits) : fa_bf16_to_f32(bits);
}

FA_DTYPE_HD void fa_dtype_set(int32_t dtype, void *data, int64_t at, float value) {
    if (dtype == FA_DTYPE_F32)
        ((float *)data)[at] = value;
    else
        ((uint16_t *)data)[at] =
            dtype == FA_DTYPE_F16 ? fa_f16_from_f32(value) : fa_bf16_from_f32(value);
}

FA_DTYPE_HD float fa_dtype_round(int32_t dtype, float value) {
    if (dtype == FA_DTYPE_F16) return fa_f16_to_f32(fa_f16_from_f32(value));
    if (dtype == FA_DTYPE_BF16) return fa_bf16_to_f32(fa_bf16_from_f32(value));
    return value;
}

#endif /* FA_DTYPE_H */
