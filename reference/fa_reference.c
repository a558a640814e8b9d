/* fa_reference.c - see fa_reference.h. Three steps: find the rows, read them as float32 (exact for
 * every dtype), and the formula. The formula stands here twice, in float64 and as the low-precision
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

/* The first `count` keys of one sequence and kv head. k is transposed, [head_dim][count], so that
 * the loop over keys is the inner one and the compiler may vectorise it without touching the order
 * of any sum; v is [count][head_dim]. */
typedef struct keys {
    int64_t count;
    float *k;
    float *v;
    double *weight; /* [count], scratch of the formulas */
} keys;

static void *allocate(int64_t count, size_t size) {
    void *memory = malloc((size_t)(count + 1) * size);
    if (memory == NULL) {
        fprintf(stderr, "fa_reference: no memory for %lld elements\n", (long long)count);
        abort();
    }
    return memory;
}

static keys read_keys(const fa_args *a, int32_t i, int32_t head_kv, int64_t count) {
    keys seen;
    seen.count = count;
    seen.k = allocate(count * a->head_dim, sizeof(float));
    seen.v = allocate(count * a->head_dim, sizeof(float));
    seen.weight = allocate(count, sizeof(double));
    for (int64_t j = 0; j < count; j++) {
        const int64_t k_at = kv_index(a, &a->k, i, head_kv, j);
        const int64_t v_at = kv_index(a, &a->v, i, head_kv, j);
        for (int64_t d = 0; d < a->head_dim; d++) {
            seen.k[d * count + j] = fa_dtype_get(a->dtype, a->k.data, k_at + d);
            seen.v[j * a->head_dim + d] = fa_dtype_get(a->dtype, a->v.data, v_at + d);
        }
    }
    return seen;
}

static void free_keys(keys *seen) {
    free(seen->k);
    free(seen->v);
    free(seen->weight);
}

/* ---- the formula ---- */

/* A row that sees `count` of the keys read. */
static void exact_row(const fa_args *a, const float *q, const keys *seen, int64_t count, double *o,
                      double *lse, double *max_logit) {
    const double scale = scale_of(a);
    double *weight = seen->weight;
    double largest = -INFINITY, sum = 0;
    *max_logit = 0;
    for (int64_t j = 0; j < count; j++) weight[j] = 0;
    for (int64_t d = 0; d < a->head_dim; d++)
        for (int64_t j = 0; j < count; j++)
            weight[j] += (double)q[d] * (double)seen->k[d * seen->count + j];
    for (int64_t j = 0; j < count; j++) {
        weight[j] *= scale;
        if (isnan(weight[j]) || weight[j] > largest) largest = weight[j];
        if (isfinite(weight[j]) && fabs(weight[j]) > *max_logit) *max_logit = fabs(weight[j]);
        if (isnan(largest)) break;
    }
    for (int64_t d = 0; d < a->head_dim; d++) o[d] = 0;
    *lse = -INFINITY;
    if (largest == -INFINITY) return; /* no key, or none with a weight */
    for (int64_t j = 0; j < count; j++) {
        weight[j] = exp(weight[j] - largest);
        sum += weight[j];
        for (int64_t d = 0; d < a->head_dim; d++)
            o[d] += weight[j] * (double)seen->v[j * a->head_dim + d];
    }
    for (int64_t d = 0; d < a->head_dim; d++) o[d] /= sum;
    *lse = largest + log(sum);
}

