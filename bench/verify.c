/* verify.c - is a result right? Compared with the oracle on a sample of rows, and with another
 * result of the same rows in full. No time is recorded before both hold.
 *
 * The limits are those of the tests for N(0,1) inputs: a relative Frobenius error of 2e-6 (f32),
 * 4e-4 (f16), 2.6e-3 (bf16). A row, or fewer than 4,096 elements, scatter more and get twice that.
 */
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "fa_dtype.h"
#include "fa_reference.h"

int fb_passes(fb_error error) { return error.whole <= 1 && error.row <= 1; }

static double limit_of(int32_t dtype) {
    return dtype == FA_DTYPE_F32 ? 2e-6 : dtype == FA_DTYPE_F16 ? 4e-4 : 2.6e-3;
}

/* The larger, and NaN if either is NaN. */
static double worse(double a, double b) { return a >= b ? a : b >= a ? b : NAN; }

/* Rows that are 0 throughout (no visible key) must be so exactly. */
static double relative(double difference2, double size2) {
    return size2 > 0 ? sqrt(difference2 / size2) : difference2 == 0 ? 0 : NAN;
}

fb_error fb_compare(const void *got, const double *want, int64_t rows, int32_t head_dim,
                    int32_t dtype, double share) {
    const double limit = limit_of(dtype) * share;
    const double few = rows * head_dim < 4096 ? 2 : 1;
    double all_difference2 = 0, all_size2 = 0;
    fb_error error = {0, 0};
    for (int64_t r = 0; r < rows; r++) {
        double difference2 = 0, size2 = 0;
        for (int32_t d = 0; d < head_dim; d++) {
            const int64_t at = r * head_dim + d;
            const double delta = fa_dtype_get(dtype, got, at) - want[at];
            difference2 += delta * delta;
            size2 += want[at] * want[at];
        }
        error.row = worse(error.row, relative(difference2, size2) / (2 * limit));
        all_difference2 += difference2;
        all_size2 += size2;
    }
    error.whole = relative(all_difference2, all_size2) / (few * limit);
    return error;
}

/* One head of one sequence in host memory, as a call of its own. */
static fa_args head_alone(const fb_device *device, const fa_args *a, int32_t batch, int32_t head,
                          char *q, char *k, char *v) {
    const int64_t element = fa_dtype_size(a->dtype);
    const size_t row = (size_t)(a->head_dim * element);
    const int64_t kv_head = head / (a->heads_q / a->heads_kv);
    const fa_view *const views[] = {&a->q, &a->k, &a->v};
    char *const copies[] = {q, k, v};
    for (int i = 0; i < 3; i++) {
        const fa_view *view = views[i];
        const int64_t at = batch * view->stride_batch + (i ? kv_head : head) * view->stride_head;
        device->fetch(copies[i], (const char *)view->data + at * element, row,
                      (size_t)(view->stride_seq * element), i ? a->kv_len : a->q_len);
    }
    fa_args alone = *a;
    alone.device = FA_DEVICE_CPU;
    alone.batch = alone.heads_q = alone.heads_kv = 1;
    alone.q = fa_bshd(q, a->q_len, 1, a->head_dim);
    alone.k = fa_bshd(k, a->kv_len, 1, a->head_dim);
    alone.v = fa_bshd(v, a->kv_len, 1, a->head_dim);
    return alone;
}

int fb_against_oracle(const fb_device *device, const fa_args *a, const void *o, fb_error *error) {
    const int64_t dim = a->head_dim, row_bytes = dim * fa_dtype_size(a->dtype);
    const int32_t heads[] = {0, a->heads_q / 3, a->heads_q * 2 / 3, a->heads_q - 1};
    const int32_t rows[] = {0, a->q_len / 2, a->q_len - 1};
    enum { HEADS = 4, ROWS = 3 };
    char *q = malloc((size_t)((a->q_len + 1) * row_bytes));
    char *kv = malloc((size_t)((2 * (int64_t)a->kv_len + 1) * row_bytes));
    char *got = malloc((size_t)(2 * HEADS * ROWS * row_bytes));
    double *want = malloc((size_t)(2 * HEADS * ROWS * dim) * sizeof *want);
    const int memory = q && kv && got && want;
    int64_t count = 0;
    for (int32_t b = 0; memory && b<a->batch; b += a->batch> 1 ? a->batch - 1 : 1) {
        for (int h = 0; h < HEADS; h++) {
            const fa_args alone =
                head_alone(device, a, b, heads[h], q, kv, kv + a->kv_len * row_bytes);
            for (int r = 0; r < ROWS; r++, count++) {
                const int64_t at = ((int64_t)b * a->q_len + rows[r]) * a->heads_q + heads[h];
                fa_reference_row(&alone, 0, 0, rows[r], want + count * dim, NULL, NULL);
                for (int64_t i = 0; i < row_bytes; i++)
                    got[count * row_bytes + i] = ((const char *)o)[at * row_bytes + i];
            }
        }
    }
    if (memory) *error = fb_compare(got, want, count, a->head_dim, a->dtype, 1);
    free(q), free(kv), free(got), free(want);
    return memory;
}
