/* group.c - one group of shapes that share K and V: allocate, verify, time in turns, verify again.
 *
 * Nothing reaches a record unless every output was right before the clock started and had the same
 * bits after it stopped; outputs are poisoned before every call, so that one that did not run is
 * seen. It changes when what a group holds does. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "fa_dtype.h"

enum { POISON = 0xff, MAX_SLOTS = FB_MAX_SHAPES + 3, DECODE_ROWS = 16, REPEATS = 8 };

/* One call of the group, ready to run again and again. */
typedef struct slot {
    fb_run *run;
    fb_point point;
    fa_args args; /* of FB_READ only k counts: v follows it */
    int64_t o_bytes;
    unsigned char *verified; /* o in host memory as it was verified */
} slot;

typedef struct group {
    fb_run *run;
    char *q, *kv;    /* kv: k, then v */
    int64_t q_rows;  /* of the q buffer: kv_len when the padded call uses it too */
    int64_t kv_rows; /* of k and v */
    slot slots[MAX_SLOTS];
    int count;
    fb_entry *entries; /* slots at the temperature that counts, then short q at the other one */
    int entry_count;
} group;

static int refuse(const slot *s, const char *what) {
    char name[160];
    fprintf(stderr, "%s: %s\n", fb_point_name(s->run, &s->point, name, sizeof name), what);
    return 1;
}

static int slot_poison(void *context) {
    slot *s = context;
    s->run->device->set_bytes(s->args.o.data, POISON, (size_t)s->o_bytes);
    return 0;
}

static int slot_call(void *context) {
    slot *s = context;
    return s->run->subject(&s->args, NULL) != FA_OK;
}

static int slot_read(void *context) {
    slot *s = context;
    s->run->device->read(s->args.k.data, (size_t)s->point.work.kv_bytes);
    return 0;
}

/* The first and last element were written. */
static int slot_written(void *context) {
    const slot *s = context;
    const size_t element = (size_t)fa_dtype_size(s->args.dtype);
    unsigned char ends[8];
    const char *o = s->args.o.data;
    s->run->device->fetch(ends, o, element, (size_t)s->o_bytes - element, 2);
    for (size_t end = 0; end < 2; end++) {
        size_t poisoned = 0;
        for (size_t i = 0; i < element; i++) poisoned += ends[end * element + i] == POISON;
        if (poisoned == element) return refuse(s, "a timed call left its output unwritten");
    }
    return 0;
}

static void *device_alloc(const fb_run *run, int64_t bytes) {
    return run->device->alloc(bytes > 0 ? (size_t)bytes : 1);
}

/* The chosen kernel and splits, from the library's own explanation. */
static void slot_explain(slot *s) {
    char text[1024];
    s->point.splits = 1;
    snprintf(s->point.kernel, sizeof s->point.kernel, "unknown");
    if (fa_explain(&s->args, text, sizeof text) != FA_OK) return;
    const char *kernel = strstr(text, "kernel="), *splits = strstr(text, "\nsplits=");
    if (kernel) sscanf(kernel, "kernel=%47[^\n]", s->point.kernel);
    if (splits) sscanf(splits, "\nsplits=%d", &s->point.splits);
}

