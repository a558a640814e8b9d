/* test_measure.c - the timing loop against known times, and wrong results against the record.
 *
 * A spin keeps its own time, and what the loop measured is held against that: on a busy machine a
 * spin takes longer, but both clocks must say so alike. Limits: an empty function under 5 us
 * (B141), a spin of 5 us within 10 %, one of 10 ms within 2 % (B142). B143: no record of a wrong
 * result. B140: a flush empties the cache. */
#include <stdlib.h>
#include <time.h>

#include "bench.h"
#include "test_check.h"

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static int nothing(void *context) {
    (void)context;
    return 0;
}

typedef struct spin {
    double us;
    double took[FB_MAX_CALLS]; /* by its own clock */
    int calls;
} spin;

static int run_spin(void *context) {
    spin *s = context;
    const double begin = now_us();
    double now = begin;
    while (now - begin < s->us) now = now_us();
    s->took[s->calls++] = now - begin;
    return 0;
}

static fb_stats time_alone(fb_action call, void *context, double first_us, double budget_us) {
    fb_entry e = {.call = call, .context = context, .first_us = first_us}, *const only = &e;
    CHECK(fb_time_in_turns(&fb_device_cpu, &only, 1, budget_us) == 0, "the loop fails");
    return e.stats;
}

static void a_spin_is_measured(double us, double budget_us, double tolerance) {
    spin s = {.us = us};
    const fb_stats got = time_alone(run_spin, &s, us, budget_us);
    CHECK(got.calls == s.calls, "%d of %d calls are samples", got.calls, s.calls);
    const fb_stats own = fb_stats_of(s.took, s.calls);
    CHECK(got.minimum >= us && got.minimum <= (1 + tolerance) * own.minimum,
          "minimum of a %g us spin: %.2f us, by its own clock %.2f", us, got.minimum, own.minimum);
    CHECK(got.median >= us && got.median <= (1 + tolerance) * own.median,
          "median of a %g us spin: %.2f us, by its own clock %.2f", us, got.median, own.median);
    CHECK(got.upper <= (1 + tolerance) * own.upper,
          "upper quartile of a %g us spin: %.2f us, by its own clock %.2f", us, got.upper,
          own.upper);
    printf("a spin of %g us took %.2f us, +-%.1f %% (minimum of %d)\n", us, got.minimum,
           100 * got.spread, got.calls);
}

static void known_times_are_measured(void) {
    for (int run = 0; run < 5; run++) {
        const fb_stats empty = time_alone(nothing, NULL, 0, 1000);
        CHECK(empty.median < 5, "an empty function takes %.2f us", empty.median);
        a_spin_is_measured(5, 1000, 0.1);
    }
    a_spin_is_measured(10000, 50000, 0.02);
}

static void statistics_are_those_of_a_known_sample(void) {
    double odd[] = {9, 1, 5, 3, 7}, even[] = {4, 1, 3, 2};
    const fb_stats a = fb_stats_of(odd, 5), b = fb_stats_of(even, 4);
    CHECK(a.minimum == 1 && a.lower == 3 && a.median == 5 && a.upper == 7, "odd count");
    CHECK(a.spread == 0.8, "spread %g", a.spread);
    CHECK(b.minimum == 1 && b.median == 2.5, "even count: median %g", b.median);
}

/* ---- flushes ---- */

typedef struct reading {
    const fb_device *device;
    void *data;
    size_t bytes;
} reading;

static int read_once(void *context) {
    const reading *r = context;
    r->device->read(r->data, r->bytes);
    return 0;
}

/* B140: data that a cache holds takes longer to read after a flush, and then no faster than memory
 * gives it; a flush that did nothing would leave both times alike. */
static void a_flush_empties_the_cache(const fb_device *device, size_t bytes) {
    fb_ceilings ceilings;
    reading r = {device, device->alloc(bytes), bytes};
    CHECK(r.data != NULL, "no memory");
    if (!r.data) return;
    device->set_bytes(r.data, 1, bytes);
    device->ceilings(&ceilings, FA_DTYPE_BF16, 1);
    fb_entry e[2] = {{.call = read_once, .context = &r, .temperature = FB_WARM, .first_us = 20},
                     {.call = read_once, .context = &r, .temperature = FB_COLD, .first_us = 20}};
    fb_entry *const warm_alone = &e[0], *const cold_alone = &e[1];
    CHECK(fb_time_in_turns(device, &warm_alone, 1, 1000) == 0, "the loop fails");
    CHECK(fb_time_in_turns(device, &cold_alone, 1, 1000) == 0, "the loop fails");
    const double warm = e[0].stats.median, cold = e[1].stats.median;
    const double rate = (double)bytes / (1e-6 * cold) / ceilings.memory_bytes_per_second;
    printf("%s: %zu KB take %.1f us warm, %.1f us cold, %.2f of the memory's rate\n", device->name,
           bytes >> 10, warm, cold, rate);
    CHECK(cold > 1.2 * warm, "%s: cold %.2f us, warm %.2f us", device->name, cold, warm);
    CHECK(rate <= 1.05, "%s: cold at %.2f of the memory's rate", device->name, rate);
    device->release(r.data);
}

/* ---- turns ---- */

static char turns[2 * FB_MAX_CALLS + 1];
static int turn_count;

static int note_turn(void *context) {
    turns[turn_count++] = *(const char *)context;
    return 0;
}

static int refuse_call(void *context) {
    (void)context;
    return 1;
}

