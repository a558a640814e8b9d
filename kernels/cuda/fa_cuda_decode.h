/* fa_cuda_decode.h - what the launcher of the sm_90 decode family tells its kernels. It changes
 * when they need to know more. */
#ifndef FA_CUDA_DECODE_H
#define FA_CUDA_DECODE_H

#include "fa_cuda.h"
#include "fa_decode_sm90.h"
#include "fa_tensor_map.h"
#include "fa_tiles.cuh"

#ifdef FA_PREFIX
#define fai_decode_kernel_d64 FA_JOIN(FA_PREFIX, fai_decode_kernel_d64)
#define fai_decode_kernel_d128 FA_JOIN(FA_PREFIX, fai_decode_kernel_d128)
#define fai_decode_kernel_d192 FA_JOIN(FA_PREFIX, fai_decode_kernel_d192)
#define fai_decode_kernel_d256 FA_JOIN(FA_PREFIX, fai_decode_kernel_d256)
#endif

/* The whole launch. */
struct fai_decode_params {
    CUtensorMap maps[2];  /* of k and v */
    fa_args a;            /* resolved */
    int32_t group;        /* query heads of a kv head */
    int32_t tiles;        /* of a (sequence, kv head), when it is q_len long */
    int32_t cluster_log2; /* of the blocks that share a tile's keys */
    int32_t copies;       /* for 16 rows: 1 takes them whole; else one for each 64 columns */
    fai_divisor by_group, by_tiles, by_heads_kv, by_page;
    float c, octave; /* scale * log2(e), and 1 / c */
    int64_t offset;  /* where it is the same for all sequences */
};

FAI_LOCAL const void *fai_decode_kernel_d64(int is_bf16, int rows, int is_dense);
FAI_LOCAL const void *fai_decode_kernel_d128(int is_bf16, int rows, int is_dense);
FAI_LOCAL const void *fai_decode_kernel_d192(int is_bf16, int rows, int is_dense);
FAI_LOCAL const void *fai_decode_kernel_d256(int is_bf16, int rows, int is_dense);

#endif /* FA_CUDA_DECODE_H */
