/* fa_cpu_portable.c - the CPU kernel in portable C: four lanes, which every 64-bit target has.
 *
 * It runs where no wider file does, and never changes unless the algorithm's interface does. */
#define FAI_LANES 4
#include "fa_cpu_algorithm.h"

fa_status fai_cpu_run_portable(const fa_args *a, const fai_plan *plan, struct CUstream_st *stream) {
    static const fai_cpu_kernel kernel = {fai_run_tile, fai_merge_row};
    (void)stream;
    return fai_cpu_run_tasks(a, plan, &kernel);
}
