/* fa_cuda.h - what the translation units of cuda/ tell each other: the host's handles of the
 * kernels, those of a family by compiled head_dim, and what every family's launcher needs to know
 * of the device. It changes when a family or a head_dim comes. */
#ifndef FA_CUDA_H
#define FA_CUDA_H

#include "../fa_internal.h"

#include <atomic>
#include <cfloat>
#include <cmath>
#include <cuda_runtime.h>

#ifdef FA_PREFIX
#define fai_cuda_fail FA_JOIN(FA_PREFIX, fai_cuda_fail)
#define fai_cuda_facts FA_JOIN(FA_PREFIX, fai_cuda_facts)
#define fai_cuda_prepare FA_JOIN(FA_PREFIX, fai_cuda_prepare)
#define fai_cuda_fill_params FA_JOIN(FA_PREFIX, fai_cuda_fill_params)
#define fai_cuda_launch_merge FA_JOIN(FA_PREFIX, fai_cuda_launch_merge)
#define fai_cuda_merge_kernel FA_JOIN(FA_PREFIX, fai_cuda_merge_kernel)
#define fai_sm80_kernel_d64 FA_JOIN(FA_PREFIX, fai_sm80_kernel_d64)
#define fai_sm80_kernel_d96 FA_JOIN(FA_PREFIX, fai_sm80_kernel_d96)
#define fai_sm80_kernel_d128 FA_JOIN(FA_PREFIX, fai_sm80_kernel_d128)
#define fai_sm80_kernel_d192 FA_JOIN(FA_PREFIX, fai_sm80_kernel_d192)
#define fai_sm80_kernel_d256 FA_JOIN(FA_PREFIX, fai_sm80_kernel_d256)
#endif

/* The status and sentence of a failed call; leaves no error behind for the caller's own checks. */
FAI_LOCAL fa_status fai_cuda_fail(cudaError_t error, const char *what);

/* Facts about the device, read once and kept. */
FAI_LOCAL cudaError_t fai_cuda_facts(int device, fai_machine *machine);

/* Lets the kernel use all the shared memory that the device gives to a block; once a device, which
 * *prepared remembers as a bit. Also the first call that finds out whether this build has code for
 * the device. */
FAI_LOCAL cudaError_t fai_cuda_prepare(const void *kernel, std::atomic<uint64_t> *prepared,
                                       int device, int smem_bytes);

/* What the kernels are told of a planned call (fa_tiles.cuh); `slots` blocks run at once. */
struct fai_cuda_params;
FAI_LOCAL void fai_cuda_fill_params(fai_cuda_params *p, const fa_args *a, const fai_plan *plan,
                                    int64_t slots);

/* The second kernel of calls that split the keys of tiles of p->tile_rows packed rows. */
FAI_LOCAL cudaError_t fai_cuda_launch_merge(fai_cuda_params *p, int is_bf16, cudaStream_t stream);

/* c of exp(scale * score) = 2^(c * score); finite, since 0 * inf would be NaN. */
static inline float fai_exponent_factor(const fa_args *a) {
    return fminf(a->scale * FAI_LOG2_E, FLT_MAX);
}

extern "C" {
FAI_LOCAL const void *fai_cuda_merge_kernel(int is_bf16);
FAI_LOCAL const void *fai_sm80_kernel_d64(int is_bf16, int rows);
FAI_LOCAL const void *fai_sm80_kernel_d96(int is_bf16, int rows);
FAI_LOCAL const void *fai_sm80_kernel_d128(int is_bf16, int rows);
FAI_LOCAL const void *fai_sm80_kernel_d192(int is_bf16, int rows);
FAI_LOCAL const void *fai_sm80_kernel_d256(int is_bf16, int rows);
}

#endif /* FA_CUDA_H */
