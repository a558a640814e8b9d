/* fa_forward_sm80.cuh - the forward kernel for any GPU from sm_80: mma.sync, ldmatrix, cp.async.
 *
 * A block owns one tile of packed rows (fa_tiles.cuh) of one (sequence, kv head) and one split of
 * its keys. It writes o and lse of those rows; or, when several splits see keys of the tile, its
 * partial results, which fa_merge.cuh merges.
 *
 * Keys are walked from the first to the last, a block of keys a step:
 *     S = Q K^T; raise references; P = exp2(c S - c reference); O += P V
 * K and V tiles alternate through a ring of p.stages tiles. Before a tile is used its copy is
 * waited for; the barrier that then makes it visible to all also says that the tile before it is no
 * longer read, and its place is filled at once. So stages - 1 copies are always under way.
 *
 * The same text serves prefill (warps_rows > 1: a warp keeps its rows and sees every key) and
 * decode (warps_keys > 1: few rows, each warp has its own share of every step's keys and its own
 * ring, and meets the others only at the end). Tile sizes are fa_tiles_sm80.h's. */
#ifndef FA_FORWARD_SM80_CUH
#define FA_FORWARD_SM80_CUH

#include "fa_merge.cuh"
#include "fa_softmax.cuh"
#include "fa_tiles.cuh"
#include "fa_tiles_sm80.h"

constexpr fai_sm80_tile fai_sm80_find(int dim, int rows) {
    int i = 0;
    while (fai_sm80_tiles[i].dim != dim || fai_sm80_tiles[i].rows != rows) ++i;
    return fai_sm80_tiles[i];
}

template <int kDim, int kRows> struct fai_sm80_shape {
    static constexpr fai_sm80_tile kTile = fai_sm80_find(kDim, kRows);
    static constexpr int kWarpsRows = kTile.warps_rows, kWarpsKeys = kTile.warps_keys;
    static constexpr int kWarps = kWarpsRows * kWarpsKeys, kThreads = kWarps * 32;
    static constexpr int kBlocks = kTile.blocks;
    static constexpr int kBlockKeys = kTile.keys;
    static constexpr int kKeys = kBlockKeys / kWarpsKeys;       /* of a warp's step */
    static constexpr int kRowTiles = kRows / (16 * kWarpsRows); /* of a warp */
    static constexpr int kKeyTiles = kKeys / 8, kDimTiles = kDim / 8;
    static constexpr int kLoaders = 32 * kWarpsRows; /* threads that share a ring */
    static constexpr int kStageBytes = kKeys * kDim * 2;
    static constexpr int kNotesBytes = fai_sm80_notes_bytes(kRows);
    /* Registers of a lane: o, s and q, and some 44 for the rest. Where q does not fit it is read
     * from shared memory again in every step. */
    static constexpr int kRegisters =
        65536 / (kThreads * kBlocks) < 255 ? 65536 / (kThreads * kBlocks) : 255;
    static constexpr bool kKeepQ = kRowTiles * (kDim / 2 + kKeys / 2 + kDim / 4) + 44 <= kRegisters;

    static_assert(kWarpsRows == 1 || kWarpsKeys == 1, "warps share rows or keys, not both");
    static_assert(kKeys % 16 == 0 && kRows % (16 * kWarpsRows) == 0, "whole mma tiles");
    static_assert(kWarpsKeys == 1 || (kRows == 16 && 2 * kStageBytes >= 16 * kDim * 4),
                  "a warp's o fits its ring of at least 2 stages when the warps are merged");
};

/* What a block keeps in shared memory beside its tiles: registers are scarce, and the work and the
 * rows' facts are needed rarely. */
template <int kRows, int kWarpsKeys> struct fai_sm80_notes {
    fai_rows<kRows> rows;
    fai_work work;
    fai_merge_notes merge;
    float exponent[kWarpsKeys][16]; /* of a row: the reference times c; -inf without keys */
    float sum[kWarpsKeys][16];
    int is_last;
};

