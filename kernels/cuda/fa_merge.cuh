/* fa_merge.cuh - what the splits of a sequence's keys found becomes the result: always in the
 * order of the splits, so the same bits whoever arrives last. Decode tiles are merged by the last
 * of their blocks to arrive, while there is a control word for each; larger tiles, whose partial
 * results one block would read for too long, by a second kernel. It changes when partial results
 * do. */
#ifndef FA_MERGE_CUH
#define FA_MERGE_CUH

#include "fa_softmax.cuh"
#include "fa_tiles.cuh"

/* Rows that a block merges at a time, and what it notes of them. */
enum { kFaiMergeRows = 16 };
struct fai_merge_notes {
    float most[kFaiMergeRows];   /* the largest lse, in octaves */
    float factor[kFaiMergeRows]; /* 1 / sum of weights */
};

/* Merges packed rows [begin, end) of the tile, at most kFaiMergeRows, by all threads of a block. */
template <class Element, int kThreads>
FAI_DEVICE void fai_merge_rows(const fai_cuda_params &p, const fai_work &w, int begin, int end,
                               fai_merge_notes *notes) {
    const int live = w.splits_live, lane = threadIdx.x % 32;
    const int64_t rows = (int64_t)p.a.batch * p.a.heads_q * p.a.q_len; /* of a split */
    for (int row = begin + threadIdx.x / 32; row < end; row += kThreads / 32) {
        const float *lse = p.partial_lse + fai_partial_row(p, w, row, 0);
        float most = -INFINITY, sum = 0;
        for (int s = lane; s < live; s += 32)
            most = fmaxf(most, fai_ld_cg(lse + s * rows) * FAI_LOG2_E);
#pragma unroll
        for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
        for (int s = lane; s < live; s += 32)
            sum += fai_merge_weight(fai_ld_cg(lse + s * rows) * FAI_LOG2_E, most);
#pragma unroll
        for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
        if (lane > 0) continue;
        notes->most[row - begin] = most;
        notes->factor[row - begin] = fai_finish(sum);
        fai_store_lse(p, w, row, (log2f(sum) + (sum == 0 ? 0 : most)) * FAI_LN2);
    }
    __syncthreads();
    const int quads = p.a.head_dim / 4;
    for (int i = threadIdx.x; i < (end - begin) * quads; i += kThreads) {
        const int slot = i / quads, quad = i - slot * quads, row = begin + slot;
        const int64_t at = fai_partial_row(p, w, row, 0);
        const float most = notes->most[slot], factor = notes->factor[slot];
        const float *lse = p.partial_lse + at;
        const float *o = p.partial_o + at * p.a.head_dim + quad * 4;
        float x[4] = {};
#pragma unroll 8
        for (int s = 0; s < live; ++s) {
            const float weight = fai_merge_weight(fai_ld_cg(lse + s * rows) * FAI_LOG2_E, most);
            const float4 part =
                fai_ld_cg(reinterpret_cast<const float4 *>(o + s * rows * p.a.head_dim));
            x[0] += weight * part.x, x[1] += weight * part.y;
            x[2] += weight * part.z, x[3] += weight * part.w;
        }
        fai_store_o(p, fai_packed_offset(p, p.a.o, w, row) + quad * 4,
                    make_uint2(fai_pack(Element(), x[0] * factor, x[1] * factor),
                               fai_pack(Element(), x[2] * factor, x[3] * factor)));
    }
}

#endif /* FA_MERGE_CUH */
