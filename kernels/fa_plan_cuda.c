/* fa_plan_cuda.c - how a call runs on a GPU: tile, stages, splits. Pure C: the choice for any card
 * is tested on a host without one. It changes when a kernel family or a heuristic does. */
#include "fa_internal.h"

#include "cuda/fa_tiles_sm80.h"

static int refuse(fai_plan *plan, fa_status status, const char *why) {
    plan->refusal = status;
    plan->why = why;
    return 0;
}

static int32_t tile_dim_of(int32_t head_dim) {
    static const int32_t dims[] = {64, 96, 128, 192, 256};
    int i = 0;
    while (dims[i] < head_dim) ++i;
    return dims[i];
}

/* Blocks of this tile that share a multiprocessor, and their stages; 0 where not one fits. A block
 * costs 1 KB more than it asks for, and the multiprocessor has that 1 KB more than a block may ask:
 * dim 128, 128 rows: notes and Q 35.75 KB, 16 KB a stage. 227 KB: 2 blocks of 4 stages (99.75 KB
 * each); 163 KB: 2 blocks of 2 stages; 99 KB: 1 block of 3 stages. */
static int32_t fit_blocks(const fai_sm80_tile *tile, int32_t smem_bytes, int32_t *stages) {
    const int32_t reserved = 1024, stage_bytes = tile->keys * tile->dim * 2;
    for (int32_t blocks = tile->blocks; blocks >= 1; --blocks) {
        const int32_t room =
            (smem_bytes + reserved) / blocks - reserved - fai_sm80_smem_bytes(tile, 0);
        const int32_t fit = room > 0 ? room / stage_bytes : 0;
        if (fit < 2 || (blocks > 1 && fit < tile->stages_least)) continue;
        *stages = fit < tile->stages_most ? fit : tile->stages_most;
        return blocks;
    }
    return 0;
}

/* The smallest tile that holds all rows of a (sequence, kv head), else the largest that fits. */
static const fai_sm80_tile *pick_tile(int32_t dim, int64_t rows, int32_t smem_bytes,
                                      int32_t *blocks, int32_t *stages) {
    const fai_sm80_tile *best = NULL;
    for (const fai_sm80_tile *tile = fai_sm80_tiles; tile->dim; ++tile) {
        int32_t tile_stages = 0;
        if (tile->dim != dim || (best && best->rows >= rows)) continue;
        const int32_t fit = fit_blocks(tile, smem_bytes, &tile_stages);
        if (!fit) continue;
        best = tile;
        *blocks = fit;
        *stages = tile_stages;
    }
    return best;
}

/* 8 decode tiles on 264 slots: 33 splits (264). 128 tiles of a prompt's chunk: 2 splits (256). 512
 * tiles: 1 split (1.94 waves, 97 %). Every call asks, so the loop divides no integers and ends
 * where nothing can be better. */
int64_t fai_fill_waves(int64_t tiles, int64_t slots, int64_t most) {
    int64_t best = 1, full = fai_ceil_div(tiles, slots); /* waves that are begun */
    double best_share = 0;
    for (int64_t splits = 1; splits <= most && best_share < 0.9; ++splits) {
        while (full * slots < tiles * splits) ++full;
        const double share = (double)(tiles * splits) / (double)slots / (double)full;
        if (share * 0.9 <= best_share) continue;
        best = splits;
        best_share = share;
    }
    return best;
}

/* num_splits 0. The bound on splits knows nothing of kv_len, so that the workspace does not grow
 * with it: tiles * splits stays within 4 waves of decode tiles (whose partials are small) or 2 of
 * others. Then a split must be long enough to be worth its partial result: 128 rows of 128 floats
 * are written and read in about the time of 100 keys, so 512 keys; 128 for a decode tile. */
static void choose_splits(const fa_args *a, const fai_sm80_tile *tile, int64_t tiles, int64_t slots,
                          int64_t *chosen, int64_t *bound) {
    const int64_t waves = tile->warps_keys > 1 ? 4 : 2;
    const int64_t most = tiles > 0 ? fai_clamp64(waves * slots / tiles, 1, FAI_MAX_SPLITS) : 1;
    const int64_t least_keys = tile->rows * 4 > 128 ? tile->rows * 4 : 128;
    const int64_t worth = fai_clamp64(a->kv_len / least_keys, 1, most);
    *bound = fai_fill_waves(tiles, slots, most);
    *chosen = fai_fill_waves(tiles, slots, worth);
}

int fai_plan_cuda_sm80(const fa_args *a, const fai_machine *machine, fai_plan *plan) {
    const int64_t group = a->heads_q / a->heads_kv, units = (int64_t)a->batch * a->heads_kv;
    const int64_t rows = group * a->q_len;
    if (machine->cc < 80) return refuse(plan, FA_ERR_ARCH, "the GPU is older than sm_80");
    if (rows > INT32_MAX / 2 || units > INT32_MAX)
        return refuse(plan, FA_ERR_UNSUPPORTED,
                      "more than 2^30 rows of a kv head, or 2^31 - 1 (sequence, kv head) pairs");
    int32_t blocks = 0, stages = 0;
    const fai_sm80_tile *tile =
        pick_tile(tile_dim_of(a->head_dim), rows, machine->smem_bytes, &blocks, &stages);
    if (!tile)
        return refuse(plan, FA_ERR_NOT_BUILT,
                      "this head_dim is left out of the build or needs more shared memory");
    plan->tile_rows = tile->rows;
    plan->tile_keys = tile->keys;
    plan->tile_dim = tile->dim;
    plan->pack_heads = 1;
    plan->stages = stages;
    plan->smem_bytes = fai_sm80_smem_bytes(tile, stages);
    plan->tiles = fai_ceil_div(rows, tile->rows);

    int64_t splits = 1, bound = 1;
    const int64_t tiles = plan->tiles * units;
    plan->why = "num_splits as the caller set it";
    if (a->num_splits > 0) {
        splits = bound = a->num_splits;
    } else if (a->split_keys > 0) {
        splits = bound = fai_clamp64(fai_ceil_div(a->kv_len, a->split_keys), 1, INT32_MAX);
        plan->why = "split_keys as the caller set it";
    } else {
        choose_splits(a, tile, tiles, (int64_t)machine->sm_count * blocks, &splits, &bound);
        plan->why = splits > 1 ? "keys are split: the tiles alone leave multiprocessors idle"
                               : "keys are not split: the tiles fill the GPU or the keys are few";
    }
    if (plan->tiles * splits > INT32_MAX)
        return refuse(plan, FA_ERR_UNSUPPORTED, "more than 2^31 - 1 tiles of a kv head's splits");
    plan->splits = (int32_t)bound;
    if (!fai_plan_workspace(a, bound > 1 ? FAI_CONTROL_WORDS * 4 : 0, plan))
        return refuse(plan, FA_ERR_SIZE, "the workspace for the splits does not fit 63 bits");
    plan->splits = (int32_t)splits;
    return 1;
}
