/* fa_cpu_vector.h - the few vector operations the CPU kernel is written in, for FAI_LANES floats.
 *
 * Included by fa_cpu_algorithm.h once for each instruction set. It changes when the kernel needs
 * another operation; an instruction set overrides what its compiler does not find by itself.
 *
 * gcc and clang turn their vector types into any width; other compilers get one lane, the same
 * code in scalar form. Nothing here relies on -ffast-math, and nothing may be built with it. */
#ifndef FA_CPU_VECTOR_H
#define FA_CPU_VECTOR_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __GNUC__
#define FAI_INLINE static inline __attribute__((always_inline))
#define FAI_ALIGNED __attribute__((aligned(64)))
#define FAI_VECTOR(alignment) __attribute__((vector_size(4 * FAI_LANES), alignment))
typedef float fai_vec FAI_VECTOR(aligned(4 * FAI_LANES));
typedef uint32_t fai_bits FAI_VECTOR(aligned(4 * FAI_LANES));
typedef int32_t fai_ints FAI_VECTOR(aligned(4 * FAI_LANES));
typedef float fai_vec_anywhere FAI_VECTOR(aligned(4)) __attribute__((may_alias));
typedef uint16_t fai_half __attribute__((may_alias));
#else
#undef FAI_LANES
#define FAI_LANES 1
#define FAI_INLINE static inline
#define FAI_ALIGNED
typedef float fai_vec;
typedef uint32_t fai_bits;
typedef int32_t fai_ints;
typedef float fai_vec_anywhere;
typedef uint16_t fai_half;
#endif

#ifdef __GNUC__
#define FAI_PREFETCH(at) __builtin_prefetch(at)
#define FAI_PREFETCH_FAR(at) __builtin_prefetch(at, 0, 2) /* into the L2 */
#else
#define FAI_PREFETCH(at) ((void)(at))
#define FAI_PREFETCH_FAR(at) ((void)(at))
#endif
#if defined(__clang__)
#define FAI_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#elif defined(__GNUC__)
#define FAI_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (fai_ints){__VA_ARGS__})
#endif
#ifndef FAI_FMA
#define FAI_FMA(a, b, c) ((a) * (b) + (c))
#endif

FAI_INLINE fai_vec fai_splat(float x) { return x - (fai_vec){0}; }
FAI_INLINE fai_vec fai_load(const float *from) { return *(const fai_vec_anywhere *)from; }
FAI_INLINE void fai_store(float *to, fai_vec x) { *(fai_vec_anywhere *)to = x; }

FAI_INLINE fai_bits fai_as_bits(fai_vec x) {
    fai_bits bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}
