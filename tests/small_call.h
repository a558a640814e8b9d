/* small_call.h - a few tiny, valid calls in one piece of memory, for tests of the API's borders.
 *
 * Everything that a call points to lies in one struct, so that "nothing was written" is one memcmp.
 * The values are not interesting, the arguments are. It changes when the API gains a kind of call.
 */
#ifndef TESTS_SMALL_CALL_H
#define TESTS_SMALL_CALL_H

#include <string.h>

#include "fa_dtype.h"
#include "fa_fwd_causal.h"
#include "subject.h"

/* fp16, two sequences, four query heads on two, head_dim 8, at most 3 rows and 5 keys, lse. */
typedef enum small_kind {
    SMALL_DENSE,
    SMALL_PACKED, /* cu_seqlens on both sides */
    SMALL_PADDED, /* seqused and leftpad on both sides */
    SMALL_PAGED,  /* pages of 2, lengths from seqused_k */
    SMALL_SPLIT,  /* dense with num_splits = 3 and its workspace */
    SMALL_KINDS
} small_kind;

enum { kSmallBatch = 2, kSmallHeadsQ = 4, kSmallHeadsKv = 2, kSmallDim = 8 };
enum { kSmallQ = 3, kSmallKv = 5, kSmallPage = 2, kSmallPages = 7, kSmallCols = 3 };

typedef struct small_memory {
    _Alignas(16) uint16_t q[512];
    uint16_t k[512], v[512], o[512];
    float lse[64];
    int32_t cu_q[3], cu_k[3], used_q[2], used_k[2], pad_q[2], pad_k[2], offsets[2];
    int32_t table[kSmallBatch * kSmallCols];
    _Alignas(16) unsigned char workspace[16384];
} small_memory;

static inline void small_fill_arrays(small_memory *m) {
    const int32_t cu_q[] = {0, 1, 4}, cu_k[] = {0, 3, 8}, table[] = {4, 2, 6, 0, 3, 1};
    memcpy(m->cu_q, cu_q, sizeof cu_q);
    memcpy(m->cu_k, cu_k, sizeof cu_k);
    memcpy(m->table, table, sizeof table);
    m->used_q[0] = 2, m->used_q[1] = 1;
    m->used_k[0] = 3, m->used_k[1] = 4;
    m->pad_q[0] = 1, m->pad_q[1] = 0;
    m->pad_k[0] = 2, m->pad_k[1] = 1;
    m->offsets[0] = 2, m->offsets[1] = -1;
}

/* Small numbers in the inputs, NaN in the outputs, zeros in the workspace. */
static inline void small_fill(small_memory *m) {
    memset(m, 0, sizeof *m);
    for (int i = 0; i < 512; i++) {
        m->q[i] = fa_f16_from_f32((float)(i * 7 % 13 - 6) / 4);
        m->k[i] = fa_f16_from_f32((float)(i * 5 % 11 - 5) / 4);
        m->v[i] = fa_f16_from_f32((float)(i * 3 % 17 - 8) / 4);
    }
    memset(m->o, 0xff, sizeof m->o);
    memset(m->lse, 0xff, sizeof m->lse);
    small_fill_arrays(m);
}

static inline fa_args small_dense(small_memory *m) {
    fa_args a = fa_args_default();
    a.device = FA_DEVICE_CPU;
    a.dtype = FA_DTYPE_F16;
    a.batch = kSmallBatch;
    a.heads_q = kSmallHeadsQ;
    a.heads_kv = kSmallHeadsKv;
    a.head_dim = kSmallDim;
    a.q_len = kSmallQ;
    a.kv_len = kSmallKv;
    a.q = fa_bshd(m->q, kSmallQ, kSmallHeadsQ, kSmallDim);
    a.k = fa_bhsd(m->k, kSmallHeadsKv, kSmallKv, kSmallDim);
    a.v = fa_bshd(m->v, kSmallKv, kSmallHeadsKv, kSmallDim);
    a.o = fa_bshd(m->o, kSmallQ, kSmallHeadsQ, kSmallDim);
    a.lse = fa_bhsd(m->lse, kSmallHeadsQ, kSmallQ, 1);
    return a;
}

/* Fills m and returns a call that must succeed. */
static inline fa_args small_call(small_memory *m, small_kind kind, const subject *s) {
    small_fill(m);
    fa_args a = small_dense(m);
    if (kind == SMALL_PACKED) {
        a.cu_seqlens_q = m->cu_q, a.total_q = 4;
        a.cu_seqlens_k = m->cu_k, a.total_k = 8;
    } else if (kind == SMALL_PADDED) {
        a.seqused_q = m->used_q, a.leftpad_q = m->pad_q;
        a.seqused_k = m->used_k, a.leftpad_k = m->pad_k;
    } else if (kind == SMALL_PAGED) {
        a.page_size = kSmallPage, a.num_pages = kSmallPages;
        a.block_table = m->table, a.block_table_cols = a.block_table_stride = kSmallCols;
        a.seqused_k = m->used_k;
        a.k = fa_bshd(m->k, kSmallPage, kSmallHeadsKv, kSmallDim);
        a.v = fa_bhsd(m->v, kSmallHeadsKv, kSmallPage, kSmallDim);
    } else if (kind == SMALL_SPLIT) {
        a.num_splits = 3;
        a.workspace = m->workspace;
        a.workspace_size = sizeof m->workspace;
        s->workspace(&a, &a.workspace_size);
    }
    return a;
}

static inline const char *small_kind_name(small_kind kind) {
    static const char *const names[] = {"dense", "packed", "padded", "paged", "split"};
    return names[kind];
}

#endif /* TESTS_SMALL_CALL_H */
