/* cases_run.c - the oracle's verdict on a call.
 *
 * The oracle never sees how the call was laid out: it gets each sequence alone, dense and with an
 * explicit offset, gathered by the harness's own addressing. So a fault of addressing in the
 * library has no twin here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases_bed.h"
#include "counts.h"
#include "fa_dtype.h"
#include "fa_reference.h"

/* All that is compared of a call; a row is one (sequence, row). */
typedef struct verdict {
    int64_t rows, next;
    int32_t *sequence; /* of each row, for the report */
    int64_t *row;
    unsigned char *o;
    float *lse;
    double *want_o, *want_lse, *baseline_o;
    compare_row *facts;
} verdict;

/* One sequence, dense: (heads, rows, dim). */
typedef struct sequence {
    fa_args args;
    unsigned char *q, *k, *v;
    double *largest_v, *largest_k; /* of keys 0 to j, per kv head: max |v| and max |k| */
} sequence;

static bool gather(case_bed *bed, case_tensor t, int32_t i, int64_t rows, unsigned char **dense) {
    const int32_t heads = t == TENSOR_Q ? bed->c.heads_q : bed->c.heads_kv;
    const int64_t bytes = bed_row_bytes(bed, t);
    *dense = malloc((size_t)(heads * rows * bytes + 1));
    for (int32_t head = 0; *dense && head < heads; ++head)
        for (int64_t row = 0; row < rows; ++row)
            memcpy(*dense + (head * rows + row) * bytes, case_row(bed, t, i, head, row),
                   (size_t)bytes);
    return *dense != NULL;
}

/* Largest |element| of a row, or its Euclidean norm; NaN and Inf do not count. */
static double row_size(int32_t dtype, const unsigned char *data, int64_t row, int32_t dim,
                       bool norm) {
    double largest = 0, sum = 0;
    for (int32_t c = 0; c < dim; ++c) {
        const double x = (double)fa_dtype_get(dtype, data, row * dim + c);
        if (!isfinite(x)) continue;
        largest = fmax(largest, fabs(x));
        sum += x * x;
    }
    return norm ? sqrt(sum) : largest;
}

static bool open_sequence(case_bed *bed, int32_t i, sequence *s) {
    const test_case *c = &bed->c;
    const int64_t q_len = case_q_len(c, i), kv_len = case_kv_len(c, i);
    memset(s, 0, sizeof *s);
    s->largest_v = calloc((size_t)(c->heads_kv * kv_len + 1), sizeof *s->largest_v);
    s->largest_k = calloc((size_t)(c->heads_kv * kv_len + 1), sizeof *s->largest_k);
    if (!s->largest_v || !s->largest_k || !gather(bed, TENSOR_Q, i, q_len, &s->q) ||
        !gather(bed, TENSOR_K, i, kv_len, &s->k) || !gather(bed, TENSOR_V, i, kv_len, &s->v))
        return false;
    for (int64_t at = 0; at < c->heads_kv * kv_len; ++at) {
        const double before_v = at % kv_len ? s->largest_v[at - 1] : 0;
        const double before_k = at % kv_len ? s->largest_k[at - 1] : 0;
        s->largest_v[at] = fmax(before_v, row_size(c->dtype, s->v, at, c->head_dim, false));
        s->largest_k[at] = fmax(before_k, row_size(c->dtype, s->k, at, c->head_dim, true));
    }
    s->args = fa_args_default();
    s->args.device = FA_DEVICE_CPU;
    s->args.dtype = c->dtype;
    s->args.batch = 1;
    s->args.heads_q = c->heads_q;
    s->args.heads_kv = c->heads_kv;
    s->args.head_dim = c->head_dim;
    s->args.q_len = (int32_t)q_len;
    s->args.kv_len = (int32_t)kv_len;
    s->args.scale = c->scale;
    s->args.align = FA_ALIGN_OFFSET;
    const bool top_left = c->dialect & DIALECT_TOP_LEFT && c->align == FA_ALIGN_BOTTOM_RIGHT;
    s->args.causal_offset = top_left ? 0 : (int32_t)case_offset(c, i);
    s->args.q = fa_bhsd(s->q, c->heads_q, q_len, c->head_dim);
    s->args.k = fa_bhsd(s->k, c->heads_kv, kv_len, c->head_dim);
    s->args.v = fa_bhsd(s->v, c->heads_kv, kv_len, c->head_dim);
    return true;
}

