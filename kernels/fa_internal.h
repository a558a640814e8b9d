/* fa_internal.h - what the rooms of the library tell each other: check -> plan -> run.
 *
 * Internal: tests may look at it, callers never. It changes when a room needs to know more than the
 * contract says. Non-static internals are fai_, hidden, and renamed by FA_PREFIX like the API. */
#ifndef FA_INTERNAL_H
#define FA_INTERNAL_H

#define FA_BUILDING 1
#include "fa_fwd_causal.h"

#include "fa_mask.h"

#ifdef FA_PREFIX
#define fai_fail FA_JOIN(FA_PREFIX, fai_fail)
#define fai_check FA_JOIN(FA_PREFIX, fai_check)
#define fai_make_plan FA_JOIN(FA_PREFIX, fai_make_plan)
#define fai_plan_workspace FA_JOIN(FA_PREFIX, fai_plan_workspace)
#define fai_kernel_count FA_JOIN(FA_PREFIX, fai_kernel_count)
#define fai_kernels FA_JOIN(FA_PREFIX, fai_kernels)
#define fai_cpu_machine FA_JOIN(FA_PREFIX, fai_cpu_machine)
#define fai_cuda_machine FA_JOIN(FA_PREFIX, fai_cuda_machine)
#define fai_cuda_check_pointers FA_JOIN(FA_PREFIX, fai_cuda_check_pointers)
#define fai_plan_cuda_sm80 FA_JOIN(FA_PREFIX, fai_plan_cuda_sm80)
#define fai_cuda_run_sm80 FA_JOIN(FA_PREFIX, fai_cuda_run_sm80)
#define fai_plan_decode_sm90 FA_JOIN(FA_PREFIX, fai_plan_decode_sm90)
#define fai_cuda_run_decode_sm90 FA_JOIN(FA_PREFIX, fai_cuda_run_decode_sm90)
#define fai_plan_prefill_sm90 FA_JOIN(FA_PREFIX, fai_plan_prefill_sm90)
#define fai_cuda_run_prefill_sm90 FA_JOIN(FA_PREFIX, fai_cuda_run_prefill_sm90)
#define fai_fill_waves FA_JOIN(FA_PREFIX, fai_fill_waves)
#define fai_test_force_kernel FA_JOIN(FA_PREFIX, fai_test_force_kernel)
#endif

/* Every kernel takes exponentials as powers of 2. */
#define FAI_LOG2_E 1.44269504088896341f

#ifdef __GNUC__
#define FAI_LOCAL __attribute__((visibility("hidden")))
#define FAI_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#else
#define FAI_LOCAL
#define FAI_PRINTF(format_at, args_at)
#endif

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define FAI_THREAD_LOCAL _Thread_local
#else
#define FAI_THREAD_LOCAL __thread
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FAI_MAX_SPLITS 1024
#define FAI_MAX_HEAD_DIM_CPU 512
#define FAI_MAX_HEAD_DIM_CUDA 256
#define FAI_WORKSPACE_ALIGN 16
/* CUDA: the control words are the same bytes in every call that splits, so that calls of different
 * shapes can take turns on one workspace. Tiles beyond this many do without them (fa_merge.cuh);
 * what the library splits by its own choice has at most 4 waves of decode tiles, far fewer. */
#define FAI_CONTROL_WORDS 4096

/* Why the check runs: a query looks at no pointer that is null and reads no host array. */
typedef enum fai_purpose { FAI_FOR_RUN, FAI_FOR_QUERY } fai_purpose;

/* Facts about the machine that the planner may use; a test makes its own. */
typedef struct fai_machine {
    int32_t device;     /* fa_device */
    int32_t cc;         /* CUDA: compute capability, major * 10 + minor */
    int32_t sm_count;   /* CUDA */
    int32_t smem_bytes; /* CUDA: largest shared memory a block may ask for */
    int32_t threads;    /* CPU: what threads = 0 means */
    int32_t cpu_avx2;   /* CPU: 1 when it has AVX2, FMA and F16C */
    int32_t cpu_amx; /* CPU: 1 when it has AMX's bfloat16 products, and this process may use them */
    int32_t cpu_avx512; /* CPU: 1 when it has AVX-512 F, BW, DQ and VL */
} fai_machine;

/* A resolved problem is an fa_args that passed fai_check: full size, scale filled in, the strides
 * of dimensions of size 1 and of ignored dimensions set to 0, causal_offset in force. */
typedef struct fai_plan fai_plan;

/* One implementation: a row of the table in fa_plan.c, the widest first. */
typedef struct fai_kernel {
    const char *name;
    int32_t device; /* fa_device */
    /* Fills the tiles and splits, or returns 0 when it cannot do this problem on this machine.
     * Pure. */
    int (*plan)(const fa_args *a, const fai_machine *machine, fai_plan *plan);
    /* Runs a planned call. */
    fa_status (*run)(const fa_args *a, const fai_plan *plan, struct CUstream_st *stream);
} fai_kernel;

