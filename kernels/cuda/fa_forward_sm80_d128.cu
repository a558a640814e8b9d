/* fa_forward_sm80_d128.cu - the sm_80 kernels of head_dim 128: a translation unit a size, so that
 * they compile side by side and a build can leave one out. */
#ifndef FA_NO_HEAD_DIM_128
#include "fa_cuda.h"
#include "fa_forward_sm80.cuh"

const void *fai_sm80_kernel_d128(int is_bf16, int rows) {
    return fai_sm80_kernel<128>(is_bf16, rows);
}
#endif
