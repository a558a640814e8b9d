/* bench.h - what the parts of the benchmark program tell each other.
 *
 * work.c      arithmetic alone: pairs, flops, bytes, floors, the bound. Tested against brute force.
 * grids.c     the shapes.              measure.c   the timing loop and its statistics.
 * group.c     one group of shapes that share K and V: allocate, verify, time, verify again.
 * verify.c    results against the oracle and against each other.
 * device_*    one file a device: memory, timer, cache flush, ceilings.
 * record.c    JSON for machines.       table.c     text for people.    fa_bench.c  the program.
 *
 * It changes when a device or a column needs something that none had before. */
#ifndef FB_BENCH_H
#define FB_BENCH_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "fa_fwd_causal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- work.c ---------------------------------------------------------------------------------- */

#define FB_PAIRS_FORMULA                                           \
    "pairs = q*(kv-q) + q*(q+1)/2 for kv >= q, else kv*(kv+1)/2; " \
    "flops = 4*head_dim*pairs*heads_q*batch"

typedef struct fb_shape {
    const char *grid;
    int32_t batch, heads_q, heads_kv, head_dim, q_len, kv_len;
} fb_shape;

typedef struct fb_work {
    double pairs;    /* visible (q, k) pairs of one query head of one sequence */
    double flops;    /* of all heads and sequences, visible pairs only */
    double kv_bytes; /* k and v once */
    double bytes;    /* q, k, v and o once */
} fb_work;

/* What this machine can do at most, measured in the same run. Reads of a group's own K and V are
 * timed in turns with its calls (FB_READ); the rates here say what to expect of them. */
typedef struct fb_ceilings {
    double flops_per_second;       /* FMA or matmul */
    double cache_bytes_per_second; /* 0 where the figure that counts is cold */
    double memory_bytes_per_second;
    double cache_bytes; /* of the last cache */
    double fixed_us;    /* what a call costs before its first flop; 0: as an empty call */
    double disturbance; /* mean pass of the peak's loop over the best; 0: not known */
    char arithmetic[64];
} fb_ceilings;

const char *fb_dtype_name(int32_t dtype);
/* Pairs (r, j) with j <= r + offset. With offset = kv - q it is the formula above. */
int64_t fb_visible_pairs(int64_t q_len, int64_t kv_len, int64_t offset);
fb_work fb_work_of(const fb_shape *shape, int32_t dtype);
/* The least that the work can take. read_us: measured for K and V once; empty_us: an empty call. */
double fb_floor_us(const fb_ceilings *c, const fb_work *work, double read_us, double empty_us);
/* The most that a native call may take, given the padded call of the same K and V. */
double fb_bound_us(const fb_work *native, const fb_work *padded, double padded_us, double read_us,
                   double empty_us);
/* Whether the bound applies: a past of at least 1k keys, and a q of at most a quarter of it. */
int fb_bound_applies(const fb_shape *shape);
/* False when a time is shorter than the machine's measured limits allow (5 % granted; reads only
 * where K and V are beyond the caches): then the measurement is wrong, not the kernel fast. */
int fb_believable(const fb_ceilings *c, const fb_work *work, double us, double read_us);

/* ---- grids.c --------------------------------------------------------------------------------- */

/* Shapes that share K and V and are timed in turns. */
typedef struct fb_group {
    const fb_shape *shapes;
    int count;
    int padded; /* time the padded baseline too */
} fb_group;

#define FB_MAX_SHAPES 8

typedef struct fb_options {
    const char *grid, *device, *json;
    int32_t dtype, batch, heads_q, heads_kv;
    int32_t head_dims[4];
    int head_dim_count;
    int quick, check, progress;
} fb_options;

/* Calls visit for each group of the grid, in order, until it returns non-zero. Returns that, or -1
 * when there is no such grid. */
typedef int (*fb_visit)(void *context, const fb_group *group);
int fb_each_group(const fb_options *options, fb_visit visit, void *context);

/* ---- devices --------------------------------------------------------------------------------- */

typedef int (*fb_action)(void *context); /* non-zero: it failed */

typedef enum fb_temperature { FB_WARM = 0, FB_COLD = 1 } fb_temperature;

