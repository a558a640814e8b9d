/* fa_reference.c - see fa_reference.h. Find the rows, read them as float32 (exact for every dtype),
 * and do what the formula says. The formula stands here twice, in float64 and as the low-precision
 * baseline, so that neither is written in terms of the other. */
#include "fa_reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fa_dtype.h"

/* ---- the rows ---- */

/* The rows of one side of one sequence, in the coordinates of its view. */
typedef struct side {
    int64_t first;
    int64_t count;
} side;

/* An older, shorter struct reads as 0 beyond its end. */
static fa_args whole(const fa_args *args) {
    fa_args all;
    memset(&all, 0, sizeof all);
    const size_t given = (size_t)args->struct_size;
    memcpy(&all, args, given < sizeof all ? given : sizeof all);
    return all;
}

static int64_t between(int64_t low, int64_t value, int64_t high) {
    if (value > high) value = high;
    if (value < low) value = low;
    return value;
}

static side find_side(int32_t i, int64_t declared, const int32_t *cu_seqlens, int64_t total,
                      const int32_t *seqused, const int32_t *leftpad) {
    int64_t start = 0;
    int64_t end = declared;
    if (cu_seqlens != NULL) {
        start = between(0, cu_seqlens[i], total);
        end = between(0, cu_seqlens[i + 1], total);
        if (end < start) end = start;
    }
    side rows;
    rows.first = start;
    if (leftpad != NULL) rows.first += between(0, leftpad[i], end - start);
    rows.count = between(0, end - rows.first, declared);
    if (seqused != NULL) rows.count = between(0, seqused[i], rows.count);
    return rows;
}

static side q_side(const fa_args *a, int32_t i) {
    return find_side(i, a->q_len, a->cu_seqlens_q, a->total_q, a->seqused_q, a->leftpad_q);
}

static side kv_side(const fa_args *a, int32_t i) {
    side rows = find_side(i, a->kv_len, a->cu_seqlens_k, a->total_k, a->seqused_k, a->leftpad_k);
    if (a->page_size > 0 && a->num_pages == 0) rows.count = 0;
    return rows;
}

static int64_t q_index(const fa_args *a, const fa_view *view, int32_t i, int32_t head, int64_t r) {
    const int64_t entry = a->cu_seqlens_q != NULL ? 0 : i;
    return entry * view->stride_batch + head * view->stride_head +
           (q_side(a, i).first + r) * view->stride_seq;
}

static int64_t kv_index(const fa_args *a, const fa_view *view, int32_t i, int32_t head, int64_t j) {
    int64_t row = kv_side(a, i).first + j;
    int64_t entry = a->cu_seqlens_k != NULL ? 0 : i;
    if (a->page_size > 0) {
        entry = a->block_table[i * a->block_table_stride + row / a->page_size];
        entry = between(0, entry, a->num_pages - 1);
        row = row % a->page_size;
    }
    return entry * view->stride_batch + head * view->stride_head + row * view->stride_seq;
}

static int64_t visible(const fa_args *a, int32_t i, int64_t r) {
    const int64_t keys = kv_side(a, i).count;
    int64_t offset = keys - q_side(a, i).count;
    if (a->align == FA_ALIGN_OFFSET)
        offset = a->causal_offsets != NULL ? a->causal_offsets[i] : a->causal_offset;
    return between(0, r + offset + 1, keys);
}

static float scale_of(const fa_args *a) {
    return a->scale != 0 ? a->scale : (float)(1 / sqrt((double)a->head_dim));
}

/* ---- reading ---- */

enum { MAX_DIM = 512, LANES = 8 };

