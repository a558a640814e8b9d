/* record.c - the measured points as Google-Benchmark JSON, and what is derived from each.
 *
 * Tools that compare such files read name, real_time, cpu_time and time_unit; report.py reads the
 * rest. Keys are only added: committed records stay readable. */
#include <string.h>
#include <time.h>

#include "bench.h"
#include "fa_dtype.h"
#include "build_info.h"

const char *fb_role_name(fb_role role) {
    static const char *const names[] = {"native", "padded", "empty", "read"};
    return names[role];
}

const char *fb_point_name(const fb_run *run, const fb_point *p, char *text, size_t size) {
    const fb_shape *s = &p->shape;
    snprintf(text, size, "%s/%s/%s/%s/b:%d/hq:%d/hkv:%d/d:%d/q:%d/kv:%d", s->grid,
             fb_role_name(p->role), run->device->name, fb_dtype_name(run->options.dtype), s->batch,
             s->heads_q, s->heads_kv, s->head_dim, s->q_len, s->kv_len);
    return text;
}

double fb_point_us(const fb_run *run, const fb_point *p) {
    return fb_figure(run->device, &p->stats[run->device->figure]);
}

double fb_point_floor_us(const fb_run *run, const fb_point *p) {
    return fb_floor_us(&run->ceilings, &p->work, p->read_us, p->empty_us);
}

double fb_extra_bytes(const fb_point *p, int32_t dtype) {
    const fb_shape *s = &p->shape;
    const double rows = (double)s->kv_len - s->q_len;
    return 2.0 * s->batch * rows * s->heads_q * s->head_dim * (double)fa_dtype_size(dtype);
}

int fb_count_beyond(const fb_run *run) {
    int count = 0;
    char name[160];
    for (int i = 0; i < run->point_count; i++) {
        const fb_point *p = &run->points[i];
        if (p->bound_us == 0 || fb_point_us(run, p) <= p->bound_us) continue;
        fprintf(stderr, "%s: %.1f us, of %d calls, is beyond its bound of %.1f us\n",
                fb_point_name(run, p, name, sizeof name), fb_point_us(run, p),
                p->stats[run->device->figure].calls, p->bound_us);
        count++;
    }
    return count;
}

int fb_count_unbelievable(const fb_run *run) {
    int count = 0;
    char name[160];
    for (int i = 0; i < run->point_count; i++) {
        const fb_point *p = &run->points[i];
        if (p->role == FB_EMPTY || p->role == FB_READ) continue;
        if (fb_believable(&run->ceilings, &p->work, fb_point_us(run, p), p->read_us)) continue;
        fprintf(stderr, "%s: %.1f us is faster than the measured ceilings allow\n",
                fb_point_name(run, p, name, sizeof name), fb_point_us(run, p));
        count++;
    }
    return count;
}

/* A JSON string; control characters become spaces. */
static void put_string(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        fputc((unsigned char)*text < 32 ? ' ' : *text, out);
    }
    fputc('"', out);
}

static void put_text(FILE *out, const char *indent, const char *key, const char *value) {
    fprintf(out, "%s\"%s\": ", indent, key);
    put_string(out, value);
    fputs(",\n", out);
}

static void put_number(FILE *out, const char *indent, const char *key, double value) {
    fprintf(out, "%s\"%s\": %.10g,\n", indent, key, value);
}

static void put_context(FILE *out, const fb_run *run, const fb_facts *facts) {
    const fb_ceilings *c = &run->ceilings;
    const char *in = "    ";
    fputs("  \"context\": {\n", out);
    put_text(out, in, "executable", "fa_bench");
    put_text(out, in, "library_build_type", strcmp(FB_BUILD_TYPE, "Debug") ? "release" : "debug");
    put_number(out, in, "num_cpus", fb_cpu_threads());
    put_text(out, in, "device", run->device->name);
    put_text(out, in, "grid", run->options.grid);
    put_text(out, in, "dtype", fb_dtype_name(run->options.dtype));
    put_text(out, in, "statistic", run->device->use_minimum ? "minimum" : "median");
    put_text(out, in, "temperature", run->device->figure == FB_COLD ? "cold" : "warm");
    put_text(out, in, "formula", FB_PAIRS_FORMULA);
    for (int i = 0; i < facts->count; i++) put_text(out, in, facts->key[i], facts->value[i]);
    put_text(out, in, "ceiling_arithmetic", c->arithmetic);
    put_number(out, in, "ceiling_flops_per_second", c->flops_per_second);
    put_number(out, in, "ceiling_cache_bytes_per_second", c->cache_bytes_per_second);
    put_number(out, in, "ceiling_memory_bytes_per_second", c->memory_bytes_per_second);
    put_number(out, in, "ceiling_cache_bytes", c->cache_bytes);
    put_number(out, in, "ceiling_fixed_us", c->fixed_us);
    put_number(out, in, "disturbance", c->disturbance);
    fprintf(out, "    \"record_version\": 1\n  },\n");
}

