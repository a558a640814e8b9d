/* fa_mask.h - which rows a sequence has, which keys a row sees, which key blocks a tile visits.
 *
 * One text for the planner, the CPU backend, the CUDA kernels and the tests: C99, pure, 64-bit.
 * This file changes when visibility or ragged addressing changes, and nothing else decides either.
 *
 * Values of arrays are clamped here, so that no input can lead outside the declared tensors. On the
 * CPU fa_check.c has refused bad entries before, and clamping changes nothing. */
#ifndef FA_MASK_H
#define FA_MASK_H

#include "fa_fwd_causal.h"

#ifdef __CUDACC__
#define FAI_HD __host__ __device__ static inline
#else
#define FAI_HD static inline
#endif

/* A half-open range [begin, end) of rows or keys. */
typedef struct fai_range {
    int64_t begin;
    int64_t end;
} fai_range;

FAI_HD int64_t fai_min64(int64_t a, int64_t b) { return a < b ? a : b; }
FAI_HD int64_t fai_clamp64(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : (x > high ? high : x);
}
/* For a >= 0 and b > 0, without the overflow of (a + b - 1) / b. */
FAI_HD int64_t fai_ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* Rows of sequence i on one side: where its first real row stands in the view, to one past its
 * last. declared is q_len or kv_len; total is read only when cu_seqlens is given. */
FAI_HD fai_range fai_side_rows(const int32_t *cu_seqlens, const int32_t *seqused,
                               const int32_t *leftpad, int32_t declared, int32_t total, int64_t i) {
    int64_t start = 0, segment = declared;
    if (cu_seqlens) {
        start = fai_clamp64(cu_seqlens[i], 0, total);
        segment = fai_clamp64(cu_seqlens[i + 1], start, total) - start;
    }
    const int64_t pad = leftpad ? fai_clamp64(leftpad[i], 0, segment) : 0;
    const int64_t left = fai_min64(segment - pad, declared);
    const int64_t len = seqused ? fai_clamp64(seqused[i], 0, left) : left;
    fai_range rows;
    rows.begin = start + pad;
    rows.end = rows.begin + len;
    return rows;
}

FAI_HD fai_range fai_q_rows(const fa_args *a, int64_t i) {
    return fai_side_rows(a->cu_seqlens_q, a->seqused_q, a->leftpad_q, a->q_len, a->total_q, i);
}

/* A pool without pages holds no keys, whatever the lengths say. */
FAI_HD fai_range fai_k_rows(const fa_args *a, int64_t i) {
    const int32_t declared = a->page_size > 0 && a->num_pages == 0 ? 0 : a->kv_len;
    return fai_side_rows(a->cu_seqlens_k, a->seqused_k, a->leftpad_k, declared, a->total_k, i);
}

/* Key j of sequence i is visible to its row r when j <= r + offset. */
FAI_HD int64_t fai_offset(const fa_args *a, int64_t i, int64_t seq_q_len, int64_t seq_kv_len) {
    if (a->align == FA_ALIGN_BOTTOM_RIGHT) return seq_kv_len - seq_q_len;
    return a->causal_offsets ? a->causal_offsets[i] : a->causal_offset;
}

/* Row r sees keys [0, count). */
FAI_HD int64_t fai_visible_keys(int64_t row, int64_t offset, int64_t seq_kv_len) {
    return fai_clamp64(row + offset + 1, 0, seq_kv_len);
}

/* The key blocks of size block that rows [rows.begin, rows.end) visit within keys [keys.begin,
 * keys.end), counted from keys.begin. Blocks [0, full) are seen whole by every row and need no
 * mask; blocks [full, end) need it. */
typedef struct fai_blocks {
    int64_t full;
    int64_t end;
} fai_blocks;

FAI_HD fai_blocks fai_key_blocks(fai_range rows, fai_range keys, int64_t offset, int64_t seq_kv_len,
                                 int64_t block) {
    fai_blocks b = {0, 0};
    if (rows.begin >= rows.end) return b;
    const int64_t least = fai_visible_keys(rows.begin, offset, seq_kv_len);
    const int64_t most = fai_visible_keys(rows.end - 1, offset, seq_kv_len);
    const int64_t span = keys.end - keys.begin;
    b.end = fai_ceil_div(fai_clamp64(most - keys.begin, 0, span), block);
    b.full = fai_clamp64(least - keys.begin, 0, span) / block;
    return b;
}

/* Keys of split s of a sequence. With split_keys: cut at its multiples. Else the sequence's blocks
 * of size block are dealt to the splits in equal shares; late splits may be empty. */
FAI_HD fai_range fai_split_keys(int64_t s, int64_t splits, int64_t split_keys, int64_t seq_kv_len,
                                int64_t block) {
    const int64_t per =
        split_keys > 0 ? split_keys : fai_ceil_div(fai_ceil_div(seq_kv_len, block), splits) * block;
    fai_range keys;
    keys.begin = fai_min64(s * per, seq_kv_len);
    keys.end = fai_min64(keys.begin + per, seq_kv_len);
    return keys;
}

/* The page that holds logical row `row` of sequence i. num_pages is positive. */
FAI_HD int64_t fai_page(const fa_args *a, int64_t i, int64_t row) {
    const int64_t page = a->block_table[i * a->block_table_stride + row / a->page_size];
    return fai_clamp64(page, 0, (int64_t)a->num_pages - 1);
}

/* Elements from k.data (or v.data) to the row of kv head `head`, given the row's place in the view
 * as fai_k_rows counts it. */
FAI_HD int64_t fai_kv_offset(const fa_args *a, const fa_view *view, int64_t i, int64_t head,
                             int64_t row) {
    const int64_t at_head = head * view->stride_head;
    if (a->page_size > 0)
        return at_head + fai_page(a, i, row) * view->stride_batch +
               row % a->page_size * view->stride_seq;
    return at_head + (a->cu_seqlens_k ? 0 : i * view->stride_batch) + row * view->stride_seq;
}

/* Likewise for q, o and lse. */
FAI_HD int64_t fai_q_offset(const fa_args *a, const fa_view *view, int64_t i, int64_t head,
                            int64_t row) {
    return (a->cu_seqlens_q ? 0 : i * view->stride_batch) + head * view->stride_head +
           row * view->stride_seq;
}

#endif /* FA_MASK_H */
