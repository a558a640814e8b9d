/* fa_decode_sm90.cuh - the decode kernel for Hopper: all query heads and rows of one (sequence, kv
 * head), up to 16 packed rows, against its keys.
 *
 * Grid: x runs over (sequence, kv head), a cluster each. A block of the cluster has an equal share
 * of the keys that the rows see, in tiles of 16; its warps take these in turn. Nothing but the
 * shares depends on lengths, so they are read here and a captured graph follows them.
 *
 * Warps: 8, all alike. Each fills its own ring by the copy engine: lane 0 asks for a slot again as
 * soon as the warp has read it, so no block-wide barrier stands in the loop. K and V have a slot
 * each: scores and exponentials run while V is under way.
 *
 * Products: mma.sync m16n8k16 with keys (or columns of o) as the 16 rows and packed rows as the 8
 * columns: S^T = K Q^T, O^T += V^T P^T. Rows as the 16 would do twice the work.
 *
 * Merge: every warp pushes its partial result through distributed shared memory, columns by units
 * of 8 to the block that reduces them, which waits for all bytes at one barrier and sums in a fixed
 * order. No workspace, no second kernel, the same bits every time.
 *
 * Shared memory and slots: fa_decode_sm90.h. Registers: about 110 for 8 rows of 128, at most 255.
 * It changes when the decode schedule does. */
#ifndef FA_DECODE_SM90_CUH
#define FA_DECODE_SM90_CUH

#include "fa_cuda_decode.h"
#include "fa_softmax.cuh"

/* One block's work. */
struct fai_decode_work {
    int batch, head_kv;
    int q_begin, count;        /* packed rows */
    int k_begin, kv_len, seen; /* keys that the last row sees */
    int64_t offset;
    int tile_begin, tile_end; /* of the block, counted from the sequence's first key */
};

FAI_DEVICE bool fai_decode_find(const fai_decode_params &p, int rank, fai_decode_work &w) {
    const int unit = blockIdx.x >> p.cluster_log2;
    w.batch = fai_divide(unit, p.by_heads_kv);
    w.head_kv = unit - w.batch * p.a.heads_kv;
    const fai_range q = fai_q_rows(&p.a, w.batch), k = fai_k_rows(&p.a, w.batch);
    const int q_len = (int)(q.end - q.begin);
    w.q_begin = (int)q.begin;
    w.count = q_len * p.group;
    w.k_begin = (int)k.begin;
    w.kv_len = (int)(k.end - k.begin);
    w.offset = fai_offset(&p.a, w.batch, q_len, w.kv_len);
    w.seen = (int)fai_visible_keys(q_len - 1, w.offset, w.kv_len);
    const int tiles = (w.seen + kFaiDecodeKeys - 1) / kFaiDecodeKeys;
    const int share = (tiles + (1 << p.cluster_log2) - 1) >> p.cluster_log2;
    w.tile_begin = min(rank * share, tiles);
    w.tile_end = min(w.tile_begin + share, tiles);
    return w.count > 0;
}

/* Packed row `row` as elements from view.data, for q, o and lse. */
FAI_DEVICE int64_t fai_decode_offset(const fai_decode_params &p, const fai_decode_work &w,
                                     const fa_view &view, int row) {
    const int query = fai_divide(row, p.by_group);
    const int head = w.head_kv * p.group + row - query * p.group;
    return fai_q_offset(&p.a, &view, w.batch, head, w.q_begin + query);
}

/* A warp's ring. Half tiles are numbered 2 * tile for K, 2 * tile + 1 for V; half h stands in slot
 * h % kSlots, and tile i of the warp is tile first + i * 8 of the sequence. */
