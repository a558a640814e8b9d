/* cases.h - a case: one line of text that describes one call completely, and what is done with it.
 *
 *     id=A9 dtype=bf16 b=3 hq=2 hkv=2 d=32 q=146 kv=1 qr=c kr=c qs=76,34,146 ks=1
 *
 * The same lines feed the tests, the benchmark, the sanitizer runs and fa_case, on every backend. A
 * key that is absent has its default; cases_text.c holds the table of keys, README.md explains
 * them. This file changes when a case can say something new. */
#ifndef TESTS_CASES_H
#define TESTS_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compare.h"
#include "memory.h"
#include "subject.h"

enum { CASE_LIST_MAX = 16, CASE_LINE_MAX = 1024 };
enum { CASE_RAGGED_CU = 1, CASE_RAGGED_USED = 2, CASE_RAGGED_LEFT = 4 }; /* letters c u l */

typedef enum case_layout { LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_FUSED } case_layout;
typedef enum case_tensor { TENSOR_Q, TENSOR_K, TENSOR_V, TENSOR_O, TENSOR_LSE } case_tensor;
enum { CASE_TENSORS = 5 };

/* How q and k come about; cases_input.c gives the formulas. */
typedef enum case_input {
    INPUT_NORMAL, /* N(0,1) */
    INPUT_LARGE,  /* logits spread over +-2500 */
    INPUT_EQUAL,  /* q = 0: all logits 0 */
    INPUT_SINK,   /* N(0,1), and every row's largest logit by far is key 0 */
    INPUT_RISE,   /* logits rise by 5 powers of two from 128 keys to the next */
    INPUT_CREEP,  /* by a tenth of a power of two */
    INPUT_FALL,   /* fall by 5 */
    INPUT_LOW,    /* all logits near -1e5, within a few units */
    INPUT_PICK,   /* one key of each row outweighs the rest beyond float32: o = its v, exactly */
    INPUT_SIXTY,  /* entries of +-60: key 0 aligned with every q, key 1 opposite */
    INPUT_DOWN    /* logits around -340 */
} case_input;

/* What v holds. */
typedef enum case_values {
    VALUES_NORMAL,
    VALUES_ONE,
    VALUES_INDEX, /* the key's index in base 128, one digit a column */
    VALUES_THREE,
    VALUES_THOUSAND,
    VALUES_BIG,  /* 60000 */
    VALUES_FLIP, /* +60000, -60000 by turns of the key */
    VALUES_INT,
    VALUES_UNIT /* key j has a 1 in column j % head_dim: o is the weights themselves */
} case_values;

/* What a library may do otherwise than the contract and still be judged, when that is declared
 * (README.md: dialects). Letters, in this order. */
enum {
    DIALECT_TOP_LEFT = 1,   /* t: the default diagonal is top-left */
    DIALECT_BASE_2 = 2,     /* b: lse is a base-2 logarithm */
    DIALECT_NO_LSE = 4,     /* n: lse is not written */
    DIALECT_PLUS_INF = 8,   /* p: lse of a row without keys is +inf */
    DIALECT_EMPTY_LSE = 16, /* l: lse of a row without keys is anything */
    DIALECT_EMPTY_O = 32,   /* e: o of a row without keys is anything */
    DIALECT_COARSE_LSE = 64 /* c: lse is as accurate as the dtype, not as float32 */
};

typedef enum case_tail { TAIL_NAN, TAIL_INF, TAIL_HUGE } case_tail;

/* Values for sequences 0, 1, 2 …, repeated when there are more sequences. */
typedef struct case_list {
    int32_t count;
    int32_t value[CASE_LIST_MAX];
} case_list;

/* How one tensor lies in memory, e.g. "bhsd:p4:s1:c17". */
typedef struct case_view {
    int32_t layout; /* case_layout; lse: bhsd is (b, h, s), bshd is (b, s, h) */
    int32_t pitch;  /* p: elements between one row's head_dim and the next */
    int32_t shift;  /* s: elements by which the base is off its alignment */
    int32_t spare;  /* c: rows of capacity beyond the declared length */
    bool set[3];    /* B, H, S: this stride is given instead, in elements */
    int64_t stride[3];
} case_view;

