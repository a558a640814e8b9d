/* test_mask.c - fa_mask.h against the contract, over every small shape.
 *
 * Whoever walks tiles x splits x blocks as fa_mask.h says (every backend does) must meet each
 * visible (row, key) pair exactly once and no other pair. The expected values are written from the
 * header's prose alone. This file changes with fa_mask.h.
 *
 * Loops count their own checks and call Criterion only on a failure: millions of its asserts would
 * take minutes. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "fa_mask.h"

enum { kMaxLen = 20, kMaxOffset = 25, kMaxGroup = 3, kMaxTile = 5, kMaxBlock = 5 };
enum { kMaxSplits = 6, kMaxSplitKeys = 7 };

/* A set of keys is a bit mask: kv <= 20. One (q_len, kv_len, offset) and one way of cutting it;
 * per row the keys that the contract shows, and those that fai_visible_keys lets a masked block
 * show. */
typedef struct walk {
    int64_t q_len, kv_len, offset;
    int64_t tile_rows, group, block, splits, split_keys;
    uint32_t visible[kMaxLen], unmasked[kMaxLen];
    int8_t row_of[kMaxLen * kMaxGroup]; /* the query of a packed row */
} walk;

/* The contract's sentence: key j is visible to row r when j <= r + offset. */
static uint32_t visible_by_contract(int64_t row, int64_t kv_len, int64_t offset) {
    uint32_t seen = 0;
    for (int64_t j = 0; j < kv_len; j++)
        if (j <= row + offset) seen |= 1u << j;
    return seen;
}

static uint32_t key_bits(int64_t begin, int64_t end) { return (1u << end) - (1u << begin); }

/* Marks what one tile meets within one split; 0 when a pair is met twice, or when a block that is
 * promised to need no mask holds a key that some row of the tile may not see. */
static int visit(const walk *w, int64_t tile, fai_range keys, uint32_t *met) {
    const int64_t first = tile * w->tile_rows;
    const int64_t last = fai_min64(first + w->tile_rows, w->q_len * w->group);
    const fai_range rows = {first / w->group, (last - 1) / w->group + 1};
    const fai_blocks blocks = fai_key_blocks(rows, keys, w->offset, w->kv_len, w->block);
    if (blocks.full > blocks.end) return 0;
    for (int64_t b = 0; b < blocks.end; b++) {
        const int64_t begin = keys.begin + b * w->block;
        const uint32_t bits = key_bits(begin, fai_min64(begin + w->block, keys.end));
        for (int64_t packed = first; packed < last; packed++) {
            const int row = w->row_of[packed];
            const uint32_t seen = b < blocks.full ? bits : bits & w->unmasked[row];
            if ((seen & ~w->visible[row]) || (met[packed] & seen)) return 0;
            met[packed] |= seen;
        }
    }
    return 1;
}

static int covers_exactly_once(const walk *w) {
    uint32_t met[kMaxLen * kMaxGroup] = {0};
    const int64_t packed_rows = w->q_len * w->group;
    const int64_t splits = w->split_keys ? fai_ceil_div(w->kv_len, w->split_keys) : w->splits;
    for (int64_t tile = 0; tile < fai_ceil_div(packed_rows, w->tile_rows); tile++)
        for (int64_t s = 0; s < splits; s++) {
            const fai_range keys = fai_split_keys(s, splits, w->split_keys, w->kv_len, w->block);
            if (!visit(w, tile, keys, met)) return 0;
        }
    for (int64_t packed = 0; packed < packed_rows; packed++)
        if (met[packed] != w->visible[w->row_of[packed]]) return 0;
    return 1;
}

static void check_walk(const walk *w) {
    if (covers_exactly_once(w)) return;
    cr_assert_fail("pairs not met exactly once: q_len=%d kv_len=%d offset=%d tile_rows=%d group=%d "
                   "block=%d splits=%d split_keys=%d",
                   (int)w->q_len, (int)w->kv_len, (int)w->offset, (int)w->tile_rows, (int)w->group,
                   (int)w->block, (int)w->splits, (int)w->split_keys);
}