template <int kDim, int kSlots> struct fai_decode_ring {
    static constexpr int kSlotBytes = kFaiDecodeKeys * kDim * 2;

    uint32_t base, barriers;
    int first, halves, next; /* next: the half to ask for */
    int slot, parity;        /* of the half to be read */
    int pages;               /* this lane's share of the numbers of 32 tiles' pages */

    __device__ __forceinline__ int row_of(const fai_decode_work &w, int tile) const {
        return w.k_begin + (first + tile * kFaiDecodeWarps) * kFaiDecodeKeys;
    }

    /* The pages of tiles [tile, tile + 32), one a lane. */
    __device__ __forceinline__ void read_pages(const fai_decode_params &p, const fai_decode_work &w,
                                               int tile, int lane) {
        if (p.a.page_size > 0 && 2 * (tile + lane) < halves)
            pages = (int)fai_page(&p.a, w.batch, row_of(w, tile + lane));
    }

    __device__ __forceinline__ void ask(const fai_decode_params &p, const fai_decode_work &w,
                                        const CUtensorMap *maps, int half, int at_slot, int lane) {
        const int tile = half / 2;
        int row = row_of(w, tile), batch = p.a.cu_seqlens_k ? 0 : w.batch;
        if (p.a.page_size > 0) {
            batch = __shfl_sync(~0u, pages, tile % 32);
            row %= p.a.page_size;
        }
        if (lane > 0) return;
        const uint32_t to = base + at_slot * kSlotBytes, barrier = barriers + at_slot * 8;
        const CUtensorMap *map = maps + half % 2;
        fai_arrival_expect(barrier, kSlotBytes);
        if (p.whole) {
            fai_copy_box(to, map, 0, row, 0, w.head_kv, batch, barrier);
        } else {
#pragma unroll
            for (int chunk = 0; chunk < kDim / 64; ++chunk)
                fai_copy_box(to + chunk * kFaiDecodeKeys * 128, map, chunk * 64, row, 0, w.head_kv,
                             batch, barrier);
        }
    }

    /* Fills the ring: K first, since V is needed later. */
    __device__ __forceinline__ void start(const fai_decode_params &p, const fai_decode_work &w,
                                          const CUtensorMap *maps, int lane) {
        slot = parity = pages = 0;
        next = min(halves, kSlots);
        read_pages(p, w, 0, lane);
#pragma unroll 1
        for (int half = 0; half < next; half += 2) ask(p, w, maps, half, half, lane);
#pragma unroll 1
        for (int half = 1; half < next; half += 2) ask(p, w, maps, half, half, lane);
    }

    /* Waits for the next half and returns its address. */
    __device__ __forceinline__ uint32_t wait() const {
        fai_arrival_wait(barriers + slot * 8, parity);
        return base + slot * kSlotBytes;
    }

    /* The warp has read the slot: it is asked to hold the half kSlots ahead. */
    __device__ __forceinline__ void advance(const fai_decode_params &p, const fai_decode_work &w,
                                            const CUtensorMap *maps, int lane) {
        __syncwarp();
        if (next < halves) {
            if (next % 64 == 0) read_pages(p, w, next / 2, lane);
            ask(p, w, maps, next, slot, lane);
            ++next;
        }
        if (++slot == kSlots) slot = 0, parity ^= 1;
    }
};

/* A lane's addresses in a half: chunks of 64 columns, 128 bytes a row, the 16-byte unit u of row r
 * at unit u ^ (r % 8) of its chunk. */
struct fai_decode_lane {
    uint32_t row_at, unit;

    __device__ __forceinline__ void init(int row, int first_unit) {
        row_at = row * 128;
        unit = (first_unit ^ (row & 7)) << 4;
    }
    __device__ __forceinline__ uint32_t at(uint32_t half, int k16) const {
        return half + k16 / 4 * (kFaiDecodeKeys * 128) + row_at + (unit ^ (k16 % 4 << 5));
    }
};

/* A warp's state: O^T and, a lane's two rows of each 8, reference and sum. With g = lane / 4 and
 * t = lane % 4 a lane has rows 8 * block + 2t and + 1; of scores, keys g and g + 8 of the tile; of
 * O^T, columns g and g + 8 of each 16. */
template <class Element, int kDim, int kBlocks> struct fai_decode_state {
    static constexpr int kSteps = kDim / 16;

    uint32_t q[kSteps][kBlocks][2];
    float o[kSteps][kBlocks][4];
    float reference[kBlocks][2], sum[kBlocks][2];
    int key_end[kBlocks][2];

    __device__ __forceinline__ void init(const fai_decode_params &p, const fai_decode_work &w,
                                         int lane) {
        const uint16_t *data = static_cast<const uint16_t *>(p.a.q.data);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            const int row = n * 8 + lane / 4;
            const bool live = row < w.count;
            const uint16_t *from =
                data + (live ? fai_decode_offset(p, w, p.a.q, row) : 0) + lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < kSteps * 2; ++i)
                q[i / 2][n][i % 2] = live && i * 8 < p.a.head_dim
                                         ? __ldg(reinterpret_cast<const uint32_t *>(from + i * 8))
                                         : 0;
#pragma unroll
            for (int i = 0; i < kSteps * 4; ++i) o[i / 4][n][i % 4] = 0;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int mine = n * 8 + lane % 4 * 2 + e;
                const int64_t query = fai_divide(mine, p.by_group);
                key_end[n][e] =
                    mine < w.count ? (int)fai_visible_keys(query, w.offset, w.kv_len) : 0;
                reference[n][e] = -INFINITY;
                sum[n][e] = 0;
            }
        }
    }

    /* S^T of a tile, in four chains of products: one would wait for itself. */
    __device__ __forceinline__ void score(float (&s)[kBlocks][4], const fai_decode_lane &k,
                                          uint32_t half) const {
        float part[4][kBlocks][4] = {};
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
            uint32_t a[4];
            fai_ldmatrix(a, k.at(half, i));
#pragma unroll
            for (int n = 0; n < kBlocks; ++n)
                fai_mma(Element(), part[i % 4][n], a, q[i][n][0], q[i][n][1]);
        }
