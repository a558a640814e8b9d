/* fa_cpu_avx512.h - sixteen lanes: what a compiler does not find from the plain form of
 * fa_cpu_vector.h. Included where AVX-512 (F, BW, DQ, VL) and FMA are turned on; it changes when
 * one more of them is needed. */
#ifndef FA_CPU_AVX512_H
#define FA_CPU_AVX512_H

#include "../fa_internal.h"

#include <immintrin.h>

#define FAI_LANES 16
#define FAI_STEP 8
#define FAI_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define FAI_MAX(a, b) _mm512_max_ps(b, a) /* its second operand where either is NaN */
#define FAI_REPEAT(from, run, dtype) fai_repeat_avx512(from, run, dtype)
#define FAI_PAIR_SUMS(a, b) fai_pair_sums_avx512(a, b)
#define FAI_SWAP(x, step) fai_swap_avx512(x, step)
#define FAI_TRANSPOSE(to, to_pitch, from, from_pitch) \
    fai_transpose_avx512(to, to_pitch, from, from_pitch)

static inline __m512 fai_repeat_avx512(const void *from, const int run, const int dtype) {
    if (run == 4) return _mm512_broadcast_f32x4(_mm_loadu_ps((const float *)from));
    if (dtype == FA_DTYPE_F32)
        return run == 16 ? _mm512_loadu_ps(from)
                         : _mm512_broadcast_f32x8(_mm256_loadu_ps((const float *)from));
    const __m256i halves =
        run == 16 ? _mm256_loadu_si256((const __m256i *)from)
                  : _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)from));
    if (dtype == FA_DTYPE_F16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
static inline __m512 fai_pair_sums_avx512(__m512 a, __m512 b) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return _mm512_add_ps(_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b));
}
static inline __m512 fai_swap_avx512(__m512 x, const int step) {
    if (step == 8) return _mm512_shuffle_f32x4(x, x, _MM_SHUFFLE(1, 0, 3, 2));
    if (step == 4) return _mm512_shuffle_f32x4(x, x, _MM_SHUFFLE(2, 3, 0, 1));
    return step == 2 ? _mm512_permute_ps(x, _MM_SHUFFLE(1, 0, 3, 2))
                     : _mm512_permute_ps(x, _MM_SHUFFLE(2, 3, 0, 1));
}
/* Quarters of a row hold 4 columns: 4 rows of such a quarter are turned within it, then the
 * quarters change places. */
static inline void fai_transpose_avx512(float *to, int32_t to_pitch, const float *from,
                                        int32_t from_pitch) {
    __m512 row[16];
    for (int i = 0; i < 16; ++i) row[i] = _mm512_loadu_ps(from + i * from_pitch);
    for (int i = 0; i < 16; i += 4) {
        const __m512 a = _mm512_unpacklo_ps(row[i], row[i + 1]);
        const __m512 b = _mm512_unpackhi_ps(row[i], row[i + 1]);
        const __m512 c = _mm512_unpacklo_ps(row[i + 2], row[i + 3]);
        const __m512 d = _mm512_unpackhi_ps(row[i + 2], row[i + 3]);
        row[i] = _mm512_shuffle_ps(a, c, _MM_SHUFFLE(1, 0, 1, 0));
        row[i + 1] = _mm512_shuffle_ps(a, c, _MM_SHUFFLE(3, 2, 3, 2));
        row[i + 2] = _mm512_shuffle_ps(b, d, _MM_SHUFFLE(1, 0, 1, 0));
        row[i + 3] = _mm512_shuffle_ps(b, d, _MM_SHUFFLE(3, 2, 3, 2));
    }
    for (int i = 0; i < 4; ++i) { /* column i of each quarter, of 4 rows each */
        const __m512 a = _mm512_shuffle_f32x4(row[i], row[i + 4], 0x88);
        const __m512 b = _mm512_shuffle_f32x4(row[i], row[i + 4], 0xdd);
        const __m512 c = _mm512_shuffle_f32x4(row[i + 8], row[i + 12], 0x88);
        const __m512 d = _mm512_shuffle_f32x4(row[i + 8], row[i + 12], 0xdd);
        _mm512_storeu_ps(to + i * to_pitch, _mm512_shuffle_f32x4(a, c, 0x88));
        _mm512_storeu_ps(to + (i + 4) * to_pitch, _mm512_shuffle_f32x4(b, d, 0x88));
        _mm512_storeu_ps(to + (i + 8) * to_pitch, _mm512_shuffle_f32x4(a, c, 0xdd));
        _mm512_storeu_ps(to + (i + 12) * to_pitch, _mm512_shuffle_f32x4(b, d, 0xdd));
    }
}

#endif /* FA_CPU_AVX512_H */
