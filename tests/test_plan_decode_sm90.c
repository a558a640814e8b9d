/* test_plan_decode_sm90.c - which calls the Hopper decode kernels take, on a host without a GPU. It
 * changes with fa_plan_decode_sm90.c. */
#include <criterion/criterion.h>
#include <string.h>

#include "cuda/fa_decode_sm90.h"
#include "plan_call.h"

static int takes(const fa_args *a, fai_plan *plan) {
    const fai_machine machine = h200();
    memset(plan, 0, sizeof *plan);
    return fai_plan_decode_sm90(a, &machine, plan);
}

/* Every shape it takes fits the shared memory of a block, holds all rows, and asks for the
 * workspace that the generic family would need in its place. */
Test(plan_decode_sm90, shapes_fit_and_share_the_generic_workspace) {
    const fai_machine machine = h200();
    int64_t taken = 0;
    for (int32_t dim = 8; dim <= 256; dim += 8)
        for (int32_t group = 1; group <= 16; group++)
            for (int32_t q_len = 1; q_len * group <= kFaiDecodeTileMost; q_len++)
                for (int32_t batch = 1; batch <= 256; batch *= 4, taken++) {
                    const fa_args a = call(batch, 8 * group, 8, dim, q_len, 60);
                    fai_plan p = {0}, generic = {0};
                    cr_assert(takes(&a, &p), "dim %d rows %d: %s", dim, q_len * group, p.why);
                    cr_assert(p.smem_bytes <= k227KB, "dim %d rows %d: %d bytes", dim,
                              q_len * group, p.smem_bytes);
                    cr_assert(p.tile_dim >= dim && p.tile_rows >= q_len * group && p.stages >= 1);
                    cr_assert(fai_plan_cuda_sm80(&a, &machine, &generic));
                    cr_assert(p.workspace_bytes == generic.workspace_bytes);
                }
    cr_log_info("%lld plans", (long long)taken);
}

/* The columns of o are dealt to the blocks of a cluster once each. */
Test(plan_decode_sm90, blocks_of_a_cluster_reduce_every_column_once) {
    for (int32_t dim = 64; dim <= 256; dim += 64)
        for (int32_t cluster_log2 = 0; cluster_log2 <= 3; cluster_log2++) {
            int32_t units = 0;
            for (int32_t rank = 0; rank < 1 << cluster_log2; rank++) {
                const int32_t mine = fai_decode_units(dim, cluster_log2, rank);
                cr_assert(mine * 32 + 8 <= fai_decode_pitch(dim, 4, cluster_log2));
                units += mine;
            }
            cr_assert(units == dim / 8, "dim %d cluster %d: %d units", dim, 1 << cluster_log2,
                      units);
        }
}

