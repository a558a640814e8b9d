/* fa_cpu.c - what the CPU is, and how a call's tasks are dealt to threads or slices.
 *
 * It changes when scheduling does. Tasks write disjoint rows and each is computed the same way
 * wherever it runs, so neither threads nor slices can change a bit. */
#include "fa_cpu.h"

#ifdef _OPENMP
#include <omp.h>
#define FAI_OMP(directive) _Pragma(#directive)
#else
#define FAI_OMP(directive)
#endif

fai_machine fai_cpu_machine(void) {
    fai_machine machine = {0};
    machine.device = FA_DEVICE_CPU;
    machine.threads = 1;
    machine.cpu_avx2 = fai_cpu_has_avx2();
    machine.cpu_avx512 = fai_cpu_has_avx512();
    machine.cpu_amx = fai_cpu_has_amx();
#ifdef _OPENMP
    machine.threads = omp_get_max_threads();
#endif
    return machine;
}

/* A unit is what one task does but for the split. The tiles of one (sequence, kv head) come
 * together, so that its keys stay in the cache, and the last one first: under the causal mask it is
 * the longest, and short ones even out the end. */
static int64_t unit_count(const fai_cpu_call *call) {
    const int64_t groups = fai_ceil_div(call->a->heads_kv, call->plan->task_heads);
    return (int64_t)call->a->batch * groups * call->plan->tiles;
}
static fai_cpu_task task_of(const fai_cpu_call *call, int64_t unit, int64_t split) {
    const fai_plan *plan = call->plan;
    const int64_t groups = fai_ceil_div(call->a->heads_kv, plan->task_heads);
    fai_cpu_task task;
    task.split = split;
    task.tile = plan->tiles - 1 - unit % plan->tiles;
    unit /= plan->tiles;
    task.head_kv = unit % groups * plan->task_heads;
    task.heads = fai_min64(plan->task_heads, call->a->heads_kv - task.head_kv);
    task.seq = unit / groups;
    return task;
}

/* Row `flat` of the partial results; a sequence owns its first rows only. */
static void merge_row(const fai_cpu_call *call, const fai_cpu_kernel *kernel, int64_t flat) {
    const fa_args *a = call->a;
    const int64_t row = flat % a->q_len;
    const int64_t head = flat / a->q_len % a->heads_q;
    const int64_t seq = flat / a->q_len / a->heads_q;
    const fai_range owned = fai_q_rows(a, seq);
    if (row < owned.end - owned.begin) kernel->merge(call, seq, head, row);
}

/* A slice takes whole units, with all their splits: a unit that is split has all rows of its
 * heads. */
static void run_slice(const fai_cpu_call *call, const fai_cpu_kernel *kernel) {
    const fa_args *a = call->a;
    const int64_t units = unit_count(call), rows = (int64_t)a->heads_q / a->heads_kv * a->q_len;
    for (int64_t unit = a->task_index; unit < units; unit += a->task_count) {
        for (int64_t split = 0; split < call->plan->splits; ++split) {
            const fai_cpu_task task = task_of(call, unit, split);
            kernel->tile(call, &task);
        }
        if (call->plan->splits == 1) continue;
        const fai_cpu_task task = task_of(call, unit, 0);
        const int64_t first = (task.seq * a->heads_kv + task.head_kv) * rows;
        for (int64_t i = 0; i < task.heads * rows; ++i) merge_row(call, kernel, first + i);
    }
}

static void run_threads(const fai_cpu_call *call, const fai_cpu_kernel *kernel) {
    const fa_args *a = call->a;
    const int64_t splits = call->plan->splits, tasks = unit_count(call) * splits;
    const int64_t merges = splits > 1 ? (int64_t)a->batch * a->heads_q * a->q_len : 0;
    const int threads = call->plan->threads;
    (void)threads;
    FAI_OMP(omp parallel num_threads(threads) if (threads > 1)) {
        FAI_OMP(omp for schedule(dynamic, 1) nowait)
        for (int64_t i = 0; i < tasks; ++i) {
            const fai_cpu_task task = task_of(call, i / splits, i % splits);
            kernel->tile(call, &task);
        }
        /* Without merges the team's end is the only barrier, where threads may sleep. */
        if (merges > 0) {
            FAI_OMP(omp barrier)
            FAI_OMP(omp for schedule(static) nowait)
            for (int64_t i = 0; i < merges; ++i) merge_row(call, kernel, i);
        }
    }
}

static void run(const fai_cpu_call *call, const fai_cpu_kernel *kernel) {
    if (call->a->task_count > 0)
        run_slice(call, kernel);
    else if (unit_count(call) > 0)
        run_threads(call, kernel);
}

/* The planner bounds what it puts on the stack. */
static void run_on_stack(fai_cpu_call *call, const fai_cpu_kernel *kernel) {
    float partials[FAI_CPU_PARTIAL_FLOATS];
    const int64_t rows = (int64_t)call->a->batch * call->a->heads_q * call->a->q_len;
    call->partial_o = partials;
    call->partial_state = partials + call->plan->splits * rows * call->a->head_dim;
    run(call, kernel);
}

fa_status fai_cpu_run_tasks(const fa_args *a, const fai_plan *plan, const fai_cpu_kernel *kernel) {
    fai_cpu_call call = {a, plan, NULL, NULL};
    if (plan->on_stack) {
        run_on_stack(&call, kernel);
        return FA_OK;
    }
    if (plan->splits > 1) {
        call.partial_o = (float *)((char *)a->workspace + plan->partial_o_at);
        call.partial_state = (float *)((char *)a->workspace + plan->partial_state_at);
    }
    run(&call, kernel);
    return FA_OK;
}
