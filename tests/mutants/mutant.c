/* mutant.c - a library of the same ABI that is wrong on purpose, one fault at a time.
 *
 * The environment's FA_MUTANT names the fault; without it the library is right, which the runner
 * checks too. Checks and planning are the real ones (all kernels are linked in under the prefix
 * real_); the attention is a plain one of its own with a place for every fault. A new way of being
 * wrong is a name in mutants.h and one line here. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "fa_dtype.h"
#include "fa_internal.h" /* compiled with FA_PREFIX=real_ */
#include "mutants.h"

enum { kBlock = 64, kMaxDim = 512 };

static bool is(mutant_name name) {
    static int chosen = -1;
    if (chosen < 0) {
        const char *wish = getenv("FA_MUTANT");
        chosen = NONE;
        for (int i = 0; wish && i < kMutants; i++)
            if (strcmp(mutants[i].name, wish) == 0) chosen = i;
    }
    return (int)name == chosen;
}

/* One row of one query head, and where its sequence lies. */
typedef struct place {
    const fa_args *a;
    int64_t i, head, head_kv, row;
    fai_range q, k;
    int64_t keys, offset; /* keys of the sequence */
} place;

/* The online softmax of one row over some keys. */
typedef struct partial {
    float max, sum;
    float acc[kMaxDim];
} partial;

static int64_t wrapped(int64_t offset) { return is(INT32_OFFSETS) ? (int32_t)offset : offset; }

static int64_t kv_at(const place *p, const fa_view *view, int64_t key) {
    const fa_args *a = p->a;
    const int64_t row = p->k.begin + key;
    fa_view v = *view;
    if (is(BATCH_STRIDE_IGNORED) && a->page_size == 0) v.stride_batch = 0;
    if (is(STRIDES_AS_IF_CONTIGUOUS)) v.stride_seq = a->heads_kv * (int64_t)a->head_dim;
    if (is(PAGE_TABLE_IGNORED) && a->page_size > 0)
        return p->head_kv * v.stride_head + row / a->page_size % a->num_pages * v.stride_batch +
               row % a->page_size * v.stride_seq;
    return wrapped(fai_kv_offset(a, &v, p->i, p->head_kv, row));
}

static int64_t q_at(const place *p, const fa_view *view) {
    return wrapped(fai_q_offset(p->a, view, p->i, p->head, p->q.begin + p->row));
}

static float dot(const place *p, int64_t key) {
    const fa_args *a = p->a;
    const int64_t q = q_at(p, &a->q), k = kv_at(p, &a->k, key);
    double sum = 0;
    for (int32_t c = 0; c < a->head_dim; c++)
        sum += (double)fa_dtype_get(a->dtype, a->q.data, q + c) *
               (double)fa_dtype_get(a->dtype, a->k.data, k + c);
    return (float)(sum * (is(SCALE_MISSING) ? 1 : (double)a->scale));
}

static int64_t visible(const place *p) {
    int64_t offset = p->offset;
    if (is(TOP_LEFT_MASK) && p->a->align == FA_ALIGN_BOTTOM_RIGHT) offset = 0;
    if (is(DIAGONAL_EARLY)) offset--;
    if (is(DIAGONAL_LATE)) offset++;
    if (is(NO_MASK) || (is(NO_MASK_WHEN_ALIGNED) && p->keys % kBlock == 0 &&
                        (p->q.end - p->q.begin) % kBlock == 0))
        offset = p->keys;
    const int64_t count = fai_visible_keys(p->row, offset, p->keys);
    return is(KEY_PAST_THE_END) && p->keys > 0 && count == p->keys && p->a->page_size == 0
               ? count + 1
               : count;
}

static void rescale(partial *s, float factor, int32_t dim) {
    s->sum *= factor;
    for (int32_t c = 0; c < dim; c++) s->acc[c] *= factor;
}

