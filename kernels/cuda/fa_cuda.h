/* fa_cuda.h - what the translation units of cuda/ tell each other: the host's handles of the
 * kernels, those of a family by compiled head_dim. It changes when a family or a head_dim comes. */
#ifndef FA_CUDA_H
#define FA_CUDA_H

#include "../fa_internal.h"

#ifdef FA_PREFIX
#define fai_cuda_merge_kernel FA_JOIN(FA_PREFIX, fai_cuda_merge_kernel)
#define fai_sm80_kernel_d64 FA_JOIN(FA_PREFIX, fai_sm80_kernel_d64)
#define fai_sm80_kernel_d96 FA_JOIN(FA_PREFIX, fai_sm80_kernel_d96)
#define fai_sm80_kernel_d128 FA_JOIN(FA_PREFIX, fai_sm80_kernel_d128)
#define fai_sm80_kernel_d192 FA_JOIN(FA_PREFIX, fai_sm80_kernel_d192)
#define fai_sm80_kernel_d256 FA_JOIN(FA_PREFIX, fai_sm80_kernel_d256)
#endif

#ifdef __cplusplus
extern "C" {
#endif
FAI_LOCAL const void *fai_cuda_merge_kernel(int is_bf16);
FAI_LOCAL const void *fai_sm80_kernel_d64(int is_bf16, int rows);
FAI_LOCAL const void *fai_sm80_kernel_d96(int is_bf16, int rows);
FAI_LOCAL const void *fai_sm80_kernel_d128(int is_bf16, int rows);
FAI_LOCAL const void *fai_sm80_kernel_d192(int is_bf16, int rows);
FAI_LOCAL const void *fai_sm80_kernel_d256(int is_bf16, int rows);
#ifdef __cplusplus
}
#endif

#endif /* FA_CUDA_H */
