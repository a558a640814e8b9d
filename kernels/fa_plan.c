/* fa_plan.c - which kernel, tiles, splits and workspace a call uses. Pure: no device is asked,
 * machine facts come in as an argument, so that every decision can be tested on any host.
 *
 * A new implementation is a row of the table below and a plan function; the widest come first, and
 * the first that can do the problem does it. */
#include "fa_internal.h"

#include "cpu/fa_cpu.h"

#include <string.h>

/* Adds rows * row_bytes, rounded up to the alignment, to *total. Returns 0 on overflow. */
static int add_region(int64_t rows, int64_t row_bytes, int64_t *total) {
    const int64_t limit = INT64_MAX - 2 * FAI_WORKSPACE_ALIGN;
    if (row_bytes > 0 && rows > (limit - *total) / row_bytes) return 0;
    *total += fai_ceil_div(rows * row_bytes, FAI_WORKSPACE_ALIGN) * FAI_WORKSPACE_ALIGN;
    return 1;
}

int fai_plan_workspace(const fa_args *a, int64_t control_bytes, fai_plan *plan) {
    /* fai_check has made sure that the rows themselves can be counted. */
    const int64_t rows = (int64_t)a->batch * a->heads_q * a->q_len;
    const int64_t splits = plan->splits > 1 ? plan->splits : 0;
    int64_t total = 0;
    if (!add_region(control_bytes, 1, &total)) return 0;
    plan->control_bytes = (size_t)total;
    plan->partial_o_at = (size_t)total;
    if (!add_region(rows, splits * a->head_dim * 4, &total)) return 0;
    plan->partial_state_at = (size_t)total;
    if (!add_region(rows, splits * 8, &total)) return 0;
    plan->workspace_bytes = (size_t)total;
    return 1;
}

/* threads = 0: as many as have enough to do. A team that still spins from the last call starts in
 * a few microseconds, in which a thread does about 2^17 multiply-adds; so each gets at least 2^18:
 * a decode step of 9 heads of 64 over 60 keys (2^16) stays in its caller's thread, one of 8 heads
 * over 1024 keys (2^20) takes up to 4. */
static int32_t useful_threads(const fa_args *a, int32_t most) {
    const double rows = (double)a->batch * a->heads_q * a->q_len;
    const double useful = rows * a->kv_len * a->head_dim * 2 / (1 << 18);
    return useful >= most ? most : (useful > 1 ? (int32_t)useful : 1);
}

/* No more threads than tasks, or than OpenMP's runtime may be trusted to start: it ends the process
 * when it cannot. */
static int32_t bounded_threads(const fa_args *a, const fai_plan *plan, int32_t threads) {
    const double tasks = (double)a->batch * a->heads_kv * (double)plan->tiles * plan->splits;
    const int32_t most = tasks < FAI_CPU_MAX_THREADS ? (int32_t)tasks : FAI_CPU_MAX_THREADS;
    return (int32_t)fai_clamp64(threads, 1, most > 0 ? most : 1);
}

/* num_splits 0: a step of few rows against many keys is a stream of bytes, and each split of it
 * reads its keys for all heads, in the order in which (batch, seq, head, dim) has them. Follows
 * from sizes alone, since bits must not depend on the number of threads: splits of at least 2^18
 * elements of K, or two of 2^16, as many as their results find room for on the stack. */
static int32_t choose_splits(const fa_args *a, int64_t rows) {
    const double keys = (double)a->kv_len * a->head_dim * a->heads_kv * a->batch;
    const double row_floats = (double)a->batch * a->heads_q * a->q_len * (a->head_dim + 2);
    const double room = FAI_CPU_PARTIAL_FLOATS / (row_floats > 1 ? row_floats : 1);
    double splits = keys / (1 << 18);
    if (rows > FAI_CPU_NARROW_ROWS) return 1;
    if (splits < 2 && keys >= 1 << 17) splits = 2;
    if (splits > FAI_CPU_MAX_OWN_SPLITS) splits = FAI_CPU_MAX_OWN_SPLITS;
    if (splits > room) splits = room;
    return splits > 1 ? (int32_t)splits : 1;
}

