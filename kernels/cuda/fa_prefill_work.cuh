/* fa_prefill_work.cuh - the prefill kernel's producer: which tile comes next, what it sees, and the
 * copies of its Q, K and V into shared memory. It changes when the order of tiles or their
 * addressing does. */
#ifndef FA_PREFILL_WORK_CUH
#define FA_PREFILL_WORK_CUH

#include "fa_cuda_prefill.h"

/* What the producer tells the consumers of a tile. */
struct fai_prefill_work {
    int32_t queries; /* that the tile really has; 0: there is no more work */
    int32_t batch, head, head_kv, query;
    int32_t q_begin, k_begin, kv_len;
    int32_t visible; /* keys that query 0 of the tile sees, before it is cut to [0, kv_len] */
    int32_t key_begin, key_end;
    int32_t full, end; /* key blocks from key_begin; those before full need no mask */
    int32_t split, splits_live;
};

/* Places in shared memory. */
template <int kDim> struct fai_prefill_shape {
    static constexpr fai_prefill_tile find() {
        int i = 0;
        while (fai_prefill_tiles[i].dim != kDim) ++i;
        return fai_prefill_tiles[i];
    }
    static constexpr fai_prefill_tile tile = find();
    static constexpr int kRows = tile.rows, kKeys = tile.keys, kStages = tile.stages;
    static constexpr int kGroups = kRows / 64, kThreads = (kGroups + 1) * 128;
    static constexpr int kChunks = (kDim + 63) / 64;
    static constexpr int kQChunk = kRows * 128, kKvChunk = kKeys * 128;
    static constexpr int kKvBytes = kKvChunk * kChunks, kQBytes = kQChunk * kChunks;
    static constexpr int kK = kQBytes, kV = kK + kStages * kKvBytes;
    static constexpr int kO = tile.own_o ? kV + kStages * kKvBytes : 0;
    static constexpr int kNotes = kV + kStages * kKvBytes + tile.own_o * kQBytes;
    /* Barriers, from kNotes: full and empty ones. */
    static constexpr int kQFull = kNotes, kQEmpty = kNotes + 8;
    static constexpr int kWorkFull = kNotes + 16, kWorkEmpty = kNotes + 32;
    static constexpr int kKFull = kNotes + 48, kKEmpty = kKFull + 8 * kStages;
    static constexpr int kVFull = kKEmpty + 8 * kStages, kVEmpty = kVFull + 8 * kStages;
    static constexpr int kWork = kNotes + 256;
    static_assert(kVEmpty + 8 * kStages <= kWork, "the barriers fit before the work items");
    static_assert(256 + 2 * sizeof(fai_prefill_work) <= kFaiPrefillNotes, "the notes fit");
};

/* A ring's place: the slot, and the parity of its turn. */
template <int kStages> struct fai_prefill_ring {
    int slot = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == kStages) slot = 0, parity ^= 1;
    }
};

/* Tiles of sequence `batch` times its units, for a ragged q. */
FAI_DEVICE int fai_prefill_items(const fai_prefill_params &p, int batch) {
    if (batch >= p.cuda.a.batch) return 0;
    const fai_range q = fai_q_rows(&p.cuda.a, batch);
    const int tiles = (int)((q.end - q.begin + p.tile_queries - 1) / p.tile_queries);
    return tiles * (p.units / p.cuda.a.batch) * p.cuda.splits;
}

/* Items of a ragged q, by all lanes of a warp. */
FAI_DEVICE int fai_prefill_count(const fai_prefill_params &p, int lane) {
    int sum = 0;
#pragma unroll 1
    for (int batch = lane; batch < p.cuda.a.batch; batch += 32) sum += fai_prefill_items(p, batch);
    return __reduce_add_sync(~0u, sum);
}

/* From an item's number to unit, tile (from the last, which sees the most keys) and split. Dense:
 * sections of units whose keys fit the L2, within one the longest tiles first. */
FAI_DEVICE void fai_prefill_locate(const fai_prefill_params &p, int item, int &unit, int &turn,
                                   int &split) {
    const int per = p.section * p.tiles * p.cuda.splits, section = item / per;
    const int rest = item - section * per;
    const int side = min(p.section, p.units - section * p.section) * p.cuda.splits;
    turn = rest / side;
    const int along = rest - turn * side;
    split = along % p.cuda.splits;
    unit = section * p.section + along / p.cuda.splits;
}

