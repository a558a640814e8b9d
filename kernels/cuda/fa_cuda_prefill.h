/* fa_cuda_prefill.h - what the launcher of the sm_90 prefill family tells its kernels. It changes
 * when they need to know more. */
#ifndef FA_CUDA_PREFILL_H
#define FA_CUDA_PREFILL_H

#include "fa_cuda.h"
#include "fa_prefill_sm90.h"
#include "fa_tensor_map.h"
#include "fa_tiles.cuh"

#ifdef FA_PREFIX
#define fai_prefill_kernel_d64 FA_JOIN(FA_PREFIX, fai_prefill_kernel_d64)
#define fai_prefill_kernel_d96 FA_JOIN(FA_PREFIX, fai_prefill_kernel_d96)
#define fai_prefill_kernel_d128 FA_JOIN(FA_PREFIX, fai_prefill_kernel_d128)
#define fai_prefill_kernel_d192 FA_JOIN(FA_PREFIX, fai_prefill_kernel_d192)
#define fai_prefill_kernel_d256 FA_JOIN(FA_PREFIX, fai_prefill_kernel_d256)
#endif

/* The whole launch. A unit is one (sequence, `heads` query heads of one kv head); a tile is
 * 1 << queries_log2 queries of them: its row r is query r % (1 << queries_log2) of head
 * r >> queries_log2. */
struct fai_prefill_params {
    CUtensorMap q, k, v;
    fai_cuda_params cuda; /* what the kernels of both families are told, and the merge */
    uint32_t *counter;    /* of tiles given out; zero between calls */
    int32_t heads, queries_log2;
    int32_t tile_queries;    /* queries that a tile advances */
    int32_t units, tiles;    /* tiles of a unit that is q_len long */
    int32_t section;         /* units that run side by side */
    int32_t items;           /* units * tiles * splits; only their bound when q_is_ragged */
    int32_t box_rows, boxes; /* of a tile of K or V: rows of a copy; copies, at most 32 */
    int32_t chunk_copies;    /* copies for the columns of a box: 1, or one a chunk */
    bool is_whole;           /* head_dim is a multiple of 64: the maps of k and v have chunks */
    bool q_is_ragged;        /* lengths of q are read on the device */
    bool v_has_tail;         /* rows past a sequence's keys can be read */
};

FAI_LOCAL const void *fai_prefill_kernel_d64(int is_bf16);
FAI_LOCAL const void *fai_prefill_kernel_d96(int is_bf16);
FAI_LOCAL const void *fai_prefill_kernel_d128(int is_bf16);
FAI_LOCAL const void *fai_prefill_kernel_d192(int is_bf16);
FAI_LOCAL const void *fai_prefill_kernel_d256(int is_bf16);

#endif /* FA_CUDA_PREFILL_H */
