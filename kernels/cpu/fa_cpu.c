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
#ifdef _OPENMP
    machine.threads = omp_get_max_threads();
#endif
    return machine;
}

/* The tiles of one (sequence, kv head) come together, so that its keys stay in the cache, and the
 * last one first: under the causal mask it is the longest, and short ones even out the end. */
static void run_task(const fa_args *a, const fai_plan *plan, const fai_cpu_kernel *kernel,
                     int64_t index) {
    fai_cpu_task task;
    task.split = index % plan->splits;
    index /= plan->splits;
    task.tile = plan->tiles - 1 - index % plan->tiles;
    index /= plan->tiles;
    task.head_kv = index % a->heads_kv;
    task.seq = index / a->heads_kv;
    kernel->tile(a, plan, &task);
}

/* Row `flat` of the partial results; a sequence owns its first rows only. */
static void merge_row(const fa_args *a, const fai_plan *plan, const fai_cpu_kernel *kernel,
                      int64_t flat) {
    const int64_t row = flat % a->q_len;
    const int64_t head = flat / a->q_len % a->heads_q;
    const int64_t seq = flat / a->q_len / a->heads_q;
    const fai_range owned = fai_q_rows(a, seq);
    if (row < owned.end - owned.begin) kernel->merge(a, plan, seq, head, row);
}

fa_status fai_cpu_run_tasks(const fa_args *a, const fai_plan *plan, const fai_cpu_kernel *kernel) {
    const int64_t tasks = (int64_t)a->batch * a->heads_kv * plan->tiles * plan->splits;
    const int64_t merges = plan->splits > 1 ? (int64_t)a->batch * a->heads_q * a->q_len : 0;
    if (a->task_count > 0) {
        for (int64_t i = a->task_index; i < tasks; i += a->task_count) run_task(a, plan, kernel, i);
        return FA_OK;
    }
    if (tasks == 0) return FA_OK;
    const int threads = plan->threads;
    (void)threads;
    FAI_OMP(omp parallel num_threads(threads) if (threads > 1)) {
        FAI_OMP(omp for schedule(dynamic, 1))
        for (int64_t i = 0; i < tasks; ++i) run_task(a, plan, kernel, i);
        FAI_OMP(omp for schedule(static))
        for (int64_t i = 0; i < merges; ++i) merge_row(a, plan, kernel, i);
    }
    return FA_OK;
}
