/* fa_check.c - every assertion of the contract, in the contract's order, one sentence each.
 *
 * A new field gets its assertion here and nowhere else. Nothing is written and nothing else runs
 * when one fails; what passes comes out resolved (fa_internal.h says how), so that later rooms need
 * no special cases. The workspace is checked by fa_api.c, since its size is the planner's answer.
 */
#include "fa_internal.h"

#include <string.h>

static fa_status check_version(const fa_args *args, fa_args *a) {
    const int32_t size = args->struct_size;
    if (size < FA_ARGS_MIN_SIZE || size > (int32_t)sizeof(fa_args) || size % 8 != 0)
        return fai_fail(FA_ERR_VERSION,
                        "struct_size is %d: this library reads multiples of 8 from %d to %d bytes; "
                        "start from fa_args_default() of a matching header",
                        size, FA_ARGS_MIN_SIZE, (int)sizeof(fa_args));
    const int32_t major = args->version / 1000000, minor = args->version / 1000 % 1000;
    if (args->version <= 0 || major != FA_VERSION_MAJOR || minor > FA_VERSION_MINOR)
        return fai_fail(
            FA_ERR_VERSION,
            "version is %d (%d.%d): this library is %d.%d.%d and takes callers of major "
            "%d up to minor %d",
            args->version, major, minor, FA_VERSION_MAJOR, FA_VERSION_MINOR, FA_VERSION_PATCH,
            FA_VERSION_MAJOR, FA_VERSION_MINOR);
    memset(a, 0, sizeof(*a));
    memcpy(a, args, (size_t)size);
    if (a->reserved != 0)
        return fai_fail(
            FA_ERR_VERSION,
            "reserved is %d: must be 0; a later version may have given it a meaning that "
            "this library does not know",
            a->reserved);
    return FA_OK;
}

static fa_status check_not_negative(fa_status status, const char *field, int32_t value) {
    if (value >= 0) return FA_OK;
    return fai_fail(status, "%s is %d: must be 0 or more", field, value);
}

static fa_status check_sizes(const fa_args *a) {
    const struct {
        const char *field;
        int32_t value;
    } sizes[] = {{"batch", a->batch},
                 {"q_len", a->q_len},
                 {"kv_len", a->kv_len},
                 {"total_q", a->total_q},
                 {"total_k", a->total_k}};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); ++s) {
        const fa_status status = check_not_negative(FA_ERR_SIZE, sizes[s].field, sizes[s].value);
        if (status) return status;
    }
    return FA_OK;
}

static int32_t element_bytes(const fa_args *a) { return a->dtype == FA_DTYPE_F32 ? 4 : 2; }

/* 1 when batch * heads * len elements of head_dim floats can be counted in 63 bits. */
static int countable(int64_t batch, int64_t heads, int64_t len, int64_t head_dim) {
    const int64_t rows = batch * heads; /* below 2^62 */
    return len == 0 || rows <= INT64_MAX / 4 / head_dim / len;
}