/* The ring of one group of loaders. */
template <class Shape, int kDim> struct fai_ring {
    const uint16_t *k, *v;      /* the unit's keys, fai_find_kv */
    uint32_t base, read, write; /* addresses: of the ring, of the tile in use, of the next copy */
    int next;                   /* tiles whose copy was started: K, V, K, V ... */
    int key;                    /* of the first block, for this group */

    __device__ __forceinline__ uint32_t after(const fai_cuda_params &p, uint32_t place) const {
        place += Shape::kStageBytes;
        return place == base + p.stages * Shape::kStageBytes ? base : place;
    }

    /* Starts the next copy; past the end an empty group keeps the count of groups. */
    __device__ __forceinline__ void start(const fai_cuda_params &p, const fai_work &w, int thread) {
        const bool is_v = next & 1;
        if (next < 2 * w.blocks_end)
            fai_load_kv<kDim, Shape::kKeys, Shape::kLoaders>(
                p, w, is_v ? p.a.v : p.a.k, is_v ? v : k, write,
                key + (next >> 1) * Shape::kBlockKeys, thread);
        fai_cp_async_commit();
        ++next;
    }

    __device__ __forceinline__ void init(const fai_cuda_params &p, const fai_work &w, uint32_t at,
                                         int key_in_block, int thread) {
        k = fai_find_kv(p, p.a.k, w);
        v = fai_find_kv(p, p.a.v, w);
        base = read = write = at;
        next = 0;
        key = w.key_begin + key_in_block;
#pragma unroll 1
        for (int i = 0; i < p.stages - 1; ++i, write += Shape::kStageBytes) start(p, w, thread);
    }

    /* Waits for the tile at `read` and refills the place of the one before. */
    __device__ __forceinline__ uint32_t take(const fai_cuda_params &p, const fai_work &w,
                                             int thread) {
        fai_cp_async_wait(p.stages - 2);
        if (Shape::kWarpsRows == 1)
            __syncwarp();
        else
            fai_barrier<1, Shape::kThreads>(); /* warps call this from two places */
        start(p, w, thread);
        const uint32_t tile = read;
        write = read;
        read = after(p, read);
        return tile;
    }
};

/* S = Q K^T of a warp. q_at: the lane's address in Q; k_at: in the tile of K. */
template <class Element, class Shape, int kDim>
FAI_DEVICE void fai_score(float (&s)[Shape::kRowTiles][Shape::kKeyTiles][4],
                          const uint32_t (&q)[Shape::kRowTiles][kDim / 16][4], uint32_t q_at,
                          uint32_t k_at) {
    using tile = fai_tile<kDim>;
#pragma unroll
    for (int m = 0; m < Shape::kRowTiles; ++m)
#pragma unroll
        for (int n = 0; n < Shape::kKeyTiles; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[m][n][e] = 0;
    /* A fragment is loaded while the one before it is multiplied. */
    constexpr int kPairs = Shape::kKeyTiles / 2, kSteps = kDim / 16 * kPairs;
    uint32_t a[2][Shape::kRowTiles][4], b[2][4];
    auto load_q = [&](int k16) {
#pragma unroll
        for (int i = 0; i < Shape::kRowTiles * 4; ++i)
            if (Shape::kKeepQ)
                a[k16 % 2][i / 4][i % 4] = q[i / 4][k16][i % 4];
            else if (i % 4 == 0)
                fai_ldmatrix(a[k16 % 2][i / 4], tile::step(q_at, k16) + i / 4 * 16 * tile::kPitch);
    };
    auto load_k = [&](int step) {
        fai_ldmatrix(b[step % 2],
                     tile::step(k_at, step / kPairs) + step % kPairs * 16 * tile::kPitch);
    };
    load_q(0);
    load_k(0);
#pragma unroll
    for (int k16 = 0; k16 < kDim / 16; ++k16) {
        if (k16 + 1 < kDim / 16) load_q(k16 + 1);
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
            const int step = k16 * kPairs + pair, n = pair * 2;
            if (step + 1 < kSteps) load_k(step + 1);
#pragma unroll
            for (int m = 0; m < Shape::kRowTiles; ++m) {
                fai_mma(Element(), s[m][n], a[k16 % 2][m], b[step % 2][0], b[step % 2][1]);
                fai_mma(Element(), s[m][n + 1], a[k16 % 2][m], b[step % 2][2], b[step % 2][3]);
            }
        }
    }
}

