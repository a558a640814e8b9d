/* fa_decode_merge.cuh - the work of a block of the Hopper decode kernel, and how the partial
 * results of a cluster become o and lse. It changes when partial results do. */
#ifndef FA_DECODE_MERGE_CUH
#define FA_DECODE_MERGE_CUH

#include "fa_cuda_decode.h"
#include "fa_softmax.cuh"

/* One block's work. */
struct fai_decode_work {
    int batch, head_kv;
    int first, count; /* packed rows */
    int q_begin, k_begin, kv_len;
    int least, seen; /* keys that the first row sees, and the last */
    int64_t offset;
    int tile_begin, tile_end; /* of the block, counted from the sequence's first key */
};

/* kDense: lengths and the offset are the call's own. */
template <bool kDense>
FAI_DEVICE bool fai_decode_find(const fai_decode_params &p, int rank, int tile_rows,
                                fai_decode_work &w) {
    const int unit = blockIdx.x >> p.cluster_log2;
    const int sequence_head = fai_divide(unit, p.by_tiles);
    w.batch = fai_divide(sequence_head, p.by_heads_kv);
    w.head_kv = sequence_head - w.batch * p.a.heads_kv;
    fai_range q = {0, p.a.q_len}, k = {0, p.a.kv_len};
    if (!kDense) {
        q = fai_q_rows(&p.a, w.batch);
        k = fai_k_rows(&p.a, w.batch);
    }
    const int q_len = (int)(q.end - q.begin);
    w.q_begin = (int)q.begin;
    w.first = (unit - sequence_head * p.tiles) * tile_rows;
    w.count = min(tile_rows, q_len * p.group - w.first);
    w.k_begin = (int)k.begin;
    w.kv_len = (int)(k.end - k.begin);
    w.offset = kDense ? p.offset : fai_offset(&p.a, w.batch, q_len, w.kv_len);
    w.least = (int)fai_visible_keys(fai_divide(w.first, p.by_group), w.offset, w.kv_len);
    const int last = fai_divide(w.first + max(w.count, 1) - 1, p.by_group);
    w.seen = (int)fai_visible_keys(last, w.offset, w.kv_len);
    const int tiles = (w.seen + kFaiDecodeKeys - 1) / kFaiDecodeKeys;
    const int share = (tiles + (1 << p.cluster_log2) - 1) >> p.cluster_log2;
    w.tile_begin = min(rank * share, tiles);
    w.tile_end = min(w.tile_begin + share, tiles);
    return w.count > 0;
}

/* Row `row` of the tile as elements from view.data, for q, o and lse. */
FAI_DEVICE int64_t fai_decode_offset(const fai_decode_params &p, const fai_decode_work &w,
                                     const fa_view &view, int row) {
    const int query = fai_divide(w.first + row, p.by_group);
    const int head = w.head_kv * p.group + w.first + row - query * p.group;
    return fai_q_offset(&p.a, &view, w.batch, head, w.q_begin + query);
}

/* The merge of a cluster of 2^kLog2 blocks. A block receives `kParts` partial results,
 * [part][unit][column of 8][row] with the sums of weights and references of each row beside them:
 * of every warp of the cluster, or, with 16 rows, where that would be twice the floats of the
 * tile's keys, of every block, whose warps have met before in the same place. */
