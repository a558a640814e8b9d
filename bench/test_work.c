/* test_work.c - the arithmetic behind every figure of a record (work.c), against brute force. */
#include <math.h>

#include "bench.h"
#include "test_check.h"

static int64_t pairs_by_counting(int64_t q_len, int64_t kv_len, int64_t offset) {
    int64_t count = 0;
    for (int64_t r = 0; r < q_len; r++)
        for (int64_t j = 0; j < kv_len; j++) count += j <= r + offset;
    return count;
}

static void pairs_equal_a_brute_force_count(void) {
    for (int q = 0; q <= 20; q++)
        for (int kv = 0; kv <= 20; kv++)
            for (int offset = -25; offset <= 25; offset++) {
                const int64_t got = fb_visible_pairs(q, kv, offset);
                const int64_t want = pairs_by_counting(q, kv, offset);
                CHECK(got == want, "q %d, kv %d, offset %d: %lld, counted %lld", q, kv, offset,
                      (long long)got, (long long)want);
            }
}

static void pairs_follow_the_printed_formula(void) {
    for (int64_t q = 0; q <= 40; q++)
        for (int64_t kv = 0; kv <= 40; kv++) {
            const int64_t want = kv >= q ? q * (kv - q) + q * (q + 1) / 2 : kv * (kv + 1) / 2;
            CHECK(fb_visible_pairs(q, kv, kv - q) == want, "q %d, kv %d", (int)q, (int)kv);
        }
}

/* The rows that padding adds see other keys, but the rows that are kept do the same work. */
static void padded_and_native_have_equal_useful_flops(void) {
    for (int q = 0; q <= 20; q++)
        for (int kv = q; kv <= 20; kv++) {
            const int64_t square = fb_visible_pairs(kv, kv, 0);
            const int64_t front = fb_visible_pairs(kv - q, kv, 0);
            CHECK(square - front == fb_visible_pairs(q, kv, kv - q), "q %d, kv %d", q, kv);
        }
}

static void work_counts_heads_sequences_and_bytes(void) {
    const fb_shape s = {"x", 3, 6, 2, 64, 5, 70};
    const fb_work w = fb_work_of(&s, FA_DTYPE_BF16);
    const double pairs = 5 * 65 + 15;
    CHECK(w.pairs == pairs, "%g", w.pairs);
    CHECK(w.flops == 4 * 64 * pairs * 6 * 3, "%g", w.flops);
    CHECK(w.kv_bytes == 2.0 * 2 * 3 * 70 * 2 * 64, "%g", w.kv_bytes);
    CHECK(w.bytes == w.kv_bytes + 2.0 * 2 * 3 * 5 * 6 * 64, "%g", w.bytes);
    CHECK(fb_work_of(&s, FA_DTYPE_F32).bytes == 2 * w.bytes, "f32 has twice the bytes of bf16");
}

static int close_to(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

static void floor_and_bound_take_the_larger_limit(void) {
    const fb_ceilings c = {.flops_per_second = 1e9, .cache_bytes = 1e6};
    const fb_ceilings launched = {.flops_per_second = 1e9, .fixed_us = 3};
    const fb_work reads = {.pairs = 10, .flops = 1e3, .kv_bytes = 8e6, .bytes = 1e7};
    const fb_work computes = {.pairs = 10, .flops = 1e7, .kv_bytes = 8e5, .bytes = 8e5};
    const fb_work padded = {.pairs = 100, .flops = 1e8, .kv_bytes = 8e5, .bytes = 8e5};
    CHECK(close_to(fb_floor_us(&c, &reads, 800, 7), 1000), "q and o at the rate of K and V");
    CHECK(close_to(fb_floor_us(&c, &computes, 800, 7), 10007), "flops after an empty call");
    CHECK(close_to(fb_floor_us(&launched, &computes, 800, 7), 10003), "or after a launch");
    /* 1.5 * max(1000 * 10 / 100, 200) + 7, then with a padded call ten times as long. */
    CHECK(close_to(fb_bound_us(&computes, &padded, 1000, 200, 7), 307), "read-bound");
    CHECK(close_to(fb_bound_us(&computes, &padded, 10000, 200, 7), 1507), "compute-bound");
    CHECK(fb_believable(&c, &computes, 10000, 800), "at the ceiling");
    CHECK(!fb_believable(&c, &computes, 9000, 800), "11 %% above the arithmetic ceiling");
    CHECK(fb_believable(&c, &reads, 800, 800), "as fast as a read");
    CHECK(!fb_believable(&c, &reads, 700, 800), "14 %% faster than a read");
    CHECK(fb_believable(&c, &padded, 1e6, 2e6), "a read from a cache is no limit");
}

static void bound_covers_short_q_on_a_long_past(void) {
    const fb_shape in = {"x", 1, 1, 1, 64, 256, 1024}, longer_q = {"x", 1, 1, 1, 64, 257, 1024},
                   short_past = {"x", 1, 1, 1, 64, 1, 999};
    CHECK(fb_bound_applies(&in), "q = kv / 4");
    CHECK(!fb_bound_applies(&longer_q), "q > kv / 4");
    CHECK(!fb_bound_applies(&short_past), "kv < 1k");
}

typedef struct grid_count {
    int groups, shapes, wrong;
} grid_count;

static int count_shapes(void *context, const fb_group *group) {
    grid_count *n = context;
    n->groups++;
    n->shapes += group->count;
    for (int i = 0; i < group->count; i++) {
        const fb_shape *s = &group->shapes[i];
        n->wrong += s->heads_q % s->heads_kv != 0 || (group->padded && s->q_len > s->kv_len) ||
                    s->kv_len != group->shapes[0].kv_len || group->count > FB_MAX_SHAPES;
    }
    return 0;
}

static void grids_are_those_of_the_method(void) {
    static const struct {
        const char *name, *device;
        int groups, shapes;
    } grids[] = {{"padded", "cpu", 3, 18}, {"padded", "cuda", 5, 30}, {"A", "cuda", 16, 16},
                 {"A2", "cuda", 3, 3},     {"B", "cuda", 12, 12},     {"C", "cuda", 13, 13},
                 {"D", "cuda", 14, 14},    {"none", "cpu", 0, 0}};
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        fb_options o = {.grid = grids[i].name,
                        .device = grids[i].device,
                        .batch = 1,
                        .heads_q = 8,
                        .heads_kv = 2,
                        .head_dims = {64},
                        .head_dim_count = 1};
        grid_count n = {0, 0, 0};
        const int answer = fb_each_group(&o, count_shapes, &n);
        CHECK(answer == (grids[i].groups ? 0 : -1), "grid %s: %d", grids[i].name, answer);
        CHECK(n.groups == grids[i].groups && n.shapes == grids[i].shapes && n.wrong == 0,
              "grid %s on %s: %d groups, %d shapes, %d wrong", grids[i].name, grids[i].device,
              n.groups, n.shapes, n.wrong);
    }
}

int main(void) {
    pairs_equal_a_brute_force_count();
    pairs_follow_the_printed_formula();
    padded_and_native_have_equal_useful_flops();
    work_counts_heads_sequences_and_bytes();
    floor_and_bound_take_the_larger_limit();
    bound_covers_short_q_on_a_long_past();
    grids_are_those_of_the_method();
    return report_checks("bench arithmetic");
}
