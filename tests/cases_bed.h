/* cases_bed.h - the inside of a case_bed, for the files that make, call and judge it. */
#ifndef TESTS_CASES_BED_H
#define TESTS_CASES_BED_H

#include "cases.h"

/* Part of a buffer that the host has images of, in bytes from the buffer's start. */
typedef struct bed_window {
    int64_t begin, end;
    unsigned char *before, *after;
} bed_window;

typedef struct bed_buffer {
    const memory *memory;
    unsigned char *device; /* guard, used bytes, guard; null when empty */
    int64_t bytes, first, used;
    int windows; /* ascending, disjoint */
    bed_window *window;
} bed_buffer;

typedef struct bed_tensor {
    int buffer;   /* index into case_bed.buffer */
    int64_t base; /* elements from the buffer's first used byte to element (0, 0, 0, 0) */
    int64_t stride[3];
    bool empty;
} bed_tensor;

typedef struct bed_sequence {
    int64_t start, pad, len; /* rows; the first real one is start + pad */
} bed_sequence;

typedef struct bed_side {
    bed_sequence *sequence;
    int64_t end;   /* packed: where the last segment ends */
    int64_t total; /* packed: all rows, else 0 */
    int64_t rows;  /* of one entry of the view */
} bed_side;

/* The call's int32 arrays, each a buffer of its own. */
typedef enum bed_array {
    ARRAY_CU_Q = CASE_TENSORS,
    ARRAY_CU_K,
    ARRAY_USED_Q,
    ARRAY_USED_K,
    ARRAY_LEFT_Q,
    ARRAY_LEFT_K,
    ARRAY_OFFSETS,
    ARRAY_TABLE,
    BED_WORKSPACE,
    BED_BUFFERS
} bed_array;

struct case_bed {
    test_case c;
    const memory *memory;
    bed_side q_side, k_side;
    int64_t table_cols, table_stride, pages; /* pages: of the pool */
    int32_t *page; /* batch x table_cols: the page of every logical page, also of unused ones */
    bed_tensor tensor[CASE_TENSORS];
    bed_buffer buffer[BED_BUFFERS];
    fa_args args;
};

enum { BED_GUARD_BYTES = 4096 };
/* NaN in all three dtypes, and unlikely to be anyone's computed NaN. */
#define BED_POISON 0xffa5ffa5u

/* cases_bed.c */
bool bed_buffer_make(bed_buffer *b, const memory *m, int64_t bytes, int64_t shift);
bool bed_buffer_image(bed_buffer *b, uint32_t pattern); /* images of the whole */
void bed_buffer_free(bed_buffer *b);
/* The image's window that holds byte `at`. */
bed_window *bed_window_at(const bed_buffer *b, int64_t at);
/* Bytes from the buffer's start to logical row `row` of sequence i. */
int64_t bed_row_at(const case_bed *bed, case_tensor t, int32_t i, int32_t head, int64_t row);
int64_t bed_row_bytes(const case_bed *bed, case_tensor t);

/* cases_call.c */
bool bed_make_call(case_bed *bed); /* the arrays and the fa_args */

#endif /* TESTS_CASES_BED_H */