static fa_status check_shape(const fa_args *a) {
    if (a->heads_q < 1 || a->heads_kv < 1 || a->heads_q % a->heads_kv != 0)
        return fai_fail(FA_ERR_HEADS,
                        "heads_q is %d and heads_kv is %d: both must be 1 or more and heads_q a "
                        "multiple of heads_kv",
                        a->heads_q, a->heads_kv);
    if (a->dtype != FA_DTYPE_F16 && a->dtype != FA_DTYPE_BF16 && a->dtype != FA_DTYPE_F32)
        return fai_fail(
            FA_ERR_DTYPE,
            "dtype is %d: must be FA_DTYPE_F16 (%d), FA_DTYPE_BF16 (%d) or, on the CPU, "
            "FA_DTYPE_F32 (%d)",
            a->dtype, FA_DTYPE_F16, FA_DTYPE_BF16, FA_DTYPE_F32);
    const int on_cuda = a->device == FA_DEVICE_CUDA;
    if (on_cuda && a->dtype == FA_DTYPE_F32)
        return fai_fail(FA_ERR_DTYPE,
                        "dtype is FA_DTYPE_F32 (%d) on CUDA: must be FA_DTYPE_F16 or FA_DTYPE_BF16",
                        a->dtype);
    if (a->head_dim < 1 || a->head_dim > (on_cuda ? FAI_MAX_HEAD_DIM_CUDA : FAI_MAX_HEAD_DIM_CPU) ||
        (on_cuda && a->head_dim % 8 != 0))
        return fai_fail(FA_ERR_HEAD_DIM, "head_dim is %d: must be %s", a->head_dim,
                        on_cuda ? "a multiple of 8 from 8 to 256 on CUDA" : "from 1 to 512");
    if (!countable(a->batch, a->heads_q, a->q_len, a->head_dim) ||
        !countable(a->batch, a->heads_kv, a->kv_len, a->head_dim))
        return fai_fail(
            FA_ERR_SIZE,
            "batch %d with %d heads_q, q_len %d, kv_len %d and head_dim %d: the tensors' "
            "bytes must fit 63 bits",
            a->batch, a->heads_q, a->q_len, a->kv_len, a->head_dim);
    return FA_OK;
}

static fa_status check_scale_and_mask(const fa_args *a) {
    if (!(a->scale >= 0) || a->scale > 3.402823466e38f)
        return fai_fail(FA_ERR_SCALE,
                        "scale is %g: must be finite and positive, or 0 for 1 / sqrt(head_dim)",
                        (double)a->scale);
    if (a->align != FA_ALIGN_BOTTOM_RIGHT && a->align != FA_ALIGN_OFFSET)
        return fai_fail(FA_ERR_MASK,
                        "align is %d: must be FA_ALIGN_BOTTOM_RIGHT (0) or FA_ALIGN_OFFSET (1)",
                        a->align);
    if (a->align == FA_ALIGN_BOTTOM_RIGHT && (a->causal_offset != 0 || a->causal_offsets))
        return fai_fail(
            FA_ERR_MASK,
            "%s is set (causal_offset %d) but align is FA_ALIGN_BOTTOM_RIGHT: set align to "
            "FA_ALIGN_OFFSET to give offsets",
            a->causal_offsets ? "causal_offsets" : "causal_offset", a->causal_offset);
    if (a->causal_offsets && a->causal_offset != 0)
        return fai_fail(FA_ERR_MASK,
                        "causal_offset is %d and causal_offsets is set too: give one of them",
                        a->causal_offset);
    return FA_OK;
}

static fa_status check_ragged(const fa_args *a, fai_purpose purpose) {
    if (purpose == FAI_FOR_RUN && a->total_q != 0 && !a->cu_seqlens_q)
        return fai_fail(FA_ERR_RAGGED, "total_q is %d without cu_seqlens_q: must be 0 then",
                        a->total_q);
    if (purpose == FAI_FOR_RUN && a->total_k != 0 && !a->cu_seqlens_k)
        return fai_fail(FA_ERR_RAGGED, "total_k is %d without cu_seqlens_k: must be 0 then",
                        a->total_k);
    if (a->page_size > 0 && (a->cu_seqlens_k || a->total_k != 0))
        return fai_fail(
            FA_ERR_RAGGED,
            "cu_seqlens_k or total_k (%d) is set with page_size %d: the lengths of paged "
            "sequences come from seqused_k",
            a->total_k, a->page_size);
    return FA_OK;
}