static void baseline_row(const fa_args *a, const float *q, const keys *seen, int64_t count,
                         double *o, double *lse) {
    const float scale = scale_of(a);
    float *logit = allocate(count + a->head_dim, sizeof(float));
    float *acc = logit + count;
    float largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < count + a->head_dim; j++) logit[j] = 0;
    for (int64_t d = 0; d < a->head_dim; d++)
        for (int64_t j = 0; j < count; j++) logit[j] += q[d] * seen->k[d * seen->count + j];
    for (int64_t j = 0; j < count; j++) {
        logit[j] *= scale;
        if (isnan(logit[j]) || !(logit[j] <= largest)) largest = logit[j];
        if (isnan(largest)) break;
    }
    for (int64_t d = 0; d < a->head_dim; d++) o[d] = 0;
    *lse = -INFINITY;
    if (largest != -INFINITY) {
        for (int64_t j = 0; j < count; j++) {
            const float weight = expf(logit[j] - largest);
            const float rounded = fa_dtype_round(a->dtype, weight);
            sum += weight; /* as kernels do: rounding is for the second product only */
            for (int64_t d = 0; d < a->head_dim; d++)
                acc[d] += rounded * seen->v[j * a->head_dim + d];
        }
        for (int64_t d = 0; d < a->head_dim; d++)
            o[d] = (double)fa_dtype_round(a->dtype, acc[d] / sum);
        *lse = (double)(largest + logf(sum));
    }
    free(logit);
}

/* One row of the call by either formula, into that row's own o, lse and max_logit. */
static void run_row(const fa_args *a, int32_t i, int32_t head, int64_t r, const keys *seen,
                    int baseline, double *o, double *lse, double *max_logit) {
    const int64_t at = q_index(a, &a->q, i, head, r);
    float *q = allocate(a->head_dim, sizeof(float));
    double lse_here, max_here;
    for (int64_t d = 0; d < a->head_dim; d++) q[d] = fa_dtype_get(a->dtype, a->q.data, at + d);
    if (baseline)
        baseline_row(a, q, seen, visible(a, i, r), o, lse != NULL ? lse : &lse_here);
    else
        exact_row(a, q, seen, visible(a, i, r), o, lse != NULL ? lse : &lse_here,
                  max_logit != NULL ? max_logit : &max_here);
    free(q);
}

static void one_row(const fa_args *args, int32_t i, int32_t head, int64_t r, int baseline,
                    double *o, double *lse, double *max_logit) {
    const fa_args a = whole(args);
    keys seen = read_keys(&a, i, head / (a.heads_q / a.heads_kv), visible(&a, i, r));
    run_row(&a, i, head, r, &seen, baseline, o, lse, max_logit);
    free_keys(&seen);
}

static void all_rows(const fa_args *args, int baseline, double *o, double *lse, double *max_logit) {
    const fa_args a = whole(args);
    const int32_t group = a.heads_q / a.heads_kv;
    const int64_t units = (int64_t)a.batch * a.heads_kv;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic)
#endif
    for (int64_t unit = 0; unit < units; unit++) {
        const int32_t i = (int32_t)(unit / a.heads_kv);
        const int32_t head_kv = (int32_t)(unit % a.heads_kv);
        const int64_t rows = q_side(&a, i).count;
        if (rows == 0) continue;
        keys seen = read_keys(&a, i, head_kv, visible(&a, i, rows - 1));
        for (int32_t head = head_kv * group; head < (head_kv + 1) * group; head++)
            for (int64_t r = 0; r < rows; r++) {
                const int64_t row = ((int64_t)i * a.heads_q + head) * a.q_len + r;
                run_row(&a, i, head, r, &seen, baseline, o + row * a.head_dim,
                        lse != NULL ? lse + row : NULL, max_logit != NULL ? max_logit + row : NULL);
            }
        free_keys(&seen);
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
    one_row(args, i, head, r, 0, o, lse, max_logit);
}

void fa_reference_baseline_row(const fa_args *args, int32_t i, int32_t head, int64_t r, double *o,
                               double *lse) {
    one_row(args, i, head, r, 1, o, lse, NULL);
}

void fa_reference_forward(const fa_args *args, double *o, double *lse, double *max_logit) {
    all_rows(args, 0, o, lse, max_logit);
}

void fa_reference_baseline(const fa_args *args, double *o, double *lse) {
    all_rows(args, 1, o, lse, NULL);
}
