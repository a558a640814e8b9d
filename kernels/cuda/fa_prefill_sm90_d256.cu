/* fa_prefill_sm90_d256.cu - the sm_90 prefill kernels of compiled head_dim 256: a translation unit
 * a size, so that they compile side by side and a build can leave one out. */
#ifndef FA_NO_HEAD_DIM_256
#include "fa_prefill_sm90.cuh"

const void *fai_prefill_kernel_d256(int is_bf16) { return fai_prefill_kernel<256>(is_bf16); }
#endif
