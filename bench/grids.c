/* grids.c - the shapes that are measured, one table a grid.
 *
 * padded: native q_len against q padded to kv_len, for a list of q_len on the same K and V.
 * A, A2: prefill, square. B: chunked prefill. C: speculative steps. D: decode.
 * It changes when a grid does; a record names its grid, so rows are never reused for others. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static const int32_t padded_q[] = {1, 4, 16, 64, 256, 1024};
static const int32_t padded_kv_cpu[] = {1024, 4096, 16384};
static const int32_t padded_kv_cuda[] = {1024, 4096, 16384, 65536, 131072};
static const int32_t quick_q[] = {1, 16, 256};
static const int32_t quick_kv[] = {1024};

/* grid, batch, heads_q, heads_kv, head_dim, q_len, kv_len */
static const fb_shape shapes[] = {
    {"A", 32, 32, 32, 64, 512, 512},     {"A", 8, 32, 32, 64, 2048, 2048},
    {"A", 2, 32, 32, 64, 8192, 8192},    {"A", 1, 32, 32, 64, 16384, 16384},
    {"A", 32, 16, 16, 128, 512, 512},    {"A", 8, 16, 16, 128, 2048, 2048},
    {"A", 2, 16, 16, 128, 8192, 8192},   {"A", 1, 16, 16, 128, 16384, 16384},
    {"A", 32, 8, 8, 256, 512, 512},      {"A", 8, 8, 8, 256, 2048, 2048},
    {"A", 2, 8, 8, 256, 8192, 8192},     {"A", 1, 8, 8, 256, 16384, 16384},
    {"A", 32, 32, 8, 128, 512, 512},     {"A", 8, 32, 8, 128, 2048, 2048},
    {"A", 2, 32, 8, 128, 8192, 8192},    {"A", 1, 32, 8, 128, 16384, 16384},
    {"A2", 2, 21, 21, 96, 8192, 8192},   {"A2", 2, 10, 10, 192, 8192, 8192},
    {"A2", 1, 32, 8, 128, 32768, 32768}, {"B", 1, 32, 8, 128, 64, 4096},
    {"B", 1, 32, 8, 128, 128, 8192},     {"B", 1, 32, 8, 128, 256, 8192},
    {"B", 1, 32, 8, 128, 512, 4096},     {"B", 1, 32, 8, 128, 512, 32768},
    {"B", 1, 32, 8, 128, 2048, 32768},   {"B", 1, 32, 8, 128, 4096, 131072},
    {"B", 1, 32, 8, 128, 128, 131072},   {"B", 1, 32, 8, 128, 1024, 131072},
    {"B", 8, 32, 8, 128, 256, 8192},     {"B", 1, 16, 16, 64, 512, 16384},
    {"B", 1, 8, 2, 256, 512, 16384},     {"C", 1, 32, 8, 128, 2, 4096},
    {"C", 1, 32, 8, 128, 2, 32768},      {"C", 8, 32, 8, 128, 2, 8192},
    {"C", 1, 32, 8, 128, 4, 4096},       {"C", 1, 32, 8, 128, 4, 32768},
    {"C", 8, 32, 8, 128, 4, 8192},       {"C", 1, 32, 8, 128, 8, 4096},
    {"C", 1, 32, 8, 128, 8, 32768},      {"C", 8, 32, 8, 128, 8, 8192},
    {"C", 1, 32, 8, 128, 16, 4096},      {"C", 1, 32, 8, 128, 16, 32768},
    {"C", 8, 32, 8, 128, 16, 8192},      {"C", 1, 32, 8, 128, 8, 131072},
    {"D", 1, 32, 8, 128, 1, 1024},       {"D", 1, 32, 8, 128, 1, 4096},
    {"D", 1, 32, 8, 128, 1, 32768},      {"D", 1, 32, 8, 128, 1, 131072},
    {"D", 8, 32, 8, 128, 1, 8192},       {"D", 64, 32, 8, 128, 1, 2048},
    {"D", 64, 32, 8, 128, 1, 8192},      {"D", 256, 32, 8, 128, 1, 1024},
    {"D", 1, 32, 32, 128, 1, 4096},      {"D", 8, 32, 32, 128, 1, 8192},
    {"D", 1, 64, 8, 128, 1, 8192},       {"D", 32, 64, 8, 128, 1, 8192},
    {"D", 8, 32, 4, 64, 1, 8192},        {"D", 8, 16, 2, 256, 1, 8192},
};

static int visit_padded(const fb_options *o, fb_visit visit, void *context) {
    const int on_cuda = strcmp(o->device, "cuda") == 0;
    const int32_t *q = o->quick ? quick_q : padded_q;
    const int32_t *kv = o->quick ? quick_kv : on_cuda ? padded_kv_cuda : padded_kv_cpu;
    const size_t q_count = (o->quick ? sizeof quick_q : sizeof padded_q) / sizeof *q;
    const size_t kv_bytes = o->quick  ? sizeof quick_kv
                            : on_cuda ? sizeof padded_kv_cuda
                                      : sizeof padded_kv_cpu;
    for (int d = 0; d < o->head_dim_count; d++) {
        for (size_t i = 0; i < kv_bytes / sizeof *kv; i++) {
            fb_shape row[FB_MAX_SHAPES];
            for (size_t j = 0; j < q_count; j++) {
                const fb_shape s = {"padded",        o->batch, o->heads_q, o->heads_kv,
                                    o->head_dims[d], q[j],     kv[i]};
                row[j] = s;
            }
            const fb_group group = {row, (int)q_count, 1};
            const int stop = visit(context, &group);
            if (stop) return stop;
        }
    }
    return 0;
}

int fb_each_group(const fb_options *o, fb_visit visit, void *context) {
    int known = 0;
    if (strcmp(o->grid, "padded") == 0) return visit_padded(o, visit, context);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (strcmp(shapes[i].grid, o->grid) != 0) continue;
        const fb_group group = {&shapes[i], 1, 0};
        const int stop = visit(context, &group);
        if (stop) return stop;
        known = 1;
    }
    return known ? 0 : -1;
}