/* Neighbouring heads go together where their rows do, up to what a task has scratch for, and as
 * long as everyone still has one. The bits of a head do not depend on its company. */
static int32_t choose_task_heads(const fa_args *a, const fai_plan *plan, int64_t rows,
                                 int32_t lanes) {
    const int64_t width = rows <= 4 ? 8 : fai_ceil_div(rows, lanes) * lanes;
    const int64_t room =
        FAI_CPU_TILE_ROWS(8) * (int64_t)128 / (width * fai_ceil_div(a->head_dim, lanes) * lanes);
    const int64_t workers = a->task_count > 0 ? a->task_count : plan->threads;
    const double heads = (double)a->batch * a->heads_kv * (a->task_count > 0 ? 1 : plan->splits);
    const int64_t stride_head = a->k.stride_head, stride_seq = a->k.stride_seq;
    if (rows > FAI_CPU_NARROW_ROWS || stride_head < 0 || stride_head > stride_seq) return 1;
    const double share = heads / (double)workers;
    int64_t most = fai_min64(fai_min64(room, FAI_CPU_TILE_ROWS(8) / width), a->heads_kv);
    if (most < 1) most = 1; /* a head that is worked through in parts of its rows */
    return share >= (double)most ? (int32_t)most : share > 1 ? (int32_t)share : 1;
}

/* Tiles as equal as whole pairs of vectors allow, so that threads finish together. */
static int32_t choose_tile_rows(int64_t rows, int32_t lanes) {
    const int64_t tiles = fai_ceil_div(rows > 0 ? rows : 1, FAI_CPU_TILE_ROWS(lanes));
    const int64_t pair = 2 * lanes;
    return (int32_t)(fai_ceil_div(fai_ceil_div(rows > 0 ? rows : 1, tiles), pair) * pair);
}

/* The rows of a tile share one pass over the keys. */
static int plan_cpu_lanes(const fa_args *a, const fai_machine *machine, fai_plan *plan,
                          int32_t lanes) {
    const int64_t rows = (int64_t)a->q_len * (a->heads_q / a->heads_kv);
    plan->tile_rows = choose_tile_rows(rows, lanes);
    plan->tile_keys = FAI_CPU_NARROW_KEYS;
    plan->tile_dim = a->head_dim;
    plan->pack_heads = 1;
    plan->tiles = fai_ceil_div(rows, plan->tile_rows);
    plan->splits = 1;
    plan->why = "a row's keys are read in one pass: the rows are many, the keys few, or so asked";
    if (a->num_splits > 1) {
        plan->splits = a->num_splits;
        plan->why = "num_splits as the caller set it";
    } else if (a->split_keys > 0) {
        const int64_t splits = fai_ceil_div(a->kv_len, a->split_keys);
        plan->splits = splits > 1 ? (int32_t)splits : 1;
        plan->why = "split_keys as the caller set it";
    } else if (a->num_splits == 0) {
        plan->splits = choose_splits(a, rows);
        plan->on_stack = plan->splits > 1;
        if (plan->on_stack)
            plan->why = "keys are split: few rows, so that threads share the reading";
    }
    plan->threads = a->task_count > 0 ? 1
                    : a->threads > 0
                        ? bounded_threads(a, plan, a->threads)
                        : bounded_threads(a, plan, useful_threads(a, machine->threads));
    plan->task_heads = choose_task_heads(a, plan, rows, lanes);
    if (plan->on_stack || fai_plan_workspace(a, 0, plan)) return 1;
    plan->refusal = FA_ERR_SIZE;
    plan->why = "the workspace for the splits does not fit 63 bits";
    return 0;
}

static int plan_cpu(const fa_args *a, const fai_machine *machine, fai_plan *plan) {
    return plan_cpu_lanes(a, machine, plan, 8);
}

