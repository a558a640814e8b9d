/* fa_prefill_sm90_d128.cu - the sm_90 prefill kernels of compiled head_dim 128: a translation unit
 * a size, so that they compile side by side and a build can leave one out. */
#ifndef FA_NO_HEAD_DIM_128
#include "fa_prefill_sm90.cuh"

const void *fai_prefill_kernel_d128(int is_bf16) { return fai_prefill_kernel<128>(is_bf16); }
#endif
