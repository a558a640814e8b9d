/* test_compare.c - the comparer must reject what is wrong, and its tolerances are what compare.h
 * says (shared cases B133, B135, B136). */
#include <float.h>
#include <stdlib.h>

#include "expect.h"
#include "fa_inputs.h"

/* One value of o and one of lse against one wanted of each, in float32 with one visible key. */
static bool accepts(float got, double want, float got_lse, double want_lse) {
    const compare_row facts = {1, 1, 1, 1};
    const compare_input in = {.dtype = FA_DTYPE_F32,
                              .rows = 1,
                              .heads = 1,
                              .dim = 1,
                              .o = &got,
                              .lse = &got_lse,
                              .want_o = &want,
                              .want_lse = &want_lse,
                              .facts = &facts};
    compare_report r;
    compare_outputs(&in, &r);
    return r.ok && r.bad == 0 && r.elements == 2;
}

static bool accepts_o(float got, double want) { return accepts(got, want, 1, 1); }
static bool accepts_lse(float got, double want) { return accepts(1, 1, got, want); }

Test(compare, specials_only_where_the_oracle_has_them) {
    cr_expect(accepts_o(1, 1));
    cr_expect(!accepts_o(NAN, 1));
    cr_expect(!accepts_o(1, (double)NAN));
    cr_expect(accepts_o(NAN, (double)NAN));
    cr_expect(!accepts_o(INFINITY, -(double)INFINITY));
    cr_expect(accepts_o(-INFINITY, -(double)INFINITY));
    cr_expect(!accepts_o(INFINITY, 1e38));
    cr_expect(!accepts_o(1e38f, (double)INFINITY));
    cr_expect(accepts_o(0, -0.0));
    cr_expect(accepts_o(-0.0f, 0));
    cr_expect(!accepts_o(1.001f, 1));
}

Test(compare, lse_of_an_empty_row_is_minus_infinity_exactly) {
    cr_expect(accepts_lse(-INFINITY, -(double)INFINITY));
    cr_expect(!accepts_lse(-FLT_MAX, -(double)INFINITY));
    cr_expect(!accepts_lse(INFINITY, -(double)INFINITY));
    cr_expect(!accepts_lse(-INFINITY, 0));
    cr_expect(!accepts_lse(NAN, -(double)INFINITY));
    cr_expect(!accepts_lse(1.00001f, 1));
}

Test(compare, nothing_to_compare_is_right) {
    const compare_input in = {.dtype = FA_DTYPE_F32, .heads = 1, .dim = 1};
    compare_report r;
    compare_outputs(&in, &r);
    cr_expect(r.ok && r.elements == 0);
}

/* rows x 64 values like a call's, the oracle's rounded to bf16, to be damaged by a test. */
typedef struct sample {
    int64_t rows;
    uint16_t *bits;
    double *want, *baseline, *lse;
    float *got_lse;
    compare_row *facts;
} sample;

static sample make_sample(int64_t rows) {
    const fa_input_rule rule = {FA_INPUT_NORMAL, 7, 0.2f};
    const size_t n = (size_t)rows * 64;
    sample s = {rows,
                calloc(n, 2),
                calloc(n, 8),
                calloc(n, 8),
                calloc((size_t)rows, 8),
                calloc((size_t)rows, 4),
                calloc((size_t)rows, sizeof(compare_row))};
    cr_assert(s.bits && s.want && s.baseline && s.lse && s.got_lse && s.facts);
    for (size_t at = 0; at < n; ++at) {
        const float value = fa_input_value(rule, 3, at);
        s.want[at] = (double)value;
        s.baseline[at] = (double)fa_dtype_round(FA_DTYPE_BF16, value);
        fa_dtype_set(FA_DTYPE_BF16, s.bits, (int64_t)at, value);
    }
    for (int64_t row = 0; row < rows; ++row) s.facts[row] = (compare_row){4, 4, 8, 100};
    return s;
}

static compare_report judge(const sample *s) {
    const compare_input in = {.dtype = FA_DTYPE_BF16,
                              .rows = s->rows,
                              .heads = 1,
                              .dim = 64,
                              .o = s->bits,
                              .lse = s->got_lse,
                              .want_o = s->want,
                              .want_lse = s->lse,
                              .baseline_o = s->baseline,
                              .facts = s->facts};
    compare_report r;
    compare_outputs(&in, &r);
    return r;
}

static void drop_sample(sample *s) {
    free(s->bits);
    free(s->want);
    free(s->baseline);
    free(s->lse);
    free(s->got_lse);
    free(s->facts);
}