static int slot_open(group *g, slot *s, const fb_shape *shape, fb_role role) {
    fb_run *run = g->run;
    const int64_t row = (int64_t)shape->heads_q * shape->head_dim;
    const int64_t element = fa_dtype_size(run->options.dtype);
    s->run = run;
    s->point.shape = *shape;
    s->point.role = role;
    s->point.work = fb_work_of(shape, run->options.dtype);

    fa_args *a = &s->args;
    *a = fa_args_default();
    a->device = run->device->fa_device;
    a->dtype = run->options.dtype;
    a->batch = shape->batch;
    a->heads_q = shape->heads_q;
    a->heads_kv = shape->heads_kv;
    a->head_dim = shape->head_dim;
    a->q_len = shape->q_len;
    a->kv_len = shape->kv_len;
    /* The last q_len rows of the q buffer: what the padded call has in the same place. */
    char *q = g->q + (g->q_rows - shape->q_len) * row * element;
    a->q = fa_bshd(q, g->q_rows, shape->heads_q, shape->head_dim);
    const int64_t v_at = shape->batch * g->kv_rows * shape->heads_kv * shape->head_dim * element;
    a->k = fa_bshd(g->kv, g->kv_rows, shape->heads_kv, shape->head_dim);
    a->v = fa_bshd(g->kv + v_at, g->kv_rows, shape->heads_kv, shape->head_dim);
    if (role == FB_READ) return 0;
    s->o_bytes = shape->batch * shape->q_len * row * element;
    a->o = fa_bshd(device_alloc(run, s->o_bytes), shape->q_len, shape->heads_q, shape->head_dim);
    s->verified = malloc((size_t)s->o_bytes);
    if (fa_fwd_causal_workspace(a, &a->workspace_size) != FA_OK) return refuse(s, fa_last_error());
    if (a->workspace_size) {
        a->workspace = run->device->alloc(a->workspace_size);
        if (a->workspace) run->device->set_bytes(a->workspace, 0, a->workspace_size);
    }
    if (!a->o.data || !s->verified || (a->workspace_size && !a->workspace))
        return refuse(s, "no memory");
    slot_explain(s);
    return 0;
}

static int group_open(group *g, const fb_group *shapes) {
    const fb_shape *first = &shapes->shapes[0];
    const fb_device *device = g->run->device;
    const int32_t dtype = g->run->options.dtype;
    const int64_t dim = first->head_dim;
    g->kv_rows = first->kv_len;
    g->q_rows = shapes->padded ? first->kv_len : first->q_len;
    const int64_t q_count = first->batch * g->q_rows * first->heads_q * dim;
    const int64_t kv_count = (int64_t)first->batch * first->kv_len * first->heads_kv * dim;
    g->q = device_alloc(g->run, q_count * fa_dtype_size(dtype));
    g->kv = device_alloc(g->run, 2 * kv_count * fa_dtype_size(dtype));
    if (!g->q || !g->kv) {
        fprintf(stderr, "no memory for q, k and v of kv_len %d\n", first->kv_len);
        return 1;
    }
    device->fill_normal(g->q, q_count, dtype, 1);
    device->fill_normal(g->kv, 2 * kv_count, dtype, 2);

    int failed = 0;
    for (int i = 0; i < shapes->count && !failed; i++)
        failed = slot_open(g, &g->slots[g->count++], &shapes->shapes[i], FB_NATIVE);
    fb_shape padded = *first, empty = *first;
    padded.q_len = padded.kv_len;
    empty.q_len = 1;
    empty.kv_len = 0;
    if (shapes->padded && !failed) failed = slot_open(g, &g->slots[g->count++], &padded, FB_PADDED);
    if (!failed) failed = slot_open(g, &g->slots[g->count++], &empty, FB_EMPTY);
    return failed ? failed : slot_open(g, &g->slots[g->count++], first, FB_READ);
}

static void group_close(group *g) {
    const fb_device *device = g->run->device;
    for (int i = 0; i < g->count; i++) {
        device->release(g->slots[i].args.o.data);
        device->release(g->slots[i].args.workspace);
        free(g->slots[i].verified);
    }
    device->release(g->q);
    device->release(g->kv);
    free(g->entries);
}

static slot *slot_of(group *g, fb_role role) {
    for (int i = 0; i < g->count; i++)
        if (g->slots[i].point.role == role) return &g->slots[i];
    return NULL;
}

