/* fa_prefill_sm90.cu - launches the Hopper prefill kernels. It changes when what they are told
 * does. */
#include "fa_cuda_prefill.h"

#include <atomic>

namespace {

const void *find_kernel(int32_t dim, int is_bf16) {
    switch (dim) {
#ifndef FA_NO_HEAD_DIM_64
    case 64:
        return fai_prefill_kernel_d64(is_bf16);
#endif
#ifndef FA_NO_HEAD_DIM_96
    case 96:
        return fai_prefill_kernel_d96(is_bf16);
#endif
#ifndef FA_NO_HEAD_DIM_128
    case 128:
        return fai_prefill_kernel_d128(is_bf16);
#endif
#ifndef FA_NO_HEAD_DIM_192
    case 192:
        return fai_prefill_kernel_d192(is_bf16);
#endif
#ifndef FA_NO_HEAD_DIM_256
    case 256:
        return fai_prefill_kernel_d256(is_bf16);
#endif
    default:
        return nullptr;
    }
}

/* Whether this build has the kernel for the device: in code for anything but sm_90a its body is
 * empty, and needs next to no registers. */
bool is_built(const void *kernel) {
    cudaFuncAttributes found;
    if (cudaFuncGetAttributes(&found, kernel) == cudaSuccess) return found.numRegs > 100;
    cudaGetLastError();
    return false;
}

/* Units side by side, at most 16: their keys should lie in 32 MB of L2 together. All sections are
 * equal, since a small last one would leave the GPU idle. */
int64_t choose_section(const fa_args *a, int64_t units, int64_t heads, int64_t splits) {
    const int64_t group = a->heads_q / a->heads_kv;
    const int64_t kv_bytes = fai_ceil_div((int64_t)a->kv_len * a->head_dim * 4 * heads, group);
    const int64_t least = fai_clamp64((32 << 20) / kv_bytes, 1, splits > 1 ? units : 16);
    return fai_ceil_div(units, fai_ceil_div(units, least));
}

/* Returns false when the copy engine cannot walk q, k or v. */
bool make_maps(const fa_args *a, const fai_plan *plan, fai_prefill_params *p) {
    fai_tensor_extent keys = {a->kv_len, a->heads_kv, a->batch, a->head_dim};
    if (a->cu_seqlens_k) keys = {a->total_k, a->heads_kv, 1, a->head_dim};
    if (a->page_size > 0) keys = {a->page_size, a->heads_kv, a->num_pages, a->head_dim};
    const int32_t chunks = (plan->tile_dim + 63) / 64;
    p->is_whole = a->head_dim % 64 == 0;
    p->box_rows = plan->tile_keys;
    if (a->page_size > 0) p->box_rows = fai_prefill_box(p->box_rows, a->page_size);
    /* A box of fewer rows than the tile cannot hold several chunks: they lie a tile apart. */
    p->chunk_copies = p->is_whole && p->box_rows == plan->tile_keys ? 1 : chunks;
    p->boxes = plan->tile_keys / p->box_rows * p->chunk_copies;
    const fai_tensor_box box = {64, p->box_rows, p->chunk_copies == 1 ? chunks : 1, 1};
    const fai_tensor_extent queries = {a->cu_seqlens_q ? a->total_q : a->q_len, a->heads_q,
                                       a->cu_seqlens_q ? 1 : a->batch, a->head_dim};
    const fai_tensor_box q_box = {64, 1 << p->queries_log2, 1, p->heads};
    return fai_make_group_map(&p->q, &a->q, queries, p->cuda.group, q_box) &&
           fai_make_tensor_map(&p->k, &a->k, keys, box) &&
           fai_make_tensor_map(&p->v, &a->v, keys, box);
}

bool make_params(const fa_args *a, const fai_plan *plan, fai_prefill_params *p) {
    const int64_t group = a->heads_q / a->heads_kv;
    fai_cuda_fill_params(&p->cuda, a, plan, 1);
    p->counter = static_cast<uint32_t *>(a->workspace);
    p->heads = plan->pack_heads ? (int32_t)group : 1;
    p->tile_queries = plan->tile_rows / p->heads;
    while (1 << p->queries_log2 < p->tile_queries) ++p->queries_log2;
    p->units = a->batch * (a->heads_q / p->heads);
    p->tiles = (int32_t)(plan->pack_heads ? plan->tiles : plan->tiles / group);
    p->section = (int32_t)choose_section(a, p->units, p->heads, plan->splits);
    p->items = p->units * p->tiles * plan->splits;
    p->q_is_ragged = a->cu_seqlens_q || a->seqused_q || a->leftpad_q;
    p->v_has_tail = a->cu_seqlens_k || a->seqused_k || a->leftpad_k || a->page_size > 0;
    return make_maps(a, plan, p);
}

/* The generic family, with the workspace that the plan counted for it. */
fa_status run_generic(const fa_args *a, const fai_machine *machine, struct CUstream_st *stream) {
    fai_plan generic = {};
    if (!fai_plan_cuda_sm80(a, machine, &generic))
        return fai_fail(generic.refusal, "%s", generic.why);
    return fai_cuda_run_sm80(a, &generic, stream);
}

} // namespace

fa_status fai_cuda_run_prefill_sm90(const fa_args *a, const fai_plan *plan,
                                    struct CUstream_st *stream) {
    static std::atomic<uint64_t> prepared[8][2];
    const int is_bf16 = a->dtype == FA_DTYPE_BF16;
    std::atomic<uint64_t> *ready = &prepared[plan->tile_dim / 32 - 1][is_bf16];
    const void *kernel = find_kernel(plan->tile_dim, is_bf16);
    int device = 0;
    fai_machine machine;
    fai_prefill_params p = {};
    cudaError_t error = cudaGetDevice(&device);
    if (!error) error = fai_cuda_facts(device, &machine);
    if (error) return fai_cuda_fail(error, "the current CUDA device");
    if ((!ready->load(std::memory_order_relaxed) && !is_built(kernel)) || !make_params(a, plan, &p))
        return run_generic(a, &machine, stream);
    error = fai_cuda_prepare(kernel, ready, device, machine.smem_bytes);
    const unsigned blocks = (unsigned)fai_min64(p.items, machine.sm_count);
    const unsigned threads = (unsigned)(fai_ceil_div(plan->tile_rows, 64) + 1) * 128;
    void *arguments[] = {&p};
    if (!error && blocks > 0)
        error = cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), arguments,
                                 (size_t)plan->smem_bytes, stream);
    if (!error && plan->splits > 1) error = fai_cuda_launch_merge(&p.cuda, is_bf16, stream);
    return error ? fai_cuda_fail(error, "launching the prefill kernel") : FA_OK;
}