/* All clusters run at once where keys are shared, and 64 multiprocessors are enough. */
Test(plan_decode_sm90, clusters_run_at_once) {
    const struct {
        int32_t batch, cluster;
    } rows[] = {{1, 8}, {2, 4}, {3, 4}, {4, 2}, {8, 2}, {16, 1}, {256, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const fa_args a = call(rows[i].batch, 32, 8, 128, 1, 4096);
        fai_plan p;
        cr_assert(takes(&a, &p) && p.splits == rows[i].cluster, "batch %d: %d blocks",
                  rows[i].batch, p.splits);
    }
}

/* B126, B128: at each of these batches at least the 64 multiprocessors work that read at full
 * bandwidth, in one wave, and their shares differ by less than a tenth. */
Test(plan_decode_sm90, B126_B128_every_batch_keeps_the_memory_busy) {
    const struct {
        int32_t batch, heads_q, heads_kv, kv_len, page_size;
    } rows[] = {{64, 16, 2, 8191, 0},   {16, 8, 1, 32768, 64}, {32, 8, 1, 32768, 64},
                {48, 8, 1, 32768, 64},  {64, 8, 1, 32768, 64}, {96, 8, 1, 32768, 64},
                {128, 8, 1, 32768, 64}, {16, 8, 1, 32768, 0},  {128, 8, 1, 32768, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fa_args a = call(rows[i].batch, rows[i].heads_q, rows[i].heads_kv, 128, 1, rows[i].kv_len);
        fai_plan p;
        a.page_size = rows[i].page_size;
        a.num_pages = a.page_size ? rows[i].batch * rows[i].kv_len / a.page_size : 0;
        cr_assert(takes(&a, &p), "row %d: %s", (int)i, p.why);
        const int64_t blocks = p.tiles * a.batch * a.heads_kv * p.splits;
        cr_assert(blocks >= 64 && blocks <= 132, "row %d: %d blocks", (int)i, (int)blocks);
        const int64_t keys = fai_ceil_div(a.kv_len, p.tile_keys),
                      most = fai_ceil_div(keys, p.splits);
        cr_assert((double)most * p.splits <= 1.1 * (double)keys, "row %d: %d of %d", (int)i,
                  (int)most, (int)keys);
    }
}

/* With lengths known to the device only, a long sequence is shared in any batch. */
Test(plan_decode_sm90, ragged_batches_share_long_sequences) {
    const int32_t lens[64] = {0};
    fa_args a = call(64, 32, 8, 128, 1, 131072);
    fai_plan p;
    cr_assert(takes(&a, &p) && p.splits == 1);
    a.seqused_k = lens;
    cr_assert(takes(&a, &p) && p.splits == 4, "%d", p.splits);
    a.kv_len = 8192;
    cr_assert(takes(&a, &p) && p.splits == 2, "%d", p.splits);
}

/* Thresholds that were measured: beyond them the generic kernel is faster. */
Test(plan_decode_sm90, several_tiles_and_few_heads_only_with_few_keys) {
    const struct {
        int32_t heads_q, heads_kv, dim, q_len, kv_len, taken, tiles, cluster;
    } rows[] = {{32, 8, 128, 8, 4096, 1, 2, 4},  {32, 8, 128, 8, 32768, 1, 2, 4},
                {32, 8, 128, 8, 65536, 0, 0, 0}, {32, 8, 128, 16, 4096, 1, 4, 2},
                {64, 8, 128, 16, 4096, 1, 8, 2}, {32, 8, 128, 4, 131072, 1, 1, 8},
                {8, 2, 128, 1, 32768, 1, 1, 8},  {32, 8, 128, 16, 16384, 0, 0, 0},
                {8, 2, 128, 1, 65536, 0, 0, 0},  {32, 8, 96, 1, 32768, 1, 1, 8},
                {32, 8, 96, 1, 131072, 0, 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const fa_args a =
            call(1, rows[i].heads_q, rows[i].heads_kv, rows[i].dim, rows[i].q_len, rows[i].kv_len);
        fai_plan p;
        cr_assert(takes(&a, &p) == rows[i].taken, "row %d: %s", (int)i, p.why);
        cr_assert(!rows[i].taken || (p.tiles == rows[i].tiles && p.splits == rows[i].cluster),
                  "row %d: %d tiles, %d blocks", (int)i, (int)p.tiles, p.splits);
    }
}

static fa_args plain_call(void) { return call(2, 32, 8, 128, 1, 4096); }

/* What the kernels cannot do goes to the generic family with a reason. */
Test(plan_decode_sm90, what_it_cannot_do_is_left_to_others) {
    static uint16_t memory[16];
    const int32_t pads[2] = {0};
    fa_args calls[12];
    fai_plan p;
    for (int i = 0; i < 12; i++) calls[i] = plain_call();
    cr_assert(takes(&calls[0], &p), "%s", p.why);
    calls[0].q_len = 33;
    calls[1].num_splits = 1;
    calls[2].split_keys = 512;
    calls[3].kv_len = 0;
    calls[4].page_size = 24;
    calls[4].num_pages = 1000;
    calls[5].page_size = 64;
    calls[5].num_pages = 1000;
    calls[5].leftpad_k = pads;
    calls[6].page_size = 64;
    calls[7].k = fa_bshd(memory + 1, 4096, 8, 128);
    calls[8].v = fa_strided(memory, 4096 * 1024, 128, -1024);
    calls[9].v = fa_strided(memory, 4096 * 1024, 0, 1024);
    calls[10].q = fa_strided(memory, 4096, 129, 4096);
    calls[11].cu_seqlens_k = pads;
    for (int i = 0; i < 12; i++) {
        cr_assert(!takes(&calls[i], &p), "call %d is taken", i);
        cr_assert(p.refusal != FA_OK && p.why, "call %d has no reason", i);
    }
    const fai_machine others[] = {card(80, 108, k227KB), card(89, 142, k227KB),
                                  card(100, 148, k227KB), card(120, 188, k227KB)};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const fa_args a = plain_call();
        cr_assert(!fai_plan_decode_sm90(&a, &others[i], &p), "cc %d is taken", others[i].cc);
    }
}
