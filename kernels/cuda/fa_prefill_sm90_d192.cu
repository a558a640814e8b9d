/* fa_prefill_sm90_d192.cu - the sm_90 prefill kernels of compiled head_dim 192: a translation unit
 * a size, so that they compile side by side and a build can leave one out. */
#ifndef FA_NO_HEAD_DIM_192
#include "fa_prefill_sm90.cuh"

const void *fai_prefill_kernel_d192(int is_bf16) { return fai_prefill_kernel<192>(is_bf16); }
#endif
