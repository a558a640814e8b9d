/* fa_decode_sm90.cuh - the decode kernel for Hopper: the packed rows (all query heads) of one
 * (sequence, kv head) in tiles of up to 16, against its keys.
 *
 * Grid: x runs over (sequence, kv head) and, within it, tiles, which read the same keys from the L2
 * at the same time; a cluster each. A block of the cluster has an equal share of the keys that its
 * rows see, in steps of 16; its warps take these in turn. Nothing but the shares depends on
 * lengths, so they are read here and a captured graph follows them.
 *
 * Warps: 8, all alike. Each fills its own ring by the copy engine: lane 0 asks for a slot again as
 * soon as the warp has read it, so no block-wide barrier stands in the loop. K and V have a slot
 * each: scores and exponentials run while V is under way.
 *
 * Products: mma.sync m16n8k16 with keys (or columns of o) as the 16 rows and packed rows as the 8
 * columns: S^T = K Q^T, O^T += V^T P^T. Rows as the 16 would do twice the work.
 *
 * Merge: partial results are pushed through distributed shared memory, columns by units of 8 to the
 * block that reduces them, which waits for all bytes at one barrier and sums in a fixed order. No
 * workspace, no second kernel, the same bits every time.
 *
 * Shared memory and slots: fa_decode_sm90.h. Registers: 96 for 8 rows of 128, at most 253. It
 * changes when the decode schedule does. */
#ifndef FA_DECODE_SM90_CUH
#define FA_DECODE_SM90_CUH

#include "fa_decode_merge.cuh"

/* A warp's ring. Half tiles are numbered 2 * tile for K, 2 * tile + 1 for V; half h stands in slot
 * h % kSlots, and tile i of the warp is tile first + i * 8 of the sequence. */
