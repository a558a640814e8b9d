/* fa_decode_sm90.h - the shapes of the sm_90 decode kernels: the planner (C) picks one, the kernels
 * (C++) are built from it. It changes when a shape is tuned.
 *
 * The packed rows of one (sequence, kv head) are one tile of 4, 8 or 16 rows, or several of 16; a
 * cluster of 1, 2, 4 or 8 blocks shares the keys of a tile, and each of a block's 8 warps has its
 * own tiles of 16 keys and its own ring, whose slots take 16 rows of K and of V in turn. */
#ifndef FA_DECODE_SM90_H
#define FA_DECODE_SM90_H

#include <stdint.h>

enum {
    kFaiDecodeWarps = 8,
    kFaiDecodeKeys = 16,
    kFaiDecodeTileMost = 16, /* rows of a tile */
    kFaiDecodeRowsMost = 128 /* of a kv head */
};

#ifdef __CUDACC__
#define FAI_DECODE_FUNCTION __host__ __device__ static constexpr
#else
#define FAI_DECODE_FUNCTION static inline
#endif

/* 128 KB in flight in each of 64 multiprocessors, 8 MB over the chip, reach the bandwidth of an
 * H200; 192 KB gained nothing. Less where the place for the partial results needs it. */
FAI_DECODE_FUNCTION int32_t fai_decode_slots(int32_t dim, int32_t rows) {
    return dim == 64 ? 8 : dim == 128 ? 4 : dim == 192 ? (rows > 8 ? 2 : 3) : (rows > 8 ? 1 : 2);
}

/* Of o, a block of the cluster reduces every 2^cluster_log2-th unit of 8 columns. */
FAI_DECODE_FUNCTION int32_t fai_decode_units(int32_t dim, int32_t cluster_log2, int32_t rank) {
    return (dim / 8 - rank + (1 << cluster_log2) - 1) >> cluster_log2;
}

/* Floats from one partial result to the next; the 8 more spread them over the banks. */
FAI_DECODE_FUNCTION int32_t fai_decode_pitch(int32_t dim, int32_t rows, int32_t cluster_log2) {
    return fai_decode_units(dim, cluster_log2, 0) * 8 * rows + 8;
}

/* Partial results, and a reference and a sum for each row of them. */
FAI_DECODE_FUNCTION int32_t fai_decode_parts_bytes(int32_t parts, int32_t dim, int32_t rows,
                                                   int32_t cluster_log2) {
    return parts * (fai_decode_pitch(dim, rows, cluster_log2) * 4 + rows * 8);
}

/* Shared memory: the rings; the barriers, one for the partial results and one a slot; the partial
 * results of the cluster's warps, or, with 16 rows, of the block's warps and then of the cluster's
 * blocks. */
FAI_DECODE_FUNCTION int32_t fai_decode_ring_bytes(int32_t dim, int32_t rows) {
    return kFaiDecodeWarps * fai_decode_slots(dim, rows) * kFaiDecodeKeys * dim * 2;
}
FAI_DECODE_FUNCTION int32_t fai_decode_barrier_bytes(void) { return 16 + kFaiDecodeWarps * 8 * 8; }
FAI_DECODE_FUNCTION int32_t fai_decode_smem_bytes(int32_t dim, int32_t rows, int32_t cluster_log2) {
    const int32_t blocks = 1 << cluster_log2, warps = kFaiDecodeWarps;
    return fai_decode_ring_bytes(dim, rows) + fai_decode_barrier_bytes() +
           (rows > 8 ? fai_decode_parts_bytes(warps, dim, rows, 0) +
                           fai_decode_parts_bytes(blocks, dim, rows, cluster_log2)
                     : fai_decode_parts_bytes(warps * blocks, dim, rows, cluster_log2));
}

#endif /* FA_DECODE_SM90_H */
