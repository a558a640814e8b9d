/* bad_input_table.h - the rows of test_bad_input.c: a valid call, the fields that spoil it, the
 * status and words that the sentence must hold (the field's name and its value).
 *
 * Rows stand in the order of the checks. A new check is a new row. */
#ifndef TESTS_BAD_INPUT_TABLE_H
#define TESTS_BAD_INPUT_TABLE_H

#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "small_call.h"

/* The contract's order. */
typedef enum stage {
    AT_VERSION,
    AT_SIZES,
    AT_HEADS,
    AT_DTYPE,
    AT_HEAD_DIM,
    AT_PRODUCT,
    AT_SCALE,
    AT_MASK,
    AT_RAGGED,
    AT_PAGES,
    AT_SPLITS,
    AT_TASKS,
    AT_NULL,
    AT_ALIGNMENT,
    AT_STRIDE,
    AT_DEVICE,
    AT_VALUES,
    AT_WORKSPACE
} stage;

typedef struct change {
    enum { kNothing, kSet, kAdd, kFloat, kEntry } how;
    size_t at, bytes; /* of the field in fa_args */
    int64_t value;
    int index;   /* kEntry: of the array that the field points to */
    double real; /* kFloat */
} change;

#define FIELD(f) offsetof(fa_args, f), sizeof(((fa_args *)0)->f)
#define SET(f, x) \
    { kSet, FIELD(f), x, 0, 0 } /* field = x; a pointer only 0 */
#define ADD(f, x) \
    { kAdd, FIELD(f), x, 0, 0 } /* field += x, in bytes for a pointer */
#define SET_F(f, x) \
    { kFloat, FIELD(f), 0, 0, x } /* the float32 field = x */
#define ENTRY(f, i, x) \
    { kEntry, FIELD(f), x, i, 0 } /* field[i] = x */

enum { kAny = -1, kMaxChanges = 4, kMaxWords = 3 };

/* in_query: what the size query and fa_explain say, which look at no null pointer, no array and no
 * workspace. */
typedef struct fault {
    stage at;
    int kind; /* small_kind, or kAny when it is a fault of every call */
    fa_status status, in_query;
    const char *words[kMaxWords];
    change changes[kMaxChanges];
} fault;