static fa_status check_pages(const fa_args *a) {
    if (a->page_size == 0) {
        if (a->block_table || a->num_pages || a->block_table_cols || a->block_table_stride)
            return fai_fail(
                FA_ERR_PAGES,
                "page_size is 0 but block_table, num_pages (%d), block_table_cols (%d) or "
                "block_table_stride (%lld) is set: must be 1 or more for paged KV",
                a->num_pages, a->block_table_cols, (long long)a->block_table_stride);
        return FA_OK;
    }
    fa_status status = check_not_negative(FA_ERR_PAGES, "page_size", a->page_size);
    if (!status) status = check_not_negative(FA_ERR_PAGES, "num_pages", a->num_pages);
    if (!status) status = check_not_negative(FA_ERR_PAGES, "block_table_cols", a->block_table_cols);
    if (status || a->num_pages == 0) return status;
    if ((int64_t)a->block_table_cols * a->page_size < a->kv_len)
        return fai_fail(
            FA_ERR_PAGES,
            "block_table_cols is %d: with page_size %d must be at least %lld to hold kv_len "
            "%d",
            a->block_table_cols, a->page_size, (long long)fai_ceil_div(a->kv_len, a->page_size),
            a->kv_len);
    if (a->batch > 1 && a->block_table_stride < a->block_table_cols)
        return fai_fail(FA_ERR_PAGES,
                        "block_table_stride is %lld: must be at least block_table_cols, %d",
                        (long long)a->block_table_stride, a->block_table_cols);
    return FA_OK;
}

static fa_status check_splits(const fa_args *a) {
    if (a->num_splits < 0 || a->num_splits > FAI_MAX_SPLITS)
        return fai_fail(FA_ERR_SPLITS, "num_splits is %d: must be from 0 to %d", a->num_splits,
                        FAI_MAX_SPLITS);
    if (a->split_keys < 0)
        return fai_fail(FA_ERR_SPLITS, "split_keys is %d: must be 0 or more", a->split_keys);
    if (a->num_splits != 0 && a->split_keys != 0)
        return fai_fail(FA_ERR_SPLITS,
                        "num_splits is %d and split_keys is %d: set one of them, the other to 0",
                        a->num_splits, a->split_keys);
    return FA_OK;
}

static fa_status check_tasks(const fa_args *a) {
    if (a->device == FA_DEVICE_CUDA) {
        if (a->threads || a->task_index || a->task_count)
            return fai_fail(FA_ERR_TASKS,
                            "threads is %d, task_index %d, task_count %d: must be 0 on CUDA",
                            a->threads, a->task_index, a->task_count);
        return FA_OK;
    }
    if (a->threads < 0)
        return fai_fail(FA_ERR_TASKS, "threads is %d: must be 0 (all) or more", a->threads);
    if (a->task_count < 0 || a->task_index < 0 ||
        (a->task_count == 0 ? a->task_index != 0 : a->task_index >= a->task_count))
        return fai_fail(
            FA_ERR_TASKS,
            "task_index is %d of task_count %d: must be 0 <= task_index < task_count, or "
            "both 0",
            a->task_index, a->task_count);
    if (a->task_count > 0 && (a->threads > 1 || a->num_splits > 1 || a->split_keys > 0))
        return fai_fail(
            FA_ERR_TASKS,
            "task_count is %d with threads %d, num_splits %d and split_keys %d: a slice runs "
            "in one thread and never cuts a row's keys, so threads and num_splits must be 0 "
            "or 1 and split_keys 0",
            a->task_count, a->threads, a->num_splits, a->split_keys);
#ifndef _OPENMP
    if (a->threads > 1)
        return fai_fail(
            FA_ERR_NOT_BUILT,
            "threads is %d: this build has no OpenMP, so it must be 0 or 1 (task_index and "
            "task_count run slices in the caller's threads)",
            a->threads);
#endif
    return FA_OK;
}

static fa_status check_options(const fa_args *a, fai_purpose purpose) {
    fa_status status = check_scale_and_mask(a);
    if (!status) status = check_ragged(a, purpose);
    if (!status) status = check_pages(a);
    if (!status) status = check_splits(a);
    if (!status) status = check_tasks(a);
    return status;
}

/* The tensors with their extents; what a loop over "every tensor" walks over. */
typedef struct tensor {
    const char *field;
    fa_view *view;
    int64_t extent_batch, extent_head, extent_seq, extent_dim;
    int32_t bytes; /* of an element */
    int output;
    int optional;
} tensor;

enum { kTensors = 5 };

/* A query may come before the arrays do: the totals say then that a side will be packed. A run
 * without cu_seqlens has had its totals refused. */
