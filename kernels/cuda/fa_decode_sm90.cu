/* fa_decode_sm90.cu - launches the Hopper decode kernels. It changes when what they are told
 * does. */
#include "fa_cuda_decode.h"

#include <atomic>

namespace {

const void *find_kernel(int32_t dim, int is_bf16, int32_t rows, int is_dense) {
    switch (dim) {
#ifndef FA_NO_HEAD_DIM_64
    case 64:
        return fai_decode_kernel_d64(is_bf16, rows, is_dense);
#endif
#ifndef FA_NO_HEAD_DIM_128
    case 128:
        return fai_decode_kernel_d128(is_bf16, rows, is_dense);
#endif
#ifndef FA_NO_HEAD_DIM_192
    case 192:
        return fai_decode_kernel_d192(is_bf16, rows, is_dense);
#endif
#ifndef FA_NO_HEAD_DIM_256
    case 256:
        return fai_decode_kernel_d256(is_bf16, rows, is_dense);
#endif
    default:
        return nullptr;
    }
}

/* Whether the kernel's code is for Hopper: built for older GPUs only, its body is empty. */
bool is_for_hopper(const void *kernel) {
    cudaFuncAttributes found;
    if (cudaFuncGetAttributes(&found, kernel) == cudaSuccess) return found.ptxVersion >= 90;
    cudaGetLastError();
    return false;
}

/* Whether every sequence has the call's own lengths and offset and rows are copied whole: a kernel
 * that knows it has less code to fetch, which counts where the keys are few. */
int is_dense(const fa_args *a) {
    return !(a->cu_seqlens_q || a->cu_seqlens_k || a->seqused_q || a->seqused_k || a->leftpad_q ||
             a->leftpad_k || a->causal_offsets || a->page_size > 0 || a->head_dim % 64);
}

/* Returns false when the copy engine cannot walk k or v. */
bool make_params(const fa_args *a, const fai_plan *plan, fai_decode_params *p) {
    fai_tensor_extent extent = {a->kv_len, a->heads_kv, a->batch, a->head_dim};
    if (a->cu_seqlens_k) extent = {a->total_k, a->heads_kv, 1, a->head_dim};
    if (a->page_size > 0) extent = {a->page_size, a->heads_kv, a->num_pages, a->head_dim};
    const fai_tensor_box box = {64, kFaiDecodeKeys, plan->tile_dim / 64, 1};
    p->a = *a;
    p->group = a->heads_q / a->heads_kv;
    p->tiles = (int32_t)plan->tiles;
    while (1 << p->cluster_log2 < plan->splits) ++p->cluster_log2;
    p->copies = a->head_dim % 64 == 0 ? 1 : plan->tile_dim / 64;
    p->by_group = fai_make_divisor(p->group);
    p->by_tiles = fai_make_divisor(p->tiles);
    p->by_heads_kv = fai_make_divisor(a->heads_kv);
    p->by_page = fai_make_divisor(a->page_size > 0 ? a->page_size : 1);
    p->c = fai_exponent_factor(a);
    p->octave = 1 / p->c;
    p->offset = a->causal_offsets ? 0 : fai_offset(a, 0, a->q_len, a->kv_len);
    return fai_make_tensor_map(&p->maps[0], &a->k, extent, box) &&
           fai_make_tensor_map(&p->maps[1], &a->v, extent, box);
}

cudaError_t launch(const void *kernel, fai_decode_params *p, const fa_args *a, const fai_plan *plan,
                   cudaStream_t stream) {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)plan->splits;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(plan->tiles * a->batch * a->heads_kv * plan->splits));
    config.blockDim = dim3(kFaiDecodeWarps * 32);
    config.dynamicSmemBytes = (size_t)plan->smem_bytes;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    void *arguments[] = {p};
    return cudaLaunchKernelExC(&config, kernel, arguments);
}

/* The generic family, with the workspace that the plan counted for it. */
fa_status run_generic(const fa_args *a, const fai_machine *machine, struct CUstream_st *stream) {
    fai_plan generic = {};
    if (!fai_plan_cuda_sm80(a, machine, &generic))
        return fai_fail(generic.refusal, "%s", generic.why);
    return fai_cuda_run_sm80(a, &generic, stream);
}

} // namespace

fa_status fai_cuda_run_decode_sm90(const fa_args *a, const fai_plan *plan,
                                   struct CUstream_st *stream) {
    static std::atomic<uint64_t> prepared[4][3][2][2];
    const int is_bf16 = a->dtype == FA_DTYPE_BF16, dense = is_dense(a);
    std::atomic<uint64_t> *ready =
        &prepared[plan->tile_dim / 64 - 1][plan->tile_rows / 8][is_bf16][dense];
    const void *kernel = find_kernel(plan->tile_dim, is_bf16, plan->tile_rows, dense);
    int device = 0;
    fai_machine machine;
    fai_decode_params p = {};
    cudaError_t error = cudaGetDevice(&device);
    if (!error) error = fai_cuda_facts(device, &machine);
    if (!error && ((!ready->load(std::memory_order_relaxed) && !is_for_hopper(kernel)) ||
                   !make_params(a, plan, &p)))
        return run_generic(a, &machine, stream);
    if (!error) error = fai_cuda_prepare(kernel, ready, device, machine.smem_bytes);
    if (!error) error = launch(kernel, &p, a, plan, stream);
    return error ? fai_cuda_fail(error, "launching the decode kernel") : FA_OK;
}
