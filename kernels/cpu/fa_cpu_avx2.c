/* fa_cpu_avx2.c - the CPU kernel for x86-64 with AVX2, FMA and F16C: eight lanes.
 *
 * The file compiles anywhere without flags: it turns the instructions on for itself, after the
 * shared headers, and fai_cpu_has_avx2 says whether this machine has them. It changes when a
 * compiler does not find one of the instructions below from the plain form. */
#include "fa_cpu.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#define FAI_LANES 8
#define FAI_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define FAI_MAX(a, b) _mm256_max_ps(b, a) /* its second operand where either is NaN */
#define FAI_LOAD_F16(from) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from)))
#define FAI_SUMS(x) fai_sums_of_8(x)

/* [a0+a2 b0+b2 a1+a3 b1+b3] in each half, and four of a, b, c and d from two of those. */
static inline __m256 fai_fold_pair(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}
static inline __m256 fai_fold_four(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 ab = fai_fold_pair(a, b), cd = fai_fold_pair(c, d);
    return _mm256_add_ps(_mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)),
                         _mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
}
/* The halves of a vector go first: [a0+a4 a1+a5 ... | b0+b4 ...]. */
static inline __m256 fai_fold_halves(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
}
static inline __m256 fai_sums_of_8(const __m256 *x) {
    return fai_fold_four(fai_fold_halves(x[0], x[4]), fai_fold_halves(x[1], x[5]),
                         fai_fold_halves(x[2], x[6]), fai_fold_halves(x[3], x[7]));
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
