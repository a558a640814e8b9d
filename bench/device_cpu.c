/* device_cpu.c - the CPU as a device to measure: memory, timer, cache flush, ceilings, facts.
 *
 * Threads are pinned by OpenMP (fa_bench.c sets OMP_PROC_BIND). It changes when another operating
 * system needs other facts. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "fa_inputs.h"

void fb_fact(fb_facts *facts, const char *key, const char *format, ...) {
    if (facts->count == FB_MAX_FACTS) return;
    va_list values;
    va_start(values, format);
    snprintf(facts->key[facts->count], sizeof facts->key[0], "%s", key);
    vsnprintf(facts->value[facts->count], sizeof facts->value[0], format, values);
    va_end(values);
    facts->count++;
}

/* The first line of a file, without its end; "" when there is none. */
static const char *line_of(const char *path, char *text, size_t size) {
    FILE *file = fopen(path, "r");
    text[0] = 0;
    if (!file) return text;
    if (!fgets(text, (int)size, file)) text[0] = 0;
    fclose(file);
    text[strcspn(text, "\n")] = 0;
    return text;
}

static const char *cache_file(int index, const char *name, char *text, size_t size) {
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
    return line_of(path, text, size);
}

/* Bytes of the largest cache that the first processor sees. */
static size_t last_cache_bytes(void) {
    char text[64];
    size_t largest = 0;
    for (int i = 0; *cache_file(i, "size", text, sizeof text); i++) {
        char *unit;
        const size_t count = strtoul(text, &unit, 10), bytes = count << (*unit == 'M' ? 20 : 10);
        if (bytes > largest) largest = bytes;
    }
    return largest ? largest : (size_t)32 << 20;
}

static void cpu_model(char *text, size_t size) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(text, size, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon[strcspn(colon, "\n")] = 0;
        snprintf(text, size, "%s", colon + 2);
        break;
    }
    if (file) fclose(file);
}

static int cpu_open(void) { return 0; }

static void cpu_describe(fb_facts *facts) {
    char text[128], level[16], type[32], shared[64], caches[160] = "";
    cpu_model(text, sizeof text);
    fb_fact(facts, "processor", "%s", text);
    fb_fact(facts, "cores", "%ld online, %d threads used", sysconf(_SC_NPROCESSORS_ONLN),
            fb_cpu_threads());
    for (int i = 0; *cache_file(i, "size", text, sizeof text); i++) {
        const size_t used = strlen(caches);
        snprintf(caches + used, sizeof caches - used, "%sL%s %s %s shared by %s", i ? ", " : "",
                 cache_file(i, "level", level, sizeof level),
                 cache_file(i, "type", type, sizeof type), text,
                 cache_file(i, "shared_cpu_list", shared, sizeof shared));
    }
    fb_fact(facts, "caches", "%s", *caches ? caches : "unknown");
    const char *bind = getenv("OMP_PROC_BIND");
    fb_fact(facts, "pinning", "OMP_PROC_BIND=%s", bind ? bind : "unset");
}

static void cpu_release(void *memory) { free(memory); }

static void cpu_fill_normal(void *memory, int64_t count, int32_t dtype, uint64_t seed) {
    const fa_input_rule rule = {FA_INPUT_NORMAL, seed, 1.0f};
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++)
        fa_dtype_set(dtype, memory, i, fa_input_value(rule, 0, (uint64_t)i));
}

static void cpu_set_bytes(void *memory, int value, size_t bytes) { memset(memory, value, bytes); }

static void cpu_fetch(void *host, const void *memory, size_t row_bytes, size_t pitch,
                      int64_t rows) {
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)host + (size_t)r * row_bytes, (const char *)memory + (size_t)r * pitch,
               row_bytes);
}

/* Three times the last cache, so that reading it all leaves nothing else there. One for all uses:
 * some machines have caches of half a gigabyte. Null: no memory. */
static const char *beyond_cache(size_t *bytes) {
    static char *buffer;
    *bytes = 3 * last_cache_bytes();
    if (buffer) return buffer;
    buffer = fb_cpu_alloc(*bytes);
    if (buffer) memset(buffer, 1, *bytes);
    return buffer;
}

static void cpu_flush(void) {
    size_t bytes;
    const char *buffer = beyond_cache(&bytes);
    if (buffer) fb_cpu_read(buffer, bytes);
}

static double cpu_time_us(fb_action action, void *context, int *failed) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    *failed = action(context);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return 1e6 * (double)(end.tv_sec - begin.tv_sec) + 1e-3 * (double)(end.tv_nsec - begin.tv_nsec);
}

static void cpu_ceilings(fb_ceilings *c, int32_t dtype, int quick) {
    const size_t cache = last_cache_bytes();
    size_t bytes;
    const char *isa, *buffer = beyond_cache(&bytes);
    c->flops_per_second = fb_cpu_flops_per_second(quick, &isa, &c->disturbance);
    if (buffer) {
        c->cache_bytes_per_second = fb_cpu_read_bytes_per_second(buffer, cache / 2, quick);
        c->memory_bytes_per_second = fb_cpu_read_bytes_per_second(buffer, bytes, quick);
    }
    c->cache_bytes = (double)cache;
    c->fixed_us = 0;
    snprintf(c->arithmetic, sizeof c->arithmetic, "float32 %s, %d threads%s", isa, fb_cpu_threads(),
             dtype == FA_DTYPE_F32 ? "" : " (16-bit is widened)");
}

const fb_device fb_device_cpu = {
    .name = "cpu",
    .fa_device = FA_DEVICE_CPU,
    .figure = FB_WARM,
    .use_minimum = 1,
    .least_calls = 5,
    .open = cpu_open,
    .describe = cpu_describe,
    .alloc = fb_cpu_alloc,
    .release = cpu_release,
    .fill_normal = cpu_fill_normal,
    .set_bytes = cpu_set_bytes,
    .fetch = cpu_fetch,
    .read = fb_cpu_read,
    .flush = cpu_flush,
    .time_us = cpu_time_us,
    .ceilings = cpu_ceilings,
};