typedef struct test_case {
    char id[24];
    int32_t device, dtype, batch, heads_q, heads_kv, head_dim, q_len, kv_len;
    case_view view[CASE_TENSORS];
    int32_t no_lse;
    int32_t ragged_q, ragged_k; /* CASE_RAGGED_ bits */
    case_list q_lens, k_lens;   /* real lengths, by default the declared ones */
    case_list q_pads, k_pads;   /* left padding where ragged says so */
    int32_t slack;              /* rows after each packed segment's used ones, with u */
    int32_t page_size, shared_pages;
    int32_t align, offset;
    case_list offsets;
    int32_t num_splits, split_keys;
    float scale;
    int32_t input, values, tail; /* case_input, case_values, case_tail */
    int64_t seed;
    int32_t nan_key;  /* k of this key is NaN, -1: none */
    int32_t pick_key; /* the key that in=pick picks for rows that see it, -1: any */
    /* Where this call's batch, kv heads, query rows and keys start in the logical tensors, so that
     * calls that are parts of one another get the same numbers. */
    int32_t from_batch, from_head, from_row, from_key;
    int32_t threads, tasks;
    char kernel[32]; /* forced path, "" for the library's choice */
    case_list rows;  /* compare only these rows of each sequence, all by default */
    int32_t dialect; /* DIALECT_ bits */
} test_case;

/* ---- text (cases_text.c) ---- */
/* False, with a sentence in why, for an unknown key or a bad value. */
bool case_parse(const char *line, test_case *c, char *why, size_t why_size);
/* Parses a line that the program itself wrote; exits when it is wrong. printf-like. */
test_case case_of(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The line, defaults left out; at most CASE_LINE_MAX bytes. */
void case_print(const test_case *c, char *line, size_t line_size);

/* ---- the list (cases.c) ---- */
extern const char *const case_lines[];
extern const int case_line_count;

/* ---- inputs (cases_input.c) ---- */
/* Writes the head_dim elements of a row of q, k or v of sequence i. */
void case_fill_row(const test_case *c, case_tensor t, int32_t i, int32_t head, int64_t row,
                   void *to);

/* ---- buffers and the call (cases_bed.c) ---- */
/* All buffers of a case, each between guard zones: inputs filled by the rule, everything else of
 * them with the tail pattern; outputs poisoned with NaN. */
typedef struct case_bed case_bed;

/* Null, with a sentence, when memory is missing or the case makes no sense. */
case_bed *case_open(const test_case *c, char *why, size_t why_size);
void case_close(case_bed *bed);

/* The call that the case describes. Tests may change it, and the inputs through case_row, before
 * case_call. Pointers in it are the device's. */
fa_args *case_args(case_bed *bed);
const test_case *case_described(const case_bed *bed);

/* Lengths of sequence i as the case describes them, and its offset. */
int64_t case_q_len(const test_case *c, int32_t i);
int64_t case_kv_len(const test_case *c, int32_t i);
int64_t case_offset(const test_case *c, int32_t i);

/* Host image of a logical row (elements of head_dim; for lse its one float): as it is before the
 * call, to be changed at will, and as the call left it. */
void *case_row(case_bed *bed, case_tensor t, int32_t i, int32_t head, int64_t row);
const void *case_row_after(const case_bed *bed, case_tensor t, int32_t i, int32_t head,
                           int64_t row);
/* Host images of the int32 arrays in the call; null when the case has none. */
int32_t *case_block_table(case_bed *bed);

/* Asks the subject for the size and gives the call a zero-filled workspace between guards. */
fa_status case_give_workspace(case_bed *bed, const subject *s);
/* Uploads (which poisons o and lse anew), calls once, or once a task, and downloads. The workspace
 * is the one given before, as the last call left it. */
fa_status case_call(case_bed *bed, const subject *s);

/* After a call: guards, inputs and all rows that the call does not own are as before. With
 * outputs_too also the owned rows, as after an error. */
bool case_untouched(const case_bed *bed, bool outputs_too, char *why, size_t why_size);

/* ---- the verdict (cases_run.c) ---- */
/* o and lse without layout: rows of sequence 0, then 1 …; a row is heads_q x head_dim. */
typedef struct case_result {
    bool ok;
    fa_status status;
    char why[2 * CASE_LINE_MAX]; /* the first thing wrong, with the line that reproduces it */
    char kernel[32];             /* that the library chose, or was forced to */
    compare_report report;
    int64_t rows;
    void *o;
    float *lse; /* null when the case asks for none */
} case_result;

void case_result_free(case_result *r);
/* The oracle's verdict on an executed call. */
bool case_judge(case_bed *bed, case_result *r);
/* False for what the contract gives to the CPU alone: float32, some head_dims, threads, tasks. */
bool case_fits_device(const test_case *c);
/* Open, call, judge, close. Counts the case and its elements (counts.h). */
bool case_run(const subject *s, const test_case *c, case_result *r);
/* Both right, and the same bits in o and lse; c gives the heads and dtype of either. */
bool case_same_bits(const case_result *a, const case_result *b, const test_case *c, char *why,
                    size_t why_size);

#endif /* TESTS_CASES_H */
