/* fa_prefill_sm90.h - the tiles that the Hopper prefill kernels are compiled for, one row a
 * head_dim: the planner (C) picks a row, the kernels (C++) are built from it. It changes when a
 * tile is tuned.
 *
 * rows    of a tile: 64 for each of the block's warpgroups that multiply
 * keys    of a step
 * stages  tiles of K, and as many of V, in flight or in use
 * own_o   1: o is staged in shared memory of its own, so that the next Q can arrive meanwhile */
#ifndef FA_PREFILL_SM90_H
#define FA_PREFILL_SM90_H

#include <stdint.h>

typedef struct fai_prefill_tile {
    int32_t dim, rows, keys, stages, own_o;
} fai_prefill_tile;

#ifdef __cplusplus
#define FAI_PREFILL_CONST static constexpr
#else
#define FAI_PREFILL_CONST static const
#endif

FAI_PREFILL_CONST fai_prefill_tile fai_prefill_tiles[] = {
#ifndef FA_NO_HEAD_DIM_64
    {64, 128, 128, 3, 1},
#endif
#ifndef FA_NO_HEAD_DIM_96
    {96, 128, 128, 2, 1},
#endif
#ifndef FA_NO_HEAD_DIM_128
    {128, 128, 128, 2, 1},
#endif
#ifndef FA_NO_HEAD_DIM_192
    {192, 128, 96, 2, 0},
#endif
#ifndef FA_NO_HEAD_DIM_256
    {256, 128, 64, 2, 0},
#endif
    {0, 0, 0, 0, 0} /* the end */
};

/* Rows of a copy from pages: none straddles two, in the pool or in the tile. */
static inline int32_t fai_prefill_box(int32_t keys, int32_t page_size) {
    while (page_size) {
        const int32_t rest = keys % page_size;
        keys = page_size;
        page_size = rest;
    }
    return keys;
}

/* Shared memory: Q, the rings of K and V, o, then notes (barriers, two work items) and what aligns
 * the start to 1024 bytes. A row is chunks of 64 columns, 128 bytes each; head_dim 96 has two, the
 * second half empty. */
enum { kFaiPrefillNotes = 512, kFaiPrefillAlign = 1024 };
#ifdef __cplusplus
static constexpr
#else
static inline
#endif
    int32_t
    fai_prefill_smem_bytes(const fai_prefill_tile *t) {
    return ((1 + t->own_o) * t->rows + 2 * t->stages * t->keys) * ((t->dim + 63) / 64 * 128) +
           kFaiPrefillNotes + kFaiPrefillAlign;
}

#endif /* FA_PREFILL_SM90_H */