/* Every way of cutting one (q_len, kv_len, offset); returns how many. */
static int64_t check_all_walks(int64_t q_len, int64_t kv_len, int64_t offset) {
    int64_t walks = 0;
    walk w = {.q_len = q_len, .kv_len = kv_len, .offset = offset};
    for (int64_t row = 0; row < q_len; row++) {
        w.visible[row] = visible_by_contract(row, kv_len, offset);
        w.unmasked[row] = key_bits(0, fai_visible_keys(row, offset, kv_len));
    }
    for (w.group = 1; w.group <= kMaxGroup; w.group++) {
        for (int packed = 0; packed < q_len * w.group; packed++)
            w.row_of[packed] = (int8_t)(packed / w.group);
        for (w.tile_rows = 1; w.tile_rows <= kMaxTile; w.tile_rows++)
            for (w.block = 1; w.block <= kMaxBlock; w.block++) {
                w.split_keys = 0;
                for (w.splits = 1; w.splits <= kMaxSplits; w.splits++, walks++) check_walk(&w);
                w.splits = 0;
                for (w.split_keys = 1; w.split_keys <= kMaxSplitKeys; w.split_keys++, walks++)
                    check_walk(&w);
            }
    }
    return walks;
}

/* One parameter a q_len, so that the cores share the work. */
ParameterizedTestParameters(mask, every_visible_pair_is_met_exactly_once) {
    static int q_lens[kMaxLen + 1];
    for (int i = 0; i <= kMaxLen; i++) q_lens[i] = kMaxLen - i;
    return cr_make_param_array(int, q_lens, kMaxLen + 1);
}

ParameterizedTest(int *q_len, mask, every_visible_pair_is_met_exactly_once) {
    int64_t walks = 0;
    for (int64_t kv_len = 0; kv_len <= kMaxLen; kv_len++) {
        fa_args a = fa_args_default();
        cr_assert(fai_offset(&a, 0, *q_len, kv_len) == kv_len - *q_len);
        walks += check_all_walks(*q_len, kv_len, kv_len - *q_len);
        a.align = FA_ALIGN_OFFSET;
        for (a.causal_offset = -kMaxOffset; a.causal_offset <= kMaxOffset; a.causal_offset++)
            walks += check_all_walks(*q_len, kv_len, fai_offset(&a, 0, *q_len, kv_len));
    }
    const int64_t ways = kMaxTile * kMaxGroup * kMaxBlock * (kMaxSplits + kMaxSplitKeys);
    cr_assert(walks == (kMaxLen + 1) * (2 * kMaxOffset + 2) * ways);
}

Test(mask, bottom_right_is_the_picture_in_the_header) {
    const fa_args a = fa_args_default();
    const int64_t wide[] = {4, 5}, tall[] = {0, 0, 0, 1, 2};
    for (int64_t row = 0; row < 2; row++)
        cr_assert(fai_visible_keys(row, fai_offset(&a, 0, 2, 5), 5) == wide[row]);
    for (int64_t row = 0; row < 5; row++)
        cr_assert(fai_visible_keys(row, fai_offset(&a, 0, 5, 2), 2) == tall[row]);
}

Test(mask, offsets_of_any_int32_do_not_overflow) {
    const int32_t extremes[] = {INT_MIN, -1, 0, INT_MAX};
    fa_args a = fa_args_default();
    a.align = FA_ALIGN_OFFSET;
    a.causal_offsets = extremes;
    const int64_t last = (int64_t)INT_MAX - 1;
    const int64_t row_0[] = {0, 0, 1, INT_MAX}, row_last[] = {0, last, INT_MAX, INT_MAX};
    for (int64_t i = 0; i < 4; i++) {
        const int64_t offset = fai_offset(&a, i, INT_MAX, INT_MAX);
        cr_assert(fai_visible_keys(0, offset, INT_MAX) == row_0[i]);
        cr_assert(fai_visible_keys(last, offset, INT_MAX) == row_last[i]);
    }
    const fai_range rows = {last, last + 1}, keys = {0, INT_MAX};
    const fai_blocks b = fai_key_blocks(rows, keys, INT_MAX, INT_MAX, 64);
    cr_assert(b.full == INT_MAX / 64 && b.end == INT_MAX / 64 + 1);
}