static int is_packed_q(const fa_args *a) { return a->cu_seqlens_q || a->total_q > 0; }
static int is_packed_k(const fa_args *a) { return a->cu_seqlens_k || a->total_k > 0; }

static void list_tensors(fa_args *a, tensor t[kTensors]) {
    const int64_t q_batch = is_packed_q(a) ? (a->batch > 0) : a->batch;
    const int64_t q_seq = is_packed_q(a) ? a->total_q : a->q_len;
    const int paged = a->page_size > 0;
    const int64_t k_batch =
        a->batch == 0 ? 0 : (paged ? a->num_pages : (is_packed_k(a) ? 1 : a->batch));
    const int64_t k_seq = paged ? a->page_size : (is_packed_k(a) ? a->total_k : a->kv_len);
    const int32_t bytes = element_bytes(a);
    const tensor list[kTensors] = {
        {"q", &a->q, q_batch, a->heads_q, q_seq, a->head_dim, bytes, 0, 0},
        {"k", &a->k, k_batch, a->heads_kv, k_seq, a->head_dim, bytes, 0, 0},
        {"v", &a->v, k_batch, a->heads_kv, k_seq, a->head_dim, bytes, 0, 0},
        {"o", &a->o, q_batch, a->heads_q, q_seq, a->head_dim, bytes, 1, 0},
        {"lse", &a->lse, q_batch, a->heads_q, q_seq, 1, 4, 1, 1}};
    memcpy(t, list, sizeof(list));
}

static int is_empty(const tensor *t) { return t->extent_batch == 0 || t->extent_seq == 0; }

static fa_status check_null(const fa_args *a, const tensor t[kTensors]) {
    for (int i = 0; i < kTensors; ++i)
        if (!t[i].view->data && !t[i].optional && !is_empty(&t[i]))
            return fai_fail(
                FA_ERR_NULL,
                "%s.data is null: must point to a tensor of %lld x %lld heads x %lld rows x "
                "%lld elements",
                t[i].field, (long long)t[i].extent_batch, (long long)t[i].extent_head,
                (long long)t[i].extent_seq, (long long)t[i].extent_dim);
    if (a->page_size > 0 && a->num_pages > 0 && a->batch > 0 && a->kv_len > 0 && !a->block_table)
        return fai_fail(FA_ERR_NULL,
                        "block_table is null: with page_size %d must hold %d rows of %d entries",
                        a->page_size, a->batch, a->block_table_cols);
    return FA_OK;
}

static fa_status check_address(const char *field, const void *address, int32_t bytes) {
    if ((uintptr_t)address % (uintptr_t)bytes == 0) return FA_OK;
    return fai_fail(FA_ERR_ALIGNMENT, "%s is at address %p: must be a multiple of %d bytes", field,
                    address, bytes);
}

static fa_status check_alignment(const fa_args *a, const tensor t[kTensors]) {
    for (int i = 0; i < kTensors; ++i) {
        const fa_status status = check_address(t[i].field, t[i].view->data, t[i].bytes);
        if (status) return status;
    }
    const struct {
        const char *field;
        const int32_t *address;
    } arrays[] = {{"cu_seqlens_q", a->cu_seqlens_q}, {"cu_seqlens_k", a->cu_seqlens_k},
                  {"seqused_q", a->seqused_q},       {"seqused_k", a->seqused_k},
                  {"leftpad_q", a->leftpad_q},       {"leftpad_k", a->leftpad_k},
                  {"block_table", a->block_table},   {"causal_offsets", a->causal_offsets}};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); ++i) {
        const fa_status status = check_address(arrays[i].field, arrays[i].address, 4);
        if (status) return status;
    }
    return FA_OK;
}

/* Checks one stride and takes the reach of its dimension from *room, the elements that may still be
 * crossed. An ignored stride becomes 0. */
