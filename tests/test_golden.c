/* test_golden.c - the oracles against each other, before any of them judges a kernel: the C oracle
 * against the golden files of generate.py, and against the formula in long double.
 *
 * A difference is measured in units of max(1, the row's largest |logit|), for that is how an error
 * of one rounding in a logit reaches o and lse. This file changes with the reference. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fa_dtype.h"
#include "fa_golden.h"
#include "fa_reference.h"

#define AGREEMENT 1e-12

enum { kPathSize = 1024, kMaxFiles = 256, kMaxDim = 512, kUntouched = 7777 };

/* The largest difference seen, and the element where it is. */
typedef struct worst {
    double difference;
    char where[192];
    int64_t values;
} worst;

static void golden_path(const char *name, char path[kPathSize]) {
    const char *slash = strrchr(__FILE__, '/');
    const int folder = slash != NULL ? (int)(slash + 1 - __FILE__) : 0;
    snprintf(path, kPathSize, "%.*s../golden/%.80s", folder, __FILE__, name);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const fa_golden *)a)->name, ((const fa_golden *)b)->name);
}

/* All golden files, in the order of their names. */
static int load_all(fa_golden goldens[kMaxFiles]) {
    char path[kPathSize];
    int count = 0;
    golden_path("", path);
    DIR *folder = opendir(path);
    cr_assert(folder != NULL, "cannot read %s", path);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (strstr(entry->d_name, ".golden") == NULL) continue;
        cr_assert(count < kMaxFiles, "more than %d golden files", kMaxFiles);
        golden_path(entry->d_name, path);
        cr_assert(fa_golden_load(path, &goldens[count++]) == 0, "cannot read %s", path);
    }
    closedir(folder);
    qsort(goldens, (size_t)count, sizeof goldens[0], by_name);
    return count;
}

static void free_all(fa_golden *goldens, int count) {
    for (int n = 0; n < count; n++) fa_golden_free(&goldens[n]);
}

/* NaN and Inf must be the same; a NaN difference would compare as no difference. */
static void note(worst *w, double got, double want, double max_logit, const char *where) {
    double difference = fabs(got - want) / fmax(1, max_logit);
    if (got == want || (isnan(got) && isnan(want))) difference = 0;
    if (isnan(difference)) difference = INFINITY;
    w->values++;
    if (difference <= w->difference) return;
    w->difference = difference;
    snprintf(w->where, sizeof w->where, "%.100s: got %.17g, want %.17g", where, got, want);
}

/* Both o and lse of one row. */
static void note_row(worst *w, const fa_golden *golden, const int64_t at[3], const double *o,
                     double lse, const double *want_o, double want_lse, double max_logit) {
    char where[128];
    for (int d = -1; d < golden->args.head_dim; d++) {
        snprintf(where, sizeof where, "%.60s sequence %d head %d row %d dim %d", golden->name,
                 (int)at[0], (int)at[1], (int)at[2], d);
        if (d < 0)
            note(w, lse, want_lse, max_logit, where);
        else
            note(w, o[d], want_o[d], max_logit, where);
    }
}

static void row_in_long_double(const fa_args *a, int32_t i, int32_t head, int64_t r, double *o,
                               double *lse) {
    const int32_t head_kv = head / (a->heads_q / a->heads_kv);
    const int64_t seen = fa_reference_visible(a, i, r);
    const int64_t q_at = fa_reference_q_index(a, &a->q, i, head, r);
    long double largest = -INFINITY, sum = 0, acc[kMaxDim] = {0};
    long double *logit = malloc((size_t)(seen + 1) * sizeof *logit);
    for (int64_t j = 0; j < seen; j++) {
        const int64_t k_at = fa_reference_kv_index(a, &a->k, i, head_kv, j);
        logit[j] = 0;
        for (int64_t d = 0; d < a->head_dim; d++)
            logit[j] += (long double)fa_dtype_get(a->dtype, a->q.data, q_at + d) *
                        fa_dtype_get(a->dtype, a->k.data, k_at + d);
        logit[j] *= fa_reference_scale(a);
        if (!isnan(largest) && !(logit[j] <= largest)) largest = logit[j];
    }
    for (int64_t j = 0; j < seen && largest != -INFINITY; j++) {
        const int64_t v_at = fa_reference_kv_index(a, &a->v, i, head_kv, j);
        const long double weight = expl(logit[j] - largest);
        sum += weight;
        for (int64_t d = 0; d < a->head_dim; d++)
            acc[d] += weight * fa_dtype_get(a->dtype, a->v.data, v_at + d);
    }
    for (int64_t d = 0; d < a->head_dim; d++) o[d] = sum == 0 ? 0 : (double)(acc[d] / sum);
    *lse = (double)(largest + logl(sum));
    free(logit);
}