/* Ragged: sequence after sequence, so that no number is wasted on tiles that are not there. */
FAI_DEVICE void fai_prefill_search(const fai_prefill_params &p, int item, int lane, int &unit,
                                   int &turn, int &split) {
    int first = 0, before = 0;
#pragma unroll 1
    for (;; first += 32) {
        int sum = fai_prefill_items(p, first + lane);
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            const int other = __shfl_up_sync(~0u, sum, i);
            if (lane >= i) sum += other;
        }
        const uint32_t past = __ballot_sync(~0u, before + sum > item);
        const int found = __ffs(past) - 1;
        const int below = __shfl_sync(~0u, sum, found > 0 ? found - 1 : 31);
        if (past) {
            first += found;
            before += found > 0 ? below : 0;
            break;
        }
        before += below;
    }
    const int heads = p.units / p.cuda.a.batch, side = heads * p.cuda.splits, rest = item - before;
    turn = rest / side;
    const int along = rest - turn * side;
    split = along % p.cuda.splits;
    unit = first * heads + along / p.cuda.splits;
}

/* Fills *w; false when the split has nothing to say about the tile. */
FAI_DEVICE bool fai_prefill_find(const fai_prefill_params &p, int item, int lane, int block_keys,
                                 fai_prefill_work &w) {
    const fa_args &a = p.cuda.a;
    int unit, turn, split;
    if (p.q_is_ragged)
        fai_prefill_search(p, item, lane, unit, turn, split);
    else
        fai_prefill_locate(p, item, unit, turn, split);
    const int units = p.units / a.batch; /* of a sequence */
    w.batch = unit / units;
    w.head = (unit - w.batch * units) * p.heads;
    w.head_kv = fai_divide(w.head, p.cuda.by_group);
    w.split = split;
    const fai_range q = fai_q_rows(&a, w.batch), k = fai_k_rows(&a, w.batch);
    const int q_len = (int)(q.end - q.begin);
    w.q_begin = (int)q.begin;
    w.k_begin = (int)k.begin;
    w.kv_len = (int)(k.end - k.begin);
    const int tiles = (q_len + p.tile_queries - 1) / p.tile_queries;
    w.query = (tiles - 1 - turn) * p.tile_queries;
    w.queries = min(p.tile_queries, q_len - w.query);

    const int64_t offset = fai_offset(&a, w.batch, q_len, w.kv_len);
    w.visible = (int)fai_clamp64(w.query + offset + 1, -(1 << 30), 1 << 30);
    fai_range keys = {0, w.kv_len};
    w.splits_live = 1;
    if (p.cuda.splits > 1) {
        const int splits = p.cuda.splits, most = min(w.visible + w.queries - 1, w.kv_len);
        const fai_range share = fai_split_keys(0, splits, a.split_keys, w.kv_len, block_keys);
        if (most > 0) w.splits_live = (int)fai_ceil_div(most, share.end);
        if (split >= w.splits_live) return false;
        keys = fai_split_keys(split, splits, a.split_keys, w.kv_len, block_keys);
    }
    w.key_begin = (int)keys.begin;
    w.key_end = (int)keys.end;
    /* A block that the first query sees to its last key gets the mask too: then every row has seen
     * a key before the first block without one. A tile without keys visits one block, all masked,
     * so that no role needs to know. */
    const int least = min(w.visible, w.key_end) - 1 - w.key_begin;
    const int most = min(w.visible + w.queries - 1, w.key_end) - w.key_begin;
    w.end = max(1, (most + block_keys - 1) / block_keys);
    w.full = min(max(least, 0) / block_keys, w.end - 1);
    return true;
}