/* Runs once, poisoned, and judges the sample of rows. *us is the time of this first call. */
static int slot_verify(slot *s, double *us) {
    const fb_device *device = s->run->device;
    int failed = 0;
    fb_show_progress(s->run, "verify", &s->point);
    slot_poison(s);
    *us = device->time_us(slot_call, s, &failed);
    if (failed) return refuse(s, fa_last_error());
    device->fetch(s->verified, s->args.o.data, (size_t)s->o_bytes, (size_t)s->o_bytes, 1);
    /* The first call also touched memory for the first time: a short one is estimated again. */
    if (*us < 2e5) {
        const double again = device->time_us(slot_call, s, &failed);
        if (failed) return refuse(s, fa_last_error());
        if (again < *us) *us = again;
    }
    if (!fb_against_oracle(device, &s->args, s->verified, &s->point.against_oracle))
        return refuse(s, "no memory for the oracle");
    if (fb_passes(s->point.against_oracle)) return 0;
    fprintf(stderr, "%.3g times the granted error (worst row %.3g times)\n",
            s->point.against_oracle.whole, s->point.against_oracle.row);
    return refuse(s, "differs from the oracle");
}

/* All rows of a native result against the last q_len rows of the padded one. */
static int slot_compare(slot *s, const slot *padded) {
    const fb_shape *shape = &s->point.shape;
    const int32_t dtype = s->args.dtype;
    const int64_t row = (int64_t)shape->heads_q * shape->head_dim;
    const int64_t count = shape->q_len * row;
    double *want = malloc((size_t)(shape->batch * count) * sizeof *want);
    if (!want) return refuse(s, "no memory");
    for (int64_t b = 0; b < shape->batch; b++) {
        const int64_t from = ((b + 1) * shape->kv_len - shape->q_len) * row;
        for (int64_t i = 0; i < count; i++)
            want[b * count + i] = fa_dtype_get(dtype, padded->verified, from + i);
    }
    s->point.against_padded = fb_compare(s->verified, want, shape->batch * count / shape->head_dim,
                                         shape->head_dim, dtype, 2);
    free(want);
    return fb_passes(s->point.against_padded) ? 0 : refuse(s, "differs from padded q");
}

static int slot_unchanged(slot *s) {
    unsigned char *now = malloc((size_t)s->o_bytes);
    if (!now) return refuse(s, "no memory");
    s->run->device->fetch(now, s->args.o.data, (size_t)s->o_bytes, (size_t)s->o_bytes, 1);
    const int same = memcmp(now, s->verified, (size_t)s->o_bytes) == 0;
    free(now);
    return same ? 0 : refuse(s, "the last timed call gave other bits than the verified one");
}

static int group_verify(group *g, double *first_us) {
    for (int i = 0; i < g->count; i++)
        if (g->slots[i].point.role != FB_READ && slot_verify(&g->slots[i], &first_us[i])) return 1;
    const slot *padded = slot_of(g, FB_PADDED);
    for (int i = 0; i < g->count && padded; i++)
        if (g->slots[i].point.role == FB_NATIVE && slot_compare(&g->slots[i], padded)) return 1;
    return 0;
}

static void entries_open(group *g, const double *first_us) {
    const fb_device *device = g->run->device;
    for (int other = 0; other < 2; other++) {
        for (int i = 0; i < g->count; i++) {
            slot *s = &g->slots[i];
            const int decode = s->point.role == FB_NATIVE && s->point.shape.q_len <= DECODE_ROWS;
            if (other && !decode) continue;
            fb_entry *e = &g->entries[g->entry_count++];
            e->call = slot_read;
            e->context = s;
            e->first_us = first_us[i];
            e->temperature = other ? !device->figure : device->figure;
            if (s->point.role == FB_READ) continue;
            e->prepare = slot_poison;
            e->call = slot_call;
            e->confirm = slot_written;
        }
    }
}

static int time_entries(group *g, fb_entry *const *entries, int count) {
    const double budget_us = g->run->options.quick ? 20e3 : 300e3;
    fb_show_progress(g->run, "time in turns with", &g->slots[g->count - 1].point);
    if (fb_time_in_turns(g->run->device, entries, count, budget_us)) return 1;
    for (int i = 0; i < count; i++) {
        slot *s = entries[i]->context;
        s->point.stats[entries[i]->temperature] = entries[i]->stats;
    }
    for (int i = 0; i < g->count; i++)
        if (g->slots[i].point.role != FB_READ && slot_unchanged(&g->slots[i])) return 1;
    return 0;
}

