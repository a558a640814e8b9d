/* measure.c - the timing loop: entries in turns, and statistics of their samples.
 *
 * It knows nothing of attention; test_measure.c times an empty function and known spins with it. */
#include <stdlib.h>
#include <time.h>

#include "bench.h"

static double processor_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

fb_stats fb_stats_of(double *samples, int count) {
    fb_stats s = {0};
    if (count == 0) return s;
    qsort(samples, (size_t)count, sizeof *samples, by_value);
    s.calls = count;
    s.minimum = samples[0];
    s.lower = samples[count / 4];
    s.median = count % 2 ? samples[count / 2] : (samples[count / 2 - 1] + samples[count / 2]) / 2;
    s.upper = samples[count - 1 - count / 4];
    s.spread = s.median > 0 ? (s.upper - s.lower) / s.median : 0;
    return s;
}

double fb_figure(const fb_device *device, const fb_stats *stats) {
    return device->use_minimum ? stats->minimum : stats->median;
}

/* Calls for an entry: what the budget allows, within limits. A call of seconds is repeated little:
 * its spread is small beside its length. flush_us counts where it is the host that waits for it: a
 * cache of half a gigabyte takes longer to flush than any call that is timed cold. */
static int calls_for(const fb_device *device, const fb_entry *e, double flush_us,
                     double budget_us) {
    int least = device->least_calls;
    if (e->first_us < 50) least = least * 5 / 3;
    if (e->first_us > 1e6) least = 2;
    const double each_us = e->first_us + (e->temperature == FB_COLD ? flush_us : 0);
    const double calls = budget_us / (each_us > 1 ? each_us : 1);
    if (calls > FB_MAX_CALLS) return FB_MAX_CALLS;
    return calls < least ? least : (int)calls;
}

static int flush_once(void *context) {
    const fb_device *device = context;
    device->flush();
    return 0;
}

/* 0 where nothing is timed cold, and on a device, which flushes while the host goes on. */
static double flush_time_us(const fb_device *device, fb_entry *const *entries, int count) {
    int cold = 0, failed = 0;
    fb_device copy = *device;
    for (int i = 0; i < count; i++) cold |= entries[i]->temperature == FB_COLD;
    return cold && device->use_minimum ? device->time_us(flush_once, &copy, &failed) : 0;
}

static int time_once(const fb_device *device, fb_entry *e, double *us, double *cpu_us) {
    int failed = 0;
    if (e->prepare && e->prepare(e->context)) return 1;
    if (e->temperature == FB_COLD) device->flush();
    const double before = processor_us();
    *us = device->time_us(e->call, e->context, &failed);
    *cpu_us = processor_us() - before;
    return failed || (e->confirm && e->confirm(e->context));
}

static int add_sample(const fb_device *device, fb_entry *e) {
    double cpu_us = 0;
    if (e->stats.calls == FB_MAX_SAMPLES) return 0;
    const int failed = time_once(device, e, &e->samples[e->stats.calls], &cpu_us);
    e->stats.calls++;
    e->cpu_us += cpu_us;
    return failed;
}

int fb_time_in_turns(const fb_device *device, fb_entry *const *entries, int count,
                     double budget_us) {
    const double flush_us = flush_time_us(device, entries, count);
    int rounds = 0;
    for (int i = 0; i < count; i++) {
        const int calls = calls_for(device, entries[i], flush_us, budget_us);
        if (calls > rounds) rounds = calls;
    }
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < count; i++) {
            const int64_t calls = calls_for(device, entries[i], flush_us, budget_us);
            /* Spread evenly: entry i has its turn in calls of the rounds. */
            if ((round + 1) * calls / rounds == round * calls / rounds) continue;
            if (add_sample(device, entries[i])) return 1 + i;
        }
    }
    for (int i = 0; i < count; i++) {
        fb_entry *e = entries[i];
        e->stats = fb_stats_of(e->samples, e->stats.calls);
        e->stats.cpu_us = e->cpu_us / e->stats.calls;
    }
    return 0;
}
