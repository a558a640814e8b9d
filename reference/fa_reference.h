/* fa_reference.h - the oracle: what fa_fwd_causal() must compute, in float64 and plain loops.
 *
 * Written from include/fa_fwd_causal.h alone and sharing nothing with kernels/. It takes the call
 * as the library does, with all tensors and arrays in host memory and whatever device field, and
 * checks nothing: bad values of arrays are clamped as the contract says a GPU clamps them, so that
 * the clamping can be judged too. o, lse, workspace, splits and tasks of the call are not looked
 * at. This file changes when the contract's mathematics or addressing does.
 *
 * Where IEEE specials meet: a NaN or +Inf among a row's visible logits makes its o and lse NaN
 * (Inf - Inf under the exponential). A -Inf logit has weight 0, and 0 times an infinite or NaN v is
 * NaN, as in the plain formula. Visible keys whose logits are all -Inf sum to 0: lse = -inf and
 * o = 0, as for a row that sees no key. Here weights vanish below e^-745 and logits never overflow;
 * a float32 kernel meets both much earlier (e^-103, 2^128), so a test of specials places them where
 * the two agree. */
#ifndef FA_REFERENCE_H
#define FA_REFERENCE_H

#include "fa_fwd_causal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* L_q and L_k of sequence i, 0 <= i < batch. Either pointer may be null. */
void fa_reference_lengths(const fa_args *args, int32_t i, int64_t *q_len, int64_t *kv_len);

/* How many keys row r of sequence i sees: the keys 0 to that number less 1. */
int64_t fa_reference_visible(const fa_args *args, int32_t i, int64_t r);

/* The scale in force: the float32 of the contract. */
float fa_reference_scale(const fa_args *args);

/* Elements from view->data to the row r of sequence i, 0 <= r < L_q. For q and o the row's D
 * elements start there; for lse it is the element. */
int64_t fa_reference_q_index(const fa_args *args, const fa_view *view, int32_t i, int32_t head,
                             int64_t r);

/* Likewise for key j of sequence i in k or v, 0 <= j < L_k; head counts to heads_kv. */
int64_t fa_reference_kv_index(const fa_args *args, const fa_view *view, int32_t i, int32_t head,
                              int64_t j);

/* One row of one query head: o[head_dim], lse, and the largest finite |logit| that it sees (0 when
 * none), which tolerances need. lse and max_logit may be null. */
void fa_reference_row(const fa_args *args, int32_t i, int32_t head, int64_t r, double *o,
                      double *lse, double *max_logit);

/* The same with the roundings that a good kernel in args->dtype cannot avoid: S, exp and all sums
 * in float32, P relative to the row's largest logit and not yet normalised rounded to the dtype, o
 * rounded to the dtype. An error is judged as a multiple of this row's error. */
void fa_reference_baseline_row(const fa_args *args, int32_t i, int32_t head, int64_t r, double *o,
                               double *lse);

/* All rows: o is [batch][heads_q][q_len][head_dim], lse and max_logit are [batch][heads_q][q_len]
 * whatever the layout of the call. Entries of rows that a sequence does not have keep their value.
 * lse and max_logit may be null. */
void fa_reference_forward(const fa_args *args, double *o, double *lse, double *max_logit);
void fa_reference_baseline(const fa_args *args, double *o, double *lse);

#ifdef __cplusplus
}
#endif
#endif /* FA_REFERENCE_H */