/* Keys [begin, end), of which the first `seen` are visible. */
static void add_block(const place *p, int64_t begin, int64_t end, int64_t seen, partial *s) {
    const fa_args *a = p->a;
    float logit[kBlock + 1], most = s->max;
    for (int64_t j = begin; j < end; j++) {
        logit[j - begin] = j < seen ? dot(p, j) : -10000; /* only FINITE_SENTINEL has j >= seen */
        most = fmaxf(most, logit[j - begin]);
    }
    if (most == -INFINITY) return;
    if (!is(RESCALE_MISSING)) rescale(s, expf(s->max - most), a->head_dim);
    s->max = most;
    for (int64_t j = begin; j < end; j++) {
        const float difference = logit[j - begin] - most;
        const float weight = is(EXP_OF_BASE_2) ? exp2f(difference) : expf(difference);
        const int64_t v = kv_at(p, &a->v, j);
        s->sum += is(SUM_ROUNDED) ? fa_dtype_round(a->dtype, weight) : weight;
        if (is(SUM_ROUNDED)) s->sum = fa_dtype_round(a->dtype, s->sum);
        for (int32_t c = 0; c < a->head_dim; c++) {
            s->acc[c] += weight * fa_dtype_get(a->dtype, a->v.data, v + c);
            if (is(LOW_ACCUMULATION)) s->acc[c] = fa_dtype_round(a->dtype, s->acc[c]);
        }
    }
}

static void merge(partial *total, const partial *s, int32_t dim) {
    const float most = fmaxf(total->max, s->max);
    if (most == -INFINITY) return;
    const float old = expf(total->max - most),
                more = is(MERGE_UNWEIGHTED) ? 1 : expf(s->max - most);
    rescale(total, old, dim);
    total->max = most;
    total->sum += s->sum * more;
    for (int32_t c = 0; c < dim; c++) total->acc[c] += s->acc[c] * more;
}

static void add_keys(const place *p, const fai_plan *plan, partial *total) {
    const fa_args *a = p->a;
    const int64_t seen = visible(p), end = is(FINITE_SENTINEL) ? p->keys : seen;
    const int64_t per_sequence = a->split_keys > 0 ? fai_ceil_div(p->keys, a->split_keys) : 0;
    const int64_t splits = per_sequence > 0 ? per_sequence : plan->splits;
    for (int64_t n = 0; n < splits; n++) {
        const fai_range keys = fai_split_keys(n, splits, a->split_keys, p->keys, kBlock);
        const int64_t last = keys.end == p->keys ? end : fai_min64(keys.end, end);
        partial s = {is(MAX_FROM_ZERO) ? 0 : -INFINITY, 0, {0}};
        if (is(SPLIT_DROPPED) && n == 1) continue;
        for (int64_t begin = keys.begin; begin < last; begin += kBlock) {
            const int64_t until = fai_min64(begin + kBlock, last);
            if (is(PARTIAL_BLOCK_SKIPPED) && until - begin < kBlock && begin > 0) continue;
            add_block(p, begin, until, is(KEY_PAST_THE_END) ? until : seen, &s);
        }
        merge(total, &s, a->head_dim);
    }
}

static void store_o(const place *p, const float *o) {
    const fa_args *a = p->a;
    const int64_t at = q_at(p, &a->o);
    const int32_t dim = is(LAST_COLUMNS_UNWRITTEN) ? a->head_dim - 1 : a->head_dim;
    for (int32_t c = 0; c < dim; c++) fa_dtype_set(a->dtype, a->o.data, at + c, o[c]);
    if (is(WRITES_PAST_THE_END) && p->i == a->batch - 1 && p->head == a->heads_q - 1 &&
        p->row == p->q.end - p->q.begin - 1)
        fa_dtype_set(a->dtype, a->o.data, at + a->head_dim, 0);
}

