/* fa_bench.c - the benchmark program: options, the order of things, the exit code.
 *
 * Exit code: 0; 1 a wrong result, or a figure above the ceilings; 2 bad options; 3 with --check, a
 * native call beyond its bound; 4 no such device. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "build_info.h"

static const char usage[] =
    "fa_bench [options]      padded q against native q_len != kv_len, and how close to the limit\n"
    "  --grid NAME           padded (default), A, A2, B, C or D (grids.c)\n"
    "  --device NAME         cpu (default) or cuda\n"
    "  --dtype NAME          f32 (default on the cpu), bf16 (default on cuda), f16\n"
    "  --batch N  --heads Q/KV  --head-dim D[,D]      of grid padded\n"
    "  --json FILE           write the record, Google-Benchmark JSON\n"
    "  --check               exit code 3 when a native call is beyond its bound\n"
    "  --quick               a few points in seconds, to test the program\n"
    "  --progress            a progress line even when stderr is no terminal\n";

static int bad_option(const char *option) {
    fprintf(stderr, "fa_bench: %s\n%s", option, usage);
    return 2;
}

static int parse_dtype(const char *name, int32_t *dtype) {
    static const int32_t dtypes[] = {FA_DTYPE_F32, FA_DTYPE_F16, FA_DTYPE_BF16};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, fb_dtype_name(dtypes[i])) == 0) {
            *dtype = dtypes[i];
            return 1;
        }
    return 0;
}

static int parse_head_dims(const char *text, fb_options *o) {
    o->head_dim_count = 0;
    while (o->head_dim_count < 4) {
        char *end;
        const long dim = strtol(text, &end, 10);
        if (end == text || dim < 1 || dim > 512) return 0;
        o->head_dims[o->head_dim_count++] = (int32_t)dim;
        if (*end == 0) return 1;
        if (*end != ',') return 0;
        text = end + 1;
    }
    return 0;
}

/* Options with a value. False when the value is not one. */
static int parse_value(const char *option, const char *value, fb_options *o) {
    if (!value) return 0;
    if (strcmp(option, "--grid") == 0)
        o->grid = value;
    else if (strcmp(option, "--device") == 0)
        o->device = value;
    else if (strcmp(option, "--json") == 0)
        o->json = value;
    else if (strcmp(option, "--dtype") == 0)
        return parse_dtype(value, &o->dtype);
    else if (strcmp(option, "--batch") == 0)
        return (o->batch = atoi(value)) > 0;
    else if (strcmp(option, "--heads") == 0)
        return sscanf(value, "%d/%d", &o->heads_q, &o->heads_kv) == 2 && o->heads_kv > 0 &&
               o->heads_q > 0 && o->heads_q % o->heads_kv == 0;
    else if (strcmp(option, "--head-dim") == 0)
        return parse_head_dims(value, o);
    else
        return 0;
    return 1;
}

/* 0, or the exit code with its sentence printed. */
static int parse(int count, char **words, fb_options *o) {
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "--quick") == 0)
            o->quick = 1;
        else if (strcmp(words[i], "--check") == 0)
            o->check = 1;
        else if (strcmp(words[i], "--progress") == 0)
            o->progress = 1;
        else if (!parse_value(words[i], words[i + 1], o))
            return bad_option(words[i]);
        else
            i++;
    }
    const int cuda = strcmp(o->device, "cuda") == 0;
    if (!o->dtype) o->dtype = cuda ? FA_DTYPE_BF16 : FA_DTYPE_F32;
    if (!o->heads_q) o->heads_q = cuda ? 32 : 8, o->heads_kv = cuda ? 8 : 2;
    if (!o->head_dim_count) {
        o->head_dims[o->head_dim_count++] = cuda ? 128 : 64;
        if (!cuda && !o->quick) o->head_dims[o->head_dim_count++] = 128;
    }
    return 0;
}

/* OpenMP reads its environment before main: pin the threads by starting once more. */
static void pin_threads(char **words) {
    if (getenv("OMP_PROC_BIND")) return;
    setenv("OMP_PROC_BIND", "close", 1);
    setenv("OMP_PLACES", "cores", 0);
    execv("/proc/self/exe", words);
}

