/* test_plan_cuda.c - the CUDA planner over a table of cards, on a host without any.
 *
 * Ids name reported faults of other libraries (CASES.md). It changes with fa_plan_cuda.c. */
#include <criterion/criterion.h>
#include <limits.h>

#include "plan_call.h"

static int64_t check_cover(const fai_plan *p, int32_t kv_len) {
    int64_t at = 0;
    cr_assert(p->splits >= 1 && p->splits <= FAI_MAX_SPLITS, "%d splits", p->splits);
    for (int64_t s = 0; s < p->splits; s++) {
        const fai_range keys = fai_split_keys(s, p->splits, 0, kv_len, p->tile_keys);
        cr_assert(keys.begin == at && keys.end >= at, "split %d of %d at kv_len %d", (int)s,
                  p->splits, kv_len);
        at = keys.end;
    }
    cr_assert(at == kv_len);
    return p->splits;
}

/* B96: on any number of multiprocessors the splits cover every key once. */
Test(plan_cuda, splits_cover_every_key_on_any_card) {
    const int32_t sms[] = {1, 16, 46, 68, 76, 84, 92, 108, 114, 132, 142, 144, 170, 188};
    int64_t plans = 0, splits = 0;
    for (size_t m = 0; m < sizeof sms / sizeof *sms; m++)
        for (int32_t batch = 1; batch <= 300; batch += batch < 20 ? 1 : 23)
            for (int32_t kv_len = 0; kv_len <= 70000; kv_len += kv_len < 200 ? 13 : 4999, plans++) {
                const fai_machine machine = card(80, sms[m], k163KB);
                const fa_args a = call(batch, 8, 1, 128, 1, kv_len);
                fai_plan p = {0};
                cr_assert(fai_plan_cuda_sm80(&a, &machine, &p), "%s", p.why);
                splits += check_cover(&p, kv_len);
            }
    cr_log_info("%lld plans, %lld splits", (long long)plans, (long long)splits);
    cr_assert(splits > plans);
}

/* B116: whatever the card's shared memory, each head_dim has a tile that fits. */
Test(plan_cuda, every_head_dim_fits_every_card) {
    const struct {
        int32_t cc, smem;
    } cards[] = {{80, k163KB}, {86, k99KB},   {87, k163KB},  {89, k99KB},
                 {90, k227KB}, {100, k227KB}, {103, k227KB}, {120, k99KB}};
    for (size_t c = 0; c < sizeof cards / sizeof *cards; c++)
        for (int32_t dim = 8; dim <= 256; dim += 8)
            for (int32_t q_len = 1; q_len <= 512; q_len *= 2) {
                const fai_machine machine = card(cards[c].cc, 100, cards[c].smem);
                const fa_args a = call(1, 8, 2, dim, q_len, 4096);
                fai_plan p = {0};
                cr_assert(fai_plan_cuda_sm80(&a, &machine, &p), "cc %d dim %d: %s", cards[c].cc,
                          dim, p.why);
                cr_assert(p.smem_bytes > 0 && p.smem_bytes <= cards[c].smem, "cc %d dim %d: %d",
                          cards[c].cc, dim, p.smem_bytes);
                cr_assert(p.tile_dim >= dim && p.stages >= 2);
                cr_assert(p.tiles * p.tile_rows >= (int64_t)q_len * 4);
            }
}

/* B117: this family runs from sm_80 on; what is older is refused before any launch. */
Test(plan_cuda, old_cards_are_refused) {
    const int32_t ccs[] = {70, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121};
    for (size_t c = 0; c < sizeof ccs / sizeof *ccs; c++) {
        const fai_machine machine = card(ccs[c], 80, k99KB);
        const fa_args a = call(1, 8, 2, 128, 16, 100);
        fai_plan p = {0};
        const int can = fai_plan_cuda_sm80(&a, &machine, &p);
        cr_assert(can == (ccs[c] >= 80), "cc %d", ccs[c]);
        cr_assert(can || p.refusal == FA_ERR_ARCH);
    }
}

/* B129: few tiles over many keys are split, by kv heads and keys and not by query heads; many
 * tiles are not. */