/* Walks over the rows that exist in the golden files' order. */
static void compare_case(const fa_golden *golden, bool with_long_double, worst *w) {
    const fa_args *a = &golden->args;
    int64_t row = 0;
    for (int32_t i = 0; i < a->batch; i++) {
        int64_t q_len;
        fa_reference_lengths(a, i, &q_len, NULL);
        for (int32_t head = 0; head < a->heads_q; head++)
            for (int64_t r = 0; r < q_len; r++, row++) {
                double o[kMaxDim], lse, max_logit, long_o[kMaxDim], long_lse;
                const double *want_o = golden->o + row * a->head_dim;
                cr_assert(row < golden->rows, "%s: more rows than the file", golden->name);
                fa_reference_row(a, i, head, r, o, &lse, &max_logit);
                if (with_long_double) row_in_long_double(a, i, head, r, long_o, &long_lse);
                note_row(w, golden, (int64_t[]){i, head, r}, o, lse,
                         with_long_double ? long_o : want_o,
                         with_long_double ? long_lse : golden->lse[row], max_logit);
            }
    }
    cr_assert(row == golden->rows, "%s: %d rows, the file has %d", golden->name, (int)row,
              (int)golden->rows);
}

static void compare_all(bool with_long_double, const char *against) {
    static fa_golden goldens[kMaxFiles];
    const int count = load_all(goldens);
    worst w = {0};
    for (int n = 0; n < count; n++) compare_case(&goldens[n], with_long_double, &w);
    printf("C oracle against %s: %d cases, %lld values, largest difference %.2e of %.0e allowed\n",
           against, count, (long long)w.values, w.difference, AGREEMENT);
    cr_assert(count >= 30, "only %d golden files", count);
    cr_assert(w.difference <= AGREEMENT, "%.2e at %s", w.difference, w.where);
    free_all(goldens, count);
}

Test(golden, c_oracle_agrees_with_the_files) { compare_all(false, "the golden files"); }

Test(golden, c_oracle_agrees_with_long_double) { compare_all(true, "long double"); }

/* One row of the dense output: that row's own bits where the sequence has it, else untouched. */
static bool dense_row_is_right(const fa_args *a, int64_t at, const double *o, double lse) {
    const int32_t i = (int32_t)(at / a->q_len / a->heads_q);
    const int32_t head = (int32_t)(at / a->q_len % a->heads_q);
    double want_o[kMaxDim], want_lse = kUntouched;
    int64_t q_len;
    fa_reference_lengths(a, i, &q_len, NULL);
    for (int32_t d = 0; d < a->head_dim; d++) want_o[d] = kUntouched;
    if (at % a->q_len < q_len) fa_reference_row(a, i, head, at % a->q_len, want_o, &want_lse, NULL);
    return memcmp(o, want_o, (size_t)a->head_dim * sizeof *o) == 0 &&
           memcmp(&lse, &want_lse, sizeof lse) == 0;
}