static void close_sequence(sequence *s) {
    free(s->q);
    free(s->k);
    free(s->v);
    free(s->largest_v);
    free(s->largest_k);
}

/* Turns what a dialect says into what the contract says; anything else stays as it is. */
static void translate(const test_case *c, bool empty, void *o, float *lse) {
    if (lse && c->dialect & DIALECT_BASE_2) *lse *= 0.693147181f;
    if (!empty) return;
    if (c->dialect & DIALECT_EMPTY_O) memset(o, 0, (size_t)(c->head_dim * fa_dtype_size(c->dtype)));
    if (!lse) return;
    if (c->dialect & DIALECT_EMPTY_LSE)
        *lse = -INFINITY;
    else if (c->dialect & DIALECT_PLUS_INF)
        *lse = *lse == INFINITY ? -INFINITY : NAN;
}

/* One row of all heads: what came out, what should, and the facts that the tolerance needs. */
static void take_row(const case_bed *bed, const sequence *s, int32_t i, int64_t row, verdict *d) {
    const test_case *c = &bed->c;
    const int64_t bytes = bed_row_bytes(bed, TENSOR_O);
    d->sequence[d->next] = i;
    d->row[d->next] = row;
    for (int32_t head = 0; head < c->heads_q; ++head) {
        const int64_t at = d->next * c->heads_q + head;
        compare_row *f = &d->facts[at];
        memcpy(d->o + at * bytes, case_row_after(bed, TENSOR_O, i, head, row), (size_t)bytes);
        if (d->lse) memcpy(&d->lse[at], case_row_after(bed, TENSOR_LSE, i, head, row), 4);
        fa_reference_row(&s->args, 0, head, row, d->want_o + at * c->head_dim, &d->want_lse[at],
                         &f->max_logit);
        if (d->baseline_o)
            fa_reference_baseline_row(&s->args, 0, head, row, d->baseline_o + at * c->head_dim,
                                      NULL);
        f->visible = fa_reference_visible(&s->args, 0, row);
        translate(c, f->visible == 0, d->o + at * bytes, d->lse ? &d->lse[at] : NULL);
        if (f->visible == 0) continue;
        const int64_t kv_head = head / (c->heads_q / c->heads_kv);
        const int64_t last = kv_head * s->args.kv_len + f->visible - 1;
        const int64_t q_row = head * (int64_t)s->args.q_len + row;
        f->max_value = s->largest_v[last];
        f->dot_size = (double)fa_reference_scale(&s->args) * s->largest_k[last] *
                      row_size(c->dtype, s->q, q_row, c->head_dim, true);
    }
    ++d->next;
}

/* Whether a row of a sequence is compared: all are, unless the case names some. */
static bool sampled(const test_case *c, int64_t row) {
    for (int32_t at = 0; at < c->rows.count; ++at)
        if (c->rows.value[at] == row) return true;
    return c->rows.count == 0;
}

static bool open_verdict(const case_bed *bed, verdict *d) {
    const test_case *c = &bed->c;
    memset(d, 0, sizeof *d);
    for (int32_t i = 0; i < c->batch; ++i)
        for (int64_t row = 0; row < case_q_len(c, i); ++row) d->rows += sampled(c, row);
    const size_t rows = (size_t)d->rows + 1, values = rows * (size_t)c->heads_q;
    const size_t elements = values * (size_t)c->head_dim;
    d->sequence = calloc(rows, sizeof *d->sequence);
    d->row = calloc(rows, sizeof *d->row);
    d->o = calloc(elements, (size_t)fa_dtype_size(c->dtype));
    const bool no_lse = c->no_lse || c->dialect & DIALECT_NO_LSE;
    d->lse = no_lse ? NULL : calloc(values, sizeof *d->lse);
    d->want_o = calloc(elements, sizeof *d->want_o);
    d->want_lse = calloc(values, sizeof *d->want_lse);
    d->baseline_o = c->dtype == FA_DTYPE_F32 ? NULL : calloc(elements, sizeof *d->baseline_o);
    d->facts = calloc(values, sizeof *d->facts);
    return d->sequence && d->row && d->o && (d->lse || no_lse) && d->want_o && d->want_lse &&
           (d->baseline_o || c->dtype == FA_DTYPE_F32) && d->facts;
}

