/* test_plan.c - the planner: pure, so every decision is tested on any host over made-up machines.
 *
 * Byte counts are compared with 128-bit arithmetic. This file changes with fa_plan.c; a machine
 * with its own planning is a row of the table below. */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cpu/fa_cpu.h"

__extension__ typedef __int128 wide;

static const fai_machine machines[] = {
    {.device = FA_DEVICE_CPU, .threads = 1},
    {.device = FA_DEVICE_CPU, .threads = 2},
    {.device = FA_DEVICE_CPU, .threads = 256},
    {.device = FA_DEVICE_CPU, .threads = 2, .cpu_avx2 = 1},
    {.device = FA_DEVICE_CPU, .threads = 2, .cpu_avx2 = 1, .cpu_avx512 = 1},
};
enum { kMachines = sizeof machines / sizeof *machines };

typedef struct shape {
    int32_t batch, heads_q, heads_kv, q_len, kv_len, head_dim;
} shape;

static const shape shapes[] = {
    {0, 1, 1, 1, 1, 64},
    {1, 1, 1, 0, 5, 64},
    {1, 1, 1, 5, 0, 64},
    {1, 1, 1, 1, 1, 8},
    {1, 32, 8, 1, 32768, 128},
    {64, 16, 2, 1, 8191, 128},
    {2, 71, 1, 3, 300, 64},
    {1, 28, 4, 257, 257, 128},
    {3, 5, 5, 113, 203, 256},
    {1, 8, 8, 16, 4000, 192},
    {7, 9, 3, 64, 65, 96},
    {1, 65536, 1, 10, 10, 32},
    {100000, 1, 1, 1, 64, 64},
    {1, 1, 1, 46400, 46400, 64},
    {1, 64, 8, 4, 131072, 128},
    {8300, 16, 1, 1, 8192, 128},
    {1000000, 16, 1, 1, 8192, 128},
};
enum { kShapes = sizeof shapes / sizeof *shapes };

static const int32_t split_counts[] = {0, 1, 2, 3, 7, 64, 128, 1023, 1024};
enum { kSplitCounts = sizeof split_counts / sizeof *split_counts };

static fa_args call_of(const shape *s, const fai_machine *machine) {
    fa_args a = fa_args_default();
    a.device = machine->device;
    a.dtype = FA_DTYPE_F16;
    a.batch = s->batch;
    a.heads_q = s->heads_q;
    a.heads_kv = s->heads_kv;
    a.q_len = s->q_len;
    a.kv_len = s->kv_len;
    a.head_dim = s->head_dim;
    return a;
}

/* Check and plan, as every public function does. */
static fa_status plan_of(const fa_args *args, const fai_machine *machine, fai_plan *plan) {
    fa_args resolved;
    const fa_status status = fai_check(args, FAI_FOR_QUERY, &resolved);
    return status ? status : fai_make_plan(&resolved, machine, plan);
}

static void must_plan(const fa_args *args, const fai_machine *machine, fai_plan *plan) {
    const fa_status status = plan_of(args, machine, plan);
    cr_assert(status == FA_OK, "%d: %s", (int)status, fa_last_error());
}

static wide row_count(const fa_args *a) { return (wide)a->batch * a->heads_q * a->q_len; }

/* The layout that fai_plan promises: control words, every split's o, two floats a row. */
static void check_layout(const fa_args *a, const fai_plan *p) {
    const wide partial_rows = p->splits > 1 && !p->on_stack ? row_count(a) * p->splits : 0;
    cr_assert(p->control_bytes <= p->partial_o_at && p->partial_o_at <= p->partial_state_at &&
              p->partial_state_at <= p->workspace_bytes);
    cr_assert(p->control_bytes % FAI_WORKSPACE_ALIGN == 0 &&
              p->partial_o_at % FAI_WORKSPACE_ALIGN == 0 &&
              p->partial_state_at % FAI_WORKSPACE_ALIGN == 0);
    cr_assert((wide)p->partial_state_at - p->partial_o_at >= partial_rows * a->head_dim * 4);
    cr_assert((wide)p->workspace_bytes - p->partial_state_at >= partial_rows * 8);
}

static void check_tiles(const fa_args *a, const fai_plan *p) {
    const int64_t group = a->heads_q / a->heads_kv;
    const wide rows = p->pack_heads ? (wide)a->q_len * group : (wide)a->q_len;
    const wide in_tiles = (wide)p->tiles * p->tile_rows;
    cr_assert(p->kernel && p->kernel->device == a->device && p->why);
    cr_assert(p->tile_rows > 0 && p->tile_keys > 0 && p->tile_dim >= a->head_dim);
    /* A planner may count an unpacked tile once for each head of the group. */
    cr_assert(in_tiles >= rows, "%ld tiles of %d", (long)p->tiles, p->tile_rows);
    cr_assert(in_tiles < (rows + p->tile_rows) * (p->pack_heads ? 1 : group));
}

