/* test_exact.c - calls whose answer needs no oracle, and leaves no tolerance. */
#include "expect.h"

/* The header's picture: with equal logits and v[j] = j, o is the mean of the visible indexes. */
Test(exact, default_alignment_is_bottom_right) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n) {
        const test_case wide = case_of("%s d=8 q=2 kv=5 in=equal v=index", prefix);
        const test_case tall = case_of("%s d=8 q=5 kv=2 in=equal v=index", prefix);
        case_result a = expect_case(&wide), b = expect_case(&tall);
        static const double means[] = {1.5, 2}, tall_means[] = {0, 0, 0, 0, 0.5};
        for (int row = 0; a.ok && row < 2; ++row)
            cr_expect(expect_value(&wide, &a, row * 8) == means[row], "%s row %d", prefix, row);
        for (int row = 0; b.ok && row < 5; ++row) {
            cr_expect(expect_value(&tall, &b, row * 8) == tall_means[row], "%s row %d", prefix,
                      row);
            cr_expect(row >= 3 || b.lse[row] == -INFINITY);
        }
        case_result_free(&a);
        case_result_free(&b);
    }
}

/* The element that v=index gives key j in a column. */
static double index_digit(int64_t j, int column) { return (double)((j >> 7 * (column % 3)) & 127); }

/* Row 0 of a square call sees one key: o = v[0] and nothing else, on and off the tile. With q = 0
 * and rows that see 2^k keys, o is a mean that every format divides exactly. */
Test(exact, means_of_powers_of_two) {
    static const int32_t sizes[] = {64, 128, 129, 192, 256, 384};
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n)
        for (int size = 0; size < 6; ++size) {
            const test_case c = case_of("%s hq=2 hkv=1 d=24 q=%d kv=%d in=equal v=int rows=0,1,3",
                                        prefix, sizes[size], sizes[size]);
            case_result r = expect_case(&c);
            float v[384][24];
            for (int64_t key = 0; key < sizes[size]; ++key) {
                float row[24];
                case_fill_row(&c, TENSOR_V, 0, 0, key, row);
                for (int d = 0; d < 24; ++d) v[key][d] = fa_dtype_get(c.dtype, row, d);
            }
            int64_t bad = 0;
            for (int64_t seen = 1; r.ok && seen <= sizes[size]; seen *= 2)
                for (int at = 0; at < 48; ++at) {
                    double sum = 0;
                    for (int64_t key = 0; key < seen; ++key) sum += (double)v[key][at % 24];
                    const double mean =
                        (double)fa_dtype_round(c.dtype, (float)(sum / (double)seen));
                    bad += expect_value(&c, &r, (seen - 1) * 48 + at) != mean;
                }
            cr_expect(bad == 0, "%s size %d: %lld values are not the mean", prefix, sizes[size],
                      (long long)bad);
            case_result_free(&r);
        }
}

/* Shared case B66: aligned sizes must not lose the mask. V of key j is j. */
Test(exact, first_row_is_the_first_key) {
    static const int32_t sizes[] = {64, 128, 192, 256, 384};
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n)
        for (int at = 0; at < 10; ++at) {
            const int32_t q = sizes[at / 2], more = at % 2 ? 128 : 0;
            const test_case c = case_of("%s d=32 q=%d kv=%d v=index align=given rows=0,1,63,64,127",
                                        prefix, q, q + more);
            case_result r = expect_case(&c);
            for (int d = 0; r.ok && d < 32; ++d)
                cr_expect(expect_value(&c, &r, d) == index_digit(0, d), "%s q=%d", prefix, q);
            case_result_free(&r);
        }
}

/* Shared case B84: one visible key leaves nothing to round. */
Test(exact, one_key_gives_its_v_and_logit) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n) {
        static const char *const shapes[] = {"q=1 kv=1", "q=200 kv=200 rows=0,1"};
        for (int shape = 0; shape < 2; ++shape) {
            const test_case c = case_of("%s hq=4 hkv=4 d=64 %s", prefix, shapes[shape]);
            case_result r = expect_case(&c);
            for (int32_t head = 0; r.ok && head < 4; ++head) {
                float v[64];
                case_fill_row(&c, TENSOR_V, 0, head, 0, v);
                const int64_t size = fa_dtype_size(c.dtype) * 64;
                cr_expect(memcmp((char *)r.o + head * size, v, (size_t)size) == 0, "%s %s head %d",
                          prefix, shapes[shape], head);
            }
            case_result_free(&r);
        }
    }
}

/* One key outweighs all others beyond float32: o is its v, wherever it lies. */
Test(exact, one_hot_weights_pick_one_key) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n) {
        expect_line("%s b=2 hq=6 hkv=2 d=64 q=130 kv=400 in=pick v=index", prefix);
        expect_line("%s b=2 hq=6 hkv=2 d=64 q=1 kv=3000 in=pick v=index splits=9", prefix);
        expect_line("%s b=2 hq=6 hkv=2 d=128 q=7 kv=900 in=pick v=int page=16 split_keys=70",
                    prefix);
    }
}

/* |error| / |o| on N(0,1): the comparer holds these cases to the values of correct kernels. */
Test(exact, error_on_normal_inputs_is_that_of_a_correct_kernel) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n)
        for (int seed = 0; seed < 3; ++seed) {
            const test_case c =
                case_of("%s b=5 hq=12 hkv=4 d=256 q=1 kv=255 kr=u ks=1,17,100,200,255 "
                        "seed=%d",
                        prefix, seed);
            case_result r = expect_case(&c);
            cr_expect(r.report.elements > COMPARE_RMS_FROM);
            if (seed == 0)
                printf("%s: |error|/|o| %.2e on N(0,1), rms %.3f of the baseline\n", prefix,
                       r.report.frobenius, r.report.rms_ratio);
            case_result_free(&r);
        }
}
