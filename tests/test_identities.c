/* test_identities.c - what must be equal to what, whatever the right answer is.
 *
 * Both sides of each identity are also judged by the oracle (expect.h). This file changes when the
 * contract promises another equality. */
#include <stdlib.h>

#include "expect.h"

/* q_len = kv_len = 150 at once, and as chunks whose keys are a growing cache. */
static void chunks_equal_one_shot(const char *prefix, const int32_t *chunk, int chunks) {
    const char *const shape = "b=2 hq=4 hkv=2 d=64";
    const test_case whole = case_of("%s %s q=150 kv=150", prefix, shape);
    case_result all = expect_case(&whole);
    int32_t row = 0;
    for (int n = 0; n < chunks; row += chunk[n++]) {
        const test_case part =
            case_of("%s %s fr=%d q=%d kv=%d K=bhsd:c%d V=bhsd:c%d", prefix, shape, row, chunk[n],
                    row + chunk[n], 150 - row - chunk[n], 150 - row - chunk[n]);
        case_result some = expect_case(&part);
        for (int32_t i = 0; i < 2; ++i)
            expect_rows(&part, &all, i * 150 + row, &some, i * chunk[n], chunk[n], false,
                        "a chunk and its rows of the one-shot call");
        case_result_free(&some);
    }
    cr_expect(row == 150, "the chunks make %d rows", row);
    case_result_free(&all);
}

Test(identities, one_shot_equals_any_chunking_with_a_growing_cache) {
    static const int32_t uneven[] = {1, 63, 2, 84}, halves[] = {75, 75}, tiles[] = {64, 64, 22};
    int32_t singles[150];
    char prefix[64];
    for (int n = 0; n < 150; ++n) singles[n] = 1;
    for (int n = 0; expect_path(n, prefix); ++n) {
        chunks_equal_one_shot(prefix, uneven, 4);
        chunks_equal_one_shot(prefix, halves, 2);
        chunks_equal_one_shot(prefix, tiles, 3);
    }
    chunks_equal_one_shot("dtype=f16", singles, 150); /* token by token */
}

/* The call with its batch and kv heads rotated by one place. */
static void rotation_rotates(const char *prefix) {
    const test_case c = case_of("%s b=3 hq=6 hkv=3 d=40 q=21 kv=77 splits=1", prefix);
    case_result plain = expect_case(&c), turned = {0};
    char why[CASE_LINE_MAX];
    case_bed *bed = case_open(&c, why, sizeof why);
    cr_assert(bed, "%s", why);
    for (case_tensor t = TENSOR_Q; t <= TENSOR_V; ++t) {
        const int32_t heads = t == TENSOR_Q ? 6 : 3, by = t == TENSOR_Q ? 2 : 1;
        for (int32_t i = 0; i < 3; ++i)
            for (int32_t head = 0; head < heads; ++head)
                for (int32_t row = 0; row < (t == TENSOR_Q ? 21 : 77); ++row)
                    case_fill_row(&c, t, (i + 1) % 3, (head + by) % heads, row,
                                  case_row(bed, t, i, head, row));
    }
    cr_assert(case_give_workspace(bed, subject_get()) == FA_OK);
    cr_assert(case_call(bed, subject_get()) == FA_OK);
    cr_expect(case_judge(bed, &turned), "%s", turned.why);
    int64_t differ = 0;
    for (int32_t i = 0; i < 3 && plain.ok && turned.ok; ++i)
        for (int32_t row = 0; row < 21; ++row)
            for (int32_t head = 0; head < 6; ++head)
                for (int32_t d = 0; d < 40; ++d) {
                    const int64_t at = ((i * 21 + row) * 6 + head) * 40 + d;
                    const int64_t from = (((i + 1) % 3 * 21 + row) * 6 + (head + 2) % 6) * 40 + d;
                    differ += expect_value(&c, &turned, at) != expect_value(&c, &plain, from);
                }
    cr_expect(differ == 0, "%s: %lld values did not move with their head", prefix,
              (long long)differ);
    case_close(bed);
    case_result_free(&plain);
    case_result_free(&turned);
}

Test(identities, permuting_batch_and_heads_permutes_results) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n) rotation_rotates(prefix);
}