static void store_lse(const place *p, const partial *s) {
    const fa_args *a = p->a;
    if (!a->lse.data || is(LSE_MISSING)) return;
    float lse = s->sum > 0 || s->sum != s->sum ? s->max + logf(s->sum) : -INFINITY;
    if (is(LSE_IN_BASE_2)) lse *= 1.44269504f;
    if (is(LSE_WITHOUT_MAX)) lse -= s->max;
    if (is(LSE_PLUS_INF) && lse == -INFINITY) lse = INFINITY;
    if (is(LSE_FINITE) && lse == -INFINITY) lse = -3.4e38f;
    if (is(EVERYTHING_ZERO)) lse = 0;
    if (is(EVERYTHING_EMPTY)) lse = -INFINITY;
    ((float *)a->lse.data)[q_at(p, &a->lse)] = lse;
}

/* The faults that alter a finished row; `middle` is one row deep inside the call. */
static void spoil_row(const place *p, float *o, bool middle) {
    const int32_t dim = p->a->head_dim;
    for (int32_t c = 0; c < dim; c++) {
        if (is(EVERYTHING_ZERO) || is(EVERYTHING_EMPTY)) o[c] = 0;
        if (is(O_CONSTANT)) o[c] = 0.75f;
        if (is(O_SHIFTED)) o[c] += 0.01f;
        if (is(ROW_WRONG) && middle) o[c] *= 1.5f;
        if (is(VECTOR_WRONG) && middle && c / 8 == dim / 16) o[c] = -o[c];
        if (is(ELEMENT_WRONG) && middle && c == dim / 2) o[c] += 0.25f;
    }
    if (is(TAIL_LEAKS) && p->a->page_size == 0 && p->keys > 0)
        for (int32_t c = 0; c < dim; c++)
            o[c] += 0 * fa_dtype_get(p->a->dtype, p->a->v.data, kv_at(p, &p->a->v, p->keys) + c);
}

static void mean_of_v(const place *p, float *o) {
    const fa_args *a = p->a;
    for (int32_t c = 0; c < a->head_dim; c++) {
        o[c] = 0;
        for (int64_t j = 0; j < p->keys; j++)
            o[c] += fa_dtype_get(a->dtype, a->v.data, kv_at(p, &a->v, j) + c) / (float)p->keys;
    }
}

static void attend(const place *p, const fai_plan *plan) {
    const fa_args *a = p->a;
    const int64_t rows = p->q.end - p->q.begin;
    const bool middle = p->i == a->batch / 2 && p->head == a->heads_q / 2 && p->row == rows / 2;
    partial total = {-INFINITY, 0, {0}};
    float o[kMaxDim];
    if (is(ROW_UNWRITTEN) && middle) return;
    add_keys(p, plan, &total);
    const bool empty = total.sum == 0;
    for (int32_t c = 0; c < a->head_dim; c++)
        o[c] = empty && !is(EMPTY_ROWS_NAN) ? 0 : total.acc[c] / total.sum;
    if (is(O_MEAN_OF_V) || (is(EMPTY_ROWS_MEAN) && empty && p->keys > 0)) mean_of_v(p, o);
    spoil_row(p, o, middle);
    place out = *p;
    if (is(ROWS_SHUFFLED)) out.row = rows - 1 - p->row;
    if (is(EMPTY_ROWS_SKIPPED) && empty) return;
    store_o(&out, o);
    store_lse(p, &total);
}

/* Rows that belong to no sequence. */
static void touch_unowned(const fa_args *a, fai_range owned, int64_t i, int64_t head) {
    if (!is(UNOWNED_ROWS_ZEROED) || a->cu_seqlens_q) return;
    for (int64_t row = owned.end; row < a->q_len; row++)
        memset((char *)a->o.data + fai_q_offset(a, &a->o, i, head, row) * fa_dtype_size(a->dtype),
               0, (size_t)(a->head_dim * fa_dtype_size(a->dtype)));
}

static fai_range rows_of(const fa_args *a, int64_t i, bool q) {
    fa_args seen = *a;
    if (is(LEFTPAD_IGNORED)) seen.leftpad_q = seen.leftpad_k = NULL;
    if (is(SEQUSED_IGNORED)) seen.seqused_k = NULL;
    return q ? fai_q_rows(&seen, i) : fai_k_rows(&seen, i);
}