Test(plan_cuda, keys_are_split_where_tiles_are_few) {
    const fai_machine machine = h200();
    fai_plan p = {0};
    fa_args a = call(1, 32, 8, 128, 1, 32768);
    cr_assert(fai_plan_cuda_sm80(&a, &machine, &p) && p.splits > 8, "%d", p.splits);
    const int32_t splits = p.splits;
    a.heads_q = 8;
    cr_assert(fai_plan_cuda_sm80(&a, &machine, &p) && p.splits == splits, "%d", p.splits);
    a = call(1, 8, 1, 128, 4, 32768);
    cr_assert(fai_plan_cuda_sm80(&a, &machine, &p) && p.splits > 8, "%d", p.splits);
    a = call(64, 32, 8, 128, 1, 32768);
    cr_assert(fai_plan_cuda_sm80(&a, &machine, &p) && p.splits <= 2, "%d", p.splits);
    a = call(1, 8, 8, 128, 1, 64);
    cr_assert(fai_plan_cuda_sm80(&a, &machine, &p) && p.splits == 1, "%d", p.splits);
}

/* B126, B128: whatever the batch, the last wave of blocks is not left half empty: the GPU is busy
 * in 85 % of its waves' places. */
Test(plan_cuda, B126_B128_splits_fill_the_waves_of_every_batch) {
    const fai_machine cards[] = {card(80, 108, k163KB), h200()};
    const struct {
        int32_t batch, heads_q, heads_kv, kv_len;
    } rows[] = {{64, 16, 2, 8191}, {16, 8, 1, 32768}, {32, 8, 1, 32768}, {48, 8, 1, 32768},
                {64, 8, 1, 32768}, {96, 8, 1, 32768}, {128, 8, 1, 32768}};
    for (size_t m = 0; m < sizeof cards / sizeof *cards; m++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const fa_args a =
                call(rows[i].batch, rows[i].heads_q, rows[i].heads_kv, 128, 1, rows[i].kv_len);
            fai_plan p = {0};
            cr_assert(fai_plan_cuda_sm80(&a, &cards[m], &p), "%s", p.why);
            /* A block costs 1 KB beside what it asks for, and so has the multiprocessor. */
            const int64_t slots =
                (int64_t)cards[m].sm_count * ((cards[m].smem_bytes + 1024) / (p.smem_bytes + 1024));
            const int64_t blocks = p.tiles * a.batch * a.heads_kv * p.splits;
            const int64_t places = fai_ceil_div(blocks, slots) * slots;
            cr_assert((double)blocks >= 0.85 * (double)places, "cc %d batch %d: %d of %d",
                      cards[m].cc, a.batch, (int)blocks, (int)places);
        }
}

/* A graph captured at length 1 replays at full length, so the scratch cannot follow kv_len. */
Test(plan_cuda, workspace_does_not_depend_on_kv_len) {
    const int32_t lens[] = {0, 1, 64, 1000, 32768, INT_MAX};
    for (int32_t batch = 1; batch <= 256; batch *= 4)
        for (int32_t q_len = 1; q_len <= 4096; q_len *= 8)
            for (int32_t num_splits = 0; num_splits <= 1; num_splits++) {
                const fai_machine machine = h200();
                size_t first = 0;
                for (int n = 0; n < 6; n++) {
                    fa_args a = call(batch, 32, 8, 128, q_len, lens[n]);
                    fai_plan p = {0};
                    a.num_splits = num_splits;
                    cr_assert(fai_plan_cuda_sm80(&a, &machine, &p), "%s", p.why);
                    if (n == 0) first = p.workspace_bytes;
                    cr_assert(p.workspace_bytes == first, "kv_len %d: %zu, not %zu", lens[n],
                              p.workspace_bytes, first);
                    cr_assert(num_splits == 0 || (p.splits == 1 && first == 0));
                    const size_t rows = (size_t)batch * 32 * (size_t)q_len;
                    cr_assert(p.splits == 1 ||
                              first >= rows * (size_t)p.splits * 129 * sizeof(float));
                }
            }
}