static int group_time(group *g, const double *first_us) {
    fb_entry *all[2 * MAX_SLOTS];
    g->entries = calloc(2 * MAX_SLOTS, sizeof *g->entries);
    if (!g->entries) return refuse(&g->slots[0], "no memory");
    entries_open(g, first_us);
    for (int i = 0; i < g->entry_count; i++) all[i] = &g->entries[i];
    return time_entries(g, all, g->entry_count);
}

static int is_beyond(const group *g, const slot *s) {
    const fb_device *device = g->run->device;
    const double us = fb_figure(device, &s->point.stats[device->figure]);
    return s->point.bound_us > 0 && !(us <= s->point.bound_us);
}

/* Whether the padded call, and not the read, is what bounds a native one. */
static int padded_decides(const fb_point *p) {
    return p->padded_us * p->work.pairs / p->padded_work.pairs > p->read_us;
}

/* More samples of the calls that look beyond their bound, and of all that the bound is made of. */
static int group_time_again(group *g) {
    fb_entry *some[2 * MAX_SLOTS];
    int count = 0, with_padded = 0;
    for (int i = 0; i < g->count; i++)
        with_padded |= is_beyond(g, &g->slots[i]) && padded_decides(&g->slots[i].point);
    for (int i = 0; i < g->count; i++) {
        const fb_role role = g->slots[i].point.role;
        if (role == FB_EMPTY || role == FB_READ || (role == FB_PADDED && with_padded) ||
            is_beyond(g, &g->slots[i]))
            some[count++] = &g->entries[i];
    }
    return time_entries(g, some, count);
}

/* Fills in what a point knows from the rest of its group. Returns how many are beyond bounds. */
static int group_judge(group *g) {
    const fb_device *device = g->run->device;
    const slot *padded = slot_of(g, FB_PADDED), *empty = slot_of(g, FB_EMPTY);
    const slot *read = slot_of(g, FB_READ);
    int beyond = 0;
    for (int i = 0; i < g->count; i++) {
        fb_point *p = &g->slots[i].point;
        p->empty_us = fb_figure(device, &empty->point.stats[device->figure]);
        p->read_us = fb_figure(device, &read->point.stats[device->figure]);
        if (p->role != FB_NATIVE || !padded) continue;
        p->padded_us = fb_figure(device, &padded->point.stats[device->figure]);
        p->padded_work = padded->point.work;
        if (!fb_bound_applies(&p->shape)) continue;
        p->bound_us = fb_bound_us(&p->work, &p->padded_work, p->padded_us, p->read_us, p->empty_us);
        beyond += is_beyond(g, &g->slots[i]);
    }
    return beyond;
}

static int run_append(fb_run *run, const group *g) {
    if (run->point_count + g->count > run->point_capacity) {
        const int capacity = 2 * run->point_capacity + g->count;
        fb_point *points = realloc(run->points, (size_t)capacity * sizeof *points);
        if (!points) return 1;
        run->points = points;
        run->point_capacity = capacity;
    }
    for (int i = 0; i < g->count; i++) run->points[run->point_count++] = g->slots[i].point;
    return 0;
}

double fb_group_work(const fb_run *run, const fb_group *shapes) {
    double flops = 0;
    for (int i = 0; i < shapes->count; i++)
        flops += fb_work_of(&shapes->shapes[i], run->options.dtype).flops;
    fb_shape padded = shapes->shapes[0];
    padded.q_len = padded.kv_len;
    return flops + (shapes->padded ? fb_work_of(&padded, run->options.dtype).flops : 0);
}

int fb_run_group(fb_run *run, const fb_group *shapes) {
    double first_us[MAX_SLOTS] = {0};
    group g = {0};
    g.run = run;
    int failed = group_open(&g, shapes) || group_verify(&g, first_us) || group_time(&g, first_us);
    /* Another program may be in the way for seconds. All samples count, those of the bound too, so
     * that only the noise becomes less. */
    for (int i = 0; !failed && group_judge(&g) > 0 && i < REPEATS; i++)
        failed = group_time_again(&g);
    if (!failed) group_judge(&g);
    if (!failed) failed = run_append(run, &g);
    group_close(&g);
    return failed;
}