static void put_shape(FILE *out, const fb_run *run, const fb_point *p) {
    const fb_shape *s = &p->shape;
    const char *in = "      ";
    put_text(out, in, "grid", s->grid);
    put_text(out, in, "role", fb_role_name(p->role));
    put_text(out, in, "dtype", fb_dtype_name(run->options.dtype));
    put_number(out, in, "batch", s->batch);
    put_number(out, in, "heads_q", s->heads_q);
    put_number(out, in, "heads_kv", s->heads_kv);
    put_number(out, in, "head_dim", s->head_dim);
    put_number(out, in, "q_len", s->q_len);
    put_number(out, in, "kv_len", s->kv_len);
    put_number(out, in, "splits", p->splits);
    put_number(out, in, "visible_pairs", p->work.pairs);
    put_number(out, in, "flops", p->work.flops);
    put_number(out, in, "kv_bytes", p->work.kv_bytes);
    put_number(out, in, "bytes", p->work.bytes);
}

static void put_judgement(FILE *out, const fb_run *run, const fb_point *p) {
    const char *in = "      ";
    const fb_temperature other = (fb_temperature)!run->device->figure;
    const double us = fb_point_us(run, p);
    if (p->stats[other].calls)
        put_number(out, in, other == FB_COLD ? "cold_us" : "warm_us",
                   fb_figure(run->device, &p->stats[other]));
    put_number(out, in, "flops_per_second", 1e6 * p->work.flops / us);
    put_number(out, in, "floor_us", fb_point_floor_us(run, p));
    put_number(out, in, "floor_share", fb_point_floor_us(run, p) / us);
    put_number(out, in, "error_against_oracle", p->against_oracle.whole);
    put_number(out, in, "error_against_oracle_worst_row", p->against_oracle.row);
    if (p->padded_us > 0) {
        put_number(out, in, "error_against_padded", p->against_padded.whole);
        put_number(out, in, "padded_us", p->padded_us);
        put_number(out, in, "speed_up", p->padded_us / us);
        put_number(out, in, "padded_flops", p->padded_work.flops);
        put_number(out, in, "extra_bytes", fb_extra_bytes(p, run->options.dtype));
    }
    if (p->bound_us > 0) {
        put_number(out, in, "bound_us", p->bound_us);
        put_text(out, in, "within_bound", us <= p->bound_us ? "yes" : "no");
    }
}

static void put_point(FILE *out, const fb_run *run, const fb_point *p) {
    const fb_stats *s = &p->stats[run->device->figure];
    const char *in = "      ";
    char name[160];
    fputs("    {\n", out);
    put_text(out, in, "name", fb_point_name(run, p, name, sizeof name));
    put_text(out, in, "run_name", name);
    put_text(out, in, "run_type", "iteration");
    put_number(out, in, "repetitions", 1);
    put_number(out, in, "repetition_index", 0);
    put_number(out, in, "threads", 1);
    put_number(out, in, "iterations", s->calls);
    put_number(out, in, "real_time", fb_point_us(run, p));
    put_number(out, in, "cpu_time", s->cpu_us);
    put_text(out, in, "time_unit", "us");
    put_text(out, in, "label", p->kernel);
    put_shape(out, run, p);
    put_number(out, in, "minimum_us", s->minimum);
    put_number(out, in, "lower_quartile_us", s->lower);
    put_number(out, in, "median_us", s->median);
    put_number(out, in, "upper_quartile_us", s->upper);
    if (p->role == FB_NATIVE || p->role == FB_PADDED) put_judgement(out, run, p);
    fprintf(out, "%s\"spread\": %.10g\n    }", in, s->spread);
}

int fb_write_json(const fb_run *run, const fb_facts *facts, const char *path) {
    FILE *out = fopen(path, "w");
    if (!out) return 1;
    fputs("{\n", out);
    put_context(out, run, facts);
    fputs("  \"benchmarks\": [\n", out);
    for (int i = 0; i < run->point_count; i++) {
        put_point(out, run, &run->points[i]);
        fputs(i + 1 < run->point_count ? ",\n" : "\n", out);
    }
    fputs("  ]\n}\n", out);
    const int failed = ferror(out);
    return fclose(out) != 0 || failed;
}
