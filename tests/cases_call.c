/* cases_call.c - a bed's fa_args, the call itself, and whether it left alone what is not its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases_bed.h"

/* Far outside every range: a library that reads an entry it should not, goes wrong at once. */
static const int32_t kBadEntry = 1 << 30;

/* ---- the arrays ---- */

static int32_t *make_array(case_bed *bed, bed_array array, int64_t count) {
    bed_buffer *b = &bed->buffer[array];
    if (!bed_buffer_make(b, bed->memory, count * 4, 0) || !bed_buffer_image(b, (uint32_t)kBadEntry))
        return NULL;
    return (int32_t *)(void *)(b->window[0].before + b->first);
}

static const int32_t *array_address(const case_bed *bed, bed_array array) {
    const bed_buffer *b = &bed->buffer[array];
    return b->device ? (const int32_t *)(const void *)(b->device + b->first) : NULL;
}

/* The arrays of one side: cu, used and left in the order of bed_array. */
static bool make_side(case_bed *bed, bool q) {
    const int32_t ragged = q ? bed->c.ragged_q : bed->c.ragged_k, batch = bed->c.batch;
    const bed_side *side = q ? &bed->q_side : &bed->k_side;
    if (ragged & CASE_RAGGED_CU) {
        int32_t *cu = make_array(bed, q ? ARRAY_CU_Q : ARRAY_CU_K, (int64_t)batch + 1);
        if (!cu) return false;
        for (int32_t i = 0; i < batch; ++i) cu[i] = (int32_t)side->sequence[i].start;
        cu[batch] = (int32_t)side->end;
    }
    if (batch == 0) return true;
    if (ragged & CASE_RAGGED_USED) {
        int32_t *used = make_array(bed, q ? ARRAY_USED_Q : ARRAY_USED_K, batch);
        if (!used) return false;
        for (int32_t i = 0; i < batch; ++i) used[i] = (int32_t)side->sequence[i].len;
    }
    if (ragged & CASE_RAGGED_LEFT) {
        int32_t *left = make_array(bed, q ? ARRAY_LEFT_Q : ARRAY_LEFT_K, batch);
        if (!left) return false;
        for (int32_t i = 0; i < batch; ++i) left[i] = (int32_t)side->sequence[i].pad;
    }
    return true;
}

/* Entries that hold no key of their sequence are bad ones. */
static bool make_table(case_bed *bed) {
    if (bed->pages == 0) return true;
    /* The last row ends with its columns, so that the guard stands right behind them. */
    const int64_t count = (bed->c.batch - 1) * bed->table_stride + bed->table_cols;
    int32_t *table = make_array(bed, ARRAY_TABLE, count);
    if (!table) return false;
    for (int32_t i = 0; i < bed->c.batch; ++i) {
        const bed_sequence *s = &bed->k_side.sequence[i];
        for (int64_t row = s->pad; row < s->pad + s->len; ++row) {
            const int64_t col = row / bed->c.page_size;
            table[i * bed->table_stride + col] = bed->page[i * bed->table_cols + col];
        }
    }
    return true;
}

int32_t *case_block_table(case_bed *bed) {
    const bed_buffer *b = &bed->buffer[ARRAY_TABLE];
    return b->windows ? (int32_t *)(void *)(b->window[0].before + b->first) : NULL;
}

/* ---- the call ---- */

static fa_view view_of(const case_bed *bed, case_tensor t) {
    const bed_tensor *tensor = &bed->tensor[t];
    const bed_buffer *b = &bed->buffer[tensor->buffer];
    const int64_t size = bed_row_bytes(bed, t) / (t == TENSOR_LSE ? 1 : bed->c.head_dim);
    unsigned char *data = b->device && !tensor->empty ? b->device + b->first : NULL;
    return fa_strided(data ? data + tensor->base * size : NULL, tensor->stride[0],
                      tensor->stride[1], tensor->stride[2]);
}

