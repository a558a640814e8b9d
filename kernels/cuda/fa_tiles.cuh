/* fa_tiles.cuh - from a block's number to the rows and keys it works on, from a row to its address
 * (strided, ragged, paged), and the copies between global memory and swizzled shared memory. What a
 * row sees and where a sequence lies is decided in fa_mask.h alone; this file changes when
 * addressing does. */
#ifndef FA_TILES_CUH
#define FA_TILES_CUH

#include "../fa_mask.h"
#include "fa_ptx.cuh"

/* Division of n < 2^31 by a divisor known on the host: with 2^(s-1) < d <= 2^s the multiplier
 * ceil(2^(31+s) / d) fits 32 bits, and its excess, below d / 2^(31+s), moves no quotient. */
struct fai_divisor {
    uint32_t multiplier, shift;
};
static inline fai_divisor fai_make_divisor(int64_t d) {
    fai_divisor divisor = {0, 31};
    while (((int64_t)1 << (divisor.shift - 31)) < d) ++divisor.shift;
    divisor.multiplier = (uint32_t)fai_ceil_div((int64_t)1 << divisor.shift, d);
    return divisor;
}
FAI_DEVICE int fai_divide(int n, fai_divisor by) {
    return (int)((uint64_t)(uint32_t)n * by.multiplier >> by.shift);
}

/* The whole launch. */
struct fai_cuda_params {
    fa_args a;      /* resolved */
    int32_t group;  /* query heads of a kv head */
    int32_t units;  /* (sequence, kv head) pairs */
    int32_t tiles;  /* of a unit, when it is q_len long */
    int32_t splits; /* of a sequence's keys */
    int32_t tile_rows, tile_keys, stages;
    int32_t section; /* units that run side by side */
    fai_divisor by_group, by_splits, by_section, by_heads_kv, by_page;
    bool wide_q, wide_kv, wide_o; /* rows and addresses are multiples of 16 bytes */
    float c, octave;              /* scale * log2(e), and 1 / c */
    uint32_t *control; /* a word a tile, zero between calls; null: a second kernel merges */
    float *partial_o;  /* splits * batch * heads_q * q_len rows */
    float *partial_lse;
};

/* One block's work: a tile of packed rows of one unit, against one split of its keys. Packed row r
 * is query r / group and head r % group of the group. */
struct fai_work {
    int batch, head_kv;
    int64_t tile_idx; /* among the tiles of all units: its control word */
    int first, count; /* packed rows */
    int q_begin, q_len, k_begin, kv_len;
    int64_t offset;
    int key_begin, key_end;      /* of the split */
    int blocks_full, blocks_end; /* from key_begin; blocks before full need no mask */
    int split, splits_live;      /* of the splits that see a key of this tile; 1 writes o itself */
};

/* Blocks of a launch: x runs over `parts` of a tile, then units of the section, then tiles from
 * the last (which sees the most keys) to the first; y and z over sections, so that the keys of the
 * units in work fit the L2. t is x without the parts. Returns false when there is nothing to do. */