template <int kDim, int kSlots, bool kDense> struct fai_decode_ring {
    static constexpr int kSlotBytes = kFaiDecodeKeys * kDim * 2;

    uint32_t base, barriers;
    int first, halves, next; /* next: the half to ask for */
    int slot, parity;        /* of the half to be read */
    bool is_asking;          /* one lane of the warp */
    int pages;               /* this lane's share of the numbers of 32 tiles' pages */

    __device__ __forceinline__ int row_of(const fai_decode_work &w, int tile) const {
        return w.k_begin + (first + tile * kFaiDecodeWarps) * kFaiDecodeKeys;
    }

    /* The pages of tiles [tile, tile + 32), one a lane. */
    __device__ __forceinline__ void read_pages(const fai_decode_params &p, const fai_decode_work &w,
                                               int tile, int lane) {
        if (2 * (tile + lane) < halves)
            pages = (int)fai_page(&p.a, w.batch, row_of(w, tile + lane));
    }

    __device__ __forceinline__ void ask(const fai_decode_params &p, const fai_decode_work &w,
                                        int half, int at_slot) {
        const int tile = half / 2;
        int row = row_of(w, tile), batch = !kDense && p.a.cu_seqlens_k ? 0 : w.batch;
        if (!kDense && p.a.page_size > 0) {
            batch = __shfl_sync(~0u, pages, tile % 32);
            row -= fai_divide(row, p.by_page) * p.a.page_size;
        }
        if (!is_asking) return;
        const uint32_t to = base + at_slot * kSlotBytes, barrier = barriers + at_slot * 8;
        fai_arrival_expect(barrier, kSlotBytes);
#pragma unroll 1
        for (int i = 0; i < (kDense ? 1 : p.copies); ++i)
            fai_copy_box(to + i * kFaiDecodeKeys * 128, p.maps + half % 2, i * 64, row, 0,
                         w.head_kv, batch, barrier);
    }

    /* Fills the ring: K first, since V is needed later. */
    __device__ __forceinline__ void start(const fai_decode_params &p, const fai_decode_work &w,
                                          int lane) {
        slot = parity = pages = 0;
        next = min(halves, kSlots);
        if (!kDense && p.a.page_size > 0) read_pages(p, w, 0, lane);
        const int k_halves = (next + 1) / 2;
#pragma unroll 1
        for (int i = 0; i < next; ++i) {
            const int half = i < k_halves ? 2 * i : 2 * (i - k_halves) + 1;
            ask(p, w, half, half);
        }
    }

    /* Waits for the next half and returns its address. */
    __device__ __forceinline__ uint32_t wait() const {
        fai_arrival_wait(barriers + slot * 8, parity);
        return base + slot * kSlotBytes;
    }

    /* The warp has read the slot: it is asked to hold the half kSlots ahead. */
    __device__ __forceinline__ void advance(const fai_decode_params &p, const fai_decode_work &w,
                                            int lane) {
        __syncwarp();
        if (next < halves) {
            if (!kDense && p.a.page_size > 0 && next % 64 == 0) read_pages(p, w, next / 2, lane);
            ask(p, w, next, slot);
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
                const int64_t query = fai_divide(w.first + mine, p.by_group);
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

    /* Raises the references where a key would carry a quarter of the lane's sum, or 2^8: a key that
     * dominates its row has weight 1. Lanes compare their own keys only; maxima are exchanged in
     * the few tiles where one is passed. octave = 1 / c. */
    __device__ __forceinline__ void raise(const float (&s)[kBlocks][4], float c, float octave) {
        bool passed = false;
#pragma unroll
        for (int i = 0; i < kBlocks * 2; ++i) {
            const int n = i / 2, e = i % 2;
            const float headroom = fminf(fmaxf(fai_log2(sum[n][e]) - 2.f, 0.f), 8.f);
            passed |= fmaxf(s[n][e], s[n][e + 2]) > fmaf(headroom, octave, reference[n][e]);
        }
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
    static_assert(kDim / 8 <= 32, "a lane a unit");
    const uint32_t at = half + lane / 8 * (kFaiDecodeKeys * 128) + lane % 8 * 16;
#pragma unroll 1
    for (int row = live; row < kFaiDecodeKeys; ++row)
        if (lane < kDim / 8) fai_st_shared(at + row * 128, make_uint4(0, 0, 0, 0));
    __syncwarp();
}

template <class Element, int kDim, int kRows, bool kDense>
static __global__ void __launch_bounds__(kFaiDecodeWarps * 32, 1)
    fai_decode_sm90(const __grid_constant__ fai_decode_params p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    constexpr int kSlots = fai_decode_slots(kDim, kRows), kBlocks = (kRows + 7) / 8;
    extern __shared__ __align__(1024) char smem[];
    const int lane = threadIdx.x % 32, rank = fai_cluster_rank();
    /* From one lane: the compiler then keeps it, and a warp's addresses, in uniform registers. */
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    fai_decode_work w;
    if (!fai_decode_find<kDense>(p, rank, kRows, w)) return; /* the whole cluster */

    /* Step 1: barriers, and the first copies under way. */
    const uint32_t barriers = fai_smem_address(smem) + fai_decode_ring_bytes(kDim, kRows);
    fai_decode_ring<kDim, kSlots, kDense> ring;
    ring.is_asking = fai_elect();
    ring.base = fai_smem_address(smem) + warp * kSlots * ring.kSlotBytes;
    ring.barriers = barriers + 16 + warp * kSlots * 8;
    ring.first = w.tile_begin + warp;
    ring.halves = 2 * max(0, (w.tile_end - ring.first + kFaiDecodeWarps - 1) / kFaiDecodeWarps);
    if (ring.is_asking) {
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) fai_arrival_init(ring.barriers + slot * 8);
        if (warp == 0) fai_arrival_init(barriers);
        fai_arrival_init_fence();
    }
    __syncwarp();
    ring.start(p, w, lane);
    fai_cluster_arrive();

    /* Step 2: Q; and nobody pushes before every block's barrier exists. */
    fai_decode_state<Element, kDim, kBlocks> state;
    state.init(p, w, lane);
    fai_cluster_wait();

    /* Step 3: the keys. */
    fai_decode_lane k, v;
    k.init(lane % 16, lane / 16);
    v.init(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll 1
    for (int tile = ring.first; tile < w.tile_end; tile += kFaiDecodeWarps) {
        const int key = tile * kFaiDecodeKeys;
        float s[kBlocks][4];
        uint32_t weights[kBlocks][2];
        state.score(s, k, ring.wait());
        ring.advance(p, w, lane);
        if (key + kFaiDecodeKeys > w.least) state.mask(s, key + lane / 4);
        state.raise(s, p.c, p.octave);
        state.weigh(s, weights, p.c);
        const uint32_t half = ring.wait();
        if (key + kFaiDecodeKeys > w.seen) fai_decode_clear<kDim>(half, w.seen - key, lane);
        state.accumulate(weights, v, half);
        ring.advance(p, w, lane);
    }

    /* Step 4: the merge. */
#pragma unroll
    for (int i = 0; i < kBlocks * 2; ++i)
#pragma unroll
        for (int x = 4; x < 32; x *= 2)
            state.sum[i / 2][i % 2] += __shfl_xor_sync(~0u, state.sum[i / 2][i % 2], x);
    char *behind = smem + fai_decode_ring_bytes(kDim, kRows) + fai_decode_barrier_bytes();
    switch (p.cluster_log2) {
    case 0:
        return fai_decode_finish<Element, kDim, kRows, 0>(p, w, state, behind, barriers, rank);
    case 1:
        return fai_decode_finish<Element, kDim, kRows, 1>(p, w, state, behind, barriers, rank);
    case 2:
        return fai_decode_finish<Element, kDim, kRows, 2>(p, w, state, behind, barriers, rank);
    default:
        return fai_decode_finish<Element, kDim, kRows, 3>(p, w, state, behind, barriers, rank);
    }
#endif
}

/* The kernel for a tile, by the host's handle. */
template <class Element, int kDim, bool kDense> static const void *fai_decode_kernel(int rows) {
    return rows == 4   ? (const void *)fai_decode_sm90<Element, kDim, 4, kDense>
           : rows == 8 ? (const void *)fai_decode_sm90<Element, kDim, 8, kDense>
                       : (const void *)fai_decode_sm90<Element, kDim, 16, kDense>;
}
template <int kDim> static const void *fai_decode_kernel(int is_bf16, int rows, int is_dense) {
    if (is_dense)
        return is_bf16 ? fai_decode_kernel<fai_bf16, kDim, true>(rows)
                       : fai_decode_kernel<fai_f16, kDim, true>(rows);
    return is_bf16 ? fai_decode_kernel<fai_bf16, kDim, false>(rows)
                   : fai_decode_kernel<fai_f16, kDim, false>(rows);
}

#endif /* FA_DECODE_SM90_CUH */