/* O += P V of a warp. The accumulators of S are, two key tiles at a time, the A operand here. */
template <class Element, class Shape, int kDim>
FAI_DEVICE void fai_accumulate(float (&o)[Shape::kRowTiles][Shape::kDimTiles][4],
                               const float (&p)[Shape::kRowTiles][Shape::kKeyTiles][4],
                               uint32_t v_at) {
    using tile = fai_tile<kDim>;
#pragma unroll
    for (int n = 0; n < Shape::kKeyTiles; n += 2) {
        uint32_t a[Shape::kRowTiles][4];
#pragma unroll
        for (int m = 0; m < Shape::kRowTiles; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                a[m][i] =
                    fai_pack(Element(), p[m][n + i / 2][i % 2 * 2], p[m][n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int d = 0; d < Shape::kDimTiles; d += 2) {
            uint32_t b[4];
            fai_ldmatrix_trans(b, tile::step(v_at, d / 2) + n * 8 * tile::kPitch);
#pragma unroll
            for (int m = 0; m < Shape::kRowTiles; ++m) {
                fai_mma(Element(), o[m][d], a[m], b[0], b[1]);
                fai_mma(Element(), o[m][d + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Scores of keys that a row does not see become -inf, by selection: they may be NaN. row and key
 * are those of the lane's first score. */
template <class Shape>
FAI_DEVICE void fai_mask(float (&s)[Shape::kRowTiles][Shape::kKeyTiles][4], const int *key_end,
                         int row, int key) {
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles * 2; ++i) {
        const int m = i / 2, half = i % 2, seen = key_end[row + i * 8] - key;
#pragma unroll
        for (int n = 0; n < Shape::kKeyTiles; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (n * 8 + e >= seen) s[m][n][half * 2 + e] = -INFINITY;
    }
}

template <class Element> FAI_DEVICE uint4 fai_round(const float (&x)[8]) {
    return make_uint4(fai_pack(Element(), x[0], x[1]), fai_pack(Element(), x[2], x[3]),
                      fai_pack(Element(), x[4], x[5]), fai_pack(Element(), x[6], x[7]));
}

FAI_DEVICE float *fai_partial_o(const fai_cuda_params &p, const fai_work &w, int row) {
    return p.partial_o + fai_partial_row(p, w, row, w.split) * p.a.head_dim;
}

/* Of the split's own keys; final where no other split sees a key of the tile. */
FAI_DEVICE void fai_store_split_lse(const fai_cuda_params &p, const fai_work &w, int row,
                                    float lse) {
    if (w.splits_live == 1)
        fai_store_lse(p, w, row, lse);
    else
        p.partial_lse[fai_partial_row(p, w, row, w.split)] = lse;
}

/* Prefill: a warp has whole rows. o goes through the place of the warp's own rows of Q, so that it
 * leaves in 16-byte pieces; partial results leave from the registers, a sector a quad. */
template <class Element, class Shape, int kDim>
FAI_DEVICE void fai_finish_rows(const fai_cuda_params &p, const fai_work &w, const int64_t *o_at,
                                fai_softmax<Shape::kRowTiles> &softmax,
                                float (&o)[Shape::kRowTiles][Shape::kDimTiles][4], uint32_t q_base,
                                int warp_row, int lane) {
    using tile = fai_tile<kDim>;
    const int units = p.a.head_dim / 8;
    const bool is_partial = w.splits_live > 1;
    __syncwarp(); /* the warp has read its Q */
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles * 2; ++i) {
        const int m = i / 2, half = i % 2, row = warp_row + m * 16 + half * 8 + lane / 4;
        const float sum = fai_quad_sum(softmax.sum[m][half]), factor = fai_finish(sum);
        if (lane % 4 == 0 && row < w.count)
            fai_store_split_lse(p, w, row, fai_lse(softmax.reference[m][half], sum, p.c));
        float *partial =
            is_partial && row < w.count ? fai_partial_o(p, w, row) + lane % 4 * 2 : nullptr;
#pragma unroll
        for (int d = 0; d < Shape::kDimTiles; ++d) {
            /* Selected, not multiplied: v may be NaN where an empty row has weight 0. */
            const float x0 = factor == 0 ? 0 : o[m][d][half * 2] * factor;
            const float x1 = factor == 0 ? 0 : o[m][d][half * 2 + 1] * factor;
            if (!is_partial)
                fai_st_shared(q_base + tile::at(row, d) + lane % 4 * 4,
                              fai_pack(Element(), x0, x1));
            else if (partial && d < units)
                *reinterpret_cast<float2 *>(partial + d * 8) = make_float2(x0, x1);
        }
    }
    if (is_partial) return;
    __syncwarp();
    constexpr int kPieces = Shape::kRowTiles * 16 * tile::kUnits / 32; /* of 16 bytes, a lane */
    constexpr int kBatch = kPieces % 4 == 0 ? 4 : 2;
    static_assert(kPieces % kBatch == 0, "whole batches");
    const int count = w.count;
#pragma unroll 1
    for (int piece = 0; piece < kPieces; piece += kBatch) {
        uint4 value[kBatch];
        int64_t at[kBatch];
        bool live[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int at_lane = (piece + i) * 32 + lane, unit = at_lane % tile::kUnits;
            const int row = warp_row + at_lane / tile::kUnits;
            value[i] = fai_ld_shared(q_base + tile::at(row, unit));
            at[i] = o_at[row] + unit * 8;
            live[i] = row < count && unit < units;
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
            if (live[i]) fai_store_o(p, at[i], value[i]);
    }
}

/* Decode: each warp has all rows over its keys. o meets in shared memory, a warp's own ring holding
 * its part: float32 rows of kDim, groups of 8 columns permuted so that 4 rows touch all banks. */
template <class Element, class Shape, int kDim, class Notes>
FAI_DEVICE void fai_merge_warps(const fai_cuda_params &p, const fai_work &w,
                                fai_softmax<1> &softmax, float (&o)[1][Shape::kDimTiles][4],
                                Notes *notes, char *rings, int warp, int lane) {
    const int ring_bytes = p.stages * Shape::kStageBytes;
    float *mine = reinterpret_cast<float *>(rings + warp * ring_bytes);
    __syncwarp(); /* the warp has read its last tile */
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = half * 8 + lane / 4;
        const float sum = fai_quad_sum(softmax.sum[0][half]);
        if (lane % 4 == 0) {
            notes->sum[warp][row] = sum;
            notes->exponent[warp][row] =
                sum == 0 ? -INFINITY : -fai_bias(softmax.reference[0][half], p.c);
        }
        if (row < w.count) {
#pragma unroll
            for (int d = 0; d < Shape::kDimTiles; ++d)
                *reinterpret_cast<float2 *>(mine + row * kDim + (d ^ (row & 3)) * 8 +
                                            lane % 4 * 2) =
                    make_float2(o[0][d][half * 2], o[0][d][half * 2 + 1]);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < w.count * Shape::kDimTiles; i += Shape::kThreads) {
        const int row = i / Shape::kDimTiles, unit = i % Shape::kDimTiles;
        if (unit >= p.a.head_dim / 8) continue;
        float most = -INFINITY, sum = 0, x[8] = {};
#pragma unroll
        for (int part = 0; part < Shape::kWarpsKeys; ++part)
            most = fmaxf(most, notes->exponent[part][row]);
#pragma unroll
        for (int part = 0; part < Shape::kWarpsKeys; ++part) {
            /* Without keys there is nothing to add, not even a NaN of v times 0. */
            if (notes->exponent[part][row] == -INFINITY) continue;
            const float weight = fai_merge_weight(notes->exponent[part][row], most);
            const float *from = reinterpret_cast<float *>(rings + part * ring_bytes) + row * kDim +
                                (unit ^ (row & 3)) * 8;
            sum += weight * notes->sum[part][row];
#pragma unroll
            for (int j = 0; j < 8; ++j) x[j] += weight * from[j];
        }
        const float factor = fai_finish(sum);
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] *= factor;
        if (w.splits_live == 1) {
            fai_store_o(p, notes->rows.o_at[row] + unit * 8, fai_round<Element>(x));
        } else {
            float4 *to = reinterpret_cast<float4 *>(fai_partial_o(p, w, row) + unit * 8);
            to[0] = make_float4(x[0], x[1], x[2], x[3]);
            to[1] = make_float4(x[4], x[5], x[6], x[7]);
        }
        if (unit == 0)
            fai_store_split_lse(p, w, row, (log2f(sum) + (sum == 0 ? 0 : most)) * FAI_LN2);
    }
    if (w.splits_live == 1 || !p.control) return;
    __syncthreads();
    if (threadIdx.x == 0) {
        const uint32_t last = w.splits_live - 1;
        notes->is_last = fai_atomic_inc_acq_rel(p.control + w.tile_idx, last) == last;
    }
    __syncthreads();
    if (notes->is_last) fai_merge_rows<Element, Shape::kThreads>(p, w, 0, w.count, &notes->merge);
}

template <class Element, int kDim, int kRows>
static __global__ void __launch_bounds__(fai_sm80_shape<kDim, kRows>::kThreads,
                                         fai_sm80_shape<kDim, kRows>::kBlocks)
    fai_sm80_forward(const __grid_constant__ fai_cuda_params p) {
    using shape = fai_sm80_shape<kDim, kRows>;
    using tile = fai_tile<kDim>;
    using notes_type = fai_sm80_notes<kRows, shape::kWarpsKeys>;
    static_assert(sizeof(notes_type) <= shape::kNotesBytes, "the planner counts them");
    static_assert(kRows <= shape::kThreads, "a thread sets a row's facts");
    extern __shared__ __align__(1024) char smem[]; /* notes, Q, rings */
    notes_type *notes = reinterpret_cast<notes_type *>(smem);
    char *rings = smem + shape::kNotesBytes + kRows * tile::kPitch;

    fai_work work;
    const int t = fai_divide(blockIdx.x, p.by_splits);
    if (!fai_find_work(p, t, blockIdx.x - t * p.splits, kRows, shape::kBlockKeys, work)) return;
    if (threadIdx.x < kRows) notes->rows.set(p, work, threadIdx.x);
    if (threadIdx.x == 0) notes->work = work;
    __syncthreads();
    const fai_work &w = notes->work;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = shape::kWarpsRows > 1 ? warp * 16 * shape::kRowTiles : 0;
    const int share = shape::kWarpsKeys > 1 ? warp : 0; /* of the keys and the rings */
    const int thread = threadIdx.x % shape::kLoaders;

    /* Step 1: Q and the first tiles are under way. */
    const uint32_t q_base = fai_smem_address(smem) + shape::kNotesBytes;
    fai_load_q<kDim, kRows, shape::kThreads>(p, w, notes->rows, q_base, threadIdx.x);
    fai_cp_async_commit();
    fai_ring<shape, kDim> ring;
    ring.init(p, w, fai_smem_address(rings) + share * p.stages * shape::kStageBytes,
              share * shape::kKeys, thread);

    /* Step 2: the lane's addresses in the tiles, and Q in registers. */
    const uint32_t q_at = q_base + tile::at(warp_row + lane % 16, lane / 16);
    const uint32_t k_at = tile::at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const uint32_t v_at = tile::at(lane % 16, lane / 16);
    uint32_t q[shape::kRowTiles][kDim / 16][4];
    fai_cp_async_wait(p.stages - 1);
    __syncthreads();
    if (shape::kKeepQ) {
#pragma unroll
        for (int i = 0; i < shape::kRowTiles * kDim / 16; ++i) {
            const int m = i / (kDim / 16), k16 = i % (kDim / 16);
            fai_ldmatrix(q[m][k16], tile::step(q_at, k16) + m * 16 * tile::kPitch);
        }
    }

    /* Step 3: the keys. */
    fai_softmax<shape::kRowTiles> softmax;
    softmax.init();
    float o[shape::kRowTiles][shape::kDimTiles][4] = {};
    const int *key_end = notes->rows.key_end + warp_row;
    /* On the diagonal a warp's rows may end blocks before the tile's. Its last row sees most,
     * rows past the tile's count more than there is. */
    const int keys_seen = key_end[16 * shape::kRowTiles - 1] - ring.key;
    const int blocks_seen =
        shape::kWarps > 4
            ? w.blocks_end /* leaving early would free no one: the others wait for their barriers */
            : min(keys_seen > 0 ? (keys_seen - 1) / shape::kBlockKeys + 1 : 0, w.blocks_end);
#pragma unroll 1
    for (int block = 0; block < blocks_seen; ++block) {
        float s[shape::kRowTiles][shape::kKeyTiles][4];
        fai_score<Element, shape, kDim>(s, q, q_at, ring.take(p, w, thread) + k_at);
        if (block >= w.blocks_full)
            fai_mask<shape>(s, key_end, lane / 4,
                            ring.key + block * shape::kBlockKeys + lane % 4 * 2);
        softmax.raise(s, o, p.c, p.octave);
        /* V is taken before the exponentials: they and the products then overlap. */
        const uint32_t v_tile = ring.take(p, w, thread);
        softmax.weigh(s, p.c);
        fai_accumulate<Element, shape, kDim>(o, s, v_tile + v_at);
    }
    /* The other warps still need this one's share of the copies, and its barriers. */
#pragma unroll 1
    for (int tile = 2 * blocks_seen; tile < 2 * w.blocks_end; ++tile) ring.take(p, w, thread);

    /* Step 4: results. */
    if constexpr (shape::kWarpsKeys > 1)
        fai_merge_warps<Element, shape, kDim>(p, w, softmax, o, notes, rings, warp, lane);
    else
        fai_finish_rows<Element, shape, kDim>(p, w, notes->rows.o_at, softmax, o, q_base, warp_row,
                                              lane);
}

/* The kernel for a tile, by the host's handle; null when it is not compiled. */
template <int kDim> static const void *fai_sm80_kernel(bool is_bf16, int rows) {
    switch (rows) {
    case 16:
        return is_bf16 ? (const void *)fai_sm80_forward<fai_bf16, kDim, 16>
                       : (const void *)fai_sm80_forward<fai_f16, kDim, 16>;
    case 64:
        return is_bf16 ? (const void *)fai_sm80_forward<fai_bf16, kDim, 64>
                       : (const void *)fai_sm80_forward<fai_f16, kDim, 64>;
    case 128:
        return is_bf16 ? (const void *)fai_sm80_forward<fai_bf16, kDim, 128>
                       : (const void *)fai_sm80_forward<fai_f16, kDim, 128>;
    }
    return nullptr;
}

#endif /* FA_FORWARD_SM80_CUH */