/* The head_dim elements from `at` on; `to` keeps what it holds beyond them. */
static void read_row(const fa_args *a, const fa_view *view, int64_t at, float to[MAX_DIM]) {
    const uint16_t *bits = (const uint16_t *)view->data + at;
    if (a->dtype == FA_DTYPE_F32)
        memcpy(to, (const float *)view->data + at, (size_t)a->head_dim * sizeof *to);
    else if (a->dtype == FA_DTYPE_F16)
        for (int32_t d = 0; d < a->head_dim; d++) to[d] = fa_f16_to_f32(bits[d]);
    else
        for (int32_t d = 0; d < a->head_dim; d++) to[d] = fa_bf16_to_f32(bits[d]);
}

static void *allocate(int64_t count, size_t size) {
    void *memory = malloc((size_t)(count + 1) * size);
    if (memory == NULL) {
        fprintf(stderr, "fa_reference: no memory for %lld elements\n", (long long)count);
        abort();
    }
    return memory;
}

/* ---- the formula ---- */

/* q . k over rows that are 0 beyond head_dim. LANES sums instead of one, because each addition to a
 * single sum waits for the one before, and an oracle that takes minutes is not asked often. */
static double dot_exact(const float *q, const float *k, int32_t dim) {
    double part[LANES] = {0}, sum = 0;
    for (int32_t d = 0; d < dim; d += LANES)
        for (int32_t n = 0; n < LANES; n++) part[n] += (double)q[d + n] * (double)k[d + n];
    for (int32_t n = 0; n < LANES; n++) sum += part[n];
    return sum;
}

static float dot_float32(const float *q, const float *k, int32_t dim) {
    float part[LANES] = {0}, sum = 0;
    for (int32_t d = 0; d < dim; d += LANES)
        for (int32_t n = 0; n < LANES; n++) part[n] += q[d + n] * k[d + n];
    for (int32_t n = 0; n < LANES; n++) sum += part[n];
    return sum;
}

static void exact_row(const fa_args *a, int32_t i, int32_t head, int64_t r, double *o, double *lse,
                      double *max_logit) {
    const int32_t head_kv = head / (a->heads_q / a->heads_kv);
    const int64_t count = visible(a, i, r);
    const double scale = (double)scale_of(a);
    float q[MAX_DIM] = {0}, row[MAX_DIM] = {0};
    double acc[MAX_DIM] = {0};
    double *logit = allocate(count, sizeof *logit);
    double largest = -INFINITY, sum = 0;
    *max_logit = 0;
    read_row(a, &a->q, q_index(a, &a->q, i, head, r), q);
    for (int64_t j = 0; j < count; j++) {
        read_row(a, &a->k, kv_index(a, &a->k, i, head_kv, j), row);
        logit[j] = scale * dot_exact(q, row, a->head_dim);
        if (isfinite(logit[j])) *max_logit = fmax(*max_logit, fabs(logit[j]));
        if (!isnan(largest) && !(logit[j] <= largest)) largest = logit[j]; /* NaN is largest */
    }
    for (int64_t j = 0; j < count && largest != -INFINITY; j++) {
        const double weight = exp(logit[j] - largest);
        sum += weight;
        read_row(a, &a->v, kv_index(a, &a->v, i, head_kv, j), row);
        for (int32_t d = 0; d < a->head_dim; d++) acc[d] += weight * (double)row[d];
    }
    /* Without a weight, sum is 0: then o is 0 and lse is -inf. */
    for (int32_t d = 0; d < a->head_dim; d++) o[d] = sum == 0 ? 0 : acc[d] / sum;
    *lse = sum == 0 ? -INFINITY : largest + log(sum);
    free(logit);
}

