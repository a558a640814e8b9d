/* fa_decode_sm90_d128.cu - the sm_90 decode kernels of compiled head_dim 128: a translation unit a
 * size, so that they compile side by side and a build can leave one out. */
#ifndef FA_NO_HEAD_DIM_128
#include "fa_decode_sm90.cuh"

const void *fai_decode_kernel_d128(int is_bf16, int rows, int is_dense) {
    return fai_decode_kernel<128>(is_bf16, rows, is_dense);
}
#endif
