/* fa_merge.cu - the second kernel of calls whose keys are split over prefill tiles. */
#include "fa_cuda.h"
#include "fa_merge.cuh"

enum { kThreads = 128 };

/* A block has kFaiMergeRows rows of a tile; tiles that only one split sees are finished already. */
template <class Element>
static __global__ void __launch_bounds__(kThreads)
    fai_merge(const __grid_constant__ fai_cuda_params p) {
    __shared__ fai_merge_notes notes;
    const int parts = (p.tile_rows + kFaiMergeRows - 1) / kFaiMergeRows, t = blockIdx.x / parts;
    const int begin = (blockIdx.x - t * parts) * kFaiMergeRows;
    fai_work w;
    if (!fai_find_work(p, t, 0, p.tile_rows, p.tile_keys, w) || w.splits_live == 1) return;
    fai_merge_rows<Element, kThreads>(p, w, begin, min(begin + (int)kFaiMergeRows, w.count),
                                      &notes);
}

const void *fai_cuda_merge_kernel(int is_bf16) {
    return is_bf16 ? (const void *)fai_merge<fai_bf16> : (const void *)fai_merge<fai_f16>;
}