FAI_INLINE fai_vec fai_as_vec(fai_bits bits) {
    fai_vec x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* All ones in the lanes where a < b; zeros where either is NaN. */
FAI_INLINE fai_bits fai_less(fai_vec a, fai_vec b) {
#ifdef __GNUC__
    return (fai_bits)(a < b);
#else
    return a < b ? UINT32_MAX : 0;
#endif
}
FAI_INLINE fai_bits fai_less_ints(fai_ints a, fai_ints b) {
#ifdef __GNUC__
    return (fai_bits)(a < b);
#else
    return a < b ? UINT32_MAX : 0;
#endif
}
FAI_INLINE fai_vec fai_select(fai_bits mask, fai_vec yes, fai_vec no) {
    return fai_as_vec((mask & fai_as_bits(yes)) | (~mask & fai_as_bits(no)));
}

/* b where a < b, else a: a NaN in b is passed over. */
#ifndef FAI_MAX
#define FAI_MAX(a, b) fai_select(fai_less(a, b), b, a)
#endif

FAI_INLINE float fai_largest(fai_vec x) {
    float lane[FAI_LANES];
    memcpy(lane, &x, sizeof(lane));
    for (int i = 1; i < FAI_LANES; ++i) lane[0] = lane[0] < lane[i] ? lane[i] : lane[0];
    return lane[0];
}

/* The sums of neighbouring lanes: a0 + a1, a2 + a3 ... b0 + b1 ... */
FAI_INLINE fai_vec fai_pair_sums(fai_vec a, fai_vec b) {
#if defined(FAI_PAIR_SUMS)
    return FAI_PAIR_SUMS(a, b);
#elif defined(FAI_SHUFFLE) && FAI_LANES == 4
    return FAI_SHUFFLE(a, b, 0, 2, 4, 6) + FAI_SHUFFLE(a, b, 1, 3, 5, 7);
#else
    float lane[2 * FAI_LANES], sum[FAI_LANES];
    memcpy(lane, &a, sizeof(a));
    memcpy(lane + FAI_LANES, &b, sizeof(b));
    for (int i = 0; i < FAI_LANES; ++i) sum[i] = lane[2 * i] + lane[2 * i + 1];
    return fai_load(sum);
#endif
}

/* Lane i from lane i ^ step, for a step of 1, 2, 4 ... known when this is compiled. */
FAI_INLINE fai_vec fai_swap(fai_vec x, const int step) {
#ifdef FAI_SWAP
    return FAI_SWAP(x, step);
#elif defined(FAI_SHUFFLE) && FAI_LANES == 4
    return step == 2 ? FAI_SHUFFLE(x, x, 2, 3, 0, 1) : FAI_SHUFFLE(x, x, 1, 0, 3, 2);
#else
    float lane[FAI_LANES], swapped[FAI_LANES];
    memcpy(lane, &x, sizeof(x));
    for (int i = 0; i < FAI_LANES; ++i) swapped[i] = lane[i ^ step];
    return fai_load(swapped);
#endif
}

/* FAI_LANES rows of as many floats become columns; rows are a pitch of floats apart. */
FAI_INLINE void fai_transpose(float *to, int32_t to_pitch, const float *from, int32_t from_pitch) {
#ifdef FAI_TRANSPOSE
    FAI_TRANSPOSE(to, to_pitch, from, from_pitch);
#else
    for (int r = 0; r < FAI_LANES; ++r)
        for (int c = 0; c < FAI_LANES; ++c) to[c * to_pitch + r] = from[r * from_pitch + c];
#endif
}

/* 2^x for x <= 0: relative error at most 2^-23, 0 below -126.5 and at -inf, exactly 1 at 0; NaN
 * stays NaN. The constant 1.5 * 2^23 rounds x to an integer n and leaves n in the low bits;
 * 2^(x - n) is the polynomial of degree 6 with the least relative error (2e-9 before rounding) on
 * [-0.5, 0.5]. The factor 2^n is a product, not an addition to the exponent, which could turn a NaN
 * finite; at n = -127 its bits are those of 0. */
FAI_INLINE fai_vec fai_exp2(fai_vec x) {
    x = FAI_MAX(x, fai_splat(-127.0f));
    const fai_vec round = fai_splat(12582912.0f);
    const fai_vec shifted = x + round;
    const fai_vec r = x - (shifted - round);
    fai_vec p = FAI_FMA(r, fai_splat(1.5353361959569156e-4f), fai_splat(1.3398875016719103e-3f));
    p = FAI_FMA(p, r, fai_splat(9.61843691766262e-3f));
    p = FAI_FMA(p, r, fai_splat(5.5503323674201965e-2f));
    p = FAI_FMA(p, r, fai_splat(0.24022647738456726f));
    p = FAI_FMA(p, r, fai_splat(0.6931471824645996f));
    p = FAI_FMA(p, r, fai_splat(1.0f));
    const fai_vec power = fai_as_vec((fai_as_bits(shifted) << 23) + 0x3f800000u);
    return p * power;
}

/* max + ln(sum) for a finite positive sum, in double and without libm, whose last bits differ from
 * machine to machine. ln f = 2 artanh((f - 1) / (f + 1)) with f within [sqrt(1/2), sqrt(2)]: the
 * series' first term left out is below 1e-11. */
static inline float fai_log_sum(float max, float sum) {
    if (!(sum > 0)) return sum == 0 ? -INFINITY : sum;
    const double x = sum;
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double f;
    memcpy(&f, &bits, sizeof(f));
    if (f > 1.4142135623730951) {
        f /= 2;
        ++exponent;
    }
    const double z = (f - 1) / (f + 1), zz = z * z;
    const double series =
        1 + zz * (1.0 / 3 + zz * (1.0 / 5 + zz * (1.0 / 7 + zz * (1.0 / 9 + zz / 11))));
    return (float)(max + (exponent * 0.69314718055994531 + 2 * z * series));
}

/* float16: the exponent moves by a product with 2^112, which makes subnormals right too; Inf and
 * NaN then get the largest exponent. */
FAI_INLINE float fai_float_of_f16(uint16_t half) {
    const uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    float x;
    memcpy(&x, &magnitude, sizeof(x));
    x *= 5192296858534827628530496329220096.0f;
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    bits |= magnitude >= 0x0f800000u ? 0x7f800000u : 0;
    bits |= (uint32_t)(half & 0x8000) << 16;
    memcpy(&x, &bits, sizeof(x));
    return x;
}
FAI_INLINE float fai_float_of_bf16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* An element of q, k or v. */
FAI_INLINE float fai_float_at(const void *from, int64_t i, const int dtype) {
    const fai_half *half = (const fai_half *)from;
    return dtype == FA_DTYPE_F32    ? ((const float *)from)[i]
           : dtype == FA_DTYPE_BF16 ? fai_float_of_bf16(half[i])
                                    : fai_float_of_f16(half[i]);
}
/* `run` neighbouring elements, over and over: a whole vector of them or half a one. Both and the
 * type are known when this is compiled. */
FAI_INLINE fai_vec fai_repeat(const void *from, const int run, const int dtype) {
#ifdef FAI_REPEAT
    return FAI_REPEAT(from, run, dtype);
#else
    float lane[FAI_LANES];
    if (dtype == FA_DTYPE_F32 && run == FAI_LANES) return fai_load((const float *)from);
    for (int i = 0; i < FAI_LANES; ++i) lane[i] = fai_float_at(from, i % run, dtype);
    return fai_load(lane);
#endif
}

/* To nearest, ties to even. For results below the smallest normal 2^-14, adding 0.5 leaves the
 * rounded subnormal in the low bits. */
FAI_INLINE uint16_t fai_f16_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return sign | 0x7e00;
    if (bits >= 0x47800000u) return sign | 0x7c00;
    if (bits < 0x38800000u) {
        float magnitude;
        memcpy(&magnitude, &bits, sizeof(magnitude));
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, sizeof(bits));
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    const uint32_t odd = bits >> 13 & 1;
    return (uint16_t)(sign | ((bits - 0x38000000u + 0x0fffu + odd) >> 13));
}
FAI_INLINE uint16_t fai_bf16_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* Rows of q, k and v as float32, and rows of o from it. */
FAI_INLINE void fai_halves_to_float(float *to, const fai_half *from, int32_t count,
                                    const int dtype) {
    int32_t i = 0;
    for (; i + FAI_LANES <= count; i += FAI_LANES)
        fai_store(to + i, fai_repeat(from + i, FAI_LANES, dtype));
    for (; i < count; ++i) to[i] = fai_float_at(from, i, dtype);
}
static inline void fai_row_to_float(float *to, const void *from, int32_t count, int32_t dtype) {
    if (dtype == FA_DTYPE_F32)
        memcpy(to, from, (size_t)count * sizeof(float));
    else if (dtype == FA_DTYPE_BF16)
        fai_halves_to_float(to, (const fai_half *)from, count, FA_DTYPE_BF16);
    else
        fai_halves_to_float(to, (const fai_half *)from, count, FA_DTYPE_F16);
}
static inline void fai_row_from_float(void *to, const float *from, int32_t count, int32_t dtype) {
    fai_half *half = (fai_half *)to;
    if (dtype == FA_DTYPE_F32)
        memcpy(to, from, (size_t)count * sizeof(float));
    else if (dtype == FA_DTYPE_BF16)
        for (int32_t i = 0; i < count; ++i) half[i] = fai_bf16_of_float(from[i]);
    else
        for (int32_t i = 0; i < count; ++i) half[i] = fai_f16_of_float(from[i]);
}

#endif /* FA_CPU_VECTOR_H */