Test(identities, v_of_ones_gives_ones) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n) {
        const test_case c = case_of("%s b=2 hq=4 hkv=2 d=72 q=67 kv=131 v=one", prefix);
        case_result r = expect_case(&c);
        /* o = sum(P) / sum(P). In 16 bits the upper P are rounded, by half an ulp together, and so
         * is o: below 2 ulp. In float32 both sums round once a key, 131 times, by half an ulp in
         * either direction: sqrt(131) / 2 each; 2 more for the division and the tiles' factors. */
        const double ulps = c.dtype == FA_DTYPE_F32 ? sqrt(131) + 2 : 2;
        const double slack = ulps * compare_ulp(c.dtype, 1);
        int64_t bad = 0;
        for (int64_t at = 0; r.ok && at < r.rows * expect_row_values(&c); ++at)
            bad += !(fabs(expect_value(&c, &r, at) - 1) <= slack);
        cr_expect(bad == 0, "%s: %lld values are not 1", prefix, (long long)bad);
        case_result_free(&r);
    }
}

/* Keys [0, cut) and [cut, kv) apart, put together by their lse in float64. */
static void halves_make_the_whole(const char *prefix, int32_t cut) {
    const char *const shape = "b=1 hq=4 hkv=2 d=64 q=40";
    const test_case whole = case_of("%s %s kv=200", prefix, shape);
    const test_case low = case_of("%s %s kv=%d align=given offset=160", prefix, shape, cut);
    const test_case high = case_of("%s %s kv=%d fk=%d align=given offset=%d", prefix, shape,
                                   200 - cut, cut, 160 - cut);
    case_result w = expect_case(&whole), a = expect_case(&low), b = expect_case(&high);
    const double part = fmax(a.report.largest_o_tolerance, b.report.largest_o_tolerance);
    const double weight = a.report.largest_lse_tolerance + b.report.largest_lse_tolerance;
    const double near = w.report.largest_o_tolerance + part + 5 * weight; /* |v| < 5 here */
    int64_t bad = 0;
    for (int64_t row = 0; w.ok && a.ok && b.ok && row < 40 * 4; ++row) {
        const double x = exp((double)a.lse[row] - (double)w.lse[row]);
        const double y = exp((double)b.lse[row] - (double)w.lse[row]);
        bad += !(fabs(x + y - 1) <= weight + w.report.largest_lse_tolerance);
        for (int64_t at = row * 64; at < (row + 1) * 64; ++at) {
            const double merged = x * expect_value(&low, &a, at) + y * expect_value(&high, &b, at);
            bad += !(fabs(merged - expect_value(&whole, &w, at)) <= near);
        }
    }
    cr_expect(bad == 0, "%s cut at %d: %lld merged values differ", prefix, cut, (long long)bad);
    case_result_free(&w);
    case_result_free(&a);
    case_result_free(&b);
}

Test(identities, two_halves_of_the_keys_merge_through_lse) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n) {
        halves_make_the_whole(prefix, 64);
        halves_make_the_whole(prefix, 199); /* most rows see nothing of the second part */
        halves_make_the_whole(prefix, 1);
    }
}

Test(identities, any_number_of_splits_equals_one) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n) {
        const char *const shape = "b=2 hq=4 hkv=2 d=64 q=5 kv=1000";
        const test_case one = case_of("%s %s splits=1", prefix, shape);
        case_result a = expect_case(&one);
        static const char *const others[] = {"splits=0",      "splits=2",      "splits=3",
                                             "splits=64",     "splits=1024",   "split_keys=1",
                                             "split_keys=64", "split_keys=999"};
        for (size_t other = 0; other < sizeof others / sizeof *others; ++other) {
            const test_case c = case_of("%s %s %s", prefix, shape, others[other]);
            case_result b = expect_case(&c);
            expect_rows(&c, &a, 0, &b, 0, a.rows, false, "splits against one");
            case_result_free(&b);
        }
        case_result_free(&a);
    }
}