#pragma unroll
        for (int i = 0; i < kBlocks * 4; ++i)
            s[i / 4][i % 4] = (part[0][i / 4][i % 4] + part[1][i / 4][i % 4]) +
                              (part[2][i / 4][i % 4] + part[3][i / 4][i % 4]);
    }

    /* Unseen keys get -inf by selection: their scores may be NaN. key is that of row g. */
    __device__ __forceinline__ void mask(float (&s)[kBlocks][4], int key) const {
#pragma unroll
        for (int i = 0; i < kBlocks * 4; ++i)
            if (key + i % 4 / 2 * 8 >= key_end[i / 4][i % 2]) s[i / 4][i % 4] = -INFINITY;
    }

    /* Raises the references that new scores pass: a key that dominates its row has weight 1. Lanes
     * compare their own keys only, and exchange maxima in the few tiles where one is passed. */
    __device__ __forceinline__ void raise(const float (&s)[kBlocks][4], float c) {
        bool passed = false;
#pragma unroll
        for (int i = 0; i < kBlocks * 2; ++i)
            passed |= fmaxf(s[i / 2][i % 2], s[i / 2][i % 2 + 2]) > reference[i / 2][i % 2];
        if (!__any_sync(~0u, passed)) return;
#pragma unroll
        for (int n = 0; n < kBlocks; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float most = fmaxf(reference[n][e], fmaxf(s[n][e], s[n][e + 2]));
#pragma unroll
                for (int x = 4; x < 32; x *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, x));
                const float old = reference[n][e];
                const float factor = most > old ? fai_exp2((old - most) * c) : 1.f;
                reference[n][e] = most;
                sum[n][e] *= factor;
#pragma unroll
                for (int i = 0; i < kSteps; ++i) {
                    o[i][n][e] *= factor;
                    o[i][n][e + 2] *= factor;
                }
            }
    }

    /* Turns scores into weights, adds them up unrounded, and gives P^T as the products want it. */
    __device__ __forceinline__ void weigh(float (&s)[kBlocks][4], uint32_t (&p)[kBlocks][2],
                                          float c) {
#pragma unroll
        for (int i = 0; i < kBlocks * 4; ++i) {
            const float most = reference[i / 4][i % 2];
            const float weight = fai_exp2((s[i / 4][i % 4] - (most == -INFINITY ? 0 : most)) * c);
            s[i / 4][i % 4] = weight;
            sum[i / 4][i % 2] += weight;
        }
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            p[n][0] = fai_movmatrix(fai_pack(Element(), s[n][0], s[n][1]));
            p[n][1] = fai_movmatrix(fai_pack(Element(), s[n][2], s[n][3]));
        }
    }

    __device__ __forceinline__ void accumulate(const uint32_t (&p)[kBlocks][2],
                                               const fai_decode_lane &v, uint32_t half) {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
            uint32_t a[4];
            fai_ldmatrix_trans(a, v.at(half, i));
#pragma unroll
            for (int n = 0; n < kBlocks; ++n) fai_mma(Element(), o[i][n], a, p[n][0], p[n][1]);
        }
    }
};

/* Rows of V that no row of q sees may hold NaN, which a weight of 0 does not silence. */
template <int kDim> FAI_DEVICE void fai_decode_clear(uint32_t half, int live, int lane) {
    for (int i = lane; i < (kFaiDecodeKeys - live) * (kDim / 8); i += 32) {
        const int row = live + i % (kFaiDecodeKeys - live), unit = i / (kFaiDecodeKeys - live);
        fai_st_shared(half + unit / 8 * (kFaiDecodeKeys * 128) + row * 128 + unit % 8 * 16,
                      make_uint4(0, 0, 0, 0));
    }
    __syncwarp();
}

