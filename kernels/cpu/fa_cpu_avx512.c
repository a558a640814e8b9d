/* fa_cpu_avx512.c - the CPU kernel for x86-64 with AVX-512 (F, BW, DQ, VL): sixteen lanes, and
 * twice the registers.
 *
 * As fa_cpu_avx2.c it compiles anywhere without flags. It changes when the set's parts do. */
#include "fa_cpu.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#endif

#include "fa_cpu_avx512.h"

#include "fa_cpu_algorithm.h"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

int fai_cpu_has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

fa_status fai_cpu_run_avx512(const fa_args *a, const fai_plan *plan, struct CUstream_st *stream) {
    static const fai_cpu_kernel kernel = {fai_run_tile, fai_merge_row};
    (void)stream;
    return fai_cpu_run_tasks(a, plan, &kernel);
}

#else /* The table of kernels never picks what the machine has not. */

int fai_cpu_has_avx512(void) { return 0; }

fa_status fai_cpu_run_avx512(const fa_args *a, const fai_plan *plan, struct CUstream_st *stream) {
    (void)a, (void)plan, (void)stream;
    return FA_ERR_NOT_BUILT;
}
#endif