Test(mask, splits_cover_the_keys_in_order_without_overlap) {
    const int64_t lens[] = {0, 1, 63, 64, 65, 127, 128, 129, 1000, 70000};
    const int64_t cuts[] = {1, 2, 3, 7, 64, 100, 1023, 1024};
    for (size_t n = 0; n < sizeof lens / sizeof *lens; n++)
        for (size_t c = 0; c < 2 * (sizeof cuts / sizeof *cuts); c++) {
            const int by_keys = (int)(c & 1);
            const int64_t split_keys = by_keys ? cuts[c / 2] : 0;
            const int64_t splits = by_keys ? fai_ceil_div(lens[n], split_keys) : cuts[c / 2];
            int64_t at = 0;
            for (int64_t s = 0; s < splits; s++) {
                const fai_range keys = fai_split_keys(s, splits, split_keys, lens[n], 64);
                cr_assert(keys.begin == at && keys.end >= at, "len %ld split %ld of %ld",
                          (long)lens[n], (long)s, (long)splits);
                cr_assert(!by_keys || keys.begin == s * split_keys);
                cr_assert(by_keys || keys.begin % 64 == 0 || keys.begin == lens[n]);
                at = keys.end;
            }
            cr_assert(at == lens[n]);
        }
    const fai_range last = fai_split_keys(1023, 1024, 0, INT_MAX, 64);
    cr_assert(last.begin == 1023LL * 64 * 32768 && last.end == INT_MAX);
}

/* The contract's four lines, for values that are in range. */
static fai_range rows_by_contract(const int32_t *cu, const int32_t *used, const int32_t *pad,
                                  int32_t declared, int64_t i) {
    const int64_t start = cu ? cu[i] : 0;
    const int64_t segment = cu ? cu[i + 1] - start : declared;
    const int64_t first = start + (pad ? pad[i] : 0);
    int64_t len = used ? used[i] : segment - (pad ? pad[i] : 0);
    if (len > declared) len = declared;
    const fai_range rows = {first, first + len};
    return rows;
}

Test(ragged, values_in_range_give_the_four_lines_of_the_header) {
    const int32_t total = 7;
    for (int32_t declared = 0; declared <= 7; declared++)
        for (int32_t start = 0; start <= total; start++)
            for (int32_t end = start; end <= total; end++)
                for (int32_t pad = 0; pad <= end - start; pad++)
                    for (int32_t used = 0; used <= end - start - pad; used++)
                        for (int given = 0; given < 8; given++) {
                            const int32_t cu[] = {start, end};
                            const int32_t *cu_or_null = given & 1 ? cu : NULL;
                            const int32_t *used_or_null = given & 2 ? &used : NULL;
                            const int32_t *pad_or_null = given & 4 ? &pad : NULL;
                            const int32_t segment = given & 1 ? end - start : declared;
                            const int32_t left = segment - (given & 4 ? pad : 0);
                            if (left < 0 || ((given & 2) && (used > left || used > declared)))
                                continue;
                            const fai_range want = rows_by_contract(cu_or_null, used_or_null,
                                                                    pad_or_null, declared, 0);
                            const fai_range got = fai_side_rows(cu_or_null, used_or_null,
                                                                pad_or_null, declared, total, 0);
                            if (got.begin != want.begin || got.end != want.end)
                                cr_assert_fail("declared %d cu %d,%d used %d pad %d given %d: "
                                               "[%d,%d) want [%d,%d)",
                                               declared, start, end, used, pad, given,
                                               (int)got.begin, (int)got.end, (int)want.begin,
                                               (int)want.end);
                        }
}

Test(ragged, hostile_values_never_lead_outside) {
    const int32_t values[] = {INT_MIN, -1, 0, 1, 4, 5, 6, 9, 10, 11, INT_MAX};
    const size_t n = sizeof values / sizeof *values;
    const int32_t declared = 5, total = 10;
    for (size_t c = 0; c < n * n * n * n * 8; c++) {
        const size_t given = c % 8, v = c / 8;
        const int32_t cu[] = {values[v % n], values[v / n % n]};
        const int32_t used = values[v / n / n % n], pad = values[v / n / n / n];
        const fai_range rows = fai_side_rows(given & 1 ? cu : NULL, given & 2 ? &used : NULL,
                                             given & 4 ? &pad : NULL, declared, total, 0);
        const int64_t end = given & 1 ? total : declared;
        if (rows.begin < 0 || rows.end > end || rows.begin > rows.end ||
            rows.end - rows.begin > declared)
            cr_assert_fail("cu %d,%d used %d pad %d given %d: [%d,%d)", cu[0], cu[1], used, pad,
                           (int)given, (int)rows.begin, (int)rows.end);
    }
}