/* The producer warp's state. */
template <int kDim> struct fai_prefill_producer {
    using shape = fai_prefill_shape<kDim>;
    uint32_t smem;
    int lane, items, turn = 0, q_turns = 0;
    int chunk, box_row; /* what this lane copies of a tile of K or V, and where it goes */
    uint32_t box_at;
    fai_prefill_ring<shape::kStages> k, v;

    /* The next number: the last of `items` increments leaves the counter at 0. */
    __device__ __forceinline__ int claim(const fai_prefill_params &p) const {
        uint32_t next = 0;
        if (lane == 0) next = atomicInc(p.counter, (uint32_t)items - 1) + gridDim.x;
        return (int)__shfl_sync(~0u, next, 0);
    }

    /* A tile of K or V: one copy, or one for each page and chunk, issued by as many lanes. */
    __device__ __forceinline__ void load(const fai_prefill_params &p, const fai_prefill_work &w,
                                         const CUtensorMap *map, int block, uint32_t to,
                                         uint32_t full) const {
        if (lane == 0) fai_arrival_expect(full, shape::kKvBytes);
        if (lane >= p.boxes) return;
        const fa_args &a = p.cuda.a;
        int row = w.k_begin + w.key_begin + block * shape::kKeys + box_row;
        int batch = a.cu_seqlens_k ? 0 : w.batch;
        if (a.page_size > 0) {
            /* Past the last key any page will do, but no entry of the table may be read. */
            const int col = fai_divide(min(row, max(w.kv_len - 1, 0)), p.cuda.by_page);
            const int64_t at = (int64_t)w.batch * a.block_table_stride + col;
            batch = min(max(__ldg(a.block_table + at), 0), a.num_pages - 1);
            row -= fai_divide(row, p.cuda.by_page) * a.page_size;
        }
        fai_copy_box(to + box_at, map, p.is_whole ? 0 : chunk * 64, row, p.is_whole ? chunk : 0,
                     w.head_kv, batch, full);
    }
    __device__ __forceinline__ void load_k(const fai_prefill_params &p, const fai_prefill_work &w,
                                           int block) {
        fai_arrival_wait(smem + shape::kKEmpty + 8 * k.slot, k.parity ^ 1);
        load(p, w, &p.k, block, smem + shape::kK + k.slot * shape::kKvBytes,
             smem + shape::kKFull + 8 * k.slot);
        k.advance();
    }
    __device__ __forceinline__ void load_v(const fai_prefill_params &p, const fai_prefill_work &w,
                                           int block) {
        fai_arrival_wait(smem + shape::kVEmpty + 8 * v.slot, v.parity ^ 1);
        load(p, w, &p.v, block, smem + shape::kV + v.slot * shape::kKvBytes,
             smem + shape::kVFull + 8 * v.slot);
        v.advance();
    }
    /* The tile's queries of all its heads, a copy a chunk. */
    __device__ __forceinline__ void load_q(const fai_prefill_params &p, const fai_prefill_work &w) {
        fai_arrival_wait(smem + shape::kQEmpty, (q_turns & 1) ^ 1);
        ++q_turns;
        const int bytes = (p.heads << p.queries_log2) * 128 * shape::kChunks;
        if (lane == 0) fai_arrival_expect(smem + shape::kQFull, bytes);
        if (lane < shape::kChunks)
            fai_copy_box(smem + lane * shape::kQChunk, &p.q, lane * 64, w.q_begin + w.query,
                         w.head - w.head_kv * p.cuda.group, w.head_kv,
                         p.cuda.a.cu_seqlens_q ? 0 : w.batch, smem + shape::kQFull);
    }

    /* Tells the consumers, and returns where it is written. */
    __device__ __forceinline__ const fai_prefill_work &publish(const fai_prefill_work &w,
                                                               char *notes) {
        const int slot = turn & 1;
        fai_prefill_work *to = reinterpret_cast<fai_prefill_work *>(notes) + slot;
        fai_arrival_wait(smem + shape::kWorkEmpty + 8 * slot, (turn >> 1 & 1) ^ 1);
        ++turn;
        if (lane == 0) {
            *to = w;
            fai_arrive(smem + shape::kWorkFull + 8 * slot);
        }
        __syncwarp();
        return *to;
    }

    /* K goes one block ahead of V. The next number is taken as late as possible, just before the
     * last copy: taken a tile earlier, long tiles end up behind each other. */
    __device__ __forceinline__ int load_tile(const fai_prefill_params &p,
                                             const fai_prefill_work &w) {
        int block = w.end - 1;
        load_k(p, w, block);
        load_q(p, w);
#pragma unroll 1
        for (; block > 0; --block) {
            load_k(p, w, block - 1);
            load_v(p, w, block);
        }
        const int item = claim(p);
        load_v(p, w, 0);
        return item;
    }

    __device__ __forceinline__ void run(const fai_prefill_params &p, char *notes) {
        chunk = lane % p.chunk_copies;
        box_row = lane / p.chunk_copies * p.box_rows;
        box_at = chunk * shape::kKvChunk + box_row * 128;
        items = p.q_is_ragged ? fai_prefill_count(p, lane) : p.items;
        fai_prefill_work w;
        int item = (int)blockIdx.x;
#pragma unroll 1
        while (item < items)
            item = fai_prefill_find(p, item, lane, shape::kKeys, w)
                       ? load_tile(p, publish(w, notes))
                       : claim(p);
        w.queries = 0;
        publish(w, notes);
    }
};

#endif /* FA_PREFILL_WORK_CUH */