Test(plan, holds_its_promises_over_shapes_machines_and_splits) {
    int plans = 0;
    for (int m = 0; m < kMachines; m++)
        for (int s = 0; s < kShapes; s++)
            for (int n = 0; n < kSplitCounts; n++, plans++) {
                fa_args a = call_of(&shapes[s], &machines[m]);
                fai_plan p;
                a.num_splits = split_counts[n];
                must_plan(&a, &machines[m], &p);
                cr_assert(p.splits >= 1 && p.splits <= FAI_MAX_SPLITS);
                cr_assert(a.num_splits == 0 || p.splits == a.num_splits);
                check_tiles(&a, &p);
                check_layout(&a, &p);
            }
    cr_log_info("%d plans", plans);
    cr_assert(plans == kMachines * kShapes * kSplitCounts);
}

Test(plan, is_a_function_of_its_arguments) {
    for (int m = 0; m < kMachines; m++)
        for (int s = 0; s < kShapes; s++) {
            const fa_args a = call_of(&shapes[s], &machines[m]);
            fai_plan first, second;
            memset(&first, 0x55, sizeof first);
            memset(&second, 0xaa, sizeof second);
            must_plan(&a, &machines[m], &first);
            must_plan(&a, &machines[m], &second);
            cr_assert(memcmp(&first, &second, sizeof first) == 0);
        }
}

Test(plan, split_keys_cuts_at_its_multiples) {
    const int32_t cuts[] = {1, 64, 100, 4096, INT_MAX};
    for (int m = 0; m < kMachines; m++)
        for (int s = 0; s < kShapes; s++)
            for (int c = 0; c < 5; c++) {
                fa_args a = call_of(&shapes[s], &machines[m]);
                fai_plan p;
                a.split_keys = cuts[c];
                must_plan(&a, &machines[m], &p);
                const int64_t want = fai_ceil_div(a.kv_len, a.split_keys);
                cr_assert(p.splits == (want > 1 ? want : 1), "%d", p.splits);
                check_layout(&a, &p);
            }
}

/* The library's own splits: from sizes alone, on the stack and within its bounds, and each of at
 * least 2^18 elements of K. */