static void baseline_row(const fa_args *a, int32_t i, int32_t head, int64_t r, double *o,
                         double *lse) {
    const int32_t head_kv = head / (a->heads_q / a->heads_kv);
    const int64_t count = visible(a, i, r);
    const float scale = scale_of(a);
    float q[MAX_DIM] = {0}, row[MAX_DIM] = {0}, acc[MAX_DIM] = {0};
    float *logit = allocate(count, sizeof *logit);
    float largest = -INFINITY, sum = 0;
    read_row(a, &a->q, q_index(a, &a->q, i, head, r), q);
    for (int64_t j = 0; j < count; j++) {
        read_row(a, &a->k, kv_index(a, &a->k, i, head_kv, j), row);
        logit[j] = scale * dot_float32(q, row, a->head_dim);
        if (!isnan(largest) && !(logit[j] <= largest)) largest = logit[j];
    }
    for (int64_t j = 0; j < count && largest != -INFINITY; j++) {
        const float weight = expf(logit[j] - largest);
        const float rounded = fa_dtype_round(a->dtype, weight);
        sum += weight; /* as kernels do: the rounding is for the second product only */
        read_row(a, &a->v, kv_index(a, &a->v, i, head_kv, j), row);
        for (int32_t d = 0; d < a->head_dim; d++) acc[d] += rounded * row[d];
    }
    for (int32_t d = 0; d < a->head_dim; d++)
        o[d] = sum == 0 ? 0 : (double)fa_dtype_round(a->dtype, acc[d] / sum);
    *lse = sum == 0 ? -INFINITY : (double)(largest + logf(sum));
    free(logit);
}

/* One row by either formula; lse and max_logit may be null. */
static void run_row(const fa_args *a, int baseline, int32_t i, int32_t head, int64_t r, double *o,
                    double *lse, double *max_logit) {
    double unused;
    if (lse == NULL) lse = &unused;
    if (baseline)
        baseline_row(a, i, head, r, o, lse);
    else
        exact_row(a, i, head, r, o, lse, max_logit != NULL ? max_logit : &unused);
}

static void all_rows(const fa_args *args, int baseline, double *o, double *lse, double *max_logit) {
    const fa_args a = whole(args);
    const int64_t rows = (int64_t)a.batch * a.heads_q * a.q_len;
    for (int64_t at = 0; at < rows; at++) {
        const int64_t r = at % a.q_len;
        const int32_t head = (int32_t)(at / a.q_len % a.heads_q);
        const int32_t i = (int32_t)(at / a.q_len / a.heads_q);
        if (r < q_side(&a, i).count)
            run_row(&a, baseline, i, head, r, o + at * a.head_dim, lse != NULL ? lse + at : NULL,
                    max_logit != NULL ? max_logit + at : NULL);
    }
}

/* ---- the public face ---- */

void fa_reference_lengths(const fa_args *args, int32_t i, int64_t *q_len, int64_t *kv_len) {
    const fa_args a = whole(args);
    if (q_len != NULL) *q_len = q_side(&a, i).count;
    if (kv_len != NULL) *kv_len = kv_side(&a, i).count;
}

int64_t fa_reference_visible(const fa_args *args, int32_t i, int64_t r) {
    const fa_args a = whole(args);
    return visible(&a, i, r);
}

float fa_reference_scale(const fa_args *args) { return scale_of(args); }

int64_t fa_reference_q_index(const fa_args *args, const fa_view *view, int32_t i, int32_t head,
                             int64_t r) {
    const fa_args a = whole(args);
    return q_index(&a, view, i, head, r);
}

int64_t fa_reference_kv_index(const fa_args *args, const fa_view *view, int32_t i, int32_t head,
                              int64_t j) {
    const fa_args a = whole(args);
    return kv_index(&a, view, i, head, j);
}

void fa_reference_row(const fa_args *args, int32_t i, int32_t head, int64_t r, double *o,
                      double *lse, double *max_logit) {
    const fa_args a = whole(args);
    run_row(&a, 0, i, head, r, o, lse, max_logit);
}

void fa_reference_baseline_row(const fa_args *args, int32_t i, int32_t head, int64_t r, double *o,
                               double *lse) {
    const fa_args a = whole(args);
    run_row(&a, 1, i, head, r, o, lse, NULL);
}

void fa_reference_forward(const fa_args *args, double *o, double *lse, double *max_logit) {
    all_rows(args, 0, o, lse, max_logit);
}

void fa_reference_baseline(const fa_args *args, double *o, double *lse) {
    all_rows(args, 1, o, lse, NULL);
}
