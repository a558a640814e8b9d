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
 * its spread is small beside its length. */
static int calls_for(const fb_device *device, double first_us, double budget_us) {
    int least = device->least_calls;
    if (first_us < 50) least = least * 5 / 3;
    if (first_us > 1e6) least = 2;
    const double calls = budget_us / (first_us > 1 ? first_us : 1);
    if (calls > FB_MAX_SAMPLES) return FB_MAX_SAMPLES;
    return calls < least ? least : (int)calls;
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

int fb_time_in_turns(const fb_device *device, fb_entry *entries, int count, double budget_us) {
    double(*samples)[FB_MAX_SAMPLES] = malloc((size_t)count * sizeof *samples);
    int rounds = 0, failed = samples ? 0 : 1;
    for (int i = 0; i < count && !failed; i++) {
        const int calls = calls_for(device, entries[i].first_us, budget_us);
        if (calls > rounds) rounds = calls;
    }
    for (int i = 0; i < count; i++) entries[i].stats = (fb_stats){0};
    for (int round = 0; round < rounds && !failed; round++) {
        for (int i = 0; i < count && !failed; i++) {
            fb_entry *e = &entries[i];
            const int64_t calls = calls_for(device, e->first_us, budget_us);
            /* Spread evenly: entry i has its turn in calls of the rounds. */
            if ((round + 1) * calls / rounds == round * calls / rounds) continue;
            double cpu_us = 0;
            if (time_once(device, e, &samples[i][e->stats.calls], &cpu_us)) failed = 1 + i;
            e->stats.calls++;
            e->stats.cpu_us += cpu_us;
        }
    }
    for (int i = 0; i < count && !failed; i++) {
        const double cpu_us = entries[i].stats.cpu_us / entries[i].stats.calls;
        entries[i].stats = fb_stats_of(samples[i], entries[i].stats.calls);
        entries[i].stats.cpu_us = cpu_us;
    }
    free(samples);
    return failed;
}