#define BOTH(s) s, s
#define RUN_ONLY(s) s, FA_OK
#define NEWER FA_MAKE_VERSION(FA_VERSION_MAJOR, FA_VERSION_MINOR + 1, 0)
static const fault faults[] = {
    /* 9.9 and 10.0 are both of another major; were versions compared as text, 10 would be older. */
    {AT_VERSION, kAny, BOTH(FA_ERR_VERSION), {"struct_size", "0"}, {SET(struct_size, 0)}},
    {AT_VERSION, kAny, BOTH(FA_ERR_VERSION), {"struct_size", "-344"}, {SET(struct_size, -344)}},
    {AT_VERSION, kAny, BOTH(FA_ERR_VERSION), {"struct_size", "200"}, {SET(struct_size, 200)}},
    {AT_VERSION, kAny, BOTH(FA_ERR_VERSION), {"struct_size", "352"}, {SET(struct_size, 352)}},
    {AT_VERSION, kAny, BOTH(FA_ERR_VERSION), {"struct_size", "212"}, {SET(struct_size, 212)}},
    {AT_VERSION, kAny, BOTH(FA_ERR_VERSION), {"version", "is 0"}, {SET(version, 0)}},
    {AT_VERSION, kAny, BOTH(FA_ERR_VERSION), {"version", "-1"}, {SET(version, -1)}},
    {AT_VERSION, kAny, BOTH(FA_ERR_VERSION), {"version", "9009000"}, {SET(version, 9009000)}},
    {AT_VERSION, kAny, BOTH(FA_ERR_VERSION), {"version", "10000000"}, {SET(version, 10000000)}},
    {AT_VERSION, kAny, BOTH(FA_ERR_VERSION), {"version", "minor"}, {SET(version, NEWER)}},
    {AT_VERSION, kAny, BOTH(FA_ERR_VERSION), {"reserved", "7"}, {SET(reserved, 7)}},

    {AT_SIZES, kAny, BOTH(FA_ERR_SIZE), {"batch", "-1"}, {SET(batch, -1)}},
    {AT_SIZES, kAny, BOTH(FA_ERR_SIZE), {"q_len", "-2147483648"}, {SET(q_len, INT_MIN)}},
    {AT_SIZES, kAny, BOTH(FA_ERR_SIZE), {"kv_len", "-5"}, {SET(kv_len, -5)}},
    {AT_SIZES, kAny, BOTH(FA_ERR_SIZE), {"total_q", "-4"}, {SET(total_q, -4)}},
    {AT_SIZES, kAny, BOTH(FA_ERR_SIZE), {"total_k", "-8"}, {SET(total_k, -8)}},

    {AT_HEADS, kAny, BOTH(FA_ERR_HEADS), {"heads", "33", "2"}, {SET(heads_q, 33)}},
    {AT_HEADS, kAny, BOTH(FA_ERR_HEADS), {"heads", "3", "2"}, {SET(heads_q, 3)}},
    {AT_HEADS, kAny, BOTH(FA_ERR_HEADS), {"heads", "8", "3"}, {SET(heads_q, 8), SET(heads_kv, 3)}},
    {AT_HEADS, kAny, BOTH(FA_ERR_HEADS), {"heads", "2", "4"}, {SET(heads_q, 2), SET(heads_kv, 4)}},
    {AT_HEADS, kAny, BOTH(FA_ERR_HEADS), {"heads_kv", "0"}, {SET(heads_kv, 0)}},
    {AT_HEADS, kAny, BOTH(FA_ERR_HEADS), {"heads_q", "0"}, {SET(heads_q, 0)}},
    {AT_HEADS, kAny, BOTH(FA_ERR_HEADS), {"0"}, {SET(heads_q, 0), SET(heads_kv, 0)}},
    {AT_HEADS, kAny, BOTH(FA_ERR_HEADS), {"heads_q", "-4"}, {SET(heads_q, -4)}},
    {AT_HEADS, kAny, BOTH(FA_ERR_HEADS), {"-2147483648"}, {SET(heads_kv, INT_MIN)}},
    {AT_HEADS, kAny, BOTH(FA_ERR_HEADS), {"-1"}, {SET(heads_q, INT_MIN), SET(heads_kv, -1)}},
    {AT_HEADS, kAny, BOTH(FA_ERR_HEADS), {"heads_kv", "0"}, {SET(heads_kv, 0), SET(batch, 0)}},

    {AT_DTYPE, kAny, BOTH(FA_ERR_DTYPE), {"dtype", "is 0"}, {SET(dtype, 0)}},
    {AT_DTYPE, kAny, BOTH(FA_ERR_DTYPE), {"dtype", "545"}, {SET(dtype, FA_DTYPE_F32 + 1)}},
    {AT_DTYPE, kAny, BOTH(FA_ERR_DTYPE), {"dtype", "-1"}, {SET(dtype, -1)}},

    {AT_HEAD_DIM, kAny, BOTH(FA_ERR_HEAD_DIM), {"head_dim", "is 0"}, {SET(head_dim, 0)}},
    {AT_HEAD_DIM, kAny, BOTH(FA_ERR_HEAD_DIM), {"head_dim", "-8"}, {SET(head_dim, -8)}},
    {AT_HEAD_DIM, kAny, BOTH(FA_ERR_HEAD_DIM), {"head_dim", "513"}, {SET(head_dim, 513)}},
    {AT_HEAD_DIM, kAny, BOTH(FA_ERR_HEAD_DIM), {"2147483647"}, {SET(head_dim, INT_MAX)}},

    {AT_PRODUCT,
     kAny,
     BOTH(FA_ERR_SIZE),
     {"batch", "q_len", "2147483647"},
     {SET(batch, INT_MAX), SET(heads_q, 2147483646), SET(q_len, INT_MAX)}},
    {AT_PRODUCT,
     kAny,
     BOTH(FA_ERR_SIZE),
     {"kv_len", "2147483647"},
     {SET(q_len, 0), SET(heads_q, 1 << 30), SET(heads_kv, 1 << 30), SET(kv_len, INT_MAX)}},

    {AT_SCALE, kAny, BOTH(FA_ERR_SCALE), {"scale", "-0.125"}, {SET_F(scale, -0.125)}},
    {AT_SCALE, kAny, BOTH(FA_ERR_SCALE), {"scale", "-1"}, {SET_F(scale, -1)}},
    {AT_SCALE, kAny, BOTH(FA_ERR_SCALE), {"scale", "nan"}, {SET_F(scale, NAN)}},
    {AT_SCALE, kAny, BOTH(FA_ERR_SCALE), {"scale", "inf"}, {SET_F(scale, INFINITY)}},
    {AT_SCALE, kAny, BOTH(FA_ERR_SCALE), {"scale", "-inf"}, {SET_F(scale, -INFINITY)}},

    {AT_MASK, kAny, BOTH(FA_ERR_MASK), {"align", "2"}, {SET(align, 2)}},
    {AT_MASK, kAny, BOTH(FA_ERR_MASK), {"align", "-1"}, {SET(align, -1)}},
    {AT_MASK, kAny, BOTH(FA_ERR_MASK), {"causal_offset", "3"}, {SET(causal_offset, 3)}},
    {AT_MASK, kAny, BOTH(FA_ERR_MASK), {"causal_offsets"}, {ADD(causal_offsets, 16)}},
    {AT_MASK,
     kAny,
     BOTH(FA_ERR_MASK),
     {"causal_offset", "causal_offsets", "5"},
     {SET(align, 1), SET(causal_offset, 5), ADD(causal_offsets, 16)}},

    {AT_RAGGED, SMALL_DENSE, RUN_ONLY(FA_ERR_RAGGED), {"total_q", "4"}, {SET(total_q, 4)}},
    {AT_RAGGED, SMALL_DENSE, RUN_ONLY(FA_ERR_RAGGED), {"total_k", "8"}, {SET(total_k, 8)}},
    {AT_RAGGED,
     SMALL_PAGED,
     BOTH(FA_ERR_RAGGED),
     {"cu_seqlens_k"},
     {SET(page_size, kSmallPage), ADD(cu_seqlens_k, 16)}},
    {AT_RAGGED,
     SMALL_PAGED,
     BOTH(FA_ERR_RAGGED),
     {"total_k", "8"},
     {SET(page_size, kSmallPage), SET(total_k, 8), ADD(cu_seqlens_k, 16)}},

    {AT_PAGES, kAny, BOTH(FA_ERR_PAGES), {"page_size", "-2"}, {SET(page_size, -2)}},
    {AT_PAGES, SMALL_DENSE, BOTH(FA_ERR_PAGES), {"page_size", "0"}, {ADD(block_table, 16)}},
    {AT_PAGES,
     SMALL_DENSE,
     BOTH(FA_ERR_PAGES),
     {"page_size", "num_pages", "3"},
     {SET(num_pages, 3)}},
    {AT_PAGES, SMALL_PAGED, BOTH(FA_ERR_PAGES), {"page_size", "0"}, {SET(page_size, 0)}},
    {AT_PAGES, SMALL_PAGED, BOTH(FA_ERR_PAGES), {"num_pages", "-7"}, {SET(num_pages, -7)}},
    {AT_PAGES,
     SMALL_PAGED,
     BOTH(FA_ERR_PAGES),
     {"block_table_cols", "-1"},
     {SET(block_table_cols, -1)}},
    {AT_PAGES,
     SMALL_PAGED,
     BOTH(FA_ERR_PAGES),
     {"block_table_cols", "2", "5"},
     {SET(block_table_cols, 2)}},
    {AT_PAGES,
     SMALL_PAGED,
     BOTH(FA_ERR_PAGES),
     {"block_table_stride", "2"},
     {SET(block_table_stride, 2)}},
    {AT_PAGES,
     SMALL_PAGED,
     BOTH(FA_ERR_PAGES),
     {"block_table_stride", "-3"},
     {SET(block_table_stride, -3)}},

    {AT_SPLITS, kAny, BOTH(FA_ERR_SPLITS), {"num_splits", "-1"}, {SET(num_splits, -1)}},
    {AT_SPLITS, kAny, BOTH(FA_ERR_SPLITS), {"num_splits", "1025"}, {SET(num_splits, 1025)}},
    {AT_SPLITS, kAny, BOTH(FA_ERR_SPLITS), {"split_keys", "-64"}, {SET(split_keys, -64)}},
    {AT_SPLITS,
     kAny,
     BOTH(FA_ERR_SPLITS),
     {"num_splits", "split_keys", "64"},
     {SET(num_splits, 2), SET(split_keys, 64)}},

    {AT_TASKS, kAny, BOTH(FA_ERR_TASKS), {"threads", "-1"}, {SET(threads, -1)}},
    {AT_TASKS, kAny, BOTH(FA_ERR_TASKS), {"task_index", "3"}, {SET(task_index, 3)}},
    {AT_TASKS, kAny, BOTH(FA_ERR_TASKS), {"task_count", "-2"}, {SET(task_count, -2)}},
    {AT_TASKS,
     kAny,
     BOTH(FA_ERR_TASKS),
     {"task_index", "-1"},
     {SET(task_index, -1), SET(task_count, 2)}},
    {AT_TASKS,
     kAny,
     BOTH(FA_ERR_TASKS),
     {"task_index", "2", "task_count"},
     {SET(task_index, 2), SET(task_count, 2)}},
    {AT_TASKS,
     kAny,
     BOTH(FA_ERR_TASKS),
     {"task_count", "threads", "2"},
     {SET(threads, 2), SET(task_count, 2)}},
    {AT_TASKS,
     SMALL_SPLIT,
     BOTH(FA_ERR_TASKS),
     {"task_count", "num_splits", "3"},
     {SET(task_count, 2)}},
    {AT_TASKS,
     SMALL_DENSE,
     BOTH(FA_ERR_TASKS),
     {"task_count", "split_keys", "64"},
     {SET(task_count, 2), SET(split_keys, 64)}},

    {AT_NULL, kAny, RUN_ONLY(FA_ERR_NULL), {"q", "null"}, {SET(q.data, 0)}},
    {AT_NULL, kAny, RUN_ONLY(FA_ERR_NULL), {"k", "null"}, {SET(k.data, 0)}},
    {AT_NULL, kAny, RUN_ONLY(FA_ERR_NULL), {"v", "null"}, {SET(v.data, 0)}},
    {AT_NULL, kAny, RUN_ONLY(FA_ERR_NULL), {"o", "null"}, {SET(o.data, 0)}},
    {AT_NULL, SMALL_PAGED, RUN_ONLY(FA_ERR_NULL), {"block_table", "null"}, {SET(block_table, 0)}},

    {AT_ALIGNMENT, kAny, BOTH(FA_ERR_ALIGNMENT), {"q", "2 bytes"}, {ADD(q.data, 1)}},
    {AT_ALIGNMENT, kAny, BOTH(FA_ERR_ALIGNMENT), {"k", "2 bytes"}, {ADD(k.data, 1)}},
    {AT_ALIGNMENT, kAny, BOTH(FA_ERR_ALIGNMENT), {"v", "2 bytes"}, {ADD(v.data, 3)}},
    {AT_ALIGNMENT, kAny, BOTH(FA_ERR_ALIGNMENT), {"o", "2 bytes"}, {ADD(o.data, 1)}},
    {AT_ALIGNMENT, kAny, BOTH(FA_ERR_ALIGNMENT), {"lse", "4 bytes"}, {ADD(lse.data, 2)}},
    {AT_ALIGNMENT, SMALL_PACKED, BOTH(FA_ERR_ALIGNMENT), {"cu_seqlens_q"}, {ADD(cu_seqlens_q, 1)}},
    {AT_ALIGNMENT, SMALL_PACKED, BOTH(FA_ERR_ALIGNMENT), {"cu_seqlens_k"}, {ADD(cu_seqlens_k, 2)}},
    {AT_ALIGNMENT, SMALL_PADDED, BOTH(FA_ERR_ALIGNMENT), {"seqused_q"}, {ADD(seqused_q, 3)}},
    {AT_ALIGNMENT, SMALL_PADDED, BOTH(FA_ERR_ALIGNMENT), {"seqused_k"}, {ADD(seqused_k, 2)}},
    {AT_ALIGNMENT, SMALL_PADDED, BOTH(FA_ERR_ALIGNMENT), {"leftpad_q"}, {ADD(leftpad_q, 2)}},
    {AT_ALIGNMENT, SMALL_PADDED, BOTH(FA_ERR_ALIGNMENT), {"leftpad_k"}, {ADD(leftpad_k, 2)}},
    {AT_ALIGNMENT, SMALL_PAGED, BOTH(FA_ERR_ALIGNMENT), {"block_table"}, {ADD(block_table, 2)}},
    {AT_ALIGNMENT,
     kAny,
     BOTH(FA_ERR_ALIGNMENT),
     {"causal_offsets", "4 bytes"},
     {SET(align, 1), ADD(causal_offsets, 18)}},

    {AT_STRIDE, kAny, BOTH(FA_ERR_STRIDE), {"o.stride_head", "0"}, {SET(o.stride_head, 0)}},
    {AT_STRIDE, kAny, BOTH(FA_ERR_STRIDE), {"o.stride_seq", "0"}, {SET(o.stride_seq, 0)}},
    {AT_STRIDE, SMALL_DENSE, BOTH(FA_ERR_STRIDE), {"o.stride_batch"}, {SET(o.stride_batch, 0)}},
    {AT_STRIDE, kAny, BOTH(FA_ERR_STRIDE), {"lse.stride_head", "0"}, {SET(lse.stride_head, 0)}},
    {AT_STRIDE, kAny, BOTH(FA_ERR_STRIDE), {"lse.stride_seq", "0"}, {SET(lse.stride_seq, 0)}},
    {AT_STRIDE, SMALL_SPLIT, BOTH(FA_ERR_STRIDE), {"lse.stride_batch"}, {SET(lse.stride_batch, 0)}},
    {AT_STRIDE,
     SMALL_DENSE,
     BOTH(FA_ERR_STRIDE),
     {"q.stride_batch", "9223372036854775807"},
     {SET(q.stride_batch, INT64_MAX)}},
    {AT_STRIDE,
     kAny,
     BOTH(FA_ERR_STRIDE),
     {"k.stride_head", "-9223372036854775808"},
     {SET(k.stride_head, INT64_MIN)}},
    {AT_STRIDE,
     kAny,
     BOTH(FA_ERR_STRIDE),
     {"v.stride_seq", "4611686018427387904"},
     {SET(v.stride_seq, (int64_t)1 << 62)}},
    {AT_STRIDE,
     kAny,
     BOTH(FA_ERR_STRIDE),
     {"lse.stride_seq"},
     {SET(lse.stride_head, (int64_t)1 << 58), SET(lse.stride_seq, (int64_t)1 << 60)}},

    {AT_DEVICE, kAny, BOTH(FA_ERR_DEVICE), {"device", "is 0"}, {SET(device, 0)}},
    {AT_DEVICE, kAny, BOTH(FA_ERR_DEVICE), {"device", "3"}, {SET(device, 3)}},
    {AT_DEVICE, kAny, BOTH(FA_ERR_DEVICE), {"device", "-1"}, {SET(device, -1)}},

    {AT_VALUES,
     SMALL_PACKED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"cu_seqlens_q", "[0]", "-1"},
     {ENTRY(cu_seqlens_q, 0, -1)}},
    {AT_VALUES,
     SMALL_PACKED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"cu_seqlens_q", "[2]", "5"},
     {ENTRY(cu_seqlens_q, 2, 5)}},
    {AT_VALUES,
     SMALL_PACKED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"cu_seqlens_k", "[2]", "2"},
     {ENTRY(cu_seqlens_k, 2, 2)}},
    {AT_VALUES,
     SMALL_PACKED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"cu_seqlens_k", "[1]", "9"},
     {ENTRY(cu_seqlens_k, 1, 9)}},
    {AT_VALUES,
     SMALL_PACKED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"cu_seqlens_k", "8"},
     {ENTRY(cu_seqlens_k, 1, 0)}},
    {AT_VALUES,
     SMALL_PADDED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"seqused_q", "[1]", "-1"},
     {ENTRY(seqused_q, 1, -1)}},
    {AT_VALUES,
     SMALL_PADDED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"seqused_q", "[0]", "3"},
     {ENTRY(seqused_q, 0, 3)}},
    {AT_VALUES,
     SMALL_PADDED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"seqused_k", "[0]", "4"},
     {ENTRY(seqused_k, 0, 4)}},
    {AT_VALUES,
     SMALL_PADDED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"seqused_k", "[1]", "2147483647"},
     {ENTRY(seqused_k, 1, INT_MAX)}},
    {AT_VALUES,
     SMALL_PADDED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"seqused_k", "[0]", "-2147483648"},
     {ENTRY(seqused_k, 0, INT_MIN)}},
    {AT_VALUES,
     SMALL_PADDED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"leftpad_q", "[0]", "4"},
     {ENTRY(leftpad_q, 0, 4)}},
    {AT_VALUES,
     SMALL_PADDED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"leftpad_k", "[1]", "-1"},
     {ENTRY(leftpad_k, 1, -1)}},
    {AT_VALUES,
     SMALL_PADDED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"leftpad_k", "[0]", "2147483647"},
     {ENTRY(leftpad_k, 0, INT_MAX)}},
    {AT_VALUES,
     SMALL_PADDED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"leftpad_k", "[1]", "-2147483648"},
     {ENTRY(leftpad_k, 1, INT_MIN)}},
    {AT_VALUES,
     SMALL_PAGED,
     RUN_ONLY(FA_ERR_LENGTHS),
     {"seqused_k", "[1]", "6"},
     {ENTRY(seqused_k, 1, 6)}},
    {AT_VALUES,
     SMALL_PAGED,
     RUN_ONLY(FA_ERR_PAGE_INDEX),
     {"block_table[1][0]", "-1"},
     {ENTRY(block_table, 3, -1)}},
    {AT_VALUES,
     SMALL_PAGED,
     RUN_ONLY(FA_ERR_PAGE_INDEX),
     {"block_table[1][1]", "7"},
     {ENTRY(block_table, 4, kSmallPages)}},
    {AT_VALUES,
     SMALL_PAGED,
     RUN_ONLY(FA_ERR_PAGE_INDEX),
     {"block_table[0][1]", "1073741824"},
     {ENTRY(block_table, 1, 1 << 30)}},
    {AT_VALUES,
     SMALL_PAGED,
     RUN_ONLY(FA_ERR_PAGE_INDEX),
     {"block_table[0][0]", "-2147483648"},
     {ENTRY(block_table, 0, INT_MIN)}},

    {AT_WORKSPACE, SMALL_SPLIT, RUN_ONLY(FA_ERR_WORKSPACE), {"workspace"}, {SET(workspace, 0)}},
    {AT_WORKSPACE,
     SMALL_SPLIT,
     RUN_ONLY(FA_ERR_WORKSPACE),
     {"workspace_size", "is 0"},
     {SET(workspace_size, 0)}},
    {AT_WORKSPACE,
     SMALL_SPLIT,
     RUN_ONLY(FA_ERR_WORKSPACE),
     {"workspace_size"},
     {ADD(workspace_size, -1)}},
    {AT_WORKSPACE,
     SMALL_SPLIT,
     RUN_ONLY(FA_ERR_WORKSPACE),
     {"workspace", "16"},
     {ADD(workspace, 4)}},
};

