/* compare.h - is this output right? Tolerances come from the format, never from taste.
 *
 * u is half an ulp of the 16-bit dtype relative to the value (0 for float32), D = head_dim, and per
 * row: n = visible keys, V = largest visible |v|, L = largest visible |logit|, A = scale |q||k|
 * with the longest visible k.
 *
 * - 16-bit o against the baseline, which makes the roundings that a good kernel of the dtype cannot
 *   avoid (fa_reference_baseline_row): the largest error is at most 2 times the baseline's + 1 ulp
 *   of the largest |o|. From 4096 elements on, the RMS error is at most 1.5 times the baseline's,
 *   and any row's at most 2 times its worst row's + half that ulp. To each is added 2^-24 L V, what
 *   float32 logits of that size carry in whatever order they are summed.
 *
 * - o per element, always: u (|o| + V) + 2^-24 V (sqrt(D) L + 2 A + sqrt(n) + 8). That is P and o
 *   rounded; a dot product of D terms, of partial sums up to L or of the random sums that A
 *   measures, whose error exp passes on; sums of n weights; a few operations more.
 *
 * - |error|/|o| of the whole on N(0,1) inputs: frobenius_limit of cases_run.c.
 *
 * - lse: 2^-24 max(8, 8 |lse|, 8 L, sqrt(D) L + 2 A). The last is the dot product's share, as
 *   above: it counts from D = 64 on, or where large terms cancel to a small logit.
 *
 * Why sqrt(D) L + 2 A: a float32 dot product rounds D times, by up to 2^-24 of its partial sum, and
 * independent roundings add up as sqrt(D); partial sums that rise steadily reach L. Where terms
 * cancel, the sum's i-th step is sqrt(i / D) A / sqrt(D) from 0: all D roundings then make A / 2, a
 * standard deviation of which millions of comparisons meet four.
 *
 * - NaN and Inf sit exactly where the oracle has them; -inf and 0 of a row without keys are exact.
 *
 * Everything is compared positively: ok = |error| <= tolerance, so that NaN fails. */
#ifndef TESTS_COMPARE_H
#define TESTS_COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fa_fwd_causal.h"

/* What the bounds of one (row, head) depend on. */
typedef struct compare_row {
    double max_value; /* V */
    double max_logit; /* L */
    double dot_size;  /* A */
    int64_t visible;  /* n */
} compare_row;

/* rows x heads x dim elements of o, rows x heads of the rest, all dense. */
typedef struct compare_input {
    int32_t dtype;
    int64_t rows;
    int32_t heads, dim;
    const void *o;    /* elements of dtype */
    const float *lse; /* null: not compared */
    const double *want_o;
    const double *want_lse;
    const double *baseline_o; /* null: only the bound per element, as for float32 */
    const compare_row *facts;
    bool coarse_lse; /* a dialect: lse is as accurate as the dtype */
    bool exact;      /* o equals the oracle's value rounded to the dtype: no tolerance at all */
} compare_input;

typedef struct compare_report {
    bool ok;
    int64_t elements, bad; /* elements of o and values of lse */
    int broken_rules;      /* about an RMS, which no single element breaks */
    /* The worst element: its error over its tolerance, and where. dim is -1 for an lse. */
    double ratio;
    int64_t row;
    int32_t head, dim;
    double got, want, tolerance;
    const char *origin; /* which rule gave that tolerance, or which rule failed as a whole */
    double max_ratio;   /* largest error over its tolerance from the baseline; 0 without one */
    double rms_ratio;   /* RMS error over the baseline's; 0 without one */
    double row_ratio;   /* the same for the worst row */
    double bound_ratio; /* largest error over the derived bound */
    double lse_ratio;
    double frobenius; /* |o - want| / |want| */
    double largest_o_tolerance, largest_lse_tolerance;
} compare_report;

void compare_outputs(const compare_input *in, compare_report *report);

/* One line: verdict, counts, ratios, the worst element. */
void compare_print(const compare_report *report, char *text, size_t text_size);

/* Half an ulp relative to the value: 2^-11 fp16, 2^-8 bf16, 2^-24 float32. */
double compare_unit(int32_t dtype);
/* Distance from |value| to the next larger number of the dtype. */
double compare_ulp(int32_t dtype, double value);

enum { COMPARE_RMS_FROM = 4096 }; /* elements below which an RMS says nothing */

#endif /* TESTS_COMPARE_H */
