/* fa_plan_prefill_sm90.c - which calls the Hopper prefill kernels take, whose heads share a tile,
 * and how keys are split where the tiles are too few. Pure C: tested on a host without a GPU. It
 * changes when these kernels learn a case or a threshold is measured again. */
#include "fa_internal.h"

#include "cuda/fa_decode_sm90.h"
#include "cuda/fa_prefill_sm90.h"

/* The smallest compiled tile that head_dim fits, or null. A head_dim left out of the build is not
 * padded to the next: that would cost what its owner left out. */
static const fai_prefill_tile *pick_tile(int32_t head_dim) {
    static const int32_t dims[] = {64, 96, 128, 192, 256};
    int i = 0;
    while (dims[i] < head_dim) ++i;
    for (const fai_prefill_tile *tile = fai_prefill_tiles; tile->dim; ++tile)
        if (tile->dim == dims[i]) return tile;
    return 0;
}

/* Queries of a tile that holds all `group` heads of a kv head: a power of 2, at most 64 when heads
 * share. */
static int32_t shared_queries(int32_t rows, int64_t group) {
    int32_t queries = rows;
    while (queries > 1 && queries * group > rows) queries /= 2;
    return queries;
}

/* What the kernels cannot do, or null. Strides and pointers are looked at when the call runs: the
 * workspace must not depend on them. */
static const char *what_is_missing(const fa_args *a, const fai_machine *machine, int64_t rows,
                                   const fai_prefill_tile *tile) {
    if (machine->cc != 90) return "not a Hopper GPU";
    if (rows <= kFaiDecodeRowsMost) return "128 packed rows or fewer";
    if (a->kv_len < 1 || a->kv_len > 1 << 29 || a->q_len > 1 << 29)
        return "no keys, or more than 2^29 keys or queries";
    if (a->cu_seqlens_k && a->total_k < 1) return "no keys";
    if (a->page_size > 0 &&
        (a->num_pages < 1 || a->leftpad_k || fai_prefill_box(tile->keys, a->page_size) % 16))
        return "pages are no multiple of 16 keys or padded on the left, or there are none";
    return 0;
}

/* Heads share a tile when that wastes no row of it, or when one head's queries do not fill it. */
static int is_shared(const fa_args *a, const fai_prefill_tile *tile, int64_t group,
                     int32_t queries) {
    if (group == 1 || group > tile->rows) return 0;
    if (queries * group == tile->rows) return 1;
    const int64_t apart = fai_ceil_div(a->q_len, tile->rows) * group;
    return fai_ceil_div(a->q_len, queries) < apart;
}

/* num_splits 0, as the generic family does: the bound on splits knows nothing of kv_len, so that
 * the workspace does not grow with it. A split is worth its partial result from 512 keys on. */
static void choose_splits(const fa_args *a, int64_t tiles, int64_t slots, int64_t *chosen,
                          int64_t *bound) {
    const int64_t most = tiles > 0 ? fai_clamp64(2 * slots / tiles, 1, FAI_MAX_SPLITS) : 1;
    const int64_t worth = fai_clamp64(a->kv_len / 512, 1, most);
    *bound = fai_fill_waves(tiles, slots, most);
    *chosen = fai_fill_waves(tiles, slots, worth);
}

int fai_plan_prefill_sm90(const fa_args *a, const fai_machine *machine, fai_plan *plan) {
    if (!fai_plan_cuda_sm80(a, machine, plan)) return 0;
    const size_t generic_bytes = plan->workspace_bytes;
    const int64_t group = a->heads_q / a->heads_kv, units = (int64_t)a->batch * a->heads_kv;
    const fai_prefill_tile *tile = pick_tile(a->head_dim);
    plan->refusal = tile ? FA_ERR_UNSUPPORTED : FA_ERR_NOT_BUILT;
    plan->why = tile ? what_is_missing(a, machine, group * a->q_len, tile)
                     : "this head_dim is left out of the build";
    if (plan->why) return 0;
    const int32_t queries = shared_queries(tile->rows, group);
    const int64_t apart = fai_ceil_div(a->q_len, tile->rows) * group;
    plan->pack_heads = is_shared(a, tile, group, queries);
    plan->tile_rows = plan->pack_heads ? (int32_t)(queries * group) : tile->rows;
    plan->tile_keys = tile->keys;
    plan->tile_dim = tile->dim;
    plan->stages = 2 * tile->stages;
    plan->smem_bytes = fai_prefill_smem_bytes(tile);
    plan->tiles = plan->pack_heads ? fai_ceil_div(a->q_len, queries) : apart;

    int64_t splits = 1, bound = 1;
    const int can_split = plan->pack_heads || group == 1; /* as the merge reads the rows */
    plan->why = "num_splits as the caller set it";
    if (a->num_splits > 0) {
        splits = bound = a->num_splits;
    } else if (a->split_keys > 0) {
        splits = bound = fai_clamp64(fai_ceil_div(a->kv_len, a->split_keys), 1, INT32_MAX);
        plan->why = "split_keys as the caller set it";
    } else {
        if (can_split) choose_splits(a, plan->tiles * units, machine->sm_count, &splits, &bound);
        plan->why = splits > 1 ? "keys are split: the tiles alone leave multiprocessors idle"
                               : "keys are not split: the tiles fill the GPU or the keys are few";
    }
    plan->refusal = FA_ERR_UNSUPPORTED;
    if (splits > 1 && !can_split) {
        plan->why = "splits of tiles that hold one head of several";
        return 0;
    }
    if (plan->smem_bytes > machine->smem_bytes || plan->tiles * units > INT32_MAX / splits) {
        plan->why = "too little shared memory, or 2^31 tiles and more";
        return 0;
    }
    plan->splits = (int32_t)bound;
    if (!fai_plan_workspace(a, FAI_CONTROL_WORDS * 4, plan)) {
        plan->refusal = FA_ERR_SIZE;
        plan->why = "the workspace for the splits does not fit 63 bits";
        return 0;
    }
    /* The generic family takes over where the copy engine cannot walk a tensor. */
    if (plan->workspace_bytes < generic_bytes) plan->workspace_bytes = generic_bytes;
    plan->splits = (int32_t)splits;
    return 1;
}