static void close_verdict(verdict *d) {
    free(d->sequence);
    free(d->row);
    free(d->o);
    free(d->lse);
    free(d->want_o);
    free(d->want_lse);
    free(d->baseline_o);
    free(d->facts);
}

/* On N(0,1) inputs a correct kernel's relative error is known well while logits are of order 1.
 * Larger ones add their own: a logit's float32 dot product is off by a standard deviation of up to
 * 2^-24 A / 2 (compare.h). exp turns that into a relative error of the key's weight, independent
 * from key to key, so that sum_j p_j e_j v_j is to sum_j p_j v_j of independent v as e to 1. */
static double frobenius_limit(const test_case *c, const verdict *d) {
    if (c->input != INPUT_NORMAL || c->values != VALUES_NORMAL) return INFINITY;
    const double known =
        c->dtype == FA_DTYPE_F32 ? 2e-6 : (c->dtype == FA_DTYPE_F16 ? 4e-4 : 0.0026);
    const int64_t rows = d->rows * c->heads_q;
    double sum = 0;
    for (int64_t at = 0; at < rows; ++at) sum += d->facts[at].dot_size * d->facts[at].dot_size;
    return known + 0x1p-24 * sqrt(sum / (double)(rows ? rows : 1)) / 2;
}

/* Under INPUT_PICK one key takes all the weight, so o is its v to the bit; unless rows of q or k
 * share memory, for then a code word is not the one that was written for its key. */
static bool is_exact(const test_case *c) {
    if (c->input != INPUT_PICK || c->shared_pages) return false;
    for (int x = 0; x < 3; ++x)
        if ((c->view[TENSOR_Q].set[x] && c->view[TENSOR_Q].stride[x] == 0) ||
            (c->view[TENSOR_K].set[x] && c->view[TENSOR_K].stride[x] == 0))
            return false;
    return true;
}

static bool judge_numbers(case_bed *bed, case_result *r, verdict *d) {
    const test_case *c = &bed->c;
    for (int32_t i = 0; i < c->batch; ++i) {
        sequence s;
        const bool ok = open_sequence(bed, i, &s);
        for (int64_t row = 0; ok && row < s.args.q_len; ++row)
            if (sampled(c, row)) take_row(bed, &s, i, row, d);
        close_sequence(&s);
        if (!ok) return false;
    }
    const compare_input in = {.dtype = c->dtype,
                              .rows = d->rows,
                              .heads = c->heads_q,
                              .dim = c->head_dim,
                              .o = d->o,
                              .lse = d->lse,
                              .want_o = d->want_o,
                              .want_lse = d->want_lse,
                              .baseline_o = d->baseline_o,
                              .facts = d->facts,
                              .coarse_lse = c->dialect & DIALECT_COARSE_LSE,
                              .exact = is_exact(c)};
    compare_outputs(&in, &r->report);
    if (r->report.elements >= COMPARE_RMS_FROM && !(r->report.frobenius <= frobenius_limit(c, d))) {
        r->report.ok = false;
        r->report.origin = "|error|/|o| above that of correct kernels on N(0,1)";
    }
    if (r->report.ok) return true;
    char text[CASE_LINE_MAX];
    compare_print(&r->report, text, sizeof text);
    const int64_t row = r->report.row;
    snprintf(r->why, sizeof r->why, "sequence %d row %lld: %s", d->rows ? d->sequence[row] : -1,
             (long long)(d->rows ? d->row[row] : -1), text);
    return false;
}

/* Adds the line that runs the case alone. */
static void name_case(const test_case *c, case_result *r) {
    char line[CASE_LINE_MAX];
    case_print(c, line, sizeof line);
    const size_t used = strlen(r->why);
    snprintf(r->why + used, sizeof r->why - used, "\n    fa_case '%s'", line);
}

