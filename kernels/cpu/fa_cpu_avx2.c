/* fa_cpu_avx2.c - the CPU kernel for x86-64 with AVX2, FMA and F16C: eight lanes.
 *
 * The file compiles anywhere without flags: it turns the instructions on for itself, after the
 * shared headers, and fai_cpu_has_avx2 says whether this machine has them. It changes when a
 * compiler does not find one of the instructions below from the plain form. */
#include "fa_cpu.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#define FAI_LANES 8
#define FAI_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define FAI_MAX(a, b) _mm256_max_ps(b, a) /* its second operand where either is NaN */
#define FAI_REPEAT(from, run, dtype) fai_repeat_avx2(from, run, dtype)
#define FAI_PAIR_SUMS(a, b) fai_pair_sums_avx2(a, b)
#define FAI_SWAP(x, step) fai_swap_avx2(x, step)
#define FAI_TRANSPOSE(to, to_pitch, from, from_pitch) \
    fai_transpose_avx2(to, to_pitch, from, from_pitch)

static inline __m256 fai_repeat_avx2(const void *from, const int run, const int dtype) {
    if (dtype == FA_DTYPE_F32)
        return run == 8 ? _mm256_loadu_ps((const float *)from)
                        : _mm256_broadcast_ps((const __m128 *)from);
    double four; /* halves, at any address */
    __m128i halves;
    memcpy(&four, from, sizeof(four));
    halves =
        run == 8 ? _mm_loadu_si128((const __m128i *)from) : _mm_castpd_si128(_mm_set1_pd(four));
    if (dtype == FA_DTYPE_F16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
static inline __m256 fai_pair_sums_avx2(__m256 a, __m256 b) {
    const __m256d halves = _mm256_castps_pd(_mm256_hadd_ps(a, b)); /* a0 b0 | a1 b1 */
    return _mm256_castpd_ps(_mm256_permute4x64_pd(halves, _MM_SHUFFLE(3, 1, 2, 0)));
}
static inline __m256 fai_swap_avx2(__m256 x, const int step) {
    if (step == 4) return _mm256_permute2f128_ps(x, x, 1);
    return step == 2 ? _mm256_permute_ps(x, _MM_SHUFFLE(1, 0, 3, 2))
                     : _mm256_permute_ps(x, _MM_SHUFFLE(2, 3, 0, 1));
}
/* Pairs, then quarters, then halves of rows change places. */
static inline void fai_transpose_avx2(float *to, int32_t to_pitch, const float *from,
                                      int32_t from_pitch) {
    __m256 row[8], pair[8];
    for (int i = 0; i < 8; ++i) row[i] = _mm256_loadu_ps(from + i * from_pitch);
    for (int i = 0; i < 8; i += 2) {
        pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            const __m256 a = pair[i + j], b = pair[i + j + 2];
            row[i + 2 * j] = _mm256_shuffle_ps(a, b, _MM_SHUFFLE(1, 0, 1, 0));
            row[i + 2 * j + 1] = _mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 2, 3, 2));
        }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(to + i * to_pitch, _mm256_permute2f128_ps(row[i], row[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_pitch, _mm256_permute2f128_ps(row[i], row[i + 4], 0x31));
    }
}
#include "fa_cpu_algorithm.h"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

/* clang 14 does not know f16c by name; the bit is in every edition of cpuid.h. Asked once, since
 * cpuid leaves a virtual machine and takes microseconds there; threads that race find the same. */
int fai_cpu_has_avx2(void) {
    enum { kUnknown, kNo, kYes };
    static int known = kUnknown;
    int answer = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (answer == kUnknown) {
        unsigned eax, ebx, ecx, edx;
        const int has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
        answer = has ? kYes : kNo;
        __atomic_store_n(&known, answer, __ATOMIC_RELAXED);
    }
    return answer == kYes;
}

fa_status fai_cpu_run_avx2(const fa_args *a, const fai_plan *plan, struct CUstream_st *stream) {
    static const fai_cpu_kernel kernel = {fai_run_tile, fai_merge_row};
    (void)stream;
    return fai_cpu_run_tasks(a, plan, &kernel);
}

#else /* The table of kernels never picks what the machine has not. */

int fai_cpu_has_avx2(void) { return 0; }

fa_status fai_cpu_run_avx2(const fa_args *a, const fai_plan *plan, struct CUstream_st *stream) {
    (void)a, (void)plan, (void)stream;
    return FA_ERR_NOT_BUILT;
}
#endif
