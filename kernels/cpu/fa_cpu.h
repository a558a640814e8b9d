/* fa_cpu.h - what the files of the CPU backend share with each other and with the planner.
 *
 * fa_cpu.c knows the machine and deals out tasks; fa_cpu_algorithm.h is the kernel, compiled once
 * for each instruction set by a small fa_cpu_<set>.c. This file changes when a tile or the way
 * tasks are dealt changes. */
#ifndef FA_CPU_H
#define FA_CPU_H

#include "../fa_internal.h"

#ifdef FA_PREFIX
#define fai_cpu_run_tasks FA_JOIN(FA_PREFIX, fai_cpu_run_tasks)
#define fai_cpu_has_avx2 FA_JOIN(FA_PREFIX, fai_cpu_has_avx2)
#define fai_cpu_has_amx FA_JOIN(FA_PREFIX, fai_cpu_has_amx)
#define fai_cpu_has_avx512 FA_JOIN(FA_PREFIX, fai_cpu_has_avx512)
#define fai_cpu_run_portable FA_JOIN(FA_PREFIX, fai_cpu_run_portable)
#define fai_cpu_run_avx2 FA_JOIN(FA_PREFIX, fai_cpu_run_avx2)
#define fai_cpu_run_amx FA_JOIN(FA_PREFIX, fai_cpu_run_amx)
#define fai_cpu_run_avx512 FA_JOIN(FA_PREFIX, fai_cpu_run_avx512)
#endif

/* The most rows of a tile and keys of a block, by the lanes of a vector. Large head_dims are worked
 * through in parts of fewer rows and blocks of fewer keys, so that the working set stays on the
 * stack and in an L2 of 256 KB; where there is AVX-512 the L2 has 1 MB or more, and twice the rows
 * read K and V half as often. */
#define FAI_CPU_TILE_ROWS(lanes) ((lanes) > 8 ? 192 : 96)
#define FAI_CPU_TILE_KEYS(lanes) ((lanes) > 8 ? 128 : 64)
#define FAI_CPU_MAX_THREADS 256
/* A (sequence, kv head) of so few rows is bound by reading its keys: three vectors of rows, which
 * one micro-kernel takes. */
#define FAI_CPU_NARROW_ROWS 24
/* The most keys of its block; splits are cut at multiples of it. */
#define FAI_CPU_NARROW_KEYS 64
/* Of splits that the planner chooses: their number, and the floats of their results, 128 KB of the
 * calling thread's stack. */
#define FAI_CPU_MAX_OWN_SPLITS 8
#define FAI_CPU_PARTIAL_FLOATS 32768

/* A call, and where the results of its splits lie; row (i * heads_q + h) * q_len + r of split s is
 * row s * batch * heads_q * q_len more. */
typedef struct fai_cpu_call {
    const fa_args *a;
    const fai_plan *plan;
    float *partial_o;     /* head_dim floats a row: a sum over keys of weight * v */
    float *partial_state; /* two floats a row: the maximum that weights refer to, their sum */
} fai_cpu_call;

/* One unit of work: a tile of packed rows of one or more neighbouring kv heads against one split's
 * keys. */
typedef struct fai_cpu_task {
    int64_t seq;
    int64_t head_kv; /* the first */
    int64_t heads;
    int64_t tile;
    int64_t split;
} fai_cpu_task;

/* What an instruction set provides. Merging joins the splits of one row that the sequence owns. */
typedef struct fai_cpu_kernel {
    void (*tile)(const fai_cpu_call *call, const fai_cpu_task *task);
    void (*merge)(const fai_cpu_call *call, int64_t seq, int64_t head, int64_t row);
} fai_cpu_kernel;

/* Runs every task of the call, or of its slice, on plan->threads threads. */
FAI_LOCAL fa_status fai_cpu_run_tasks(const fa_args *a, const fai_plan *plan,
                                      const fai_cpu_kernel *kernel);

/* One an instruction set, for the table of kernels; and whether this machine and build have it. */
FAI_LOCAL fa_status fai_cpu_run_portable(const fa_args *a, const fai_plan *plan,
                                         struct CUstream_st *stream);
FAI_LOCAL int fai_cpu_has_avx2(void);
FAI_LOCAL fa_status fai_cpu_run_avx2(const fa_args *a, const fai_plan *plan,
                                     struct CUstream_st *stream);
FAI_LOCAL int fai_cpu_has_amx(void);
FAI_LOCAL fa_status fai_cpu_run_amx(const fa_args *a, const fai_plan *plan,
                                    struct CUstream_st *stream);
FAI_LOCAL int fai_cpu_has_avx512(void);
FAI_LOCAL fa_status fai_cpu_run_avx512(const fa_args *a, const fai_plan *plan,
                                       struct CUstream_st *stream);

#endif /* FA_CPU_H */