/* Everything decided about a call before it runs. A tile is tile_rows rows of one (sequence, kv
 * head); with pack_heads the rows of a kv head's whole group lie in it: packed row r is query
 * r / group and head r % group of the group; else the rows of one query head. The workspace holds,
 * in this order, control words (left zero by every call), the splits' o (float32) and, for each of
 * their rows, two floats that the merge needs beside it: CUDA uses the first for the lse, the CPU
 * keeps the maximum and the sum. */
struct fai_plan {
    const fai_kernel *kernel;
    fa_status refusal;    /* why not, when the kernel cannot */
    const char *why;      /* a phrase: what decided for this kernel and these splits, or against */
    int32_t tile_rows;    /* rows of a tile */
    int32_t tile_keys;    /* keys of a block */
    int32_t tile_dim;     /* head_dim as compiled, >= head_dim */
    int32_t pack_heads;   /* 1: a tile packs the heads of a group */
    int32_t splits;       /* >= 1; a sequence's keys are cut by fai_split_keys(s, splits, ...) */
    int32_t threads;      /* CPU */
    int32_t task_heads;   /* CPU: kv heads that one task works through, block of keys by block */
    int32_t on_stack;     /* CPU: 1 when the splits' results lie on the calling thread's stack */
    int32_t stages;       /* CUDA: tiles of K or V that a block keeps in flight or in use */
    int32_t smem_bytes;   /* CUDA: dynamic shared memory of a block */
    int64_t tiles;        /* tiles of one (sequence, kv head) when it is q_len long */
    size_t control_bytes; /* multiples of FAI_WORKSPACE_ALIGN, as are the offsets */
    size_t partial_o_at;
    size_t partial_state_at;
    size_t workspace_bytes;
};

/* Notes the sentence for fa_last_error and returns the status. */
FAI_LOCAL fa_status fai_fail(fa_status status, const char *format, ...) FAI_PRINTF(2, 3);

/* fa_check.c: every assertion of the contract but the workspace's size. *resolved is valid on
 * FA_OK. */
FAI_LOCAL fa_status fai_check(const fa_args *args, fai_purpose purpose, fa_args *resolved);

/* fa_plan.c: pure. FA_OK, or why no kernel does this problem on this machine. */
FAI_LOCAL fa_status fai_make_plan(const fa_args *a, const fai_machine *machine, fai_plan *plan);
/* Lays out the workspace of a plan whose splits are set: control words, then for each split the o
 * and the two floats of every row, row (i * heads_q + h) * q_len + r. Returns 0 when it does not
 * fit 63 bits. */
FAI_LOCAL int fai_plan_workspace(const fa_args *a, int64_t control_bytes, fai_plan *plan);
FAI_LOCAL extern const fai_kernel fai_kernels[];
FAI_LOCAL extern const int32_t fai_kernel_count;

#ifdef FA_TEST_HOOKS
/* Only in test builds: this thread's calls ask the named kernel first and then those after it in
 * the table, never those before: what a family leaves to the next is tested too. Null ends it. */
FA_API void fai_test_force_kernel(const char *name);
#endif

/* cpu/ */
FAI_LOCAL fai_machine fai_cpu_machine(void);

/* fa_plan_cuda.c: pure, so that the choice for a card is tested where there is none. */
FAI_LOCAL int fai_plan_cuda_sm80(const fa_args *a, const fai_machine *machine, fai_plan *plan);
/* The number of splits, at most `most`, beyond which none fills the waves of `slots` blocks better
 * by a ninth. Grows with `most`, never beyond it. */
FAI_LOCAL int64_t fai_fill_waves(int64_t tiles, int64_t slots, int64_t most);
/* fa_plan_decode_sm90.c and fa_plan_prefill_sm90.c: likewise. */
FAI_LOCAL int fai_plan_decode_sm90(const fa_args *a, const fai_machine *machine, fai_plan *plan);
FAI_LOCAL int fai_plan_prefill_sm90(const fa_args *a, const fai_machine *machine, fai_plan *plan);

/* cuda/, only with FA_WITH_CUDA */
FAI_LOCAL fa_status fai_cuda_machine(fai_machine *machine);
FAI_LOCAL fa_status fai_cuda_check_pointers(const fa_args *a);
FAI_LOCAL fa_status fai_cuda_run_sm80(const fa_args *a, const fai_plan *plan,
                                      struct CUstream_st *stream);
FAI_LOCAL fa_status fai_cuda_run_decode_sm90(const fa_args *a, const fai_plan *plan,
                                             struct CUstream_st *stream);
FAI_LOCAL fa_status fai_cuda_run_prefill_sm90(const fa_args *a, const fai_plan *plan,
                                              struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif /* FA_INTERNAL_H */