static fa_status check_stride(const tensor *t, const char *dim, int64_t extent, int64_t *stride,
                              int64_t *room) {
    if (extent <= 1) {
        *stride = 0;
        return FA_OK;
    }
    if (*stride == 0 && t->output)
        return fai_fail(
            FA_ERR_STRIDE,
            "%s.stride_%s is 0: rows of an output must not overlap, and this dimension is "
            "%lld long",
            t->field, dim, (long long)extent);
    const int64_t reach = *room / (extent - 1);
    if (*stride > reach || *stride < -reach)
        return fai_fail(
            FA_ERR_STRIDE,
            "%s.stride_%s is %lld over %lld entries: every byte offset must fit 63 bits", t->field,
            dim, (long long)*stride, (long long)extent);
    *room -= (*stride < 0 ? -*stride : *stride) * (extent - 1);
    return FA_OK;
}

static fa_status check_strides(const fa_args *a, tensor t[kTensors]) {
    const int64_t entries = INT64_MAX / 4 - a->block_table_cols;
    if (a->page_size > 0 && a->batch > 1 && a->block_table_stride > entries / (a->batch - 1))
        return fai_fail(
            FA_ERR_STRIDE,
            "block_table_stride is %lld over %d rows: every byte offset must fit 63 bits",
            (long long)a->block_table_stride, a->batch);
    for (int i = 0; i < kTensors; ++i) {
        if (!t[i].view->data || is_empty(&t[i])) continue;
        int64_t room = INT64_MAX / t[i].bytes - t[i].extent_dim;
        fa_view *view = t[i].view;
        fa_status status =
            check_stride(&t[i], "batch", t[i].extent_batch, &view->stride_batch, &room);
        if (!status)
            status = check_stride(&t[i], "head", t[i].extent_head, &view->stride_head, &room);
        if (!status) status = check_stride(&t[i], "seq", t[i].extent_seq, &view->stride_seq, &room);
        if (status) return status;
    }
    return FA_OK;
}

static fa_status check_device(const fa_args *a, fai_purpose purpose) {
    if (a->device == FA_DEVICE_CPU) return FA_OK;
    if (a->device != FA_DEVICE_CUDA)
        return fai_fail(FA_ERR_DEVICE,
                        "device is %d: must be FA_DEVICE_CPU (%d) or FA_DEVICE_CUDA (%d)",
                        a->device, FA_DEVICE_CPU, FA_DEVICE_CUDA);
#ifdef FA_WITH_CUDA
    return purpose == FAI_FOR_RUN ? fai_cuda_check_pointers(a) : FA_OK;
#else
    (void)purpose;
    return fai_fail(
        FA_ERR_NOT_BUILT,
        "device is FA_DEVICE_CUDA (%d): this build has no CUDA kernels; build with nvcc "
        "and FA_WITH_CUDA",
        a->device);
#endif
}

/* One side's arrays on the host. The names carry the side: "cu_seqlens_q" and so on. */
typedef struct side {
    const int32_t *cu_seqlens, *seqused, *leftpad;
    int32_t declared, total;
    int32_t most; /* rows that a sequence may have: declared, or 0 in a pool without pages */
    char name;    /* q or k */
} side;

static fa_status check_entry(const side *s, const char *array, int64_t i, int32_t value,
                             int64_t low, int64_t high) {
    if (value >= low && value <= high) return FA_OK;
    return fai_fail(FA_ERR_LENGTHS, "%s_%c[%lld] is %d: must be from %lld to %lld", array, s->name,
                    (long long)i, value, (long long)low, (long long)high);
}

static fa_status check_sequence(const side *s, int64_t i) {
    int64_t segment = s->declared;
    fa_status status = FA_OK;
    if (s->cu_seqlens) {
        const int32_t *start = s->cu_seqlens + i;
        if (i == 0) status = check_entry(s, "cu_seqlens", 0, start[0], 0, s->total);
        if (!status) status = check_entry(s, "cu_seqlens", i + 1, start[1], start[0], s->total);
        if (status) return status;
        segment = (int64_t)start[1] - start[0];
    }
    const int64_t pad = s->leftpad ? s->leftpad[i] : 0;
    if (s->leftpad) status = check_entry(s, "leftpad", i, s->leftpad[i], 0, segment);
    if (status) return status;
    if (s->seqused)
        return check_entry(s, "seqused", i, s->seqused[i], 0, fai_min64(segment - pad, s->most));
    if (segment - pad > s->declared)
        return fai_fail(FA_ERR_LENGTHS,
                        "cu_seqlens_%c gives sequence %lld %lld rows: must be at most the declared "
                        "length, %d",
                        s->name, (long long)i, (long long)(segment - pad), s->declared);
    return FA_OK;
}

