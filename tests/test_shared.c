/* test_shared.c - reported faults that take more than one call to show, or a look at single rows.
 * The letters and numbers are ids of CASES.md; faults that are one call each are in cases.c. */
#include <limits.h>
#include <stdlib.h>

#include "expect.h"

enum { kLine = CASE_LINE_MAX };

/* The call of a line, with every kv head holding what the first one holds. */
static case_result equal_heads(const test_case *c) {
    char why[kLine];
    case_result r = {0};
    case_bed *bed = case_open(c, why, sizeof why);
    cr_assert(bed, "%s", why);
    for (case_tensor t = TENSOR_K; t <= TENSOR_V; ++t)
        for (int32_t head = 0; head < c->heads_kv; ++head)
            for (int64_t row = 0; row < c->kv_len; ++row)
                case_fill_row(c, t, 0, 0, row, case_row(bed, t, 0, head, row));
    cr_assert(case_give_workspace(bed, subject_get()) == FA_OK);
    cr_assert(case_call(bed, subject_get()) == FA_OK);
    cr_expect(case_judge(bed, &r), "%s", r.why);
    case_close(bed);
    return r;
}

/* Stride 0 over the heads gives the bits of a copy for each head. One kv head for all of them is
 * another head ratio, which may round otherwise. */
static void broadcast_equals_copies(const char *line) {
    const test_case zero = case_of("%s hkv=8 K=bshd:H0 V=bshd:H0", line);
    const test_case copies = case_of("%s hkv=8", line), one = case_of("%s hkv=1", line);
    case_result a = expect_case(&zero), b = equal_heads(&copies), c = expect_case(&one);
    expect_same(&zero, &a, &b, "B28: stride 0 against copies");
    expect_rows(&zero, &a, 0, &c, 0, a.rows, false, "B28: stride 0 against one head");
    case_result_free(&a);
    case_result_free(&b);
    case_result_free(&c);
}

Test(shared, B26_B28_broadcast_and_mixed_layouts_change_no_bit) {
    static const int32_t kvs[] = {33, 34, 65, 66, 97, 98, 129, 130, 1025, 1026};
    char line[kLine];
    expect_same_with("dtype=f16 hq=16 hkv=4 d=256 q=128 kv=128 rows=0,63,64,127", "K=bhsd V=bshd",
                     "B26: k as bhsd, v as bshd");
    for (int at = 0; at < 10; ++at)
        for (int q = 1; q <= 64; q += 63) {
            snprintf(line, sizeof line, "dtype=bf16 hq=8 d=%d q=%d kv=%d splits=1 rows=0,31,63",
                     at % 2 ? 256 : 128, q, kvs[at]);
            broadcast_equals_copies(line);
        }
}

/* Also what B31 and B32 ask: one tensor at a time is moved off its alignment. */
Test(shared, B31_alignment_of_each_tensor_alone) {
    static const char *const ways[] = {"bshd:p4", "bshd:p1", "bhsd:p1",   "bshd:s1",
                                       "bshd:s2", "bshd:s4", "bhsd:p3:s1"};
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n)
        for (size_t way = 0; way < sizeof ways / sizeof *ways; ++way)
            for (const char *tensor = "QKVO"; *tensor; ++tensor)
                expect_line("%s id=B31 hq=4 hkv=2 q=17 kv=65 d=128 %c=%s", prefix, *tensor,
                            ways[way]);
}

/* Rows of different q see different keys: no two neighbours may come out alike. */
static void rows_differ(const char *line) {
    const test_case c = case_of("%s", line);
    case_result r = expect_case(&c);
    const size_t row = (size_t)(c.heads_q * c.head_dim * fa_dtype_size(c.dtype));
    for (int64_t at = 1; r.ok && at < r.rows; ++at)
        cr_expect(
            memcmp((char *)r.o + (size_t)at * row, (char *)r.o + (size_t)(at - 1) * row, row) != 0,
            "rows %lld and %lld are equal: '%s'", (long long)at - 1, (long long)at, line);
    case_result_free(&r);
}

