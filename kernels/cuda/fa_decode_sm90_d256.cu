/* fa_decode_sm90_d256.cu - the sm_90 decode kernels of compiled head_dim 256: a translation unit a
 * size, so that they compile side by side and a build can leave one out. */
#ifndef FA_NO_HEAD_DIM_256
#include "fa_decode_sm90.cuh"

const void *fai_decode_kernel_d256(int is_bf16, int rows, int is_dense) {
    return fai_decode_kernel<256>(is_bf16, rows, is_dense);
}
#endif