FAI_DEVICE bool fai_find_work(const fai_cuda_params &p, int t, int split, int tile_rows,
                              int block_keys, fai_work &w) {
    w.split = split;
    const int turn = fai_divide(t, p.by_section), tile = p.tiles - 1 - turn;
    const int64_t section = (int64_t)blockIdx.z * gridDim.y + blockIdx.y;
    const int64_t unit = section * p.section + t - turn * p.section;
    if (unit >= p.units) return false;
    w.batch = fai_divide((int)unit, p.by_heads_kv);
    w.head_kv = (int)unit - w.batch * p.a.heads_kv;
    w.tile_idx = unit * p.tiles + tile;

    const fai_range q = fai_q_rows(&p.a, w.batch), k = fai_k_rows(&p.a, w.batch);
    w.q_begin = (int)q.begin;
    w.q_len = (int)(q.end - q.begin);
    w.k_begin = (int)k.begin;
    w.kv_len = (int)(k.end - k.begin);
    w.offset = fai_offset(&p.a, w.batch, w.q_len, w.kv_len);
    w.first = tile * tile_rows;
    w.count = (int)fai_min64(tile_rows, (int64_t)w.q_len * p.group - w.first);
    if (w.count <= 0) return false;

    fai_range rows, keys = {0, w.kv_len};
    rows.begin = fai_divide(w.first, p.by_group);
    rows.end = fai_divide(w.first + w.count - 1, p.by_group) + 1;
    w.splits_live = 1;
    if (p.splits > 1) {
        /* Splits past the last key that the tile sees have nothing to say and leave at once. */
        const fai_range share = fai_split_keys(0, p.splits, p.a.split_keys, w.kv_len, block_keys);
        const int most = (int)fai_visible_keys(rows.end - 1, w.offset, w.kv_len);
        if (most > 0) w.splits_live = (int)fai_ceil_div(most, share.end);
        if (w.split >= w.splits_live) return false;
        keys = fai_split_keys(w.split, p.splits, p.a.split_keys, w.kv_len, block_keys);
    }
    const fai_blocks blocks = fai_key_blocks(rows, keys, w.offset, w.kv_len, block_keys);
    w.key_begin = (int)keys.begin;
    w.key_end = (int)keys.end;
    w.blocks_full = (int)blocks.full;
    w.blocks_end = (int)blocks.end;
    return true;
}

/* Elements from view.data to packed row `row` of the tile, for q, o and lse. */
FAI_DEVICE int64_t fai_packed_offset(const fai_cuda_params &p, const fa_view &view,
                                     const fai_work &w, int row) {
    const int query = fai_divide(w.first + row, p.by_group);
    const int head = w.head_kv * p.group + w.first + row - query * p.group;
    return fai_q_offset(&p.a, &view, w.batch, head, w.q_begin + query);
}

/* What a block keeps of its rows, so that a row's division and products are done once. */
template <int kRows> struct fai_rows {
    int64_t q_at[kRows], o_at[kRows]; /* elements from q.data and o.data */
    int key_end[kRows];               /* keys of the split that the row sees, as a range's end */

    __device__ __forceinline__ void set(const fai_cuda_params &p, const fai_work &w, int row) {
        const int64_t query = fai_divide(w.first + row, p.by_group);
        key_end[row] = (int)fai_min64(fai_visible_keys(query, w.offset, w.kv_len), w.key_end);
        q_at[row] = row < w.count ? fai_packed_offset(p, p.a.q, w, row) : 0;
        o_at[row] = row < w.count ? fai_packed_offset(p, p.a.o, w, row) : 0;
    }
};

/* The row's place among all rows of a split's partial results. */
FAI_DEVICE int64_t fai_partial_row(const fai_cuda_params &p, const fai_work &w, int row,
                                   int64_t split) {
    const int query = fai_divide(w.first + row, p.by_group);
    const int head = w.head_kv * p.group + w.first + row - query * p.group;
    return ((split * p.a.batch + w.batch) * p.a.heads_q + head) * p.a.q_len + query;
}

/* ---- shared memory -------------------------------------------------------------------------
 * A tile is rows of kDim elements without padding, in units of 16 bytes. Unit u of row r stands at
 * unit u ^ x of its row, so that the same unit of 8 neighbouring rows, which one phase of ldmatrix
 * reads, touches all 32 banks: x = r % 8 where a row is a multiple of 128 bytes; for kDim 96 odd
 * rows are shifted by 64 bytes anyway, and x = r / 2 % 4. */