bool bed_make_call(case_bed *bed) {
    const test_case *c = &bed->c;
    fa_args *a = &bed->args;
    if (!make_side(bed, true) || !make_side(bed, false) || !make_table(bed)) return false;
    if (c->offsets.count && c->batch > 0) {
        int32_t *offsets = make_array(bed, ARRAY_OFFSETS, c->batch);
        if (!offsets) return false;
        for (int32_t i = 0; i < c->batch; ++i) offsets[i] = (int32_t)case_offset(c, i);
    }
    *a = fa_args_default();
    a->device = c->device;
    a->dtype = c->dtype;
    a->batch = c->batch;
    a->heads_q = c->heads_q;
    a->heads_kv = c->heads_kv;
    a->head_dim = c->head_dim;
    a->q_len = c->q_len;
    a->kv_len = c->kv_len;
    a->scale = c->scale;
    a->align = c->align;
    a->causal_offset = c->offset;
    a->causal_offsets = array_address(bed, ARRAY_OFFSETS);
    a->q = view_of(bed, TENSOR_Q);
    a->k = view_of(bed, TENSOR_K);
    a->v = view_of(bed, TENSOR_V);
    a->o = view_of(bed, TENSOR_O);
    if (!c->no_lse) a->lse = view_of(bed, TENSOR_LSE);
    a->cu_seqlens_q = array_address(bed, ARRAY_CU_Q);
    a->cu_seqlens_k = array_address(bed, ARRAY_CU_K);
    a->seqused_q = array_address(bed, ARRAY_USED_Q);
    a->seqused_k = array_address(bed, ARRAY_USED_K);
    a->leftpad_q = array_address(bed, ARRAY_LEFT_Q);
    a->leftpad_k = array_address(bed, ARRAY_LEFT_K);
    a->total_q = (int32_t)bed->q_side.total;
    a->total_k = (int32_t)bed->k_side.total;
    a->page_size = c->page_size;
    a->num_pages = (int32_t)bed->pages;
    a->block_table_cols = (int32_t)bed->table_cols;
    a->block_table_stride = bed->table_stride;
    a->block_table = array_address(bed, ARRAY_TABLE);
    a->num_splits = c->num_splits;
    a->split_keys = c->split_keys;
    a->threads = c->threads;
    return true;
}

fa_status case_give_workspace(case_bed *bed, const subject *s) {
    bed_buffer *b = &bed->buffer[BED_WORKSPACE];
    size_t bytes = 0;
    bed_buffer_free(b);
    bed->args.workspace = NULL;
    bed->args.workspace_size = 0;
    if (s->force_kernel && bed->c.kernel[0]) s->force_kernel(bed->c.kernel);
    const fa_status status = s->workspace(&bed->args, &bytes);
    if (s->force_kernel) s->force_kernel(NULL);
    if (status != FA_OK || bytes == 0) return status;
    if (!bed_buffer_make(b, bed->memory, (int64_t)bytes, 0) || !bed_buffer_image(b, BED_POISON))
        return FA_ERR_WORKSPACE;
    memset(b->window[0].before + b->first, 0, bytes);
    b->memory->upload(b->device, b->window[0].before, (size_t)b->bytes);
    bed->args.workspace = b->device + b->first;
    bed->args.workspace_size = bytes;
    return FA_OK;
}

static void upload(const bed_buffer *b) {
    for (int i = 0; i < b->windows; ++i)
        b->memory->upload(b->device + b->window[i].begin, b->window[i].before,
                          (size_t)(b->window[i].end - b->window[i].begin));
}

static void download(const bed_buffer *b) {
    for (int i = 0; i < b->windows; ++i)
        b->memory->download(b->window[i].after, b->device + b->window[i].begin,
                            (size_t)(b->window[i].end - b->window[i].begin));
}

/* Guard zones are forbidden while the library runs, where the memory can do that. */
static void fence(const case_bed *bed, bool on) {
    for (int i = 0; bed->memory->fence && i < BED_BUFFERS; ++i) {
        const bed_buffer *b = &bed->buffer[i];
        if (!b->device) continue;
        bed->memory->fence(b->device, (size_t)b->first, on);
        bed->memory->fence(b->device + b->first + b->used, BED_GUARD_BYTES, on);
    }
}

static fa_status run(case_bed *bed, const subject *s) {
    const int32_t tasks = bed->c.tasks;
    if (tasks <= 0) return s->fwd_causal(&bed->args, NULL);
    fa_status status = FA_OK;
    for (int32_t task = tasks - 1; task >= 0 && status == FA_OK; --task) {
        fa_args slice = bed->args; /* the last slice first: their order must not matter */
        slice.task_index = task;
        slice.task_count = tasks;
        status = s->fwd_causal(&slice, NULL);
    }
    return status;
}