Test(shared, B39_B60_B65_every_small_q) {
    char line[kLine];

    for (int q = 1; q <= 40; ++q) expect_line("id=B39 dtype=f16 d=80 hq=4 hkv=4 q=%d kv=64", q);
    for (int q = 1; q <= 17; ++q)
        for (int paged = 0; paged < 2; ++paged) {
            snprintf(line, sizeof line,
                     "id=B60 dtype=bf16 b=3 hq=16 d=128 kv=700 q=%d %s rows=0,1,%d", q,
                     paged ? "page=64" : "", q - 1);
            rows_differ(line);
        }
    for (int q = 1; q <= 15; ++q)
        for (int kv = q; kv <= 15; ++kv)
            expect_line("id=B65 dtype=f16 hq=14 hkv=2 d=64 page=16 q=%d kv=%d", q, kv);
}

Test(shared, B76_pages_equal_the_unpaged_call) {
    char line[kLine];
    for (int q = 1; q <= 70; q += 69)
        for (int kv = 1000; kv <= 1025; kv += 25)
            for (int page = 128; page <= 1024; page *= 2) {
                char more[32];
                snprintf(line, sizeof line,
                         "id=B76 dtype=bf16 hq=8 hkv=2 d=128 q=%d kv=%d splits=%d rows=0,1,69", q,
                         kv, q == 1 ? 3 : 1);
                snprintf(more, sizeof more, "page=%d", page);
                expect_same_with(line, more, more);
            }
}

Test(shared, B15_B19_far_rows_equal_near_ones) {
    expect_same_with(
        "dtype=bf16 b=3 hq=16 hkv=16 d=96 q=64 kv=64 qr=cu kr=cu qs=32,1,64 ks=32,1,64",
        "qr=cul kr=cul qp=0,220727,0 kp=0,220727,0 slack=0 "
        "Q=bshd:S9728 K=bshd:S9728 V=bshd:S9728 O=bshd:S9728",
        "B15: packed rows beyond 2^31 elements");
    expect_same_with("dtype=bf16 hq=2 hkv=2 d=64 q=5 kv=2050 splits=1", "V=bshd:S1048577",
                     "B19: v rows beyond 2^31 elements");
    expect_same_with("dtype=bf16 hq=2 hkv=2 d=64 q=5 kv=2050 splits=1", "K=bshd:S1048577",
                     "B19: k rows beyond 2^31 elements");
}

Test(shared, B59_given_offset_of_the_default_is_the_default) {
    char prefix[64], line[kLine];
    for (int n = 0; expect_path(n, prefix); ++n) {
        snprintf(line, sizeof line, "%s hq=2 q=4 kv=6", prefix);
        expect_same_with(line, "align=given offset=2", "B59: offset 2 given, and by default");
    }
}

Test(shared, B80_alternating_values_do_not_overflow) {
    const test_case c = case_of("id=B80 dtype=f16 q=8 kv=65536 in=equal v=flip");
    case_result r = expect_case(&c);
    for (int64_t at = 0; r.ok && at < 8 * 64; ++at)
        cr_assert(fabs(expect_value(&c, &r, at)) <= 60, "%g", expect_value(&c, &r, at));
    case_result_free(&r);
}

Test(shared, B81_lse_of_saturated_inputs) {
    for (int d = 80; d <= 128; d += 48) {
        const test_case c = case_of("id=B81 dtype=f16 d=%d q=4 kv=100 in=sixty", d);
        case_result r = expect_case(&c);
        const double want = 3600.0 * d * (double)(float)(1 / sqrt(d)); /* key 0 outweighs all */
        for (int row = 0; r.ok && row < 4; ++row)
            /* What float32 leaves of a logit that large, by the rule of compare.h; the other keys
             * add less than e^-1000 to it. */
            cr_expect(fabs((double)r.lse[row] - want) <= r.report.largest_lse_tolerance,
                      "%.9g, not %.9g", (double)r.lse[row], want);
        case_result_free(&r);
    }
}