template <int kDim> struct fai_tile {
    static_assert(kDim % 32 == 0, "a row is a multiple of 64 bytes");
    static constexpr int kPitch = kDim * 2;
    static constexpr int kUnits = kDim / 8;
    static constexpr int kSpan = kDim % 64 == 0 ? 8 : 4; /* units that are permuted */

    FAI_DEVICE uint32_t at(int row, int unit) {
        const int x = kSpan == 8 ? row & 7 : row >> 1 & 3;
        return row * kPitch + ((unit ^ x) << 4);
    }
    /* From the address of unit 0 or 1 of a row to that of unit + 2 * k16, k16 known at compile
     * time: an xor shared by all rows, and a constant. Tiles start at multiples of 128 bytes. */
    FAI_DEVICE uint32_t step(uint32_t address, int k16) {
        return (address ^ (k16 % (kSpan / 2) << 5)) + k16 / (kSpan / 2) * (kSpan * 16);
    }
};

/* 8 elements at any address. */
FAI_DEVICE uint4 fai_load_narrow(const uint16_t *from) {
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pair[i] = from[2 * i] | (uint32_t)from[2 * i + 1] << 16;
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}
template <int kPairs>
FAI_DEVICE void fai_store_narrow(uint16_t *to, const uint32_t (&pair)[kPairs]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
        to[2 * i] = (uint16_t)pair[i];
        to[2 * i + 1] = (uint16_t)(pair[i] >> 16);
    }
}

/* 16 bytes into shared memory: zeros when !live. The narrow copy is complete at once, which is
 * earlier than anyone waits for it. */
FAI_DEVICE void fai_copy_unit(uint32_t to, const uint16_t *from, bool live, bool wide) {
    if (wide)
        fai_cp_async(to, from, live);
    else
        fai_st_shared(to, live ? fai_load_narrow(from) : make_uint4(0, 0, 0, 0));
}

/* How kThreads threads share a tile: kLanes neighbours take a row's units in turn. */
template <int kDim, int kThreads> struct fai_copy_shape {
    static constexpr int kLanes = fai_tile<kDim>::kSpan;
    static constexpr int kRows = kThreads / kLanes; /* rows of a pass */
};

/* Starts the copy of the block's rows of q; rows past the tile's count become zeros. */
template <int kDim, int kRows, int kThreads>
FAI_DEVICE void fai_load_q(const fai_cuda_params &p, const fai_work &w, const fai_rows<kRows> &rows,
                           uint32_t to, int thread) {
    using shape = fai_copy_shape<kDim, kThreads>;
    using tile = fai_tile<kDim>;
    const int unit = thread % shape::kLanes, units = p.a.head_dim / 8, count = w.count;
    const uint16_t *q = static_cast<const uint16_t *>(p.a.q.data) + unit * 8;
    if (p.wide_q) {
        constexpr int kPasses = kRows / shape::kRows > 0 ? kRows / shape::kRows : 1;
        int64_t at[kPasses]; /* all read before the first copy */
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass)
            at[pass] = rows.q_at[(pass * shape::kRows + thread / shape::kLanes) % kRows];
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            const int row = pass * shape::kRows + thread / shape::kLanes;
            if (row >= kRows) break; /* more threads than rows */
#pragma unroll
            for (int u = 0; u < tile::kUnits; u += shape::kLanes)
                fai_cp_async(to + tile::at(row, unit + u), q + at[pass] + u * 8,
                             row < count && unit + u < units);
        }
        return;
    }
#pragma unroll 1
    for (int row = thread / shape::kLanes; row < kRows; row += shape::kRows)
#pragma unroll 1
        for (int u = 0; u < tile::kUnits; u += shape::kLanes)
            fai_copy_unit(to + tile::at(row, unit + u), q + rows.q_at[row] + u * 8,
                          row < count && unit + u < units, false);
}

