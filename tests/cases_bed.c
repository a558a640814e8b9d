/* cases_bed.c - where a case's tensors lie, and what they hold before the call.
 *
 * Each buffer is an allocation of its own, between guard zones. The host keeps two images of it:
 * as uploaded, and as downloaded after the call. A buffer of more than kWholeBytes (a wide view) is
 * imaged only around the rows that the case owns. */
#include "cases_bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fa_dtype.h"

enum { kNearBytes = 4096, kSparePages = 3 };
static const int64_t kWholeBytes = (int64_t)1 << 27;

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static int32_t listed(const case_list *list, int32_t i, int32_t otherwise) {
    return list->count ? list->value[i % list->count] : otherwise;
}

/* ---- the sequences ---- */

static int64_t length_of(int32_t ragged, const case_list *lens, int32_t declared, int32_t i) {
    const int64_t len = ragged ? listed(lens, i, declared) : declared;
    return len < 0 ? 0 : min64(len, declared);
}

int64_t case_q_len(const test_case *c, int32_t i) {
    return length_of(c->ragged_q, &c->q_lens, c->q_len, i);
}

int64_t case_kv_len(const test_case *c, int32_t i) {
    return length_of(c->ragged_k, &c->k_lens, c->kv_len, i);
}

int64_t case_offset(const test_case *c, int32_t i) {
    if (c->align == FA_ALIGN_BOTTOM_RIGHT) return case_kv_len(c, i) - case_q_len(c, i);
    return listed(&c->offsets, i, c->offset);
}

/* Where every sequence's rows stand on one side. */
static void lay_side(bed_side *side, const test_case *c, bool q) {
    const int32_t ragged = q ? c->ragged_q : c->ragged_k;
    const bool packed = ragged & CASE_RAGGED_CU, used = ragged & CASE_RAGGED_USED;
    const int64_t declared = q ? c->q_len : c->kv_len;
    int64_t start = 0;
    for (int32_t i = 0; i < c->batch; ++i) {
        bed_sequence *s = &side->sequence[i];
        s->len = q ? case_q_len(c, i) : case_kv_len(c, i);
        s->pad = ragged & CASE_RAGGED_LEFT ? listed(q ? &c->q_pads : &c->k_pads, i, 1) : 0;
        if (!packed && (ragged & CASE_RAGGED_LEFT))
            s->pad = used ? min64(s->pad, declared - s->len) : declared - s->len;
        s->start = packed ? start : 0;
        if (packed) start += s->pad + s->len + (used ? c->slack : 0);
    }
    side->end = start;
    side->total = packed ? start + c->slack : 0;
    side->rows = packed ? side->total : declared;
}

/* The pool: spare pages first, so that a large pool is used at its far end, then the used ones in a
 * shuffled order, which differs from sequence to sequence. Without a single key it has no pages. */
static bool lay_pages(case_bed *bed) {
    const test_case *c = &bed->c;
    bed->table_cols = (c->kv_len + (int64_t)c->page_size - 1) / c->page_size;
    bed->table_stride = bed->table_cols + 3;
    const int64_t sequences = c->shared_pages ? (c->batch > 0) : c->batch;
    const int64_t used = sequences * bed->table_cols;
    int64_t keys = 0;
    for (int32_t i = 0; i < c->batch; ++i) keys += bed->k_side.sequence[i].len;
    bed->page = calloc((size_t)(c->batch * bed->table_cols + 1), sizeof *bed->page);
    if (!bed->page || keys == 0) return bed->page != NULL;
    const int64_t spare = kSparePages + c->view[TENSOR_K].spare;
    bed->pages = spare + used;
    for (int64_t at = 0; at < used; ++at) bed->page[at] = (int32_t)(spare + at);
    uint64_t state = (uint64_t)c->seed * 2 + 1;
    for (int64_t at = used - 1; at > 0; --at) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const int64_t other = (int64_t)((state >> 33) % (uint64_t)(at + 1));
        const int32_t page = bed->page[at];
        bed->page[at] = bed->page[other];
        bed->page[other] = page;
    }
    for (int64_t at = used; used && at < c->batch * bed->table_cols; ++at)
        bed->page[at] = bed->page[at % bed->table_cols]; /* shared: as sequence 0 */
    return true;
}

/* ---- buffers ---- */

bool bed_buffer_make(bed_buffer *b, const memory *m, int64_t bytes, int64_t shift) {
    b->memory = m;
    if (bytes <= 0) return true; /* no memory, null address */
    b->first = BED_GUARD_BYTES + shift;
    b->used = bytes;
    b->bytes = b->first + bytes + BED_GUARD_BYTES;
    b->device = m->alloc((size_t)b->bytes);
    return b->device != NULL;
}