/* Entries of a batch against the same sequences alone. cut is a key that fixes how keys are cut. */
static void batch_equals_singles(const char *prefix, const char *cut, int32_t batch, int32_t q) {
    const char *const shape = "hq=8 hkv=2 d=64 kv=300";
    const test_case whole = case_of("%s %s %s q=%d b=%d", prefix, shape, cut, q, batch);
    case_result all = expect_case(&whole);
    for (int32_t i = 0; i < batch; ++i) {
        const test_case single = case_of("%s %s %s q=%d b=1 fb=%d", prefix, shape, cut, q, i);
        case_result one = expect_case(&single);
        expect_rows(&single, &all, (int64_t)i * q, &one, 0, q, true, "a batch and one of it");
        case_result_free(&one);
    }
    case_result_free(&all);
}

Test(identities, batch_of_n_equals_n_singles_bit_for_bit) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n) {
        batch_equals_singles(prefix, "splits=1", 5, 1);
        batch_equals_singles(prefix, "splits=1", 3, 70);
        batch_equals_singles(prefix, "split_keys=64", 3, 1);
        batch_equals_singles(prefix, "split_keys=100", 4, 17);
    }
}

/* Every entry of every batch against the same entry of the largest, which comes last. */
static void batches_agree(const char *line, const int32_t *sizes, int count) {
    const test_case whole = case_of("%s b=%d", line, sizes[count - 1]);
    case_result all = expect_case(&whole);
    for (int at = 0; at + 1 < count; ++at) {
        const test_case part = case_of("%s b=%d", line, sizes[at]);
        case_result some = expect_case(&part);
        expect_rows(&part, &all, 0, &some, 0, some.rows, true, "a batch and a larger one");
        case_result_free(&some);
    }
    case_result_free(&all);
}

Test(identities, B97_every_batch_size_up_to_140_gives_the_same_bits) {
    int32_t sizes[140];
    for (int n = 0; n < 140; ++n) sizes[n] = n + 1;
    batches_agree("id=B97 dtype=f16 hq=8 hkv=2 d=64 q=1 kv=65 splits=1", sizes, 140);
}

Test(identities, B99_batch_sizes_around_powers_of_two_give_the_same_bits) {
    static const int32_t sizes[] = {1, 31, 32, 33, 64, 65, 128, 129};
    static const int32_t rows[] = {1, 15, 16, 17, 64, 65};
    char line[CASE_LINE_MAX];
    for (int n = 0; n < 6; ++n) {
        snprintf(line, sizeof line,
                 "id=B99 dtype=bf16 hq=2 hkv=1 d=64 q=%d kv=%d splits=1 rows=0,%d", rows[n],
                 n ? 150 : 1000, rows[n] - 1);
        batches_agree(line, sizes, 8);
    }
}

/* The declared lengths may be larger than the real ones (shared case B79). */
Test(identities, declared_maximum_does_not_matter) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n) {
        char line[CASE_LINE_MAX];
        snprintf(line, sizeof line,
                 "%s b=2 hq=4 hkv=2 d=64 splits=1 qr=c kr=u qs=5,5 ks=70,64 page=16 q=40 kv=70",
                 prefix);
        expect_same_with(line, "q=64 kv=4096", "declared lengths larger than the real ones");
    }
}

/* ---- bits ---- */

static void repeats_give_the_same_bits(const test_case *c) {
    char why[CASE_LINE_MAX];
    case_result first = {0}, next = {0};
    case_bed *bed = case_open(c, why, sizeof why);
    cr_assert(bed, "%s", why);
    cr_assert(case_give_workspace(bed, subject_get()) == FA_OK);
    for (int n = 0; n < 4; ++n) { /* the workspace stays as the call before left it */
        cr_expect(case_call(bed, subject_get()) == FA_OK);
        cr_expect(case_judge(bed, n ? &next : &first), "%s", n ? next.why : first.why);
        if (n) expect_same(c, &first, &next, "the same call again");
        case_result_free(&next);
        memset(&next, 0, sizeof next);
    }
    case_close(bed);
    case_result_free(&first);
}