Test(ragged, clamping_is_what_the_header_says) {
    /* start to [0, total], leftpad to [0, segment], length to what is left and to the declared. */
    const struct {
        int32_t cu[2], used, pad;
        fai_range want;
    } rows[] = {
        {{-3, 4}, 99, 0, {0, 4}},   {{6, 99}, 99, 0, {6, 10}}, {{8, 2}, 99, 0, {8, 8}},
        {{2, 9}, -1, 0, {2, 2}},    {{2, 9}, 99, 0, {2, 7}},   {{2, 9}, 99, -5, {2, 7}},
        {{2, 9}, 99, 99, {9, 9}},   {{2, 9}, 99, 4, {6, 9}},   {{2, 9}, INT_MAX, 4, {6, 9}},
        {{50, 60}, 1, 1, {10, 10}}, {{-9, -2}, 1, 1, {0, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const fai_range got = fai_side_rows(rows[i].cu, &rows[i].used, &rows[i].pad, 5, 10, 0);
        cr_assert(got.begin == rows[i].want.begin && got.end == rows[i].want.end, "row %d: [%d,%d)",
                  (int)i, (int)got.begin, (int)got.end);
    }
}

Test(ragged, a_bad_entry_leaves_the_other_sequences_alone) {
    const int32_t bad[] = {INT_MIN, -1, 99, INT_MAX};
    for (size_t b = 0; b < 4; b++) {
        int32_t used[] = {3, 2, 1}, pad[] = {1, 0, 2};
        used[1] = pad[1] = bad[b];
        const fai_range first = fai_side_rows(NULL, used, pad, 5, 0, 0);
        const fai_range last = fai_side_rows(NULL, used, pad, 5, 0, 2);
        cr_assert(first.begin == 1 && first.end == 4 && last.begin == 2 && last.end == 3);
    }
}

Test(ragged, a_pool_without_pages_holds_no_keys) {
    const int32_t used[] = {9};
    fa_args a = fa_args_default();
    a.kv_len = 9;
    a.page_size = 4;
    a.seqused_k = used;
    cr_assert(fai_k_rows(&a, 0).end == fai_k_rows(&a, 0).begin);
    a.num_pages = 1;
    cr_assert(fai_k_rows(&a, 0).end == 9);
}

Test(pages, a_logical_row_is_found_through_the_table) {
    const int32_t table[] = {4, 2, 9, 9, 0, 3};
    fa_args a = fa_args_default();
    a.page_size = 3;
    a.num_pages = 5;
    a.block_table = table;
    a.block_table_cols = 2;
    a.block_table_stride = 4;
    const fa_view pool = {NULL, 1000, 100, 10};
    for (int64_t i = 0; i < 2; i++)
        for (int64_t row = 0; row < 6; row++) {
            const int32_t page = table[4 * i + row / 3];
            cr_assert(fai_page(&a, i, row) == page);
            cr_assert(fai_kv_offset(&a, &pool, i, 7, row) == page * 1000 + 700 + row % 3 * 10);
        }
}

Test(pages, page_numbers_are_clamped_to_the_pool) {
    const int32_t table[] = {INT_MIN, -1, 0, 4, 5, INT_MAX};
    const int64_t want[] = {0, 0, 0, 4, 4, 4};
    fa_args a = fa_args_default();
    a.page_size = 1;
    a.num_pages = 5;
    a.block_table = table;
    a.block_table_cols = 6;
    a.block_table_stride = 6;
    for (int64_t row = 0; row < 6; row++) cr_assert(fai_page(&a, 0, row) == want[row]);
}

Test(addressing, offsets_are_64_bit) {
    const int32_t table[] = {65599}, cu[] = {0, 1};
    fa_args a = fa_args_default();
    const fa_view wide = {NULL, (int64_t)1 << 40, 5, (int64_t)1 << 33};
    cr_assert(fai_q_offset(&a, &wide, 3, 2, 7) == ((int64_t)3 << 40) + 10 + ((int64_t)7 << 33));
    cr_assert(fai_kv_offset(&a, &wide, 3, 2, 7) == ((int64_t)3 << 40) + 10 + ((int64_t)7 << 33));
    a.cu_seqlens_q = a.cu_seqlens_k = cu; /* packed: stride_batch is ignored */
    cr_assert(fai_q_offset(&a, &wide, 3, 2, 7) == 10 + ((int64_t)7 << 33));
    cr_assert(fai_kv_offset(&a, &wide, 3, 2, 7) == 10 + ((int64_t)7 << 33));
    a.cu_seqlens_k = NULL;
    a.page_size = 16;
    a.num_pages = 65600;
    a.block_table = table;
    const fa_view pool = {NULL, 32768, 128, 1024};
    cr_assert(fai_kv_offset(&a, &pool, 0, 1, 15) == 65599LL * 32768 + 128 + 15 * 1024);
}
