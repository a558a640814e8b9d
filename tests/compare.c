/* compare.c - the rules of compare.h, in its order. */
#include "compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fa_dtype.h"

static const double kFloatUnit = 1.0 / (1 << 24); /* half an ulp of float32, relative */

static int significand_bits(int32_t dtype) {
    return dtype == FA_DTYPE_F32 ? 24 : (dtype == FA_DTYPE_F16 ? 11 : 8);
}

double compare_unit(int32_t dtype) { return ldexp(1, -significand_bits(dtype)); }

double compare_ulp(int32_t dtype, double value) {
    int exponent;
    const int bits = significand_bits(dtype);
    const int least = (dtype == FA_DTYPE_F16 ? -13 : -125) - bits; /* of the subnormals */
    frexp(value, &exponent);
    if (value == 0 || exponent - bits < least) return ldexp(1, least);
    return ldexp(1, exponent - bits);
}

/* The derived bound of an element of o. */
static double derived_bound(const compare_input *in, const compare_row *f, double want) {
    if (f->visible == 0 || !isfinite(want)) return 0;
    const double terms = sqrt((double)f->visible);
    const double arithmetic =
        kFloatUnit * f->max_value * (sqrt(in->dim) * f->max_logit + 2 * f->dot_size + terms + 8);
    if (in->dtype == FA_DTYPE_F32) return arithmetic;
    /* Below its normal numbers a dtype rounds by steps of one size, P and o alike. */
    const double least = compare_ulp(in->dtype, 0) / 2;
    return arithmetic + compare_unit(in->dtype) * (fabs(want) + f->max_value) +
           least * (1 + terms * f->max_value);
}

/* Whole-tensor facts of the baseline, and the tolerances that follow from them. */
typedef struct limits {
    double max_error; /* of every element; infinite without a baseline */
    double row_rms;
    double rms;
    double baseline_rms, baseline_row_rms; /* the latter of its worst row */
} limits;

static limits limits_of(const compare_input *in) {
    limits l = {INFINITY, INFINITY, INFINITY, 0, 0};
    if (!in->baseline_o) return l;
    double worst = 0, largest = 0, sum = 0, logits = 0;
    int64_t counted = 0;
    for (int64_t row = 0; row < in->rows * in->heads; ++row) {
        double row_sum = 0;
        for (int64_t at = row * in->dim; at < (row + 1) * in->dim; ++at) {
            const double error = fabs(in->baseline_o[at] - in->want_o[at]);
            if (!(error <= INFINITY) || isinf(error)) continue; /* NaN or Inf: judged by place */
            worst = fmax(worst, error);
            largest = fmax(largest, fabs(in->want_o[at]));
            row_sum += error * error;
            ++counted;
        }
        sum += row_sum;
        l.baseline_row_rms = fmax(l.baseline_row_rms, sqrt(row_sum / in->dim));
        logits = fmax(logits, kFloatUnit * in->facts[row].max_logit * in->facts[row].max_value);
    }
    const double ulp = compare_ulp(in->dtype, largest);
    l.baseline_rms = counted ? sqrt(sum / (double)counted) : 0;
    l.max_error = 2 * worst + ulp + logits;
    l.row_rms = 2 * l.baseline_row_rms + ulp / 2 + logits;
    l.rms = 1.5 * l.baseline_rms + logits;
    return l;
}

static double ratio_of(double error, double tolerance) {
    if (error <= tolerance) return tolerance > 0 ? error / tolerance : 0;
    return tolerance > 0 && error < INFINITY ? error / tolerance : INFINITY;
}

/* NaN and Inf: the same place and sign, or infinitely wrong. */
static double error_of(double got, double want) {
    if (isnan(want)) return isnan(got) ? 0 : INFINITY;
    if (isinf(want)) return got == want ? 0 : INFINITY;
    return isfinite(got) ? fabs(got - want) : INFINITY;
}

static void note(compare_report *r, int64_t at, int32_t dim, double got, double want,
                 double tolerance, const char *origin, int32_t heads) {
    const double error = error_of(got, want);
    const bool ok = error <= tolerance && error < INFINITY; /* positively: a NaN is not ok */
    const double ratio = ratio_of(error, tolerance);
    double *largest = dim < 0 ? &r->largest_lse_tolerance : &r->largest_o_tolerance;
    *largest = fmax(*largest, tolerance);
    ++r->elements;
    if (!ok) ++r->bad;
    if (r->elements > 1 && !(ratio > r->ratio)) return;
    r->ratio = ratio;
    r->row = at / heads;
    r->head = (int32_t)(at % heads);
    r->dim = dim;
    r->got = got;
    r->want = want;
    r->tolerance = tolerance;
    r->origin = origin;
}

/* Sums of squares over one or all rows. */
typedef struct squares {
    double error, want;
    int64_t count;
} squares;