Test(compare, one_wrong_element_of_a_million_is_found) {
    sample s = make_sample(15625);
    compare_report r = judge(&s);
    cr_expect(r.ok && r.elements == 1015625 && r.rms_ratio == 1, "%g", r.rms_ratio);
    fa_dtype_set(FA_DTYPE_BF16, s.bits, 12345 * 64 + 6, 3);
    r = judge(&s);
    cr_expect(!r.ok && r.bad == 1 && r.row == 12345 && r.head == 0 && r.dim == 6 && r.got == 3);
    cr_expect(r.ratio > 10, "only %g tolerances", r.ratio);
    drop_sample(&s);
}

/* Outputs that look plausible: each must be at least 10 tolerances off. */
Test(compare, plausible_nonsense_is_far_outside) {
    for (int fault = 0; fault < 4; ++fault) {
        sample s = make_sample(256);
        for (int64_t at = 0; at < 256 * 64; ++at) {
            const double other = s.want[(at + 64) % (256 * 64)]; /* rows moved up by one */
            const double values[] = {0.75, 0, other, s.want[at] + 0.1};
            fa_dtype_set(FA_DTYPE_BF16, s.bits, at, (float)values[fault]);
        }
        const compare_report r = judge(&s);
        cr_expect(!r.ok && r.ratio > 10, "fault %d: ok %d at %g tolerances", fault, r.ok, r.ratio);
        printf("plausible nonsense %d: %.1f tolerances, rms %.1f of the baseline\n", fault, r.ratio,
               r.rms_ratio);
        drop_sample(&s);
    }
}

/* A small error everywhere stays below the largest allowed one, and the RMS finds it. */
Test(compare, rms_finds_what_no_element_shows) {
    sample s = make_sample(256);
    for (int64_t at = 0; at < 256 * 64; ++at)
        fa_dtype_set(FA_DTYPE_BF16, s.bits, at, (float)s.want[at] + 0.003f);
    const compare_report r = judge(&s);
    cr_expect(!r.ok && r.max_ratio <= 1 && r.rms_ratio > 1.5, "max %g, rms %g", r.max_ratio,
              r.rms_ratio);
    drop_sample(&s);
}

/* One row with an error that the mean over all rows drowns. */
Test(compare, a_bad_row_does_not_hide_in_the_mean) {
    sample s = make_sample(256);
    for (int64_t at = 64; at < 128; ++at)
        fa_dtype_set(FA_DTYPE_BF16, s.bits, at, (float)s.want[at] + 0.004f);
    const compare_report r = judge(&s);
    cr_expect(!r.ok && r.rms_ratio < 1.5, "ok %d, rms %g, row %g", r.ok, r.rms_ratio, r.row_ratio);
    drop_sample(&s);
}

Test(compare, units_and_ulps_are_the_formats) {
    cr_expect(compare_unit(FA_DTYPE_F32) == ldexp(1, -24));
    cr_expect(compare_unit(FA_DTYPE_F16) == ldexp(1, -11));
    cr_expect(compare_unit(FA_DTYPE_BF16) == ldexp(1, -8));
    for (int dtype = 0; dtype < 3; ++dtype) {
        const int32_t type =
            dtype == 0 ? FA_DTYPE_F32 : (dtype == 1 ? FA_DTYPE_F16 : FA_DTYPE_BF16);
        for (uint32_t bits = 1; bits < (type == FA_DTYPE_F16 ? 0x7bffu : 0x7f7fu); ++bits) {
            uint32_t word[2] = {bits, bits + 1};
            const uint16_t half[2] = {(uint16_t)bits, (uint16_t)(bits + 1)};
            const void *data = type == FA_DTYPE_F32 ? (const void *)word : (const void *)half;
            if (type == FA_DTYPE_F32) word[0] = bits << 16, word[1] = word[0] + 1;
            const double low = (double)fa_dtype_get(type, data, 0);
            const double step = (double)fa_dtype_get(type, data, 1) - low;
            cr_assert(compare_ulp(type, low) == step, "dtype %d bits %u", type, bits);
        }
    }
}

/* No tolerance of the baseline rule is more than twice the baseline's own error, but for the ulp
 * and the float32 logits that compare.h names. */
Test(compare, tolerance_is_twice_the_baseline) {
    sample s = make_sample(64);
    double worst = 0, largest = 0;
    for (int64_t at = 0; at < 64 * 64; ++at) {
        worst = fmax(worst, fabs(s.baseline[at] - s.want[at]));
        largest = fmax(largest, fabs(s.want[at]));
    }
    const compare_report r = judge(&s);
    const double limit = 2 * worst + compare_ulp(FA_DTYPE_BF16, largest) + ldexp(16, -24);
    cr_expect(r.largest_o_tolerance <= limit * (1 + 1e-12), "%g above %g", r.largest_o_tolerance,
              limit);
    cr_expect(r.largest_o_tolerance >= 2 * worst);
    drop_sample(&s);
}
