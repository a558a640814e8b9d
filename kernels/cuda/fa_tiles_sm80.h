/* fa_tiles_sm80.h - the tiles that the sm_80 kernel family is compiled for, one row a kernel: the
 * planner (C) picks a row, the kernels (C++) are built from it. It changes when a tile is tuned.
 *
 * rows       rows of q of a block, packed (query, head of the group)
 * keys       keys of a step; with warps_keys > 1 each warp takes its own share of them
 * warps_*    how the block's warps share the tile: along rows (prefill: a warp keeps its rows) or
 *            along keys (decode: all warps work for the same 16 rows and are merged at the end)
 * blocks     blocks that should fit on a multiprocessor; bounds registers and shared memory
 * stages_*   tiles of K or V in the ring: fewer than least does not hide the loads, more than most
 *            gained nothing */
#ifndef FA_TILES_SM80_H
#define FA_TILES_SM80_H

#include <stdint.h>

typedef struct fai_sm80_tile {
    int32_t dim, rows, keys, warps_rows, warps_keys, blocks, stages_least, stages_most;
} fai_sm80_tile;

#ifdef __cplusplus
#define FAI_SM80_TABLE static constexpr
#else
#define FAI_SM80_TABLE static const
#endif

FAI_SM80_TABLE fai_sm80_tile fai_sm80_tiles[] = {
#ifndef FA_NO_HEAD_DIM_64
    {64, 16, 128, 1, 4, 2, 3, 8}, {64, 64, 64, 4, 1, 3, 2, 6},  {64, 128, 64, 4, 1, 3, 2, 4},
#endif
#ifndef FA_NO_HEAD_DIM_96
    {96, 16, 64, 1, 4, 2, 3, 8},  {96, 64, 64, 4, 1, 2, 2, 6},  {96, 128, 64, 4, 1, 2, 2, 4},
#endif
#ifndef FA_NO_HEAD_DIM_128
    {128, 16, 64, 1, 4, 2, 3, 6}, {128, 64, 64, 4, 1, 2, 2, 5}, {128, 128, 64, 4, 1, 2, 2, 4},
#endif
#ifndef FA_NO_HEAD_DIM_192
    {192, 16, 64, 1, 4, 2, 3, 4}, {192, 64, 64, 4, 1, 2, 2, 4}, {192, 128, 64, 8, 1, 1, 2, 4},
#endif
#ifndef FA_NO_HEAD_DIM_256
    {256, 16, 64, 1, 4, 2, 3, 4}, {256, 64, 64, 4, 1, 2, 2, 4}, {256, 128, 64, 8, 1, 1, 2, 4},
#endif
    {0, 0, 0, 0, 0, 0, 0, 0} /* the end */
};

/* Shared memory of a block: notes about its work and rows, Q (then o), the rings. */
static
#ifdef __cplusplus
    constexpr
#endif
    int32_t
    fai_sm80_notes_bytes(int32_t rows) {
    return 768 + rows * 24;
}
static
#ifdef __cplusplus
    constexpr
#endif
    int32_t
    fai_sm80_smem_bytes(const fai_sm80_tile *tile, int32_t stages) {
    return fai_sm80_notes_bytes(tile->rows) + (tile->rows + stages * tile->keys) * tile->dim * 2;
}

#endif /* FA_TILES_SM80_H */