/* key = value lines about the machine, for the head of every table. */
#define FB_MAX_FACTS 24
typedef struct fb_facts {
    int count;
    char key[FB_MAX_FACTS][32];
    char value[FB_MAX_FACTS][160];
} fb_facts;
void fb_fact(fb_facts *facts, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

typedef struct fb_device {
    const char *name;
    int32_t fa_device;
    fb_temperature figure; /* the temperature that counts */
    int use_minimum;       /* the statistic that counts: the minimum, else the median */
    int least_calls;       /* timed calls a point */
    int (*open)(void);     /* 0, or there is none */
    void (*describe)(fb_facts *facts);
    void *(*alloc)(size_t bytes); /* null: no memory */
    void (*release)(void *memory);
    void (*fill_normal)(void *memory, int64_t count, int32_t dtype, uint64_t seed);
    void (*set_bytes)(void *memory, int value, size_t bytes);
    /* rows of row_bytes bytes, pitch bytes apart, to contiguous host memory */
    void (*fetch)(void *host, const void *memory, size_t row_bytes, size_t pitch, int64_t rows);
    void (*read)(const void *memory, size_t bytes); /* as fast as it can */
    void (*flush)(void); /* reads a buffer much larger than the last cache */
    double (*time_us)(fb_action action, void *context, int *failed);
    void (*ceilings)(fb_ceilings *ceilings, int32_t dtype, int quick);
} fb_device;

extern const fb_device fb_device_cpu;
#ifdef FA_WITH_CUDA
extern const fb_device fb_device_cuda;
#endif

/* read_cuda.cu, on the current device and the default stream. Both start a kernel and return CUDA's
 * error number: a read of all bytes, and a kernel that does nothing. */
int fb_cuda_read(const void *memory, size_t bytes);
int fb_cuda_empty(void);
int fb_cuda_reads_in_bulk(void); /* else with plain loads, which are slower on sm_90 */

/* ceiling_cpu.c: best of a few passes, on all threads */
double fb_cpu_flops_per_second(int quick, const char **isa, double *disturbance);
double fb_cpu_read_bytes_per_second(const char *buffer, size_t bytes, int quick);
void *fb_cpu_alloc(size_t bytes); /* in huge pages where the system has them; free() it */
void fb_cpu_read(const void *memory, size_t bytes);
int fb_cpu_threads(void);

/* ---- measure.c ------------------------------------------------------------------------------- */

#define FB_MAX_CALLS 200 /* of an entry in one measurement */
#define FB_MAX_SAMPLES (10 * FB_MAX_CALLS)

typedef struct fb_stats {
    int calls;
    double minimum, lower, median, upper; /* us; quartiles */
    double cpu_us;                        /* processor time a call, mean */
    double spread;                        /* (upper - lower) / median */
} fb_stats;

/* One thing to time. prepare and confirm run outside the clock, before and after each call. */
typedef struct fb_entry {
    fb_action prepare, call, confirm; /* prepare and confirm may be null */
    void *context;
    fb_temperature temperature;
    double first_us; /* an estimate, which sets the number of calls */
    double samples[FB_MAX_SAMPLES];
    double cpu_us; /* of all calls */
    fb_stats stats;
} fb_entry;

/* Times all entries in turns, each as often as budget_us allows with its flushes (never less than
 * the device's least or more than FB_MAX_CALLS), spread evenly over the run. What entries were
 * timed before counts too. Returns 0, or 1 + the index of the entry whose action failed. */
int fb_time_in_turns(const fb_device *device, fb_entry *const *entries, int count,
                     double budget_us);
fb_stats fb_stats_of(double *samples, int count); /* sorts samples */
double fb_figure(const fb_device *device, const fb_stats *stats);

/* ---- verify.c -------------------------------------------------------------------------------- */

/* Relative Frobenius errors of the whole and of the worst row of head_dim elements, each divided by
 * what the dtype grants on N(0,1) inputs: up to 1 passes. NaN never does. */
typedef struct fb_error {
    double whole, row;
} fb_error;
int fb_passes(fb_error error);

/* Both contiguous in host memory, got of dtype. share: 1 against the truth, 2 between two results,
 * each of which may be off. */
fb_error fb_compare(const void *got, const double *want, int64_t rows, int32_t head_dim,
                    int32_t dtype, double share);
/* A sample of a call's rows against the oracle; o is (B, q_len, heads_q, head_dim), contiguous in
 * host memory. False when there is no memory. */
int fb_against_oracle(const fb_device *device, const fa_args *args, const void *o, fb_error *error);

/* ---- group.c --------------------------------------------------------------------------------- */

typedef enum fb_role {
    FB_NATIVE,
    FB_PADDED, /* the square call with q padded at its front */
    FB_EMPTY,  /* a call without keys */
    FB_READ    /* no call: K and V read once */
} fb_role;
const char *fb_role_name(fb_role role);

typedef struct fb_point {
    fb_shape shape; /* of the padded call: q_len == kv_len */
    fb_role role;
    fb_work work;
    fb_stats stats[2]; /* by temperature; calls == 0: not measured */
    char kernel[48];
    int splits;
    fb_error against_oracle, against_padded;
    /* Of native and padded points: the rest of their group, 0 where there is none. */
    double empty_us, read_us, padded_us;
    fb_work padded_work;
    double bound_us;
} fb_point;

/* The operation under test: fa_fwd_causal, or a test's mutant of it. */
typedef fa_status (*fb_subject)(const fa_args *, struct CUstream_st *);

typedef struct fb_run {
    const fb_device *device;
    fb_subject subject;
    fb_options options;
    fb_ceilings ceilings;
    fb_point *points;
    int point_count, point_capacity;
    double done, total; /* work, for the progress line */
} fb_run;

/* Verifies and measures; appends points only if every result was right. Non-zero and a sentence on
 * stderr otherwise. */
int fb_run_group(fb_run *run, const fb_group *group);
/* What a group adds to done and total: flops, all of them. */
double fb_group_work(const fb_run *run, const fb_group *group);
/* The progress line, where options.progress is set. */
void fb_show_progress(const fb_run *run, const char *step, const fb_point *point);

/* ---- record.c, table.c ----------------------------------------------------------------------- */

double fb_point_us(const fb_run *run, const fb_point *point); /* the figure that counts */
double fb_point_floor_us(const fb_run *run, const fb_point *point);
/* Bytes that padding adds to q and o. */
double fb_extra_bytes(const fb_point *point, int32_t dtype);
/* How many points are beyond their bound, or faster than the machine's limits allow; one sentence
 * for each on stderr. */
int fb_count_beyond(const fb_run *run);
int fb_count_unbelievable(const fb_run *run);
/* Both return 0, or 1 when the file could not be written. */
int fb_write_json(const fb_run *run, const fb_facts *facts, const char *path);
void fb_print_facts(FILE *out, const fb_run *run, const fb_facts *facts);
void fb_print_table(FILE *out, const fb_run *run);
const char *fb_point_name(const fb_run *run, const fb_point *point, char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif /* FB_BENCH_H */
