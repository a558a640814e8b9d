/* fa_prefill_sm90.cuh - the prefill kernel for Hopper: tiles of 128 rows (the queries of one head,
 * or fewer queries of all heads of a kv head) against the keys they see, from the last block to the
 * first.
 *
 * Grid: one block a multiprocessor; tiles are given out by a counter, longest first.
 *
 * Warps: warpgroup 0 gives its registers away and one warp of it feeds the copy engine; warpgroups
 * 1 and 2 multiply, 64 rows each, and never wait for each other. Registers: 40 and 232 a thread.
 *
 * Step: the scores of block n are issued, then the sums over the weights of block n + 1; the
 * softmax of block n runs while the second product does.
 *
 * Barriers in shared memory: K, V and Q full (bytes) and empty (an arrival a warp), the work item
 * full and empty. Shared memory: fa_prefill_sm90.h. It changes when the schedule does. */
#ifndef FA_PREFILL_SM90_CUH
#define FA_PREFILL_SM90_CUH

#include "fa_prefill_rows.cuh"

/* The consumer's side of the rings. */
template <class Element, int kDim> struct fai_prefill_consumer {
    using shape = fai_prefill_shape<kDim>;
    uint32_t smem;
    int group, lane, turn = 0;
    fai_prefill_ring<shape::kStages> k, v;
    uint64_t q_at, k_at, v_at;
    fai_prefill_rows<Element, kDim> rows;

    __device__ __forceinline__ void release(uint32_t empty) const {
        if (lane == 0) fai_arrive(empty);
    }
    __device__ __forceinline__ void wait_k() const {
        fai_arrival_wait(smem + shape::kKFull + 8 * k.slot, k.parity);
    }
    __device__ __forceinline__ void wait_v() const {
        fai_arrival_wait(smem + shape::kVFull + 8 * v.slot, v.parity);
    }
    __device__ __forceinline__ void free_k() {
        release(smem + shape::kKEmpty + 8 * k.slot);
        k.advance();
    }
    __device__ __forceinline__ void free_v() {
        release(smem + shape::kVEmpty + 8 * v.slot);
        v.advance();
    }
    __device__ __forceinline__ uint64_t k_now() const {
        return k_at + k.slot * (shape::kKvBytes / 16);
    }
    __device__ __forceinline__ uint64_t v_now() const {
        return v_at + v.slot * (shape::kKvBytes / 16);
    }

    /* Rows of the first V block past the sequence's keys may hold NaN, which a weight of 0 does
     * not silence. Each warpgroup clears them for itself. */
    __device__ __forceinline__ void clear_tail(int live) const {
        wait_v();
        const uint32_t to = smem + shape::kV + v.slot * shape::kKvBytes + live * 128;
#pragma unroll 1
        for (int i = threadIdx.x % 128; i < (shape::kKeys - live) * 8; i += 128)
#pragma unroll
            for (int chunk = 0; chunk < shape::kChunks; ++chunk)
                fai_st_shared(to + chunk * shape::kKvChunk + i * 16, make_uint4(0, 0, 0, 0));
        fai_fence_async();
        fai_barrier(1 + group, 128);
    }

    template <bool kMasked>
    __device__ __forceinline__ void step(const fai_prefill_params &p, const fai_prefill_work *w,
                                         int key) {
        wait_k();
        rows.score(q_at, k_now());
        wait_v();
        rows.accumulate(v_now());
        fai_wgmma_wait<1>();
        fai_pin(rows.s);
        free_k();
        bool changed = true;
        if (kMasked)
            rows.template weigh_exactly<false>(p.cuda.c, key);
        else
            changed = rows.weigh(p, w, p.cuda.c, key);
        fai_wgmma_wait<0>();
        fai_pin(rows.o);
        free_v();
        rows.pack();
        if (changed) rows.rescale();
    }

    __device__ __forceinline__ void tile(const fai_prefill_params &p, const fai_prefill_work *w) {
        const int end = w->end, full = w->full, begin = w->key_begin;
        int key = begin + (end - 1) * shape::kKeys;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int r = rows.row + 8 * h, query = r & ((1 << p.queries_log2) - 1);
            rows.seen[h] = min(w->visible + query, w->key_end);
        }
        fai_arrival_wait(smem + shape::kQFull, turn & 1);
        wait_k();
        rows.score(q_at, k_now());
        fai_wgmma_wait<0>();
        fai_pin(rows.s);
        free_k();
        rows.template weigh_exactly<true>(p.cuda.c, key);
        rows.pack();
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) rows.o[i] = 0.f;
        if (p.v_has_tail && key + shape::kKeys > w->kv_len)
            clear_tail(min(max(w->kv_len - key, 0), shape::kKeys));
        key -= shape::kKeys;
