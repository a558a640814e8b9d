/* fa_prefill_sm90_d96.cu - the sm_90 prefill kernels of compiled head_dim 96: a translation unit a
 * size, so that they compile side by side and a build can leave one out. */
#ifndef FA_NO_HEAD_DIM_96
#include "fa_prefill_sm90.cuh"

const void *fai_prefill_kernel_d96(int is_bf16) { return fai_prefill_kernel<96>(is_bf16); }
#endif