/* Of few rows the keys are read, hardly multiplied: vectors do that in place. */
static int plan_cpu_amx(const fa_args *a, const fai_machine *machine, fai_plan *plan) {
    const int64_t rows = (int64_t)a->q_len * (a->heads_q / a->heads_kv);
    if (machine->cpu_amx && a->dtype == FA_DTYPE_BF16 && rows > 4)
        return plan_cpu_lanes(a, machine, plan, 16);
    plan->refusal = FA_ERR_ARCH;
    plan->why = "AMX takes bfloat16 and more than 4 packed rows, where the processor has it";
    return 0;
}

static int plan_cpu_avx512(const fa_args *a, const fai_machine *machine, fai_plan *plan) {
    if (machine->cpu_avx512) return plan_cpu_lanes(a, machine, plan, 16);
    plan->refusal = FA_ERR_ARCH;
    plan->why = "this processor lacks AVX-512";
    return 0;
}

static int plan_cpu_avx2(const fa_args *a, const fai_machine *machine, fai_plan *plan) {
    if (machine->cpu_avx2) return plan_cpu(a, machine, plan);
    plan->refusal = FA_ERR_ARCH;
    plan->why = "this processor lacks AVX2, FMA or F16C";
    return 0;
}

const fai_kernel fai_kernels[] = {
#ifdef FA_WITH_CUDA
    {"cuda_decode_sm90", FA_DEVICE_CUDA, fai_plan_decode_sm90, fai_cuda_run_decode_sm90},
    {"cuda_prefill_sm90", FA_DEVICE_CUDA, fai_plan_prefill_sm90, fai_cuda_run_prefill_sm90},
    {"cuda_sm80", FA_DEVICE_CUDA, fai_plan_cuda_sm80, fai_cuda_run_sm80},
#endif
    {"cpu_amx", FA_DEVICE_CPU, plan_cpu_amx, fai_cpu_run_amx},
    {"cpu_avx512", FA_DEVICE_CPU, plan_cpu_avx512, fai_cpu_run_avx512},
    {"cpu_avx2", FA_DEVICE_CPU, plan_cpu_avx2, fai_cpu_run_avx2},
    {"cpu_portable", FA_DEVICE_CPU, plan_cpu, fai_cpu_run_portable},
};
const int32_t fai_kernel_count = (int32_t)(sizeof(fai_kernels) / sizeof(fai_kernels[0]));

/* The first row that is asked. */
#ifdef FA_TEST_HOOKS
static FAI_THREAD_LOCAL const char *forced_kernel;
void fai_test_force_kernel(const char *name) { forced_kernel = name; }
static int32_t first_row(void) {
    int32_t i = 0;
    while (forced_kernel && i < fai_kernel_count && strcmp(forced_kernel, fai_kernels[i].name)) ++i;
    return i;
}
#else
static int32_t first_row(void) { return 0; }
#endif

fa_status fai_make_plan(const fa_args *a, const fai_machine *machine, fai_plan *plan) {
    fa_status refusal = FA_ERR_UNSUPPORTED;
    const char *why = "no kernel of this name or after it is for the device";
    for (int32_t i = first_row(); i < fai_kernel_count; ++i) {
        const fai_kernel *kernel = &fai_kernels[i];
        if (kernel->device != a->device) continue;
        memset(plan, 0, sizeof(*plan));
        plan->kernel = kernel;
        if (kernel->plan(a, machine, plan)) return FA_OK;
        refusal = plan->refusal;
        why = plan->why;
    }
    return fai_fail(
        refusal,
        "no kernel for batch %d, heads_q %d, heads_kv %d, head_dim %d, q_len %d, kv_len %d, "
        "num_splits %d, split_keys %d: %s",
        a->batch, a->heads_q, a->heads_kv, a->head_dim, a->q_len, a->kv_len, a->num_splits,
        a->split_keys, why);
}
