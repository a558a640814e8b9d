/* expect.h - what the Criterion suites share: cases by line that must be right, and comparisons of
 * their results. Every case is judged by the oracle too, so no identity can hold between two wrong
 * answers. Failures are logged with the line that reproduces them and do not stop the test. */
#ifndef TESTS_EXPECT_H
#define TESTS_EXPECT_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cases.h"
#include "fa_dtype.h"

/* Runs a case and expects it to be right. */
static inline case_result expect_case(const test_case *c) {
    case_result r;
    cr_expect(case_run(subject_get(), c, &r), "%s", r.why);
    return r;
}

/* The same for a line whose result does not matter further. */
static inline void expect_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline void expect_line(const char *format, ...) {
    char line[CASE_LINE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    const test_case c = case_of("%s", line);
    case_result r = expect_case(&c);
    case_result_free(&r);
}

/* "device=... dtype=... kernel=... " of every dtype and kernel path of a device, one after another;
 * n counts from 0, false after the last. The library's own choice counts only where no path can be
 * forced: else it is one of them, and the case list and the truth table run it too. */
static inline bool expect_path_of(fa_device device, int n, char prefix[64]) {
    static const char *const dtypes[] = {"f16", "bf16", "f32"};
    const bool cpu = device == FA_DEVICE_CPU;
    const char *paths[SUBJECT_MAX_PATHS];
    const int count = subject_paths(subject_get(), device, paths), types = cpu ? 3 : 2;
    const int at = n / types + (count > 1);
    if (at >= count || !memory_of(device)) return false;
    snprintf(prefix, 64, "device=%s dtype=%s %s%s ", cpu ? "cpu" : "cuda", dtypes[n % types],
             at ? "kernel=" : "", paths[at]);
    return true;
}

/* The same over the CPU and then, where there is one, the GPU. */
static inline bool expect_path(int n, char prefix[64]) {
    if (expect_path_of(FA_DEVICE_CPU, n, prefix)) return true;
    int before = 0;
    while (expect_path_of(FA_DEVICE_CPU, before, prefix)) ++before;
    return expect_path_of(FA_DEVICE_CUDA, n - before, prefix);
}

static inline int64_t expect_row_values(const test_case *c) {
    return (int64_t)c->heads_q * c->head_dim;
}

static inline double expect_value(const test_case *c, const case_result *r, int64_t at) {
    return (double)fa_dtype_get(c->dtype, r->o, at);
}

/* Rows [a_row, a_row + rows) of one result against those from b_row of another: the same bits, or
 * within what both are allowed to be off the truth. */
static inline void expect_rows(const test_case *c, const case_result *a, int64_t a_row,
                               const case_result *b, int64_t b_row, int64_t rows, bool bits,
                               const char *what) {
    if (!a->ok || !b->ok) return; /* reported already */
    const int64_t n = expect_row_values(c), size = fa_dtype_size(c->dtype);
    const double near_o = a->report.largest_o_tolerance + b->report.largest_o_tolerance;
    const double near_lse = a->report.largest_lse_tolerance + b->report.largest_lse_tolerance;
    int64_t bad = 0, nonzero = 0;
    for (int64_t at = 0; at < rows * n; ++at) {
        const double x = expect_value(c, a, a_row * n + at), y = expect_value(c, b, b_row * n + at);
        const bool same = memcmp((const char *)a->o + (a_row * n + at) * size,
                                 (const char *)b->o + (b_row * n + at) * size, (size_t)size) == 0;
        bad += bits ? !same : !(fabs(x - y) <= near_o);
        nonzero += x != 0;
    }
    for (int64_t at = 0; a->lse && b->lse && at < rows * c->heads_q; ++at) {
        const float x = a->lse[a_row * c->heads_q + at], y = b->lse[b_row * c->heads_q + at];
        const bool same = memcmp(&x, &y, sizeof x) == 0;
        bad += bits ? !same : !(x == y || fabs((double)x - (double)y) <= near_lse);
    }
    char line[CASE_LINE_MAX];
    case_print(c, line, sizeof line);
    cr_expect(bad == 0, "%s: %lld values differ\n    fa_case '%s'", what, (long long)bad, line);
    cr_expect(nonzero > 0 || rows == 0, "%s: all zero, which proves nothing: '%s'", what, line);
}

/* All rows of two results, same bits. */
static inline void expect_same(const test_case *c, const case_result *a, const case_result *b,
                               const char *what) {
    cr_expect(a->rows == b->rows, "%s: %lld and %lld rows", what, (long long)a->rows,
              (long long)b->rows);
    if (a->rows == b->rows) expect_rows(c, a, 0, b, 0, a->rows, true, what);
}

/* A line, and the same line with more keys, give the same bits. */
static inline void expect_same_with(const char *line, const char *more, const char *what) {
    const test_case a = case_of("%s", line), b = case_of("%s %s", line, more);
    case_result x = expect_case(&a), y = expect_case(&b);
    expect_same(&b, &x, &y, what);
    case_result_free(&x);
    case_result_free(&y);
}

#endif /* TESTS_EXPECT_H */
