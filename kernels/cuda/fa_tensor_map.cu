/* fa_tensor_map.cu - encodes tensor maps through the driver's own entry point, found at run time,
 * so that neither this library nor its users link libcuda. The only state is that entry point. */
#include "fa_tensor_map.h"

#include <atomic>
#include <cuda_runtime.h>

namespace {

using encode_function = decltype(&cuTensorMapEncodeTiled);

/* Null where the driver is older than tensor maps. Threads that race store the same pointer. */
encode_function find_encode() {
    static std::atomic<void *> known{nullptr};
    void *found = known.load(std::memory_order_relaxed);
    if (!found) {
        cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
        const cudaError_t error = cudaGetDriverEntryPointByVersion(
            "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
        if (error) cudaGetLastError();
        if (error || result != cudaDriverEntryPointSuccess) return nullptr;
        known.store(found, std::memory_order_relaxed);
    }
    return reinterpret_cast<encode_function>(found);
}

/* The stride in bytes, or 0 when the copy engine cannot step so. A dimension of size 1 is never
 * stepped along, but its stride must be legal. */
cuuint64_t legal_stride(int64_t size, int64_t stride) {
    if (size <= 1) return 16;
    const int64_t limit = (int64_t)1 << 39; /* elements: 2^40 bytes */
    return stride > 0 && stride < limit && stride % 8 == 0 ? (cuuint64_t)stride * 2 : 0;
}

/* Rank 5; strides of dimensions 1 to 4 in bytes, 0 where there is no legal one. */
int encode_map(CUtensorMap *map, const fa_view *view, const cuuint64_t (&dims)[5],
               const cuuint64_t (&strides)[4], const cuuint32_t (&box)[5]) {
    const encode_function encode = find_encode();
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    if (!encode || (uintptr_t)view->data % 16 != 0) return 0;
    for (const cuuint64_t stride : strides)
        if (!stride) return 0;
    /* Lines of 128 bytes are fetched into the L2; 256 costs up to 8 % of the read rate of an H200
     * where the reads are long. Both formats are copied as bits. */
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 5, view->data, dims, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                  box[0] == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

} // namespace

int fai_make_tensor_map(CUtensorMap *map, const fa_view *view, fai_tensor_extent extent,
                        fai_tensor_box box) {
    const bool whole = extent.head_dim % box.chunk == 0;
    const int64_t chunks = whole ? extent.head_dim / box.chunk : 1;
    const cuuint64_t dims[5] = {(cuuint64_t)(whole ? box.chunk : extent.head_dim),
                                (cuuint64_t)extent.seq, (cuuint64_t)chunks,
                                (cuuint64_t)extent.heads, (cuuint64_t)extent.batch};
    const cuuint64_t strides[4] = {legal_stride(extent.seq, view->stride_seq),
                                   (cuuint64_t)box.chunk * 2,
                                   legal_stride(extent.heads, view->stride_head),
                                   legal_stride(extent.batch, view->stride_batch)};
    const cuuint32_t boxes[5] = {(cuuint32_t)box.chunk, (cuuint32_t)box.rows,
                                 (cuuint32_t)(whole ? box.chunks : 1), (cuuint32_t)box.heads, 1};
    return encode_map(map, view, dims, strides, boxes);
}

int fai_make_group_map(CUtensorMap *map, const fa_view *view, fai_tensor_extent extent,
                       int32_t group, fai_tensor_box box) {
    const int64_t heads_kv = extent.heads / group;
    const cuuint64_t dims[5] = {(cuuint64_t)extent.head_dim, (cuuint64_t)extent.seq,
                                (cuuint64_t)group, (cuuint64_t)heads_kv, (cuuint64_t)extent.batch};
    const cuuint64_t strides[4] = {
        legal_stride(extent.seq, view->stride_seq), legal_stride(group, view->stride_head),
        legal_stride(heads_kv, heads_kv > 1 ? view->stride_head * group : 0),
        legal_stride(extent.batch, view->stride_batch)};
    const cuuint32_t boxes[5] = {(cuuint32_t)box.chunk, (cuuint32_t)box.rows, (cuuint32_t)box.heads,
                                 1, 1};
    return encode_map(map, view, dims, strides, boxes);
}