template <class Element, int kDim, int kRows, int kLog2> struct fai_decode_merge {
    static constexpr bool kTwoSteps = kRows > 8;
    static constexpr int kBlocks = (kRows + 7) / 8, kCluster = 1 << kLog2;
    static constexpr int kParts = kTwoSteps ? kCluster : kCluster * kFaiDecodeWarps;
    static constexpr int kThreads = kFaiDecodeWarps * 32;
    static constexpr int kPitch = fai_decode_pitch(kDim, kRows, kLog2);
    static constexpr int kWarpPitch = fai_decode_pitch(kDim, kRows, 0);
    static constexpr int kLanes = kParts >= 32 ? 4 : 1; /* neighbours that share an element */

    const fai_decode_params &p;
    const fai_decode_work &w;
    float *part_o; /* of the cluster; of the block's warps in two steps, then of the cluster */
    float2 *stats; /* reference and sum */
    uint32_t barrier;
    int rank;

    struct result {
        float most, sum, x;
    };

    /* Sums element `at` of `kCount` partial results, from part lane in steps of kStep. A part
     * without keys for the row does not count, nor does a NaN of v times 0. */
    template <int kCount, int kStep>
    __device__ __forceinline__ result sum_up(const float *o, const float2 *ml, int pitch, int at,
                                             int row, int lane) const {
        constexpr int kMine = kCount / kStep;
        float2 part[kMine];
        float value[kMine];
        result r = {-INFINITY, 0, 0};
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
            part[i] = ml[(i * kStep + lane) * kRows + row];
            value[i] = o[(i * kStep + lane) * pitch + at];
        }
#pragma unroll
        for (int i = 0; i < kMine; ++i) r.most = fmaxf(r.most, part[i].x);
#pragma unroll
        for (int i = 1; i < kStep; i *= 2) r.most = fmaxf(r.most, __shfl_xor_sync(~0u, r.most, i));
        const float base = r.most == -INFINITY ? 0 : r.most;
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
            const float weight = fai_exp2((part[i].x - base) * p.c);
            r.sum += weight * part[i].y;
            r.x += part[i].y == 0 ? 0 : weight * value[i];
        }
#pragma unroll
        for (int i = 1; i < kStep; i *= 2) {
            r.sum += __shfl_xor_sync(~0u, r.sum, i);
            r.x += __shfl_xor_sync(~0u, r.x, i);
        }
        return r;
    }

    /* A warp's partial result goes to the blocks that reduce it. A tile of 4 rows uses half the
     * lanes. */
    template <class State>
    __device__ __forceinline__ void push_warp(const State &state, int warp, int lane) const {
        const int part = rank * kFaiDecodeWarps + warp, column = lane / 4, row = lane % 4 * 2;
        if (row >= kRows) return;
        float *at = part_o + part * kPitch + column * kRows + row;
#pragma unroll
        for (int to = 0; to < kCluster; ++to)
#pragma unroll
            for (int unit = to; unit < kDim / 8; unit += kCluster)
                send(at + unit / kCluster * 8 * kRows, to, state.o[unit / 2][0][unit % 2 * 2],
                     state.o[unit / 2][0][unit % 2 * 2 + 1]);
        if (column < kCluster)
            send_stats(part, row, column,
                       make_float4(state.reference[0][0], state.sum[0][0], state.reference[0][1],
                                   state.sum[0][1]));
    }

    /* Where the cluster is one block, stores and __syncthreads do; memcheck also knows the push
     * only between blocks. */
    __device__ __forceinline__ void send(float *at, int to, float x, float y) const {
        if (kCluster == 1)
            *reinterpret_cast<float2 *>(at) = make_float2(x, y);
        else
            fai_push(fai_cluster_address(fai_smem_address(at), to), x, y,
                     fai_cluster_address(barrier, to));
    }
    __device__ __forceinline__ void send_stats(int part, int row, int to, float4 two) const {
        float2 *at = stats + part * kRows + row;
        if (kCluster == 1)
            *reinterpret_cast<float4 *>(at) = two;
        else
            fai_push(fai_cluster_address(fai_smem_address(at), to), two,
                     fai_cluster_address(barrier, to));
    }
    __device__ __forceinline__ void expect() const {
        const int units = fai_decode_units(kDim, kLog2, rank);
        if (kCluster > 1 && threadIdx.x == 0)
            fai_arrival_expect(barrier, kParts * (units * 8 * kRows * 4 + kRows * 8));
    }
    __device__ __forceinline__ void wait() const {
        if (kCluster == 1)
            __syncthreads();
        else
            fai_arrival_wait_cluster(barrier, 0);
    }

    /* The first of two steps: the block's warps meet, and the block's partial result is pushed. The
     * places for the warps' results are read by this block alone, those for the blocks' lie behind
     * them. */
    template <class State>
    __device__ __forceinline__ void meet(const State &state, int warp, int lane,
                                         const float *warp_o, float2 *warp_stats) const {
        float *mine = const_cast<float *>(warp_o) + warp * kWarpPitch;
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            const int row = n * 8 + lane % 4 * 2;
#pragma unroll
            for (int unit = 0; unit < kDim / 8; ++unit)
                *reinterpret_cast<float2 *>(mine + (unit * 8 + lane / 4) * kRows + row) =
                    make_float2(state.o[unit / 2][n][unit % 2 * 2],
                                state.o[unit / 2][n][unit % 2 * 2 + 1]);
            if (lane < 4)
                *reinterpret_cast<float4 *>(warp_stats + warp * kRows + row) = make_float4(
                    state.reference[n][0], state.sum[n][0], state.reference[n][1], state.sum[n][1]);
        }
        __syncthreads();
