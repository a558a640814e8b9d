/* ceiling_cpu.c - the most that this CPU does: FMA rate and read rate, on all threads.
 *
 * Compiled with -ffp-contract=fast, so that a * b + c becomes one FMA wherever the target has it.
 * It changes when an instruction set with a higher peak comes. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "bench.h"

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int fb_cpu_threads(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

/* FMAs of 12 independent accumulators of one register each: more than latency * ports of any core
 * so far, and they fit the registers. A macro, because GCC cuts generic vectors to the target's
 * width before it inlines: a shared inline body would be compiled for the baseline. */
#define FMA_LOOP(vector, steps)                                  \
    vector sum[12], factor = {0.5f}, term = {1.0f};              \
    for (int c = 0; c < 12; c++) sum[c] = term * (float)(c + 1); \
    for (int64_t s = 0; s < (steps); s++)                        \
    _Pragma("GCC unroll 12") for (int c = 0; c < 12; c++) sum[c] = sum[c] * factor + term

#define FMA_CHAINS 12

typedef float vector16 __attribute__((vector_size(16)));

/* Depends on every chain, so that none is optimised away. */
#define FMA_TOTAL()                                \
    for (int c = 1; c < 12; c++) sum[0] += sum[c]; \
    return sum[0][0]

__attribute__((noinline)) static float fma_baseline(int64_t steps) {
    FMA_LOOP(vector16, steps);
    FMA_TOTAL();
}

#if defined(__x86_64__)
typedef float vector32 __attribute__((vector_size(32)));
typedef float vector64 __attribute__((vector_size(64)));

__attribute__((target("avx2,fma"), noinline)) static float fma_avx2(int64_t steps) {
    FMA_LOOP(vector32, steps);
    FMA_TOTAL();
}

__attribute__((target("avx512f"), noinline)) static float fma_avx512(int64_t steps) {
    FMA_LOOP(vector64, steps);
    FMA_TOTAL();
}
#endif

typedef struct fma_kind {
    const char *isa;
    float (*run)(int64_t steps);
    int lanes;
} fma_kind;

static fma_kind fma_best(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return (fma_kind){"AVX-512 FMA", fma_avx512, 16};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (fma_kind){"AVX2 FMA", fma_avx2, 8};
#endif
    return (fma_kind){"baseline vectors", fma_baseline, 4};
}

double fb_cpu_flops_per_second(int quick, const char **isa, double *disturbance) {
    enum { MOST = 1000 };
    static double took[MOST];
    const fma_kind kind = fma_best();
    /* Passes of a fraction of a millisecond: a busy machine leaves some of them alone. */
    const int64_t steps = 20000;
    const int threads = fb_cpu_threads(), passes = quick ? MOST / 10 : MOST;
    volatile float result = 0;
    double all = 0;
    for (int pass = 0; pass < passes; pass++) {
        float total = 0;
        const double begin = seconds();
#pragma omp parallel reduction(+ : total)
        total += kind.run(steps);
        took[pass] = seconds() - begin;
        result = result + total;
        all += took[pass];
    }
    const fb_stats stats = fb_stats_of(took, passes);
    *isa = kind.isa;
    *disturbance = all / passes / stats.minimum;
    return 2.0 * kind.lanes * FMA_CHAINS * (double)steps * threads / stats.minimum;
}

typedef int64_t piece __attribute__((vector_size(16)));

/* XOR of everything, 8 pieces at a time: 16-byte loads, two of which a core issues in each cycle,
 * outrun every cache but the first, so only the reads count. */
__attribute__((noinline)) static int64_t read_all(const piece *pieces, int64_t count) {
    piece sum[8] = {{0}};
    for (int64_t i = 0; i + 8 <= count; i += 8) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) sum[j] ^= pieces[i + j];
    }
    for (int j = 1; j < 8; j++) sum[0] ^= sum[j];
    return sum[0][0] ^ sum[0][1];
}

void *fb_cpu_alloc(size_t bytes) {
    const size_t huge = (size_t)2 << 20, size = (bytes + huge - 1) / huge * huge;
    void *memory = aligned_alloc(huge, size ? size : huge);
#ifdef MADV_HUGEPAGE
    if (memory) madvise(memory, size, MADV_HUGEPAGE);
#endif
    return memory;
}

static volatile int64_t sink; /* keeps the reads */

void fb_cpu_read(const void *memory, size_t bytes) {
    const int threads = fb_cpu_threads();
    const int64_t share = (int64_t)(bytes / sizeof(piece)) / threads;
    int64_t total = 0;
#pragma omp parallel for reduction(^ : total) schedule(static, 1)
    for (int t = 0; t < threads; t++) total ^= read_all((const piece *)memory + t * share, share);
    sink = total;
}

double fb_cpu_read_bytes_per_second(const char *buffer, size_t bytes, int quick) {
    /* In chunks of about a millisecond, for the same reason. */
    const size_t chunk = bytes / 16;
    const double budget = quick ? 0.05 : 0.5, started = seconds();
    double best = 0;
    for (int pass = 0; pass < 3 || seconds() - started < budget; pass++) {
        for (size_t at = 0; at + chunk <= bytes; at += chunk) {
            const double begin = seconds();
            fb_cpu_read(buffer + at, chunk);
            const double rate = (double)chunk / (seconds() - begin);
            if (rate > best) best = rate;
        }
    }
    return best;
}
