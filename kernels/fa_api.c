/* fa_api.c - the front door: check, plan, run; and the sentences that go out.
 *
 * Every public function is here and asks the same two rooms, so that "is it supported", "how much
 * workspace" and "run" cannot disagree. This file changes when a public function does. */
#include "fa_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static FAI_THREAD_LOCAL char last_error[512];

fa_status fai_fail(fa_status status, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(last_error, sizeof(last_error), format, values);
    va_end(values);
    return status;
}

const char *fa_last_error(void) { return last_error; }

int32_t fa_version(void) { return FA_VERSION; }

const char *fa_status_string(fa_status status) {
    switch (status) {
#define FAI_NAME(code) \
    case code:         \
        return #code
        FAI_NAME(FA_OK);
        FAI_NAME(FA_ERR_VERSION);
        FAI_NAME(FA_ERR_SIZE);
        FAI_NAME(FA_ERR_HEADS);
        FAI_NAME(FA_ERR_DTYPE);
        FAI_NAME(FA_ERR_HEAD_DIM);
        FAI_NAME(FA_ERR_SCALE);
        FAI_NAME(FA_ERR_MASK);
        FAI_NAME(FA_ERR_RAGGED);
        FAI_NAME(FA_ERR_PAGES);
        FAI_NAME(FA_ERR_SPLITS);
        FAI_NAME(FA_ERR_TASKS);
        FAI_NAME(FA_ERR_NULL);
        FAI_NAME(FA_ERR_ALIGNMENT);
        FAI_NAME(FA_ERR_STRIDE);
        FAI_NAME(FA_ERR_DEVICE);
        FAI_NAME(FA_ERR_LENGTHS);
        FAI_NAME(FA_ERR_PAGE_INDEX);
        FAI_NAME(FA_ERR_WORKSPACE);
        FAI_NAME(FA_ERR_TEXT_SIZE);
        FAI_NAME(FA_ERR_UNSUPPORTED);
        FAI_NAME(FA_ERR_NOT_BUILT);
        FAI_NAME(FA_ERR_NO_DEVICE);
        FAI_NAME(FA_ERR_ARCH);
        FAI_NAME(FA_ERR_LAUNCH);
#undef FAI_NAME
    }
    return "unknown status";
}

/* Checks and plans; on FA_OK both *a and *plan are valid. */
static fa_status prepare(const fa_args *args, fai_purpose purpose, fa_args *a, fai_plan *plan) {
    fa_status status = fai_check(args, purpose, a);
    if (status) return status;
    fai_machine machine;
#ifdef FA_WITH_CUDA
    if (a->device == FA_DEVICE_CUDA) {
        status = fai_cuda_machine(&machine);
        if (status) return status;
        return fai_make_plan(a, &machine, plan);
    }
#endif
    machine = fai_cpu_machine();
    return fai_make_plan(a, &machine, plan);
}

static fa_status check_workspace(const fa_args *a, const fai_plan *plan) {
    if (plan->workspace_bytes == 0) return FA_OK;
    if (!a->workspace || a->workspace_size < plan->workspace_bytes)
        return fai_fail(FA_ERR_WORKSPACE,
                        "workspace is %p with workspace_size %zu: this call needs %zu bytes, "
                        "zero-filled once",
                        a->workspace, a->workspace_size, plan->workspace_bytes);
    if ((uintptr_t)a->workspace % FAI_WORKSPACE_ALIGN != 0)
        return fai_fail(
            FA_ERR_WORKSPACE,
            "workspace is at address %p with workspace_size %zu (%zu needed): must be a "
            "multiple of %d bytes",
            a->workspace, a->workspace_size, plan->workspace_bytes, FAI_WORKSPACE_ALIGN);
    return FA_OK;
}

fa_status fa_fwd_causal(const fa_args *args, struct CUstream_st *stream) {
    fa_args a;
    fai_plan plan;
    fa_status status = prepare(args, FAI_FOR_RUN, &a, &plan);
    if (!status) status = check_workspace(&a, &plan);
    if (status || a.batch == 0 || a.q_len == 0) return status;
    return plan.kernel->run(&a, &plan, stream);
}

fa_status fa_fwd_causal_workspace(const fa_args *args, size_t *bytes) {
    if (!bytes) return fai_fail(FA_ERR_NULL, "bytes is null: must point to a size_t");
    fa_args a;
    fai_plan plan;
    const fa_status status = prepare(args, FAI_FOR_QUERY, &a, &plan);
    if (!status) *bytes = plan.workspace_bytes;
    return status;
}

static const char *dtype_name(int32_t dtype) {
    return dtype == FA_DTYPE_F16 ? "f16" : (dtype == FA_DTYPE_BF16 ? "bf16" : "f32");
}

/* snprintf's answer: the length of the whole text, whether it fitted or not. */
static int write_plan(char *text, size_t text_size, const fa_args *a, const fai_plan *plan) {
    return snprintf(text, text_size,
                    "status=FA_OK\n"
                    "kernel=%s\n"
                    "device=%s\n"
                    "dtype=%s\n"
                    "head_dim=%d\n"
                    "tile_rows=%d\n"
                    "tile_keys=%d\n"
                    "tile_dim=%d\n"
                    "packing=%s\n"
                    "tiles=%lld\n"
                    "splits=%d\n"
                    "split_keys=%d\n"
                    "threads=%d\n"
                    "workspace_bytes=%zu\n"
                    "why=%s\n",
                    plan->kernel->name, a->device == FA_DEVICE_CPU ? "cpu" : "cuda",
                    dtype_name(a->dtype), a->head_dim, plan->tile_rows, plan->tile_keys,
                    plan->tile_dim, plan->pack_heads ? "group" : "head",
                    (long long)plan->tiles * a->batch *
                        (plan->pack_heads ? a->heads_kv : a->heads_q),
                    plan->splits, a->split_keys, plan->threads, plan->workspace_bytes, plan->why);
}

fa_status fa_explain(const fa_args *args, char *text, size_t text_size) {
    if (!text && text_size > 0)
        return fai_fail(FA_ERR_NULL, "text is null: must hold text_size, %zu bytes", text_size);
    fa_args a;
    fai_plan plan;
    const fa_status status = prepare(args, FAI_FOR_QUERY, &a, &plan);
    const int length = status ? snprintf(text, text_size, "status=%s\nerror=%s\n",
                                         fa_status_string(status), last_error)
                              : write_plan(text, text_size, &a, &plan);
    if (length < 0 || (size_t)length >= text_size)
        return fai_fail(FA_ERR_TEXT_SIZE, "text_size is %zu: this text needs %d bytes", text_size,
                        length + 1);
    return status;
}
