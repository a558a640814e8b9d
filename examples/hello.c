/* The README's program: two new tokens meet a cache of five keys; q is not padded. */
#include "fa_fwd_causal.h"

#include <math.h>
#include <stdio.h>

enum { kHeadsQ = 4, kHeadsKv = 2, kHeadDim = 64, kQ = 2, kKv = 5, kCapacity = 8 };

static float q[kQ * kHeadsQ * kHeadDim];         /* (seq, heads, dim) */
static float k[kHeadsKv * kCapacity * kHeadDim]; /* (heads, seq, dim), longer than its used part */
static float v[kHeadsKv * kCapacity * kHeadDim];
static float o[kQ * kHeadsQ * kHeadDim];
static float lse[kHeadsQ * kQ];

int main(void) {
    /* Key j has v = j; with k = 0 every visible key weighs the same, so o is the mean of them. */
    for (int i = 0; i < kHeadsKv * kCapacity * kHeadDim; i++)
        v[i] = (float)(i / kHeadDim % kCapacity);

    fa_args a = fa_args_default();
    a.device = FA_DEVICE_CPU;
    a.dtype = FA_DTYPE_F32;
    a.batch = 1;
    a.heads_q = kHeadsQ;
    a.heads_kv = kHeadsKv;
    a.head_dim = kHeadDim;
    a.q_len = kQ;
    a.kv_len = kKv;
    a.q = fa_bshd(q, kQ, kHeadsQ, kHeadDim);
    a.k = fa_bhsd(k, kHeadsKv, kCapacity, kHeadDim);
    a.v = fa_bhsd(v, kHeadsKv, kCapacity, kHeadDim);
    a.o = fa_bshd(o, kQ, kHeadsQ, kHeadDim);
    a.lse = fa_bhsd(lse, kHeadsQ, kQ, 1);
    if (fa_fwd_causal(&a, NULL) != FA_OK) {
        puts(fa_last_error());
        return 1;
    }
    int wrong = 0;
    for (int r = 0; r < kQ; r++) {
        const int seen = kKv - kQ + r + 1; /* keys 0 to r + kv_len - q_len */
        printf("row %d sees %d of %d keys: o = %.3f, lse = %.3f\n", r, seen, kKv,
               o[r * kHeadsQ * kHeadDim], lse[r]);
        wrong += !(fabs(o[r * kHeadsQ * kHeadDim] - (seen - 1) / 2.0) < 1e-6);
        wrong += !(fabs(lse[r] - log(seen)) < 1e-6);
    }
    return wrong;
}
