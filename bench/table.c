/* table.c - the measured points as text for people. It changes when a column does. */
#include <unistd.h>

#include "bench.h"

void fb_show_progress(const fb_run *run, const char *step, const fb_point *point) {
    char name[160];
    if (!run->options.progress) return;
    /* A terminal's line is written over, a log gets a line each. */
    fprintf(stderr, isatty(2) ? "\r[%3.0f%%] %s %s\033[K" : "[%3.0f%%] %s %s\n",
            run->total > 0 ? 100 * run->done / run->total : 0, step,
            point ? fb_point_name(run, point, name, sizeof name) : "");
    fflush(stderr);
}

static void print_ceilings(FILE *out, const fb_run *run) {
    const fb_ceilings *c = &run->ceilings;
    fprintf(out, "%-16s %.1f GFLOP/s, %s\n", "arithmetic peak", 1e-9 * c->flops_per_second,
            c->arithmetic);
    if (c->disturbance > 0)
        fprintf(out, "%-16s %.2f (mean pass of that loop over the best)%s\n", "disturbance",
                c->disturbance,
                c->disturbance > 1.2 ? ": OTHER PROGRAMS ARE IN THE WAY, doubt all figures" : "");
    if (c->cache_bytes_per_second > 0)
        fprintf(out, "%-16s %.1f GB/s from the last cache (%.0f MiB), %.1f GB/s from memory\n",
                "read rate", 1e-9 * c->cache_bytes_per_second, c->cache_bytes / 1048576,
                1e-9 * c->memory_bytes_per_second);
    else
        fprintf(out, "%-16s %.1f GB/s from memory\n", "read rate",
                1e-9 * c->memory_bytes_per_second);
}

void fb_print_facts(FILE *out, const fb_run *run, const fb_facts *facts) {
    for (int i = 0; i < facts->count; i++)
        fprintf(out, "%-16s %s\n", facts->key[i], facts->value[i]);
    print_ceilings(out, run);
}

static void print_head(FILE *out, const fb_run *run, const fb_point *p) {
    const fb_shape *s = &p->shape;
    const fb_device *d = run->device;
    fprintf(out, "\ngrid %s, %s, %s, batch %d, heads %d/%d, head_dim %d, kernel %s\n", s->grid,
            d->name, fb_dtype_name(run->options.dtype), s->batch, s->heads_q, s->heads_kv,
            s->head_dim, p->kernel);
    fprintf(out, "%s\n", FB_PAIRS_FORMULA);
    fprintf(out, "us: %s of the calls, %s; +-: (upper - lower quartile) / median\n",
            d->use_minimum ? "minimum" : "median", d->figure == FB_COLD ? "cold" : "warm");
    fprintf(out, "floor: max(empty call + flops / peak, read of K and V * all bytes / theirs)\n");
    fprintf(out, "%-7s %7s %7s %11s %4s %9s %7s %10s %6s %11s | %9s %9s %9s %11s\n", "call", "kv",
            "q", "us", "+-%", "GFLOP/s", "GB/s", "floor us", "floor",
            d->figure ? "warm us" : "cold us", "speed-up", "flops", "extra MB", "bound us");
}

static void print_row(FILE *out, const fb_run *run, const fb_point *p) {
    const fb_stats *other = &p->stats[!run->device->figure];
    const double us = fb_point_us(run, p);
    fprintf(out, "%-7s %7d %7d %11.1f %4.0f", fb_role_name(p->role), p->shape.kv_len,
            p->shape.q_len, us, 100 * p->stats[run->device->figure].spread);
    if (p->role == FB_READ) fprintf(out, " %9s %7.1f", "", 1e-3 * p->work.kv_bytes / us);
    if (p->role == FB_NATIVE || p->role == FB_PADDED) {
        const double floor_us = fb_point_floor_us(run, p);
        fprintf(out, " %9.1f %7.1f %10.1f %5.0f%%", 1e-3 * p->work.flops / us,
                1e-3 * p->work.bytes / us, floor_us, 100 * floor_us / us);
    }
    if (other->calls) fprintf(out, " %11.1f", fb_figure(run->device, other));
    if (p->padded_us > 0)
        fprintf(out, "%*s | %8.1fx %8.1fx %9.2f", other->calls ? 0 : 12, "", p->padded_us / us,
                p->padded_work.flops / p->work.flops, 1e-6 * fb_extra_bytes(p, run->options.dtype));
    if (p->bound_us > 0) fprintf(out, " %11.1f %s", p->bound_us, us <= p->bound_us ? "ok" : "OVER");
    fputc('\n', out);
}

static int same_head(const fb_point *a, const fb_point *b) {
    return a->shape.batch == b->shape.batch && a->shape.heads_q == b->shape.heads_q &&
           a->shape.heads_kv == b->shape.heads_kv && a->shape.head_dim == b->shape.head_dim;
}

void fb_print_table(FILE *out, const fb_run *run) {
    for (int i = 0; i < run->point_count; i++) {
        const fb_point *p = &run->points[i];
        if (i == 0 || !same_head(p, p - 1)) print_head(out, run, p);
        print_row(out, run, p);
    }
}