/* Where k or v of one unit begins: at the sequence's first key, or in the pool at the head. */
FAI_DEVICE const uint16_t *fai_find_kv(const fai_cuda_params &p, const fa_view &view,
                                       const fai_work &w) {
    const uint16_t *data = static_cast<const uint16_t *>(view.data);
    if (w.kv_len == 0) return data;
    return data + (p.a.page_size > 0 ? w.head_kv * view.stride_head
                                     : fai_kv_offset(&p.a, &view, w.batch, w.head_kv, w.k_begin));
}

/* fai_kv_offset's paged case with a division that costs three instructions. */
FAI_DEVICE int64_t fai_paged_offset(const fai_cuda_params &p, const fa_view &view,
                                    const fai_work &w, int key) {
    const int row = w.k_begin + key, col = fai_divide(row, p.by_page);
    const int entry = __ldg(p.a.block_table + w.batch * p.a.block_table_stride + col);
    const int page = min(max(entry, 0), p.a.num_pages - 1);
    return page * view.stride_batch + (row - col * p.a.page_size) * view.stride_seq;
}

/* Starts the copy of keys [key, key + kKeys). Keys past the sequence become zeros and are not read:
 * a weight of 0 does not silence a NaN in v. */
template <int kDim, int kKeys, int kThreads>
FAI_DEVICE void fai_load_kv(const fai_cuda_params &p, const fai_work &w, const fa_view &view,
                            const uint16_t *base, uint32_t to, int key, int thread) {
    using shape = fai_copy_shape<kDim, kThreads>;
    using tile = fai_tile<kDim>;
    const int unit = thread % shape::kLanes, units = p.a.head_dim / 8;
    /* Read once: w lies in shared memory, and every copy would order another read of it. */
    const int end = w.kv_len - key;
    int row = thread / shape::kLanes;
    if (p.wide_kv && p.a.page_size == 0) {
        const int64_t stride = view.stride_seq;
        const uint16_t *from = base + ((int64_t)key + row) * stride + unit * 8;
#pragma unroll
        for (int pass = 0; pass < kKeys / shape::kRows; ++pass, row += shape::kRows) {
#pragma unroll
            for (int u = 0; u < tile::kUnits; u += shape::kLanes)
                fai_cp_async(to + tile::at(row, unit + u), from + u * 8,
                             row < end && unit + u < units);
            from += shape::kRows * stride;
        }
        return;
    }
#pragma unroll 1
    for (; row < kKeys; row += shape::kRows) {
        const bool live = row < end;
        const uint16_t *from = base;
        if (live)
            from += p.a.page_size > 0 ? fai_paged_offset(p, view, w, key + row)
                                      : ((int64_t)key + row) * view.stride_seq;
#pragma unroll 1
        for (int u = unit; u < tile::kUnits; u += shape::kLanes)
            fai_copy_unit(to + tile::at(row, u), from + u * 8, live && u < units, p.wide_kv);
    }
}

/* Writes elements of o: pairs of a row from `to` on. */
FAI_DEVICE void fai_store_o(const fai_cuda_params &p, int64_t at, uint4 value) {
    uint16_t *to = static_cast<uint16_t *>(p.a.o.data) + at;
    const uint32_t pairs[4] = {value.x, value.y, value.z, value.w};
    if (p.wide_o)
        *reinterpret_cast<uint4 *>(to) = value;
    else
        fai_store_narrow(to, pairs);
}
FAI_DEVICE void fai_store_o(const fai_cuda_params &p, int64_t at, uint2 value) {
    uint16_t *to = static_cast<uint16_t *>(p.a.o.data) + at;
    const uint32_t pairs[2] = {value.x, value.y};
    if (p.wide_o)
        *reinterpret_cast<uint2 *>(to) = value;
    else
        fai_store_narrow(to, pairs);
}

FAI_DEVICE void fai_store_lse(const fai_cuda_params &p, const fai_work &w, int row, float lse) {
    if (p.a.lse.data)
        static_cast<float *>(p.a.lse.data)[fai_packed_offset(p, p.a.lse, w, row)] = lse;
}

#endif /* FA_TILES_CUH */
