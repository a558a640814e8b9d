/* fa_tensor_map.h - a view as the tensor that Hopper's copy engine (TMA) walks: what the host tells
 * a kernel so that one instruction copies a box of rows into swizzled shared memory, with zeros for
 * what lies outside. It changes when a kernel needs a box of another shape. */
#ifndef FA_TENSOR_MAP_H
#define FA_TENSOR_MAP_H

#include "../fa_internal.h"

#include <cuda.h> /* CUtensorMap; nothing of libcuda is linked */

#ifdef FA_PREFIX
#define fai_make_group_map FA_JOIN(FA_PREFIX, fai_make_group_map)
#define fai_make_tensor_map FA_JOIN(FA_PREFIX, fai_make_tensor_map)
#endif

/* How much of the view there is. Rows of head_dim elements; a stride of the view counts only where
 * the extent exceeds 1. */
typedef struct fai_tensor_extent {
    int64_t seq, heads, batch; /* pages: page_size, heads, num_pages; packed: total, heads, 1 */
    int32_t head_dim;
} fai_tensor_extent;

/* What one copy takes. A chunk is `chunk` neighbouring elements of a row: 64 (its rows lie 128
 * bytes apart in shared memory, swizzled over 128 bytes) or 32 (64 bytes). */
typedef struct fai_tensor_box {
    int32_t chunk, rows, chunks, heads;
} fai_tensor_box;

/* Fills *map, whose coordinates are (element of the chunk, row, chunk, head, batch or page).
 *
 * Where head_dim is not a multiple of the chunk, elements past it must read as zeros, so the map
 * has one chunk as wide as the row: coordinates are then (element of the row, row, 0, head, batch),
 * the box's `chunks` is taken as 1, and a kernel issues a copy for each chunk.
 *
 * Returns 0 when the copy engine cannot walk the view: a base or stride that is no multiple of 16
 * bytes, a stride of 0, negative, or of 2^40 bytes and more, a driver without tensor maps. */
FAI_LOCAL int fai_make_tensor_map(CUtensorMap *map, const fa_view *view, fai_tensor_extent extent,
                                  fai_tensor_box box);

/* The same for q, whose heads come in groups of `group`, one a kv head: coordinates are (element of
 * the row, row, head of the group, kv head, batch), so that heads past the group's end read as
 * zeros. A copy takes one chunk of the box's rows of its heads, head after head. */
FAI_LOCAL int fai_make_group_map(CUtensorMap *map, const fa_view *view, fai_tensor_extent extent,
                                 int32_t group, fai_tensor_box box);

#endif /* FA_TENSOR_MAP_H */