fa_status case_call(case_bed *bed, const subject *s) {
    if (bed->c.kernel[0] && !s->force_kernel) return FA_ERR_UNSUPPORTED;
    for (int i = 0; i < BED_WORKSPACE; ++i) upload(&bed->buffer[i]);
    if (bed->memory->begin && !bed->memory->begin()) return FA_ERR_LAUNCH;
    fence(bed, true);
    if (s->force_kernel && bed->c.kernel[0]) s->force_kernel(bed->c.kernel);
    fa_status status = run(bed, s);
    if (s->force_kernel) s->force_kernel(NULL);
    if (!bed->memory->finish()) status = FA_ERR_LAUNCH;
    fence(bed, false);
    for (int i = 0; i < BED_BUFFERS; ++i) download(&bed->buffer[i]);
    return status;
}

/* ---- what must not change ---- */

static const char *const buffer_names[BED_BUFFERS] = {"q",
                                                      "k",
                                                      "v",
                                                      "o",
                                                      "lse",
                                                      "cu_seqlens_q",
                                                      "cu_seqlens_k",
                                                      "seqused_q",
                                                      "seqused_k",
                                                      "leftpad_q",
                                                      "leftpad_k",
                                                      "causal_offsets",
                                                      "block_table",
                                                      "workspace"};

/* Makes the owned rows of the before image those of the after image, or back. */
static void own_rows(const case_bed *bed, case_tensor t, unsigned char *const *images) {
    const bed_buffer *b = &bed->buffer[t];
    const size_t bytes = (size_t)bed_row_bytes(bed, t);
    for (int32_t i = 0; b->windows && i < bed->c.batch; ++i)
        for (int32_t head = 0; head < bed->c.heads_q; ++head)
            for (int64_t row = 0; row < bed->q_side.sequence[i].len; ++row) {
                const int64_t at = bed_row_at(bed, t, i, head, row);
                const bed_window *w = bed_window_at(b, at);
                memcpy(images[w - b->window] + (at - w->begin), w->after + (at - w->begin), bytes);
            }
}

/* First byte of [begin, end) that differs from what it should be, or -1. */
static int64_t first_change(const unsigned char *want, const unsigned char *got, int64_t bytes) {
    if (memcmp(want, got, (size_t)bytes) == 0) return -1;
    int64_t at = 0;
    while (want[at] == got[at]) ++at;
    return at;
}

static bool buffer_untouched(const case_bed *bed, int buffer, bool owned_may_change, char *why,
                             size_t why_size) {
    const bed_buffer *b = &bed->buffer[buffer];
    int64_t changed = -1;
    unsigned char **images = calloc((size_t)b->windows + 1, sizeof *images);
    bool memory_ok = images != NULL;
    for (int i = 0; memory_ok && i < b->windows; ++i) {
        const bed_window *w = &b->window[i];
        images[i] = malloc((size_t)(w->end - w->begin));
        memory_ok = images[i] != NULL;
        if (memory_ok) memcpy(images[i], w->before, (size_t)(w->end - w->begin));
    }
    if (memory_ok && owned_may_change) own_rows(bed, (case_tensor)buffer, images);
    for (int i = 0; memory_ok && changed < 0 && i < b->windows; ++i) {
        const bed_window *w = &b->window[i];
        if (buffer == BED_WORKSPACE) /* only its guards are ours */
            memcpy(images[i] + b->first, w->after + b->first, (size_t)b->used);
        changed = first_change(images[i], w->after, w->end - w->begin);
        if (changed >= 0) changed += w->begin;
    }
    for (int i = 0; images && i < b->windows; ++i) free(images[i]);
    free(images);
    if (changed >= 0)
        snprintf(why, why_size, "%s: byte %lld of its %lld changed, which the call does not own",
                 buffer_names[buffer], (long long)(changed - b->first), (long long)b->used);
    else if (!memory_ok)
        snprintf(why, why_size, "no memory to compare %s", buffer_names[buffer]);
    return memory_ok && changed < 0;
}

bool case_untouched(const case_bed *bed, bool outputs_too, char *why, size_t why_size) {
    for (int i = 0; i < BED_BUFFERS; ++i) {
        const bool owned = (i == TENSOR_O || (i == TENSOR_LSE && !bed->c.no_lse)) && !outputs_too;
        if (!buffer_untouched(bed, i, owned, why, why_size)) return false;
    }
    return true;
}