static const fb_device *find_device(const char *name) {
    if (strcmp(name, "cpu") == 0) return &fb_device_cpu;
#ifdef FA_WITH_CUDA
    if (strcmp(name, "cuda") == 0) return &fb_device_cuda;
#endif
    return NULL;
}

static void describe(const fb_run *run, fb_facts *facts) {
    char date[32];
    const time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    run->device->describe(facts);
    const int32_t version = fa_version();
    fb_fact(facts, "library_version", "%d.%d.%d", version / 1000000, version / 1000 % 1000,
            version % 1000);
    fb_fact(facts, "git_describe", "%s", FB_GIT_DESCRIBE);
    fb_fact(facts, "source_digest", "%s", FB_SOURCE_DIGEST);
    fb_fact(facts, "compiler", "%s", FB_COMPILER);
    fb_fact(facts, "flags", "%s", FB_FLAGS);
    fb_fact(facts, "date", "%s", date);
}

static int count_group(void *context, const fb_group *group) {
    fb_run *run = context;
    run->total += fb_group_work(run, group);
    return 0;
}

/* Limits are measured before the first group and after each: another program may slow the machine
 * down for seconds, and the best counts, as it does for calls. The disturbance is that of the worst
 * of these moments. */
static void measure_ceilings(fb_run *run) {
    fb_ceilings *best = &run->ceilings, now = {0};
    fb_show_progress(run, "ceilings of this machine", NULL);
    run->device->ceilings(&now, run->options.dtype, run->options.quick);
    if (best->flops_per_second > 0) {
        const double was = best->disturbance, is = now.disturbance;
        const double peak = fmax(best->flops_per_second, now.flops_per_second);
        now.disturbance =
            fmax(was * peak / best->flops_per_second, is * peak / now.flops_per_second);
        now.flops_per_second = peak;
        now.cache_bytes_per_second = fmax(best->cache_bytes_per_second, now.cache_bytes_per_second);
        now.memory_bytes_per_second =
            fmax(best->memory_bytes_per_second, now.memory_bytes_per_second);
    }
    *best = now;
}

static int run_group(void *context, const fb_group *group) {
    fb_run *run = context;
    const int failed = fb_run_group(run, group);
    run->done += fb_group_work(run, group);
    if (!failed && run->device->use_minimum) measure_ceilings(run);
    return failed;
}

static int measure(fb_run *run) {
    run->options.progress |= isatty(2);
    if (fb_each_group(&run->options, count_group, run) < 0) return bad_option(run->options.grid);
    measure_ceilings(run);
    const int failed = fb_each_group(&run->options, run_group, run);
    if (!failed) fb_show_progress(run, "done", NULL);
    if (isatty(2)) fputc('\n', stderr);
    return failed;
}

int main(int count, char **words) {
    fb_run run = {0};
    fb_facts facts = {0};
    run.options = (fb_options){.grid = "padded", .device = "cpu", .batch = 1};
    if (count > 1 && strcmp(words[1], "--help") == 0) return fputs(usage, stdout) < 0;
    int failed = parse(count, words, &run.options);
    if (failed) return failed;
    pin_threads(words);
    run.subject = fa_fwd_causal;
    run.device = find_device(run.options.device);
    if (!run.device || run.device->open() != 0) {
        fprintf(stderr, "fa_bench: no device '%s' in this build and machine\n", run.options.device);
        return 4;
    }
    describe(&run, &facts);
    failed = measure(&run);
    if (failed) return failed;
    fb_print_facts(stdout, &run, &facts);
    fb_print_table(stdout, &run);
    if (fb_count_unbelievable(&run)) return 1;
    if (run.options.json && fb_write_json(&run, &facts, run.options.json)) {
        fprintf(stderr, "fa_bench: cannot write %s\n", run.options.json);
        return 1;
    }
    const int beyond = fb_count_beyond(&run);
    free(run.points);
    return beyond && run.options.check ? 3 : 0;
}