Test(plan, the_cpu_splits_long_caches_of_few_rows) {
    const struct {
        shape s; /* batch, heads_q, heads_kv, q_len, kv_len, head_dim */
        int32_t splits;
    } cases[] = {
        {{1, 8, 2, 1, 1023, 64}, 1},       {{1, 8, 2, 1, 1024, 64}, 2},
        {{1, 8, 2, 1, 2048, 128}, 2},      {{1, 8, 2, 1, 4096, 128}, 4},
        {{1, 8, 2, 1, 1 << 20, 128}, 8},   {{1, 8, 2, 6, 16384, 128}, 5},
        {{1, 8, 2, 7, 16384, 128}, 1},     {{1, 32, 8, 1, 16384, 128}, 7},
        {{1000, 32, 8, 1, 16384, 128}, 1}, {{1, 1, 1, 1, 2147483647, 512}, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const fa_args a = call_of(&cases[i].s, &machines[0]);
        for (int32_t threads = 1; threads <= 64; threads *= 8) {
            fai_machine machine = machines[0];
            fai_plan p;
            machine.threads = threads;
            must_plan(&a, &machine, &p);
            cr_assert(p.splits == cases[i].splits, "case %zu: %d splits, not %d", i, p.splits,
                      cases[i].splits);
            cr_assert(p.workspace_bytes == 0 && p.on_stack == (p.splits > 1));
            cr_assert(p.splits * row_count(&a) * (a.head_dim + 2) <= FAI_CPU_PARTIAL_FLOATS ||
                      !p.on_stack);
            cr_assert(p.task_heads >= 1 && p.task_heads <= a.heads_kv);
        }
    }
}

/* B125: one step of one KV head has work for 8 threads, and as many threads as there are take
 * it. */
Test(plan, B125_a_single_kv_head_is_shared_by_threads) {
    const shape shapes_of_one_head[] = {{1, 8, 1, 1, 65536, 128}, {1, 1, 1, 1, 65536, 128}};
    for (int i = 0; i < 2; i++)
        for (int32_t threads = 1; threads <= 16; threads *= 2) {
            fa_args a = call_of(&shapes_of_one_head[i], &machines[3]);
            fai_machine machine = machines[3];
            fai_plan p;
            a.dtype = FA_DTYPE_F32;
            machine.threads = threads;
            must_plan(&a, &machine, &p);
            cr_assert(p.splits == 8 && p.threads == (threads < 8 ? threads : 8),
                      "%d splits, %d of %d threads", p.splits, p.threads, threads);
        }
}

/* 17 to 24 rows of more than 384 elements fill more than a task's scratch in vectors of 16. */
Test(plan, every_task_has_a_head) {
    for (int m = 0; m < kMachines; m++)
        for (int32_t dim = 1; dim <= 512; dim++)
            for (int32_t rows = 1; rows <= 2 * FAI_CPU_NARROW_ROWS; rows++) {
                const shape s = {1, 3 * rows, 3, 1, 99, dim};
                const fa_args a = call_of(&s, &machines[m]);
                fai_plan p;
                must_plan(&a, &machines[m], &p);
                cr_assert(p.task_heads >= 1 && p.task_heads <= 3, "%d rows of %d: %d heads", rows,
                          dim, p.task_heads);
            }
}

Test(workspace, does_not_depend_on_pointers_or_strides) {
    static float data[64];
    for (int m = 0; m < kMachines; m++)
        for (int s = 0; s < kShapes; s++)
            for (int n = 0; n < kSplitCounts; n++) {
                fa_args a = call_of(&shapes[s], &machines[m]);
                fai_plan bare, full;
                a.num_splits = split_counts[n];
                must_plan(&a, &machines[m], &bare);
                a.q = a.o = fa_bshd((char *)data + 2, a.q_len, a.heads_q, a.head_dim);
                a.k = a.v = fa_bhsd(data, a.heads_kv, a.kv_len, a.head_dim);
                a.lse = fa_bhsd(data, a.heads_q, a.q_len, 1);
                a.workspace = data;
                a.workspace_size = 1;
                must_plan(&a, &machines[m], &full);
                cr_assert(bare.workspace_bytes == full.workspace_bytes);
                cr_assert(bare.splits == full.splits);
            }
}

/* B14: 8300 x 16 rows, 128 splits of 128 + 2 floats each are 8.8 GB; a million sequences are 1 TB.
 */
Test(workspace, beyond_32_bits_is_exact) {
    const int32_t batches[] = {8300, 1000000};
    for (int b = 0; b < 2; b++) {
        const shape s = {batches[b], 16, 1, 1, 8192, 128};
        fa_args a = call_of(&s, &machines[0]);
        fai_plan p;
        a.num_splits = 128;
        must_plan(&a, &machines[0], &p);
        const wide want = row_count(&a) * 128 * 130 * 4;
        cr_assert((wide)p.workspace_bytes == want && want > UINT32_MAX, "%zu", p.workspace_bytes);
    }
}

/* Every size up to the int32 limits: either the exact byte count, or FA_ERR_SIZE where it (or a
 * tensor's) does not fit 63 bits; never something in between. */
Test(workspace, is_exact_or_refused_up_to_the_largest_sizes) {
    const int32_t sizes[] = {1, 3, 1 << 10, 1 << 20, INT_MAX};
    const int32_t splits[] = {1, 2, 1024};
    int refused = 0, planned = 0;
    for (int c = 0; c < 5 * 5 * 5 * 3 * 2; c++) {
        const shape s = {sizes[c % 5], sizes[c / 5 % 5], 1, sizes[c / 25 % 5], 1, c & 1 ? 512 : 1};
        fa_args a = call_of(&s, &machines[0]);
        fai_plan p;
        a.num_splits = splits[c / 125 % 3];
        const wide rows = row_count(&a), limit = INT64_MAX;
        const wide need = a.num_splits > 1 ? rows * a.num_splits * (a.head_dim + 2) * 4 : 0;
        const fa_status status = plan_of(&a, &machines[0], &p);
        if (status == FA_ERR_SIZE) {
            refused++;
            cr_assert(need > limit - 64 || rows * a.head_dim * 4 > limit - 64,
                      "refused though it fits: %s", fa_last_error());
            continue;
        }
        planned++;
        cr_assert(status == FA_OK, "%s", fa_last_error());
        cr_assert(need <= limit && (wide)p.workspace_bytes >= need &&
                      (wide)p.workspace_bytes < need + 64,
                  "batch %d heads %d q_len %d splits %d: %zu", a.batch, a.heads_q, a.q_len,
                  a.num_splits, p.workspace_bytes);
    }
    cr_assert(refused > 50 && planned > 50, "%d refused, %d planned", refused, planned);
}

/* The planner behind the public query is this one. */
Test(workspace, the_public_query_gives_the_plan_s_bytes) {
    const fai_machine here = fai_cpu_machine();
    for (int s = 0; s < kShapes; s++)
        for (int n = 0; n < kSplitCounts; n++) {
            fa_args a = call_of(&shapes[s], &here);
            fai_plan p;
            size_t bytes = 12345;
            a.num_splits = split_counts[n];
            must_plan(&a, &here, &p);
            cr_assert(fa_fwd_causal_workspace(&a, &bytes) == FA_OK && bytes == p.workspace_bytes);
        }
}