/* What a block receives: partial results [part][unit][column][row], and (reference, sum). */
template <int kDim, int kRows> struct fai_decode_parts {
    uint32_t o, stats, barrier; /* shared memory */
    int cluster_log2, rank, pitch;

    __device__ __forceinline__ int bytes() const {
        const int units = fai_decode_units(kDim, cluster_log2, rank);
        return (kFaiDecodeWarps << cluster_log2) * (units * 8 * kRows * 4 + kRows * 8);
    }

    /* A warp's partial result goes to the blocks that reduce it. Half the lanes of a tile of 4 rows
     * have rows past it. */
    template <class State>
    __device__ __forceinline__ void push(const State &state, int warp, int lane) const {
        const int part = rank * kFaiDecodeWarps + warp, column = lane / 4, row = lane % 4 * 2;
        if (row >= kRows) return;
        const uint32_t at = o + (part * pitch + column * kRows + row) * 4;
#pragma unroll
        for (int unit = 0; unit < kDim / 8; ++unit) {
            const int to = unit & ((1 << cluster_log2) - 1), local = unit >> cluster_log2;
            const uint32_t there = fai_cluster_address(at, to) + local * 8 * kRows * 4;
            const uint32_t bar = fai_cluster_address(barrier, to);
#pragma unroll
            for (int n = 0; n * 8 < kRows; ++n)
                fai_push(there + n * 32, state.o[unit / 2][n][unit % 2 * 2],
                         state.o[unit / 2][n][unit % 2 * 2 + 1], bar);
        }
        if (column >> cluster_log2) return;
        const uint32_t bar = fai_cluster_address(barrier, column);
#pragma unroll
        for (int n = 0; n * 8 < kRows; ++n)
            fai_push(fai_cluster_address(stats + (part * kRows + n * 8 + row) * 8, column),
                     make_float4(state.reference[n][0], state.sum[n][0], state.reference[n][1],
                                 state.sum[n][1]),
                     bar);
    }
};

/* Sums the partial results of this block's columns and writes o, and lse where it has column 0.
 * kLanes neighbours share an element; what a warp without keys for a row says does not count, nor
 * does a NaN of v times 0. */