Test(golden, forward_equals_its_rows_and_leaves_the_others) {
    static fa_golden goldens[kMaxFiles];
    const int count = load_all(goldens);
    for (int n = 0; n < count; n++) {
        const fa_args *a = &goldens[n].args;
        const int64_t rows = (int64_t)a->batch * a->heads_q * a->q_len;
        double *o = malloc((size_t)(rows * a->head_dim + 1) * sizeof *o);
        double *lse = malloc((size_t)(rows + 1) * sizeof *lse);
        for (int64_t at = 0; at < rows * a->head_dim; at++) o[at] = kUntouched;
        for (int64_t at = 0; at < rows; at++) lse[at] = kUntouched;
        fa_reference_forward(a, o, lse, NULL);
        for (int64_t at = 0; at < rows; at++)
            cr_assert(dense_row_is_right(a, at, o + at * a->head_dim, lse[at]), "%s: dense row %d",
                      goldens[n].name, (int)at);
        free(o);
        free(lse);
    }
    free_all(goldens, count);
}

Test(golden, manifest_names_every_file) {
    static fa_golden goldens[kMaxFiles];
    static char text[1 << 18];
    char path[kPathSize], entry[128];
    const int count = load_all(goldens);
    int listed = 0;
    golden_path("MANIFEST.json", path);
    FILE *file = fopen(path, "rb");
    cr_assert(file != NULL, "cannot read %s", path);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    for (const char *at = text; (at = strstr(at, "\"file\": ")) != NULL; at++) listed++;
    cr_assert(listed == count, "%d files, %d in the manifest", count, listed);
    for (int n = 0; n < count; n++) {
        snprintf(entry, sizeof entry, "\"file\": \"%.60s.golden\"", goldens[n].name);
        cr_assert(strstr(text, entry) != NULL, "%s is not in the manifest", goldens[n].name);
    }
    free_all(goldens, count);
}

/* Every half goes to float32 and back; halfway points go to the even neighbour, their float32
 * neighbours to the nearer one. */
static void check_dtype(int32_t dtype, uint16_t infinity) {
    for (uint32_t bits = 0; bits <= infinity; bits++) {
        const uint16_t low = (uint16_t)bits, high = (uint16_t)(bits + 1);
        uint16_t back;
        const float value = fa_dtype_get(dtype, &low, 0);
        fa_dtype_set(dtype, &back, 0, value);
        cr_assert(back == low, "%04x becomes %04x", low, back);
        fa_dtype_set(dtype, &back, 0, -value);
        cr_assert(back == (low | 0x8000), "-%04x becomes %04x", low, back);
        if (high >= infinity) continue;
        const float middle = value + (fa_dtype_get(dtype, &high, 0) - value) / 2;
        const uint16_t even = low % 2 == 0 ? low : high;
        fa_dtype_set(dtype, &back, 0, middle);
        cr_assert(back == even, "halfway above %04x becomes %04x", low, back);
        fa_dtype_set(dtype, &back, 0, nextafterf(middle, 0));
        cr_assert(back == low || (middle == 0 && back == even), "%04x becomes %04x", low, back);
        fa_dtype_set(dtype, &back, 0, nextafterf(middle, INFINITY));
        cr_assert(back == high, "%04x becomes %04x", high, back);
    }
    for (uint32_t bits = infinity + 1u; bits < 0x8000; bits++) {
        const uint16_t nan = (uint16_t)bits;
        cr_assert(isnan(fa_dtype_get(dtype, &nan, 0)), "%04x is no NaN", nan);
        cr_assert(isnan(fa_dtype_round(dtype, fa_dtype_get(dtype, &nan, 0))), "%04x", nan);
    }
}

Test(dtype, f16_rounds_to_nearest_even) {
    check_dtype(FA_DTYPE_F16, 0x7c00);
    cr_assert(fa_f16_from_f32(65519.996f) == 0x7bff && fa_f16_from_f32(65520.0f) == 0x7c00);
    cr_assert(fa_f16_from_f32(0x1p-25f) == 0 && fa_f16_from_f32(0x1.000002p-25f) == 1);
}

Test(dtype, bf16_rounds_to_nearest_even) {
    check_dtype(FA_DTYPE_BF16, 0x7f80);
    cr_assert(fa_bf16_from_f32(3.4028235e38f) == 0x7f80);
}
