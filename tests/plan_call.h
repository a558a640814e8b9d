/* plan_call.h - cards and calls as the CUDA planners get them, on a host that has neither. It
 * changes when fai_machine does. */
#ifndef TESTS_PLAN_CALL_H
#define TESTS_PLAN_CALL_H

#include "fa_internal.h"

/* The largest shared memory of a block: 86, 89 and 120; 80 and 87; 90 and 100. */
enum { k99KB = 99 * 1024, k163KB = 163 * 1024, k227KB = 227 * 1024 };

static inline fai_machine card(int32_t cc, int32_t sm_count, int32_t smem_bytes) {
    const fai_machine m = {
        .device = FA_DEVICE_CUDA, .cc = cc, .sm_count = sm_count, .smem_bytes = smem_bytes};
    return m;
}

static inline fai_machine h200(void) { return card(90, 132, k227KB); }

/* As fai_check resolves it, without pointers. */
static inline fa_args call(int32_t batch, int32_t heads_q, int32_t heads_kv, int32_t dim,
                           int32_t q_len, int32_t kv_len) {
    fa_args a = fa_args_default();
    a.device = FA_DEVICE_CUDA;
    a.dtype = FA_DTYPE_BF16;
    a.batch = batch;
    a.heads_q = heads_q;
    a.heads_kv = heads_kv;
    a.head_dim = dim;
    a.q_len = q_len;
    a.kv_len = kv_len;
    return a;
}

#endif /* TESTS_PLAN_CALL_H */