#pragma unroll 1
        for (; key >= begin + full * shape::kKeys; key -= shape::kKeys) step<true>(p, w, key);
#pragma unroll 1
        for (; key >= begin; key -= shape::kKeys) step<false>(p, w, key);
        if (shape::tile.own_o) release(smem + shape::kQEmpty);
        wait_v();
        rows.accumulate(v_now());
        fai_wgmma_wait<0>();
        fai_pin(rows.o);
        free_v();
    }

    __device__ __forceinline__ void run(const fai_prefill_params &p, const char *notes) {
        const int warp = threadIdx.x / 32 % 4;
        rows.row = group * 64 + warp * 16 + lane / 4;
        q_at = fai_describe(smem + group * 64 * 128, 16);
        k_at = fai_describe(smem + shape::kK, 16);
        v_at = fai_describe(smem + shape::kV, shape::kKvChunk);
#pragma unroll 1
        for (;; ++turn) {
            const int slot = turn & 1;
            const fai_prefill_work *w = reinterpret_cast<const fai_prefill_work *>(notes) + slot;
            fai_arrival_wait(smem + shape::kWorkFull + 8 * slot, turn >> 1 & 1);
            if (w->queries == 0) return;
            tile(p, w);
            rows.finish();
            if (w->splits_live > 1)
                rows.store_partial(p, w);
            else
                rows.store(p, w, smem + shape::kO);
            if (!shape::tile.own_o) {
                fai_fence_async();
                __syncwarp();
                release(smem + shape::kQEmpty);
            }
            __syncwarp();
            release(smem + shape::kWorkEmpty + 8 * slot);
        }
    }
};

template <int kDim> FAI_DEVICE void fai_prefill_init(uint32_t smem) {
    using shape = fai_prefill_shape<kDim>;
    constexpr int kWarps = shape::kGroups * 4;
    fai_arrival_init(smem + shape::kQFull, 1);
    fai_arrival_init(smem + shape::kQEmpty, kWarps);
    for (int i = 0; i < 2; ++i) {
        fai_arrival_init(smem + shape::kWorkFull + 8 * i, 1);
        fai_arrival_init(smem + shape::kWorkEmpty + 8 * i, kWarps);
    }
    for (int i = 0; i < shape::kStages; ++i) {
        fai_arrival_init(smem + shape::kKFull + 8 * i, 1);
        fai_arrival_init(smem + shape::kKEmpty + 8 * i, kWarps);
        fai_arrival_init(smem + shape::kVFull + 8 * i, 1);
        fai_arrival_init(smem + shape::kVEmpty + 8 * i, kWarps);
    }
    fai_arrival_init_fence();
}

template <class Element, int kDim>
static __global__ void __launch_bounds__(fai_prefill_shape<kDim>::kThreads, 1)
    fai_prefill_sm90(const __grid_constant__ fai_prefill_params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using shape = fai_prefill_shape<kDim>;
    extern __shared__ char dynamic[];
    const uint32_t start = fai_smem_address(dynamic);
    const uint32_t smem = (start + kFaiPrefillAlign - 1) & ~(kFaiPrefillAlign - 1);
    char *notes = dynamic + (smem - start) + shape::kWork;
    if (threadIdx.x == 0) fai_prefill_init<kDim>(smem);
    __syncthreads();
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (group == 0) {
        fai_registers_down<40>();
        if (threadIdx.x >= 32) return;
        fai_prefill_producer<kDim> producer;
        producer.smem = smem;
        producer.lane = threadIdx.x;
        producer.run(p, notes);
    } else {
        fai_registers_up<232>();
        fai_prefill_consumer<Element, kDim> consumer;
        consumer.smem = smem;
        consumer.group = group - 1;
        consumer.lane = threadIdx.x % 32;
        consumer.run(p, notes);
    }
#endif
}

/* The kernel by the host's handle. */
template <int kDim> static const void *fai_prefill_kernel(int is_bf16) {
    return is_bf16 ? (const void *)fai_prefill_sm90<fai_bf16, kDim>
                   : (const void *)fai_prefill_sm90<fai_f16, kDim>;
}

#endif /* FA_PREFILL_SM90_CUH */