static void entries_take_turns_evenly(void) {
    char a = 'a', b = 'b';
    fb_entry e[2] = {{.call = note_turn, .context = &a, .first_us = 1000},
                     {.call = note_turn, .context = &b, .first_us = 2000}};
    fb_entry *const both[] = {&e[0], &e[1]};
    CHECK(fb_time_in_turns(&fb_device_cpu, both, 2, 20000) == 0, "the loop fails");
    CHECK(e[0].stats.calls == 20 && e[1].stats.calls == 10, "%d and %d calls", e[0].stats.calls,
          e[1].stats.calls);
    int evenly = turn_count == 30;
    for (int i = 0; i < turn_count; i++) evenly = evenly && turns[i] == (i % 3 == 2 ? 'b' : 'a');
    CHECK(evenly, "order %s", turns);
    turn_count = 0;
    CHECK(fb_time_in_turns(&fb_device_cpu, both, 1, 20000) == 0 && e[0].stats.calls == 40 &&
              e[1].stats.calls == 10,
          "samples of two measurements: %d and %d", e[0].stats.calls, e[1].stats.calls);
    e[1].call = refuse_call;
    turn_count = 0;
    CHECK(fb_time_in_turns(&fb_device_cpu, both, 2, 20000) == 2, "a failing call is named");
}

/* ---- mutants ---- */

static int call_count;

static fa_status right(const fa_args *a, struct CUstream_st *stream) {
    call_count++;
    return fa_fwd_causal(a, stream);
}

static float *row_of(const fa_args *a, int row) {
    return (float *)a->o.data + (int64_t)row * a->heads_q * a->head_dim;
}

static fa_status skips_every_second_call(const fa_args *a, struct CUstream_st *stream) {
    return call_count++ % 2 ? FA_OK : fa_fwd_causal(a, stream);
}

static fa_status skips_once_timed(const fa_args *a, struct CUstream_st *stream) {
    return call_count++ < 8 ? fa_fwd_causal(a, stream) : FA_OK;
}

static fa_status scales_by_a_thousandth(const fa_args *a, struct CUstream_st *stream) {
    const fa_status status = fa_fwd_causal(a, stream);
    for (int i = 0; i < a->q_len * a->heads_q * a->head_dim; i++) row_of(a, 0)[i] *= 1.001f;
    return status;
}

static fa_status scales_once_timed(const fa_args *a, struct CUstream_st *stream) {
    return call_count++ < 8 ? fa_fwd_causal(a, stream) : scales_by_a_thousandth(a, stream);
}

static fa_status mask_is_top_left(const fa_args *a, struct CUstream_st *stream) {
    fa_args top_left = *a;
    top_left.align = FA_ALIGN_OFFSET;
    return fa_fwd_causal(&top_left, stream);
}

/* Only the native call of 9 rows, in a row that the oracle's sample does not hold. */
static fa_status one_row_off(const fa_args *a, struct CUstream_st *stream) {
    const fa_status status = fa_fwd_causal(a, stream);
    if (a->q_len == 9) row_of(a, 2)[0] += 0.001f;
    return status;
}

static fa_status answers_nan(const fa_args *a, struct CUstream_st *stream) {
    const fa_status status = fa_fwd_causal(a, stream);
    row_of(a, a->q_len - 1)[a->head_dim - 1] /= 0.0f;
    row_of(a, a->q_len - 1)[a->head_dim - 1] *= 0.0f;
    return status;
}

static fa_status fails(const fa_args *a, struct CUstream_st *stream) {
    (void)a, (void)stream;
    return FA_ERR_LAUNCH;
}

/* Points recorded of a group of two native calls, a padded and an empty one, and a read. */
static int points_of(fb_subject subject, int *failed) {
    const fb_shape shapes[] = {{"test", 1, 4, 2, 32, 1, 96}, {"test", 1, 4, 2, 32, 9, 96}};
    const fb_group group = {shapes, 2, 1};
    fb_run run = {.device = &fb_device_cpu, .subject = subject};
    run.options = (fb_options){.grid = "test", .dtype = FA_DTYPE_F32, .quick = 1};
    run.ceilings = (fb_ceilings){.flops_per_second = 1e12, .cache_bytes = 1e9};
    call_count = 0;
    *failed = fb_run_group(&run, &group);
    free(run.points);
    return run.point_count;
}

static void wrong_results_are_not_recorded(void) {
    static const struct {
        const char *name;
        fb_subject subject;
    } mutants[] = {{"skips every second call", skips_every_second_call},
                   {"skips once timed", skips_once_timed},
                   {"scales by a thousandth", scales_by_a_thousandth},
                   {"scales once timed", scales_once_timed},
                   {"mask is top-left", mask_is_top_left},
                   {"one row off", one_row_off},
                   {"answers NaN", answers_nan},
                   {"fails", fails}};
    const int count = (int)(sizeof mutants / sizeof *mutants);
    int failed = 0, killed = 0, points = points_of(right, &failed);
    CHECK(points == 5 && !failed, "the library itself: %d points, failed %d", points, failed);
    for (int i = 0; i < count; i++) {
        fprintf(stderr, "expected: ");
        points = points_of(mutants[i].subject, &failed);
        killed += points == 0 && failed;
        CHECK(points == 0 && failed, "mutant '%s' left %d points", mutants[i].name, points);
    }
    printf("mutants killed: %d/%d\n", killed, count);
}

int main(void) {
    known_times_are_measured();
    statistics_are_those_of_a_known_sample();
    entries_take_turns_evenly();
    a_flush_empties_the_cache(&fb_device_cpu, (size_t)1 << 20);
#ifdef FA_WITH_CUDA
    CHECK(fb_device_cuda.figure == FB_COLD, "what is reported of a GPU is cold");
    if (fb_device_cuda.open() == 0) a_flush_empties_the_cache(&fb_device_cuda, (size_t)20 << 20);
#endif
    wrong_results_are_not_recorded();
    return report_checks("bench measurement");
}