static void run(const fa_args *a, const fai_plan *plan) {
    const int64_t group = a->heads_q / a->heads_kv;
    int64_t task = 0;
    if (is(SLICE_DROPPED) && a->task_index == 1) return;
    for (int64_t i = 0; i < a->batch; i++)
        for (int64_t head = 0; head < a->heads_q; head++) {
            place p = {a, i, head, head / group, 0, rows_of(a, i, true), rows_of(a, i, false),
                       0, 0};
            if (is(HEADS_BY_MODULO)) p.head_kv = head % a->heads_kv;
            p.keys = p.k.end - p.k.begin;
            p.offset = fai_offset(a, i, p.q.end - p.q.begin, p.keys);
            if (is(OFFSETS_OF_FIRST) && a->causal_offsets) p.offset = a->causal_offsets[0];
            for (p.row = 0; p.row < p.q.end - p.q.begin; p.row++, task++)
                if (a->task_count == 0 || task % a->task_count == a->task_index) attend(&p, plan);
            touch_unowned(a, p.q, i, head);
        }
    if (is(INPUT_CHANGED) && a->q.data && a->q_len > 0 && a->batch > 0)
        fa_dtype_set(a->dtype, a->q.data, 0, 0);
}

/* As fa_api.c has it. */
static fa_status check_workspace(const fa_args *a, const fai_plan *plan) {
    if (plan->workspace_bytes == 0 || is(WORKSPACE_UNCHECKED)) return FA_OK;
    if (a->workspace && a->workspace_size >= plan->workspace_bytes &&
        (uintptr_t)a->workspace % FAI_WORKSPACE_ALIGN == 0)
        return FA_OK;
    return fai_fail(FA_ERR_WORKSPACE, "workspace is %p, workspace_size is %zu: %zu and 16 needed",
                    a->workspace, a->workspace_size, plan->workspace_bytes);
}

/* From here on the names are those of the ABI. */
#undef fa_fwd_causal
#undef fa_fwd_causal_workspace
#undef fa_explain
#undef fa_status_string
#undef fa_last_error
#undef fa_version
#define EXPORTED __attribute__((visibility("default")))

EXPORTED fa_status fa_fwd_causal(const fa_args *args, struct CUstream_st *stream) {
    static int calls;
    (void)stream;
    fa_args a;
    fai_plan plan;
    const fai_machine machine = fai_cpu_machine();
    if (is(WRITES_BEFORE_THE_CHECK) && args && args->o.data) memset(args->o.data, 0, 2);
    if (is(NO_WORK) || (is(EVERY_SECOND_CALL_SKIPPED) && calls++ % 2)) return FA_OK;
    fa_status status = fai_check(args, FAI_FOR_RUN, &a);
    if (!status) status = fai_make_plan(&a, &machine, &plan);
    if (!status) status = check_workspace(&a, &plan);
    if (status == FA_ERR_LENGTHS && is(LENGTHS_UNCHECKED)) return FA_OK;
    if (!status) run(&a, &plan);
    return status && is(ERRORS_HIDDEN) ? FA_OK : status;
}

EXPORTED fa_status fa_fwd_causal_workspace(const fa_args *args, size_t *bytes) {
    const fa_status status = real_fa_fwd_causal_workspace(args, bytes);
    if (!status && is(WORKSPACE_TRUNCATED)) *bytes = (uint16_t)*bytes;
    return status;
}

EXPORTED fa_status fa_explain(const fa_args *args, char *text, size_t text_size) {
    return real_fa_explain(args, text, text_size);
}

EXPORTED const char *fa_status_string(fa_status status) {
    if (is(STATUS_RENUMBERED) && status == FA_ERR_LENGTHS) return "FA_ERR_PAGE_INDEX";
    return real_fa_status_string(status);
}

EXPORTED const char *fa_last_error(void) { return is(SENTENCE_EMPTY) ? "" : real_fa_last_error(); }

EXPORTED int32_t fa_version(void) { return real_fa_version(); }