#pragma unroll 2
        for (int at = threadIdx.x * 2; at < kDim * kRows; at += kThreads * 2) {
            const int row = at % kRows, column = at / kRows, unit = column / 8;
            const result a = sum_up<kFaiDecodeWarps, 1>(warp_o, warp_stats, kWarpPitch, at, row, 0);
            const result b =
                sum_up<kFaiDecodeWarps, 1>(warp_o, warp_stats, kWarpPitch, at + 1, row + 1, 0);
            const int to = unit % kCluster, local = unit / kCluster * 8 + column % 8;
            send(part_o + rank * kPitch + local * kRows + row, to, a.x, b.x);
            if (unit < kCluster && column % 8 == 0)
                send_stats(rank, row, to, make_float4(a.most, a.sum, b.most, b.sum));
        }
    }

    /* Writes the block's columns of o, and lse where it has column 0. */
    __device__ __forceinline__ void finish() const {
        const int lane = threadIdx.x % kLanes, units = fai_decode_units(kDim, kLog2, rank);
#pragma unroll 1
        for (int at = threadIdx.x / kLanes; at < units * 8 * kRows; at += kThreads / kLanes) {
            const int row = at % kRows, local = at / kRows;
            const int column = ((local / 8 << kLog2) + rank) * 8 + local % 8;
            const result r = sum_up<kParts, kLanes>(part_o, stats, kPitch, at, row, lane);
            if (lane > 0 || row >= w.count) continue;
            if (column < p.a.head_dim)
                static_cast<uint16_t *>(p.a.o.data)[fai_decode_offset(p, w, p.a.o, row) + column] =
                    (uint16_t)fai_pack(Element(), r.sum == 0 ? 0 : __fdividef(r.x, r.sum), 0);
            if (column == 0 && p.a.lse.data)
                static_cast<float *>(p.a.lse.data)[fai_decode_offset(p, w, p.a.lse, row)] =
                    r.sum == 0
                        ? -INFINITY
                        : (log2f(r.sum) + (r.most == -INFINITY ? 0 : r.most) * p.c) * FAI_LN2;
        }
    }
};

/* Step 4 for a cluster of 2^kLog2 blocks. */
template <class Element, int kDim, int kRows, int kLog2, class State>
FAI_DEVICE void fai_decode_finish(const fai_decode_params &p, const fai_decode_work &w,
                                  const State &state, char *behind_ring, uint32_t barrier,
                                  int rank) {
    using merge_type = fai_decode_merge<Element, kDim, kRows, kLog2>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *warp_o = reinterpret_cast<float *>(behind_ring);
    float2 *warp_stats =
        reinterpret_cast<float2 *>(warp_o + kFaiDecodeWarps * merge_type::kWarpPitch);
    float *part_o = merge_type::kTwoSteps
                        ? reinterpret_cast<float *>(warp_stats + kFaiDecodeWarps * kRows)
                        : warp_o;
    const merge_type merge = {
        p,       w,
        part_o,  reinterpret_cast<float2 *>(part_o + merge_type::kParts * merge_type::kPitch),
        barrier, rank};
    merge.expect();
    if constexpr (merge_type::kTwoSteps)
        merge.meet(state, warp, lane, warp_o, warp_stats);
    else
        merge.push_warp(state, warp, lane);
    merge.wait();
    merge.finish();
}

#endif /* FA_DECODE_MERGE_CUH */