/* ---- NaN and Inf at keys that some rows see (B73, B86) ---- */

enum { kRows = 40, kBad = 20, kDim = 64 };

typedef struct special {
    case_bed *bed;
    test_case c;
} special;

/* A square call with a value in every element of row kBad of k or v. */
static special open_special(const char *prefix, case_tensor t, float value) {
    special s;
    char why[kLine];
    s.c = case_of("%s id=B73 d=%d q=%d kv=%d splits=1", prefix, kDim, kRows, kRows);
    s.bed = case_open(&s.c, why, sizeof why);
    cr_assert(s.bed, "%s", why);
    for (int column = 0; t != TENSOR_O && column < kDim; ++column)
        fa_dtype_set(s.c.dtype, case_row(s.bed, t, 0, 0, kBad), column, value);
    return s;
}

static void call_special(special *s) {
    const subject *lib = subject_get();
    cr_assert(case_give_workspace(s->bed, lib) == FA_OK);
    cr_assert(case_call(s->bed, lib) == FA_OK, "%s", lib->last_error());
}

static bool rows_equal(const special *a, const special *b, int row) {
    const size_t bytes = (size_t)(kDim * fa_dtype_size(a->c.dtype));
    const void *x = case_row_after(a->bed, TENSOR_O, 0, 0, row);
    const void *y = case_row_after(b->bed, TENSOR_O, 0, 0, row);
    const void *l = case_row_after(a->bed, TENSOR_LSE, 0, 0, row);
    return memcmp(x, y, bytes) == 0 &&
           memcmp(l, case_row_after(b->bed, TENSOR_LSE, 0, 0, row), 4) == 0;
}

/* NaN in k: rows that do not see the key keep their bits, the others are NaN throughout. */
Test(shared, B73_nan_in_a_future_key_is_invisible) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n) {
        special clean = open_special(prefix, TENSOR_O, 0);
        special bad = open_special(prefix, TENSOR_K, NAN);
        case_result judged = {0};
        call_special(&clean);
        call_special(&bad);
        for (int row = 0; row < kBad; ++row)
            cr_expect(rows_equal(&clean, &bad, row), "%s row %d changed", prefix, row);
        cr_expect(case_judge(bad.bed, &judged), "%s", judged.why); /* NaN in rows kBad and later */
        case_result_free(&judged);
        case_close(clean.bed);
        case_close(bad.bed);
    }
}

/* NaN or Inf in v: rows that see it have it; earlier rows are as without, or, the contract's one
 * exception, NaN, and then only in the tile of a row that sees it. lse never changes, except with
 * NaN in k too: then it is NaN, in the rows that see it alone. */
Test(shared, B73_nan_in_a_future_value_stays_in_its_tile) {
    static const float values[] = {NAN, INFINITY, NAN};
    char prefix[64], text[32];
    for (int n = 0; expect_path(n, prefix); ++n)
        for (int which = 0; which < 3; ++which) {
            const bool both = which == 2;
            special clean = open_special(prefix, TENSOR_O, 0);
            special bad = open_special(prefix, TENSOR_V, values[which]);
            for (int column = 0; both && column < kDim; ++column)
                fa_dtype_set(bad.c.dtype, case_row(bad.bed, TENSOR_K, 0, 0, kBad), column, NAN);
            call_special(&clean);
            call_special(&bad);
            const subject *lib = subject_get();
            if (lib->force_kernel) lib->force_kernel(*clean.c.kernel ? clean.c.kernel : NULL);
            subject_explain_value(lib, case_args(clean.bed), "tile_rows", text, sizeof text);
            if (lib->force_kernel) lib->force_kernel(NULL);
            const int tile = atoi(text) > 0 ? atoi(text) : kRows;
            for (int row = 0; row < kRows; ++row) {
                const void *o = case_row_after(bad.bed, TENSOR_O, 0, 0, row);
                const float first = fa_dtype_get(bad.c.dtype, o, 0);
                const bool same_tile = row / tile == kBad / tile;
                if (row >= kBad)
                    cr_expect(!isfinite(first), "%s row %d is %g", prefix, row, (double)first);
                else
                    cr_expect(rows_equal(&clean, &bad, row) || (same_tile && isnan(first)),
                              "%s row %d changed", prefix, row);
                float lse[2];
                memcpy(&lse[0], case_row_after(bad.bed, TENSOR_LSE, 0, 0, row), 4);
                memcpy(&lse[1], case_row_after(clean.bed, TENSOR_LSE, 0, 0, row), 4);
                cr_expect(both && row >= kBad ? (bool)isnan(lse[0]) : lse[0] == lse[1],
                          "%s lse of row %d is %g", prefix, row, (double)lse[0]);
            }
            case_close(clean.bed);
            case_close(bad.bed);
        }
}

