/* fa_golden.h - reads a golden file: the call it describes, with its inputs made from the rule, and
 * the answer that generate.py computed. Changes with the format, which golden/README.md explains.
 */
#ifndef FA_GOLDEN_H
#define FA_GOLDEN_H

#include "fa_fwd_causal.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FA_GOLDEN_ARRAYS 8

typedef struct fa_golden {
    char name[64];
    /* A call on host memory, device FA_DEVICE_CPU. The views of o and lse have strides (o as q, lse
     * head by head) and null data, for the caller to set; q, k, v and the arrays belong to this
     * struct. */
    fa_args args;
    int64_t q_elements; /* of the whole q, and of o */
    int64_t kv_elements;
    int64_t lse_elements;
    /* The answer: the rows that exist, in the order sequence, head, row. */
    int64_t rows;
    double *o;   /* [rows][head_dim] */
    double *lse; /* [rows] */

    int32_t *arrays[FA_GOLDEN_ARRAYS]; /* what args points to */
} fa_golden;

/* 0, or -1 with a sentence on stderr; golden is then empty. fa_golden_free ends either. */
int fa_golden_load(const char *path, fa_golden *golden);
void fa_golden_free(fa_golden *golden);

#ifdef __cplusplus
}
#endif
#endif /* FA_GOLDEN_H */
