/* work.c - the arithmetic of a benchmark: useful work, floors, the bound on a native call.
 *
 * Pure. It changes when what counts as useful work does; test_work.c counts pairs by brute force.
 */
#include "bench.h"
#include "fa_dtype.h"

const char *fb_dtype_name(int32_t dtype) {
    return dtype == FA_DTYPE_F32 ? "f32" : dtype == FA_DTYPE_F16 ? "f16" : "bf16";
}

static int64_t clamp64(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

int64_t fb_visible_pairs(int64_t q_len, int64_t kv_len, int64_t offset) {
    /* Rows before first see no key, rows from full on see all, those between one more each. */
    const int64_t first = clamp64(-offset, 0, q_len);
    const int64_t full = clamp64(kv_len - offset, first, q_len);
    const int64_t rows = full - first;
    return rows * (first + offset + 1) + rows * (rows - 1) / 2 + (q_len - full) * kv_len;
}

fb_work fb_work_of(const fb_shape *s, int32_t dtype) {
    const double element = (double)fa_dtype_size(dtype), dim = s->head_dim, batch = s->batch;
    fb_work w;
    w.pairs = (double)fb_visible_pairs(s->q_len, s->kv_len, s->kv_len - s->q_len);
    w.flops = 4.0 * dim * w.pairs * s->heads_q * batch;
    w.kv_bytes = 2.0 * batch * s->kv_len * s->heads_kv * dim * element;
    w.bytes = w.kv_bytes + 2.0 * batch * s->q_len * s->heads_q * dim * element;
    return w;
}

double fb_floor_us(const fb_ceilings *c, const fb_work *w, double read_us, double empty_us) {
    const double fixed = c->fixed_us > 0 ? c->fixed_us : empty_us;
    const double compute = fixed + 1e6 * w->flops / c->flops_per_second;
    const double read = read_us * w->bytes / w->kv_bytes;
    return compute > read ? compute : read;
}

double fb_bound_us(const fb_work *native, const fb_work *padded, double padded_us, double read_us,
                   double empty_us) {
    const double compute = padded_us * native->pairs / padded->pairs;
    return 1.5 * (compute > read_us ? compute : read_us) + empty_us;
}

int fb_bound_applies(const fb_shape *s) { return s->kv_len >= 1000 && s->q_len <= s->kv_len / 4; }

int fb_believable(const fb_ceilings *c, const fb_work *w, double us, double read_us) {
    /* What fits a cache may come from a level above the one that was read. */
    const int from_memory = w->kv_bytes > 2 * c->cache_bytes;
    return 1e6 * w->flops / us <= 1.05 * c->flops_per_second &&
           !(from_memory && read_us > 1.05 * us);
}