Test(bits, same_call_gives_the_same_bits) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n) {
        test_case c = case_of("%s b=2 hq=4 hkv=2 d=64 q=50 kv=300", prefix);
        repeats_give_the_same_bits(&c);
        c = case_of("%s b=2 hq=4 hkv=2 d=64 q=3 kv=900 splits=7", prefix);
        repeats_give_the_same_bits(&c);
        c = case_of("%s b=2 hq=4 hkv=2 d=64 q=129 kv=129 split_keys=50", prefix);
        repeats_give_the_same_bits(&c);
    }
}

Test(bits, threads_and_task_slices_do_not_change_them) {
    static const char *const ways[] = {"threads=1", "threads=2", "tasks=1",
                                       "tasks=2",   "tasks=7",   "tasks=1000"};
    static const char *const cuts[] = {"splits=4", "split_keys=100", "splits=0"};
    char prefix[64], line[CASE_LINE_MAX];
    for (int n = 0; expect_path_of(FA_DEVICE_CPU, n, prefix); ++n) {
        snprintf(line, sizeof line, "%s b=2 hq=6 hkv=2 d=80 q=100 kv=333 splits=1", prefix);
        for (size_t way = 0; way < sizeof ways / sizeof *ways; ++way)
            expect_same_with(line, ways[way], ways[way]);
        for (size_t cut = 0; cut < sizeof cuts / sizeof *cuts; ++cut) {
            snprintf(line, sizeof line, "%s b=1 hq=6 hkv=2 d=80 q=9 kv=700 threads=2 %s", prefix,
                     cuts[cut]);
            expect_same_with(line, "threads=1", cuts[cut]);
        }
        /* Few rows and many keys: split by the library, several heads a task. */
        snprintf(line, sizeof line, "%s b=1 hq=10 hkv=5 d=64 q=2 kv=4000", prefix);
        for (size_t way = 0; way < sizeof ways / sizeof *ways; ++way)
            expect_same_with(line, ways[way], ways[way]);
    }
}

/* The kernel that a case runs on, its forced path counted. */
static void name_kernel(const char *line, const char *way, char *name, size_t size) {
    const subject *s = subject_get();
    char why[CASE_LINE_MAX];
    const test_case c = case_of("%s %s", line, way);
    case_bed *bed = case_open(&c, why, sizeof why);
    cr_assert(bed, "%s", why);
    if (s->force_kernel) s->force_kernel(*c.kernel ? c.kernel : NULL);
    subject_explain_value(s, case_args(bed), "kernel", name, size);
    if (s->force_kernel) s->force_kernel(NULL);
    case_close(bed);
}

/* What a family of kernels cannot walk, pages of one row for example, is another family's, whose
 * bits are its own: such a way is judged by the oracle alone. */
static void expect_same_where_one_kernel(const char *line, const char *way) {
    char here[64], there[64];
    name_kernel(line, "", here, sizeof here);
    name_kernel(line, way, there, sizeof there);
    if (strcmp(here, there) == 0)
        expect_same_with(line, way, way);
    else
        expect_line("%s %s", line, way);
}

Test(bits, layout_and_pages_do_not_change_them) {
    static const char *const ways[] = {"Q=bhsd K=bhsd V=bhsd O=bhsd",
                                       "K=bhsd:c50 V=bhsd:c50",
                                       "Q=fused K=fused V=fused",
                                       "K=bhsd V=bshd O=bhsd L=bshd",
                                       "O=bshd:p8",
                                       "kr=u page=16",
                                       "kr=u page=1",
                                       "kr=u page=1024",
                                       "qr=c kr=c",
                                       "qr=ul kr=ul qp=0 kp=0"};
    char prefix[64], line[CASE_LINE_MAX];
    for (int n = 0; expect_path(n, prefix); ++n) {
        snprintf(line, sizeof line, "%s b=2 hq=4 hkv=2 d=64 q=70 kv=141 splits=1", prefix);
        for (size_t way = 0; way < sizeof ways / sizeof *ways; ++way)
            expect_same_where_one_kernel(line, ways[way]);
        snprintf(line, sizeof line, "%s b=2 hq=8 hkv=2 d=128 q=4 kv=1000 splits=8", prefix);
        expect_same_with(line, "O=bhsd", "o as bhsd, with splits"); /* shared case B29 */
        expect_same_with(line, "O=bshd:p8", "o with pitch d + 8, with splits");
    }
}