/* A window of images, filled with a pattern of 4 bytes. */
static bool add_window(bed_buffer *b, int64_t begin, int64_t end, uint32_t pattern) {
    bed_window *more = realloc(b->window, (size_t)(b->windows + 1) * sizeof *more);
    if (!more) return false;
    b->window = more;
    bed_window *w = &b->window[b->windows++];
    w->begin = begin;
    w->end = end;
    w->before = malloc((size_t)(end - begin));
    w->after = malloc((size_t)(end - begin));
    if (!w->before || !w->after) return false;
    for (int64_t at = begin; at < end; ++at)
        w->before[at - begin] = (unsigned char)(pattern >> 8 * (at % 4));
    return true;
}

bool bed_buffer_image(bed_buffer *b, uint32_t pattern) {
    return b->bytes == 0 || add_window(b, 0, b->bytes, pattern);
}

void bed_buffer_free(bed_buffer *b) {
    if (b->device) b->memory->free(b->device, (size_t)b->bytes);
    for (int i = 0; i < b->windows; ++i) {
        free(b->window[i].before);
        free(b->window[i].after);
    }
    free(b->window);
    memset(b, 0, sizeof *b);
}

bed_window *bed_window_at(const bed_buffer *b, int64_t at) {
    int low = 0, high = b->windows - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (b->window[middle].begin <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return &b->window[low];
}

/* ---- tensors ---- */

static bool is_kv(case_tensor t) { return t == TENSOR_K || t == TENSOR_V; }

static int64_t element_bytes(const case_bed *bed, case_tensor t) {
    return t == TENSOR_LSE ? 4 : fa_dtype_size(bed->c.dtype);
}

static int64_t row_dim(const case_bed *bed, case_tensor t) {
    return t == TENSOR_LSE ? 1 : bed->c.head_dim;
}

int64_t bed_row_bytes(const case_bed *bed, case_tensor t) {
    return row_dim(bed, t) * element_bytes(bed, t);
}

/* Batch entries (or pages), heads and rows of a view. */
static void view_sizes(const case_bed *bed, case_tensor t, int64_t sizes[3]) {
    const test_case *c = &bed->c;
    const bool packed = (is_kv(t) ? c->ragged_k : c->ragged_q) & CASE_RAGGED_CU;
    const bool paged = is_kv(t) && c->page_size > 0;
    sizes[0] = paged ? bed->pages : (packed ? 1 : c->batch);
    sizes[1] = is_kv(t) ? c->heads_kv : c->heads_q;
    sizes[2] = paged ? c->page_size : (is_kv(t) ? bed->k_side.rows : bed->q_side.rows);
}

/* Strides as the layout has them, then those that the case gives. heads and rows are the buffer's:
 * a fused buffer holds the heads of all its tensors. */
static void lay_strides(bed_tensor *tensor, const case_view *view, int64_t dim, int64_t heads,
                        int64_t rows) {
    const int64_t row = dim + view->pitch;
    const bool by_head = view->layout == LAYOUT_BHSD;
    tensor->stride[0] = heads * rows * row;
    tensor->stride[1] = by_head ? rows * row : row;
    tensor->stride[2] = by_head ? row : heads * row;
    for (int x = 0; x < 3; ++x)
        if (view->set[x]) tensor->stride[x] = view->stride[x];
}

/* The tensors that share one buffer: the fused ones among q, k and v, or t alone. */
static int sharers(const case_bed *bed, case_tensor t, case_tensor list[3]) {
    int count = 0;
    for (case_tensor other = TENSOR_Q; other <= TENSOR_V; ++other)
        if (t <= TENSOR_V && bed->c.view[t].layout == LAYOUT_FUSED &&
            bed->c.view[other].layout == LAYOUT_FUSED)
            list[count++] = other;
    if (count == 0) list[count++] = t;
    return count;
}

/* Lays t and those that share its buffer, and allocates it. False when a fused buffer is asked for
 * whose tensors differ in batch entries, or when memory is missing. */
static bool make_tensor(case_bed *bed, case_tensor t) {
    case_tensor list[3];
    const int count = sharers(bed, t, list);
    if (list[0] != t) return true; /* made with the first of them */
    int64_t batch = 0, heads = 0, rows = 0, low = 0, high = 0, head = 0, sizes[3];
    for (int i = 0; i < count; ++i) {
        view_sizes(bed, list[i], sizes);
        if (i > 0 && sizes[0] != batch) return false;
        batch = sizes[0];
        heads += sizes[1];
        const bool paged = is_kv(t) && bed->c.page_size > 0; /* spare counts pages there */
        rows = max64(rows, sizes[2] + (paged ? 0 : bed->c.view[list[i]].spare));
    }
    for (int i = 0; i < count; ++i) {
        bed_tensor *tensor = &bed->tensor[list[i]];
        const case_view *view = &bed->c.view[list[i]];
        const int64_t dim = row_dim(bed, list[i]);
        view_sizes(bed, list[i], sizes);
        lay_strides(tensor, view, dim, heads, rows);
        tensor->empty = sizes[0] == 0 || sizes[1] == 0 || sizes[2] == 0;
        tensor->buffer = (int)t;
        tensor->base = head * (dim + view->pitch);
        head += sizes[1];
        if (tensor->empty) continue;
        sizes[2] = rows;
        int64_t from = tensor->base, to = tensor->base + dim;
        for (int x = 0; x < 3; ++x) {
            if (sizes[x] <= 1) continue; /* its stride is ignored and may be anything */
            const int64_t reach = (sizes[x] - 1) * tensor->stride[x];
            *(reach < 0 ? &from : &to) += reach;
        }
        low = min64(low, from);
        high = max64(high, to);
    }
    for (int i = 0; i < count; ++i) bed->tensor[list[i]].base -= low;
    const int64_t size = element_bytes(bed, t);
    return bed_buffer_make(&bed->buffer[t], bed->memory, (high - low) * size,
                           bed->c.view[t].shift * size);
}

int64_t bed_row_at(const case_bed *bed, case_tensor t, int32_t i, int32_t head, int64_t row) {
    const test_case *c = &bed->c;
    const bed_tensor *tensor = &bed->tensor[t];
    const bed_sequence *s = &(is_kv(t) ? &bed->k_side : &bed->q_side)->sequence[i];
    const bool packed = (is_kv(t) ? c->ragged_k : c->ragged_q) & CASE_RAGGED_CU;
    int64_t index[3] = {packed ? 0 : i, head, s->start + s->pad + row}, sizes[3];
    if (is_kv(t) && c->page_size > 0) {
        index[0] = bed->page[i * bed->table_cols + index[2] / c->page_size];
        index[2] %= c->page_size;
    }
    view_sizes(bed, t, sizes);
    int64_t at = tensor->base;
    for (int x = 0; x < 3; ++x)
        if (sizes[x] > 1) at += index[x] * tensor->stride[x];
    return bed->buffer[tensor->buffer].first + at * element_bytes(bed, t);
}

/* ---- images ---- */

typedef struct interval {
    int64_t begin, end;
} interval;

static int by_begin(const void *a, const void *b) {
    const int64_t x = ((const interval *)a)->begin, y = ((const interval *)b)->begin;
    return x < y ? -1 : x > y;
}

/* The number of (sequence, head, row) that a case owns in tensor t; at each, the place. */
static int64_t owned_rows(const case_bed *bed, case_tensor t, interval *places) {
    int64_t count = 0;
    const bed_side *side = is_kv(t) ? &bed->k_side : &bed->q_side;
    const int32_t heads = is_kv(t) ? bed->c.heads_kv : bed->c.heads_q;
    const bed_buffer *b = &bed->buffer[bed->tensor[t].buffer];
    for (int32_t i = 0; i < bed->c.batch; ++i)
        for (int32_t head = 0; head < heads; ++head)
            for (int64_t row = 0; row < side->sequence[i].len; ++row, ++count)
                if (places) {
                    const int64_t at = bed_row_at(bed, t, i, head, row);
                    places[count].begin = max64(at - kNearBytes, 0) / 4 * 4;
                    places[count].end = min64(at + bed_row_bytes(bed, t) + kNearBytes, b->bytes);
                }
    return count;
}

/* Images of a wide buffer: near the owned rows of all tensors in it. */
static bool image_near_rows(case_bed *bed, int buffer, uint32_t pattern) {
    int64_t count = 0, done = 0;
    for (case_tensor t = TENSOR_Q; t <= TENSOR_LSE; ++t)
        if (bed->tensor[t].buffer == buffer) count += owned_rows(bed, t, NULL);
    interval *places = malloc((size_t)(count + 1) * sizeof *places);
    if (!places) return false;
    for (case_tensor t = TENSOR_Q; t <= TENSOR_LSE; ++t)
        if (bed->tensor[t].buffer == buffer) done += owned_rows(bed, t, places + done);
    qsort(places, (size_t)count, sizeof *places, by_begin);
    bool ok = true;
    for (int64_t i = 0; ok && i < count;) {
        const int64_t begin = places[i].begin;
        int64_t end = places[i].end;
        for (++i; i < count && places[i].begin <= end; ++i) end = max64(end, places[i].end);
        ok = add_window(&bed->buffer[buffer], begin, end, pattern);
    }
    free(places);
    return ok;
}

/* What every byte that no rule fills holds: NaN, Inf or the largest finite number. */
static uint32_t tail_pattern(const test_case *c) {
    if (c->tail == TAIL_NAN) return BED_POISON;
    const bool inf = c->tail == TAIL_INF;
    if (c->dtype == FA_DTYPE_F32) return inf ? 0x7f800000u : 0x7f7fffffu;
    if (c->dtype == FA_DTYPE_F16) return inf ? 0x7c007c00u : 0x7bff7bffu;
    return inf ? 0x7f807f80u : 0x7f7f7f7fu;
}

static bool fill_tensors(case_bed *bed) {
    for (int buffer = TENSOR_Q; buffer <= TENSOR_LSE; ++buffer) {
        bed_buffer *b = &bed->buffer[buffer];
        const uint32_t pattern = buffer < TENSOR_O ? tail_pattern(&bed->c) : BED_POISON;
        if (b->bytes > kWholeBytes ? !image_near_rows(bed, buffer, pattern)
                                   : !bed_buffer_image(b, pattern))
            return false;
    }
    for (case_tensor t = TENSOR_Q; t <= TENSOR_V; ++t) {
        const bed_side *side = is_kv(t) ? &bed->k_side : &bed->q_side;
        const int32_t heads = is_kv(t) ? bed->c.heads_kv : bed->c.heads_q;
        for (int32_t i = 0; i < bed->c.batch; ++i)
            for (int32_t head = 0; head < heads; ++head)
                for (int64_t row = 0; row < side->sequence[i].len; ++row)
                    case_fill_row(&bed->c, t, i, head, row, case_row(bed, t, i, head, row));
    }
    return true;
}

/* ---- the interface ---- */

static bool make_bed(case_bed *bed) {
    const test_case *c = &bed->c;
    const size_t batch = (size_t)c->batch + 1;
    bed->q_side.sequence = calloc(batch, sizeof(bed_sequence));
    bed->k_side.sequence = calloc(batch, sizeof(bed_sequence));
    if (!bed->q_side.sequence || !bed->k_side.sequence) return false;
    lay_side(&bed->q_side, c, true);
    lay_side(&bed->k_side, c, false);
    if (c->page_size > 0 && !lay_pages(bed)) return false;
    for (case_tensor t = TENSOR_Q; t <= TENSOR_LSE; ++t)
        if (!make_tensor(bed, t)) return false;
    return fill_tensors(bed) && bed_make_call(bed);
}

case_bed *case_open(const test_case *c, char *why, size_t why_size) {
    const memory *m = memory_of((fa_device)c->device);
    const bool sizes = c->batch >= 0 && c->heads_q > 0 && c->heads_kv > 0 && c->head_dim > 0 &&
                       c->q_len >= 0 && c->kv_len >= 0 && c->page_size >= 0 &&
                       c->heads_q % c->heads_kv == 0;
    if (!m || !sizes || (c->input == INPUT_PICK && c->head_dim < 32)) {
        snprintf(why, why_size, "%s",
                 !m ? "no such device here"
                    : (sizes ? "in=pick needs d of at least 32" : "a size makes no tensor"));
        return NULL;
    }
    case_bed *bed = calloc(1, sizeof *bed);
    if (!bed) return NULL;
    bed->c = *c;
    bed->memory = m;
    if (make_bed(bed)) return bed;
    snprintf(why, why_size, "not enough memory, or a fused buffer of unequal batches");
    case_close(bed);
    return NULL;
}

void case_close(case_bed *bed) {
    if (!bed) return;
    for (int i = 0; i < BED_BUFFERS; ++i) bed_buffer_free(&bed->buffer[i]);
    free(bed->q_side.sequence);
    free(bed->k_side.sequence);
    free(bed->page);
    free(bed);
}

fa_args *case_args(case_bed *bed) { return &bed->args; }

const test_case *case_described(const case_bed *bed) { return &bed->c; }

void *case_row(case_bed *bed, case_tensor t, int32_t i, int32_t head, int64_t row) {
    const int64_t at = bed_row_at(bed, t, i, head, row);
    const bed_window *w = bed_window_at(&bed->buffer[bed->tensor[t].buffer], at);
    return w->before + (at - w->begin);
}

const void *case_row_after(const case_bed *bed, case_tensor t, int32_t i, int32_t head,
                           int64_t row) {
    const int64_t at = bed_row_at(bed, t, i, head, row);
    const bed_window *w = bed_window_at(&bed->buffer[bed->tensor[t].buffer], at);
    return w->after + (at - w->begin);
}