static squares compare_row_o(const compare_input *in, const limits *l, int64_t row,
                             compare_report *r) {
    squares s = {0, 0, 0};
    const compare_row *facts = &in->facts[row];
    for (int32_t dim = 0; dim < in->dim; ++dim) {
        const int64_t at = row * in->dim + dim;
        const double got = (double)fa_dtype_get(in->dtype, in->o, at);
        const double want =
            in->exact ? (double)fa_dtype_round(in->dtype, (float)in->want_o[at]) : in->want_o[at];
        const double bound = in->exact ? 0 : derived_bound(in, facts, want);
        const bool by_bound = bound <= l->max_error;
        note(r, row, dim, got, want, by_bound ? bound : l->max_error,
             in->exact ? "exact" : (by_bound ? "derived bound" : "baseline's largest error"),
             in->heads);
        const double error = error_of(got, want);
        if (!in->exact) r->bound_ratio = fmax(r->bound_ratio, ratio_of(error, bound));
        if (!in->exact && in->baseline_o)
            r->max_ratio = fmax(r->max_ratio, ratio_of(error, l->max_error));
        if (!isfinite(want)) continue;
        s.error += error * error;
        s.want += want * want;
        ++s.count;
    }
    return s;
}

/* A rule that no single element broke. */
static void fail_whole(compare_report *r, const char *rule) {
    if (r->bad == 0) r->origin = rule;
    ++r->broken_rules;
}

static void compare_o(const compare_input *in, compare_report *r) {
    const limits l = limits_of(in);
    squares all = {0, 0, 0};
    bool rows_ok = true;
    for (int64_t row = 0; row < in->rows * in->heads; ++row) {
        const squares s = compare_row_o(in, &l, row, r);
        all.error += s.error;
        all.want += s.want;
        all.count += s.count;
        const double rms = s.count ? sqrt(s.error / (double)s.count) : 0;
        r->row_ratio = fmax(r->row_ratio, in->baseline_o ? ratio_of(rms, l.baseline_row_rms) : 0);
        rows_ok = rows_ok && rms <= l.row_rms;
    }
    r->frobenius = all.want > 0 ? sqrt(all.error / all.want) : 0;
    if (in->exact || !in->baseline_o || all.count < COMPARE_RMS_FROM) return;
    const double rms = sqrt(all.error / (double)all.count);
    r->rms_ratio = ratio_of(rms, l.baseline_rms);
    if (!(rms <= l.rms)) fail_whole(r, "RMS error above 1.5 times the baseline's");
    if (!rows_ok) fail_whole(r, "RMS error of a row above twice the baseline's worst row");
}

static void compare_lse(const compare_input *in, compare_report *r) {
    const double unit = in->coarse_lse ? compare_unit(in->dtype) : kFloatUnit;
    for (int64_t at = 0; at < in->rows * in->heads; ++at) {
        const double want = in->want_lse[at];
        const compare_row *f = &in->facts[at];
        const double size = 8 * fmax(fmax(1, fabs(want)), f->max_logit);
        const double dot = sqrt(in->dim) * f->max_logit + 2 * f->dot_size;
        const double tolerance = isfinite(want) ? unit * fmax(size, dot) : 0;
        note(r, at, -1, (double)in->lse[at], want, tolerance, "lse", in->heads);
        r->lse_ratio = fmax(r->lse_ratio, ratio_of(error_of((double)in->lse[at], want), tolerance));
    }
}

void compare_outputs(const compare_input *in, compare_report *report) {
    memset(report, 0, sizeof *report);
    report->origin = "nothing compared";
    compare_o(in, report);
    if (in->lse) compare_lse(in, report);
    report->ok = report->bad == 0 && report->broken_rules == 0;
}

void compare_print(const compare_report *r, char *text, size_t text_size) {
    const int used =
        snprintf(text, text_size,
                 "%s: %" PRId64 " compared, %" PRId64
                 " bad; worst %.3g of its tolerance (%s): row %" PRId64 " head %d ",
                 r->ok ? "ok" : "WRONG", r->elements, r->bad, r->ratio, r->origin, r->row, r->head);
    if (used < 0 || (size_t)used >= text_size) return;
    char place[24] = "lse";
    if (r->dim >= 0) snprintf(place, sizeof place, "dim %d", r->dim);
    snprintf(text + used, text_size - (size_t)used,
             "%s is %.9g, should be %.9g, tolerance %.3g; max %.3g, rms %.3g, row %.3g of the "
             "baseline, bound %.3g, lse %.3g, |error|/|o| %.3g",
             place, r->got, r->want, r->tolerance, r->max_ratio, r->rms_ratio, r->row_ratio,
             r->bound_ratio, r->lse_ratio, r->frobenius);
}
