/* fa_cpu_amx.c - the CPU kernel for x86-64 with AMX: bfloat16 of more than a few rows.
 *
 * As fa_cpu_avx2.c it compiles anywhere without flags; compilers before gcc 11 and clang 12 do not
 * know the instructions. It changes when the set's parts do. */
#if defined(__linux__) && !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE /* syscall() */
#endif
#include "fa_cpu.h"

#if defined(__clang__)
#define FAI_KNOWS_AMX (__clang_major__ >= 12)
#elif defined(__GNUC__)
#define FAI_KNOWS_AMX (__GNUC__ >= 11)
#else
#define FAI_KNOWS_AMX 0
#endif

#if defined(__x86_64__) && defined(__linux__) && FAI_KNOWS_AMX
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __clang__
#pragma clang attribute push(                                                            \
    __attribute__((                                                                      \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,amx-tile,amx-bf16"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,amx-tile,amx-bf16")
#endif

#include "fa_cpu_avx512.h"

#define FAI_PAIRS 1
#include "fa_cpu_algorithm.h"

static void run_tile(const fai_cpu_call *call, const fai_cpu_task *task) {
    _tile_loadconfig(&fai_whole_tiles);
    fai_run_tile(call, task);
    _tile_release();
}

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

/* Linux gives a process the tiles' 8 KB of state only when it asks. Asked once, as in
 * fa_cpu_avx2.c. */
static int ask_for_tiles(void) {
    enum { kRequestPermission = 0x1023, kTileData = 18 };
    unsigned eax, ebx, ecx, edx, extra;
    if (!fai_cpu_has_avx512() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) ||
        !__get_cpuid_count(7, 1, &extra, &ebx, &ecx, &eax))
        return 0;
    const int has = edx >> 22 & edx >> 24 & extra >> 5 & 1; /* AMX-BF16, AMX-TILE, AVX512-BF16 */
    return has && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

int fai_cpu_has_amx(void) {
    enum { kUnknown, kNo, kYes };
    static int known = kUnknown;
    int answer = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (answer == kUnknown) {
        answer = ask_for_tiles() ? kYes : kNo;
        __atomic_store_n(&known, answer, __ATOMIC_RELAXED);
    }
    return answer == kYes;
}

fa_status fai_cpu_run_amx(const fa_args *a, const fai_plan *plan, struct CUstream_st *stream) {
    static const fai_cpu_kernel kernel = {run_tile, fai_merge_row};
    (void)stream;
    return fai_cpu_run_tasks(a, plan, &kernel);
}

#else /* The table of kernels never picks what the machine has not. */

int fai_cpu_has_amx(void) { return 0; }

fa_status fai_cpu_run_amx(const fa_args *a, const fai_plan *plan, struct CUstream_st *stream) {
    (void)a, (void)plan, (void)stream;
    return FA_ERR_NOT_BUILT;
}
#endif