/* A key whose logit is -Inf has weight 0: the call without it gives the same. One whose logit is
 * +Inf makes the rows that see it NaN, and no other. */
Test(shared, B86_infinite_logits) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n)
        for (int sign = -1; sign <= 1; sign += 2) {
            special clean = open_special(prefix, TENSOR_O, 0);
            special bad = open_special(prefix, TENSOR_O, 0);
            case_result judged = {0};
            for (int row = 0; row < kRows; ++row) { /* q of 1 in column 0, where k is infinite */
                fa_dtype_set(bad.c.dtype, case_row(bad.bed, TENSOR_Q, 0, 0, row), 0, 1);
                fa_dtype_set(clean.c.dtype, case_row(clean.bed, TENSOR_Q, 0, 0, row), 0, 1);
            }
            fa_dtype_set(bad.c.dtype, case_row(bad.bed, TENSOR_K, 0, 0, kBad), 0,
                         (float)sign * INFINITY);
            call_special(&clean);
            call_special(&bad);
            for (int row = 0; row < kBad; ++row)
                cr_expect(rows_equal(&clean, &bad, row), "%s row %d changed", prefix, row);
            for (int row = kBad; row < kRows; ++row) {
                const void *o = case_row_after(bad.bed, TENSOR_O, 0, 0, row);
                const float first = fa_dtype_get(bad.c.dtype, o, 0);
                cr_expect(sign > 0 ? isnan(first) : (bool)isfinite(first), "%s row %d: %g", prefix,
                          row, (double)first);
            }
            cr_expect(case_judge(bad.bed, &judged), "%s", judged.why);
            case_result_free(&judged);
            case_close(clean.bed);
            case_close(bad.bed);
        }
}

/* ---- asked of the library without a call (B14) ---- */

Test(shared, B14_sizes_beyond_32_bits_are_not_cut) {
    const subject *s = subject_get();
    fa_args a = fa_args_default();
    size_t bytes = 0;
    a.device = FA_DEVICE_CPU;
    a.dtype = FA_DTYPE_F16;
    a.batch = 1000000;
    a.heads_q = 16;
    a.heads_kv = 1;
    a.head_dim = 128;
    a.q_len = 1;
    a.kv_len = 8192;
    a.num_splits = 128;
    cr_expect(s->workspace(&a, &bytes) == FA_OK, "%s", s->last_error());
    /* At least o and lse in float32 of every split that can have a key. */
    cr_expect(bytes >= (size_t)16000000 * 128 * 128 * 4, "%zu bytes", bytes);
    a.batch = a.q_len = a.kv_len = INT_MAX;
    a.heads_q = a.heads_kv = INT_MAX;
    bytes = 7;
    cr_expect(s->workspace(&a, &bytes) == FA_ERR_SIZE, "%s", s->last_error());
    cr_expect(bytes == 7);
}