enum { kFaults = sizeof faults / sizeof *faults };

static inline void apply_change(const change *c, fa_args *a) {
    char *field = (char *)a + c->at;
    int64_t value = c->value;
    if (c->how == kFloat) {
        const float real = (float)c->real;
        memcpy(field, &real, sizeof real);
    } else if (c->how == kEntry) {
        int32_t *entries;
        memcpy(&entries, field, sizeof entries);
        entries[c->index] = (int32_t)value;
    } else {
        int64_t before = 0;
        memcpy(&before, field, c->bytes);
        if (c->how == kAdd) value += before;
        memcpy(field, &value, c->bytes); /* little-endian, as every host of this library */
    }
}

static inline void apply_fault(const fault *f, fa_args *a) {
    for (int i = 0; i < kMaxChanges && f->changes[i].how != kNothing; i++)
        apply_change(&f->changes[i], a);
}

static inline int applies_to(const fault *f, int kind) {
    return f->kind == kAny || f->kind == kind;
}

/* The sentence holds all words of the fault. */
static inline bool says_all(const fault *f, const char *text) {
    for (int w = 0; w < kMaxWords && f->words[w]; w++)
        if (!strstr(text, f->words[w])) return false;
    return true;
}

/* Makes the spoilt call: its status, its sentence, and nothing of m is written. */
static inline bool fault_is_refused(const fault *f, const fa_args *a, const small_memory *m,
                                    const subject *s, char *why, size_t why_size) {
    static small_memory before;
    before = *m;
    const fa_status status = s->fwd_causal(a, NULL);
    const bool written = memcmp(&before, m, sizeof before) != 0;
    snprintf(why, why_size, "\"%s %s\" must give %s, gives %s, \"%s\"%s", f->words[0],
             f->words[1] ? f->words[1] : "", s->status_string(f->status), s->status_string(status),
             s->last_error(), written ? ", and something was written" : "");
    return status == f->status && says_all(f, s->last_error()) && !written;
}

#endif /* TESTS_BAD_INPUT_TABLE_H */