template <class Element, int kRows, int kLanes>
FAI_DEVICE void fai_decode_reduce(const fai_decode_params &p, const fai_decode_work &w,
                                  const float *part_o, const float2 *stats, int rank, int units,
                                  int pitch) {
    const int lane = threadIdx.x % kLanes, parts = kFaiDecodeWarps << p.cluster_log2;
#pragma unroll 1
    for (int at = threadIdx.x / kLanes; at < units * 8 * kRows;
         at += kFaiDecodeWarps * 32 / kLanes) {
        const int row = at % kRows, local = at / kRows;
        const int column = ((local / 8 << p.cluster_log2) + rank) * 8 + local % 8;
        float most = -INFINITY, sum = 0, x = 0;
#pragma unroll 8
        for (int i = lane; i < parts; i += kLanes) most = fmaxf(most, stats[i * kRows + row].x);
#pragma unroll
        for (int i = 1; i < kLanes; i *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
        const float base = most == -INFINITY ? 0 : most;
#pragma unroll 8
        for (int i = lane; i < parts; i += kLanes) {
            const float2 part = stats[i * kRows + row];
            const float weight = fai_exp2((part.x - base) * p.c), value = part_o[i * pitch + at];
            sum += weight * part.y;
            x += part.y == 0 ? 0 : weight * value;
        }
#pragma unroll
        for (int i = 1; i < kLanes; i *= 2) {
            sum += __shfl_xor_sync(~0u, sum, i);
            x += __shfl_xor_sync(~0u, x, i);
        }
        if (lane > 0 || row >= w.count) continue;
        if (column < p.a.head_dim)
            static_cast<uint16_t *>(p.a.o.data)[fai_decode_offset(p, w, p.a.o, row) + column] =
                (uint16_t)fai_pack(Element(), sum == 0 ? 0 : x / sum, 0);
        if (column == 0 && p.a.lse.data)
            static_cast<float *>(p.a.lse.data)[fai_decode_offset(p, w, p.a.lse, row)] =
                sum == 0 ? -INFINITY : (log2f(sum) + base * p.c) * FAI_LN2;
    }
}

template <class Element, int kDim, int kRows>
static __global__ void __launch_bounds__(kFaiDecodeWarps * 32, 1)
    fai_decode_sm90(const __grid_constant__ fai_decode_params p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    constexpr int kSlots = fai_decode_slots(kDim, kRows), kBlocks = (kRows + 7) / 8;
    extern __shared__ __align__(1024) char smem[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = fai_cluster_rank();
    fai_decode_work w;
    if (!fai_decode_find(p, rank, w)) return; /* the whole cluster */

    /* Step 1: barriers, and the first copies under way. */
    const int pitch = fai_decode_pitch(kDim, kRows, p.cluster_log2),
              parts = kFaiDecodeWarps << p.cluster_log2;
    char *part_o = smem + fai_decode_ring_bytes(kDim, kRows);
    char *stats = part_o + parts * pitch * 4;
    const uint32_t barriers = fai_smem_address(stats) + parts * kRows * 8;
    fai_decode_parts<kDim, kRows> merge = {
        fai_smem_address(part_o), fai_smem_address(stats), barriers, p.cluster_log2, rank, pitch};
    fai_decode_ring<kDim, kSlots> ring;
    ring.base = fai_smem_address(smem) + warp * kSlots * ring.kSlotBytes;
    ring.barriers = barriers + 8 + warp * kSlots * 8;
    ring.first = w.tile_begin + warp;
    ring.halves = 2 * max(0, (w.tile_end - ring.first + kFaiDecodeWarps - 1) / kFaiDecodeWarps);
    if (lane == 0) {
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) fai_arrival_init(ring.barriers + slot * 8);
        if (warp == 0) fai_arrival_init(barriers);
        fai_arrival_init_fence();
        if (warp == 0) fai_arrival_expect(barriers, merge.bytes());
    }
    __syncwarp();
    ring.start(p, w, p.maps, lane);
    fai_cluster_arrive();

    /* Step 2: Q; and nobody pushes before every block's barrier exists. */
    fai_decode_state<Element, kDim, kBlocks> state;
    state.init(p, w, lane);
    fai_cluster_wait();

    /* Step 3: the keys. */
    fai_decode_lane k, v;
    k.init(lane % 16, lane / 16);
    v.init(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const int least = (int)fai_visible_keys(0, w.offset, w.kv_len);
#pragma unroll 1
    for (int tile = ring.first; tile < w.tile_end; tile += kFaiDecodeWarps) {
        const int key = tile * kFaiDecodeKeys;
        float s[kBlocks][4];
        uint32_t weights[kBlocks][2];
        state.score(s, k, ring.wait());
        ring.advance(p, w, p.maps, lane);
        if (key + kFaiDecodeKeys > least) state.mask(s, key + lane / 4);
        state.raise(s, p.c);
        state.weigh(s, weights, p.c);
        const uint32_t half = ring.wait();
        if (key + kFaiDecodeKeys > w.seen) fai_decode_clear<kDim>(half, w.seen - key, lane);
        state.accumulate(weights, v, half);
        ring.advance(p, w, p.maps, lane);
    }

    /* Step 4: the merge. */
#pragma unroll
    for (int i = 0; i < kBlocks * 2; ++i)
#pragma unroll
        for (int x = 4; x < 32; x *= 2)
            state.sum[i / 2][i % 2] += __shfl_xor_sync(~0u, state.sum[i / 2][i % 2], x);
    merge.push(state, warp, lane);
    fai_arrival_wait_cluster(barriers, 0);
    const int units = fai_decode_units(kDim, p.cluster_log2, rank);
    const float *from = reinterpret_cast<const float *>(part_o);
    const float2 *from_stats = reinterpret_cast<const float2 *>(stats);
    if (p.cluster_log2 >= 2)
        fai_decode_reduce<Element, kRows, 4>(p, w, from, from_stats, rank, units, pitch);
    else
        fai_decode_reduce<Element, kRows, 1>(p, w, from, from_stats, rank, units, pitch);
#endif
}

/* The kernel for a tile, by the host's handle. */
template <int kDim> static const void *fai_decode_kernel(int is_bf16, int rows) {
    switch (rows) {
    case 4:
        return is_bf16 ? (const void *)fai_decode_sm90<fai_bf16, kDim, 4>
                       : (const void *)fai_decode_sm90<fai_f16, kDim, 4>;
    case 8:
        return is_bf16 ? (const void *)fai_decode_sm90<fai_bf16, kDim, 8>
                       : (const void *)fai_decode_sm90<fai_f16, kDim, 8>;
    default:
        return is_bf16 ? (const void *)fai_decode_sm90<fai_bf16, kDim, 16>
                       : (const void *)fai_decode_sm90<fai_f16, kDim, 16>;
    }
}

#endif /* FA_DECODE_SM90_CUH */