/* The outputs without layout, for comparisons between calls. */
static bool keep_outputs(const case_bed *bed, case_result *r) {
    const test_case *c = &bed->c;
    const int64_t bytes = bed_row_bytes(bed, TENSOR_O);
    int64_t at = 0;
    for (int32_t i = 0; i < c->batch; ++i) r->rows += case_q_len(c, i);
    r->o = malloc((size_t)(r->rows * c->heads_q * bytes + 1));
    if (!c->no_lse) r->lse = malloc((size_t)(r->rows * c->heads_q + 1) * sizeof *r->lse);
    if (!r->o || (!c->no_lse && !r->lse)) return false;
    for (int32_t i = 0; i < c->batch; ++i)
        for (int64_t row = 0; row < case_q_len(c, i); ++row)
            for (int32_t head = 0; head < c->heads_q; ++head, ++at) {
                memcpy((unsigned char *)r->o + at * bytes,
                       case_row_after(bed, TENSOR_O, i, head, row), (size_t)bytes);
                if (r->lse) memcpy(&r->lse[at], case_row_after(bed, TENSOR_LSE, i, head, row), 4);
            }
    return true;
}

bool case_judge(case_bed *bed, case_result *r) {
    verdict d;
    r->ok = case_untouched(bed, false, r->why, sizeof r->why);
    if (r->ok && !keep_outputs(bed, r)) {
        snprintf(r->why, sizeof r->why, "no memory for the outputs");
        r->ok = false;
    }
    if (r->ok) {
        const bool memory_ok = open_verdict(bed, &d);
        if (!memory_ok) snprintf(r->why, sizeof r->why, "no memory for the oracle");
        r->ok = memory_ok && judge_numbers(bed, r, &d);
        close_verdict(&d);
    }
    if (!r->ok) name_case(&bed->c, r);
    return r->ok;
}

bool case_fits_device(const test_case *c) {
    return c->device == FA_DEVICE_CPU || (c->dtype != FA_DTYPE_F32 && c->head_dim % 8 == 0 &&
                                          c->head_dim <= 256 && c->threads == 0 && c->tasks == 0);
}

bool case_run(const subject *s, const test_case *c, case_result *r) {
    memset(r, 0, sizeof *r);
    case_bed *bed = case_open(c, r->why, sizeof r->why);
    if (!bed) {
        name_case(c, r);
        return false;
    }
    if (s->force_kernel && c->kernel[0]) s->force_kernel(c->kernel);
    subject_explain_value(s, &bed->args, "kernel", r->kernel, sizeof r->kernel);
    if (s->force_kernel) s->force_kernel(NULL);
    r->status = case_give_workspace(bed, s);
    if (r->status == FA_OK) r->status = case_call(bed, s);
    if (r->status == FA_OK) {
        case_judge(bed, r);
    } else {
        snprintf(r->why, sizeof r->why, "%s: %s", s->status_string(r->status), s->last_error());
        name_case(c, r);
    }
    case_close(bed);
    counts_add(1, r->report.elements, 0);
    return r->ok;
}

void case_result_free(case_result *r) {
    free(r->o);
    free(r->lse);
    r->o = NULL;
    r->lse = NULL;
}

bool case_same_bits(const case_result *a, const case_result *b, const test_case *c, char *why,
                    size_t why_size) {
    const size_t values = (size_t)(a->rows * c->heads_q);
    const size_t bytes = values * (size_t)c->head_dim * (size_t)fa_dtype_size(c->dtype);
    const bool shapes = a->ok && b->ok && a->rows == b->rows && !a->lse == !b->lse;
    const bool o = shapes && memcmp(a->o, b->o, bytes) == 0;
    const bool lse = shapes && (!a->lse || memcmp(a->lse, b->lse, values * 4) == 0);
    if (!shapes)
        snprintf(why, why_size, "two calls that both must be right are not: %s %s", a->why, b->why);
    else
        snprintf(why, why_size, "%s differs in bits", o ? "lse" : "o");
    return o && lse;
}