static fa_status check_pages_of(const fa_args *a, int64_t i) {
    const fai_range rows = fai_k_rows(a, i);
    if (rows.begin == rows.end) return FA_OK;
    const int32_t *entries = a->block_table + i * a->block_table_stride;
    for (int64_t c = rows.begin / a->page_size; c <= (rows.end - 1) / a->page_size; ++c)
        if (entries[c] < 0 || entries[c] >= a->num_pages)
            return fai_fail(FA_ERR_PAGE_INDEX,
                            "block_table[%lld][%lld] is %d: must be a page from 0 to %d",
                            (long long)i, (long long)c, entries[c], a->num_pages - 1);
    return FA_OK;
}

static fa_status check_host_arrays(const fa_args *a) {
    if (!a->cu_seqlens_q && !a->seqused_q && !a->leftpad_q && !a->cu_seqlens_k && !a->seqused_k &&
        !a->leftpad_k && a->page_size == 0)
        return FA_OK;
    const int32_t most_k = a->page_size > 0 && a->num_pages == 0 ? 0 : a->kv_len;
    const side q = {a->cu_seqlens_q, a->seqused_q, a->leftpad_q, a->q_len,
                    a->total_q,      a->q_len,     'q'};
    const side k = {a->cu_seqlens_k, a->seqused_k, a->leftpad_k, a->kv_len,
                    a->total_k,      most_k,       'k'};
    for (int64_t i = 0; i < a->batch; ++i) {
        fa_status status = check_sequence(&q, i);
        if (!status) status = check_sequence(&k, i);
        if (!status && a->page_size > 0) status = check_pages_of(a, i);
        if (status) return status;
    }
    return FA_OK;
}

/* Written out because libm is not needed for anything else. Newton's steps from above fall until
 * they are within an ulp of the root, which gives the contract's float32 scale for every head_dim.
 */
static double square_root(double x) {
    double root = x < 1 ? 1 : x, last;
    do {
        last = root;
        root = 0.5 * (root + x / root);
    } while (root < last);
    return last;
}

/* Fills in what later rooms need not think about. A packed side cannot have a longer sequence than
 * its total, however much its caller declared: tiles and workspace need not grow with that. */
static void resolve(fa_args *a) {
    if (is_packed_q(a)) {
        a->q.stride_batch = a->o.stride_batch = a->lse.stride_batch = 0;
        if (a->q_len > a->total_q) a->q_len = a->total_q;
    }
    if (is_packed_k(a)) {
        a->k.stride_batch = a->v.stride_batch = 0;
        if (a->kv_len > a->total_k) a->kv_len = a->total_k;
    }
    if (a->scale == 0) a->scale = (float)(1 / square_root(a->head_dim));
}

fa_status fai_check(const fa_args *args, fai_purpose purpose, fa_args *resolved) {
    if (!args) return fai_fail(FA_ERR_NULL, "args is null: must point to an fa_args");
    fa_status status = check_version(args, resolved);
    if (!status) status = check_sizes(resolved);
    if (!status) status = check_shape(resolved);
    if (!status) status = check_options(resolved, purpose);
    if (status) return status;

    tensor tensors[kTensors];
    list_tensors(resolved, tensors);
    if (purpose == FAI_FOR_RUN) status = check_null(resolved, tensors);
    if (!status) status = check_alignment(resolved, tensors);
    if (!status) status = check_strides(resolved, tensors);
    if (!status) status = check_device(resolved, purpose);
    if (!status && purpose == FAI_FOR_RUN && resolved->device == FA_DEVICE_CPU)
        status = check_host_arrays(resolved);
    if (status) return status;

    resolve(resolved);
    return FA_OK;
}
