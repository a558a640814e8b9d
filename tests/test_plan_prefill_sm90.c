/* test_plan_prefill_sm90.c - which calls the Hopper prefill kernels take, on a host without a GPU.
 * It changes with fa_plan_prefill_sm90.c. */
#include <criterion/criterion.h>
#include <string.h>

#include "cuda/fa_prefill_sm90.h"
#include "plan_call.h"

static int takes(const fa_args *a, fai_plan *plan) {
    const fai_machine machine = h200();
    memset(plan, 0, sizeof *plan);
    return fai_plan_prefill_sm90(a, &machine, plan);
}

/* Every shape fits the shared memory of a block, its tiles hold all rows, and its workspace is
 * enough for the generic family, which takes over where the copy engine cannot walk a tensor. */
Test(plan_prefill_sm90, shapes_fit_and_the_workspace_is_enough_for_the_generic_family) {
    const fai_machine machine = h200();
    int64_t taken = 0;
    for (int32_t dim = 8; dim <= 256; dim += 8)
        for (int32_t group = 1; group <= 71; group += group < 8 ? 1 : 9)
            for (int32_t q_len = 129; q_len <= 5000; q_len = q_len * 2 + 1)
                for (int32_t batch = 1; batch <= 256; batch *= 4, taken++) {
                    const fa_args a = call(batch, 2 * group, 2, dim, q_len, 6000);
                    fai_plan p = {0}, generic = {0};
                    cr_assert(takes(&a, &p), "dim %d group %d: %s", dim, group, p.why);
                    cr_assert(p.smem_bytes <= k227KB, "dim %d: %d bytes", dim, p.smem_bytes);
                    cr_assert(p.tile_dim >= dim && p.tile_rows <= 128);
                    cr_assert(p.tiles * p.tile_rows >= (int64_t)group * q_len, "group %d q %d",
                              group, q_len);
                    cr_assert(fai_plan_cuda_sm80(&a, &machine, &generic));
                    cr_assert(p.workspace_bytes >= generic.workspace_bytes);
                    cr_assert(p.partial_o_at >= FAI_CONTROL_WORDS * 4, "the counter's words");
                }
    cr_log_info("%lld plans", (long long)taken);
}

/* Heads of a group share a tile where that wastes no row, or where one head's queries are few. */
Test(plan_prefill_sm90, heads_share_tiles_where_that_wastes_nothing) {
    const struct {
        int32_t group, q_len, shared, rows;
    } rows[] = {{1, 4096, 0, 128},   {4, 4096, 1, 128}, {4, 64, 1, 128}, {8, 300, 1, 128},
                {3, 4096, 0, 128},   {3, 64, 1, 96},    {7, 40, 1, 112}, {128, 5, 1, 128},
                {129, 4096, 0, 128}, {71, 2, 1, 71}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const fa_args a = call(1, rows[i].group, 1, 128, rows[i].q_len, 8192);
        fai_plan p;
        cr_assert(takes(&a, &p), "%s", p.why);
        cr_assert(p.pack_heads == rows[i].shared && p.tile_rows == rows[i].rows,
                  "group %d q %d: shared %d, %d rows", rows[i].group, rows[i].q_len, p.pack_heads,
                  p.tile_rows);
    }
}

/* Chunks of 16, 32, 64 and 128 tiles on 132 multiprocessors, and a whole prompt. */
Test(plan_prefill_sm90, keys_are_split_where_tiles_are_few) {
    const struct {
        int32_t q_len, kv_len, splits;
    } rows[] = {{64, 4096, 8}, {128, 8192, 4}, {256, 8192, 2}, {512, 32768, 1}, {4096, 4096, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const fa_args a = call(1, 32, 8, 128, rows[i].q_len, rows[i].kv_len);
        fai_plan p;
        cr_assert(takes(&a, &p) && p.splits == rows[i].splits, "q %d: %d splits", rows[i].q_len,
                  p.splits);
    }
    fa_args a = call(1, 32, 8, 128, 64, 4096);
    fai_plan p;
    a.num_splits = 1;
    cr_assert(takes(&a, &p) && p.splits == 1);
    a.num_splits = 0;
    a.split_keys = 1000;
    cr_assert(takes(&a, &p) && p.splits == 5);
}

/* Copies from pages never straddle two, in the pool or in the tile. */
Test(plan_prefill_sm90, copies_divide_pages_and_tiles) {
    for (const fai_prefill_tile *tile = fai_prefill_tiles; tile->dim; ++tile)
        for (int32_t page = 1; page <= 1024; page++) {
            const int32_t rows = fai_prefill_box(tile->keys, page);
            cr_assert(tile->keys % rows == 0 && page % rows == 0, "%d keys, pages of %d: %d",
                      tile->keys, page, rows);
            cr_assert(rows % 16 || tile->keys / rows * ((tile->dim + 63) / 64) <= 32,
                      "a lane a copy");
        }
}

/* What the kernels cannot do goes to the generic family with a reason. */
Test(plan_prefill_sm90, what_it_cannot_do_is_left_to_others) {
    static const int32_t pads[2] = {0};
    fa_args calls[6];
    fai_plan p;
    for (int i = 0; i < 6; i++) calls[i] = call(2, 6, 2, 128, 4096, 4096);
    cr_assert(takes(&calls[0], &p), "%s", p.why);
    calls[0].q_len = 40; /* 120 rows: decode */
    calls[1].kv_len = 0;
    calls[2].num_splits = 2; /* tiles of one head of three */
    calls[3].page_size = 24;
    calls[3].num_pages = 1000;
    calls[4].page_size = 16; /* of an empty pool */
    calls[5].page_size = 64;
    calls[5].num_pages = 1000;
    calls[5].leftpad_k = pads;
    for (int i = 0; i < 6; i++) {
        cr_assert(!takes(&calls[i], &p), "call %d", i);
        cr_assert(p.why && p.refusal == FA_ERR_UNSUPPORTED, "call %d", i);
    }
    const fai_machine ada = card(89, 142, k99KB);
    const fa_args a = call(2, 8, 2, 128, 4096, 4096);
    cr_assert(!fai_plan_prefill_sm90(&a, &ada, &p));
}
