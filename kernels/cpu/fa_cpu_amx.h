/* fa_cpu_amx.h - the kernel for bfloat16 by the tiles of AMX: 16 rows of 64 bytes, of which two
 * make 16 x 16 sums in float32 over 32 products each.
 *
 * S and O are transposed as in fa_cpu_panels.h, so that the softmax is the same: S^T = K Q^T and
 * O^T += V^T P^T. A first operand's rows run along the sum; a second one's rows are pairs of
 * neighbours along the sum, a pair a column. So K is copied as it is, V is turned, q lies in pairs
 * from the start, and weights are rounded to bfloat16 in pairs of keys, in their own place. The
 * sums of weights are those of the unrounded ones.
 *
 * Part of fa_cpu_algorithm.h; it changes when these micro-kernels do. Names of tile registers must
 * be literals: 0 to 3 are sums, 4 and 5 first operands, 6 and 7 second ones. */
#ifndef FA_CPU_AMX_H
#define FA_CPU_AMX_H

#include "fa_cpu_softmax.h"

/* The tile instructions do not tell a compiler that they read and write memory. */
#define FAI_MEMORY_FENCE() __asm__ volatile("" ::: "memory")
/* 16-bit words from one row of V^T to the next. */
static inline int32_t fai_turned_pitch(const fai_tile *t) {
    return fai_round_up(fai_block_keys(t), 64);
}

typedef struct fai_tile_shapes {
    uint8_t palette, start_row, zeros[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} fai_tile_shapes;

static const fai_tile_shapes fai_whole_tiles FAI_ALIGNED = {
    1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

/* sums of 32 x (16 * span) += two tiles of rows a by `span` tiles b. */
#define FAI_MULTIPLY_TILES(a, a_pitch, b, b_pitch, span)             \
    do {                                                             \
        _tile_loadd(4, a, a_pitch);                                  \
        _tile_loadd(5, (const char *)(a) + 16 * (a_pitch), a_pitch); \
        _tile_loadd(6, b, b_pitch);                                  \
        _tile_dpbf16ps(0, 4, 6);                                     \
        _tile_dpbf16ps(2, 5, 6);                                     \
        if (span == 2) {                                             \
            _tile_loadd(7, (const char *)(b) + 64, b_pitch);         \
            _tile_dpbf16ps(1, 4, 7);                                 \
            _tile_dpbf16ps(3, 5, 7);                                 \
        }                                                            \
    } while (0)

/* K as rows of whole tiles, zeros beyond head_dim and beyond the block's keys. */
static void fai_copy_keys(const fai_tile *t, fai_scratch *w, int32_t keys) {
    const int32_t words = fai_row_words(t);
    for (int32_t j = 0; j < fai_round_up(keys, 32); ++j) {
        char *to = (char *)(w->kv + j * words);
        const size_t size = j < keys ? (size_t)t->row_size : 0;
        memcpy(to, w->rows[j] + w->rows_at, size);
        memset(to + size, 0, (size_t)words * 4 - size);
    }
}

/* S[key][row] = scale * K[key] . Q[row] for the 32 keys from `key` on. */
static void fai_score_tiles(const fai_tile *t, fai_scratch *w, fai_panel p, int32_t key) {
    const int32_t words = fai_row_words(t), pitch = p.width * 4;
    const float *k = w->kv + key * words, *q = w->q + p.at * t->dim;
    float *s = w->s + p.at * FAI_TILE_KEYS + key * p.width;
    const fai_vec scale = fai_splat(t->a->scale);
    FAI_MEMORY_FENCE();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int32_t i = 0; i < words; i += 16)
        if (p.width == 32)
            FAI_MULTIPLY_TILES(k + i, words * 4, q + i * 32, 128, 2);
        else
            FAI_MULTIPLY_TILES(k + i, words * 4, q + i * 16, 64, 1);
    _tile_stored(0, s, pitch);
    _tile_stored(2, s + 16 * p.width, pitch);
    if (p.width == 32) {
        _tile_stored(1, s + 16, pitch);
        _tile_stored(3, s + 16 * p.width + 16, pitch);
    }
    FAI_MEMORY_FENCE();
    for (int32_t i = 0; i < 32 * p.width; i += FAI_LANES) fai_store(s + i, fai_load(s + i) * scale);
}

/* V^T[dim][key] of the first `keys` keys, zeros beyond, for whole tiles of 32 keys. 16 dims of two
 * keys are put together as pairs, and 16 such pairs are turned at once. */
static void fai_turn_values(const fai_tile *t, fai_scratch *w, int32_t keys) {
    const int32_t pitch = fai_turned_pitch(t);
    uint16_t *turned = (uint16_t *)w->kv;
    float pairs[16][16] FAI_ALIGNED;
    for (int32_t key = 0; key < keys; key += 32)
        for (int32_t d = 0; d < t->dim; d += 16) {
            const int32_t left = t->a->head_dim - d;
            const __mmask16 in_row = (__mmask16)(left < 16 ? (1 << left) - 1 : 0xffff);
            for (int32_t i = 0; i < 16; ++i) {
                const int32_t j = key + 2 * i;
                const int64_t at = w->rows_at + 2 * d;
                const __m256i even =
                    _mm256_maskz_loadu_epi16(j < keys ? in_row : 0, w->rows[j] + at);
                const __m256i odd =
                    _mm256_maskz_loadu_epi16(j + 1 < keys ? in_row : 0, w->rows[j + 1] + at);
                _mm512_store_si512(
                    pairs[i], _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                                              _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16)));
            }
            fai_transpose((float *)(turned + d * pitch + key), pitch / 2, pairs[0], 16);
        }
}

/* Weights of the keys beyond are 0, but a NaN in V would outlive that. */
static void fai_clear_values(const fai_tile *t, fai_scratch *w, int32_t keys, int32_t end) {
    const int32_t pitch = fai_turned_pitch(t);
    uint16_t *turned = (uint16_t *)w->kv;
    if (keys < end)
        for (int32_t d = 0; d < t->dim; ++d)
            memset(turned + d * pitch + keys, 0, (size_t)(end - keys) * 2);
}

/* Weights as pairs of keys, zeros beyond `keys` up to whole tiles. Pair i takes the place of row i,
 * which has been read. */
static void fai_pair_weights(float *s, int32_t width, int32_t keys) {
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int32_t i = 0; i < fai_round_up(keys, 32) / 2; ++i)
        for (int32_t c = 0; c < width; c += FAI_LANES) {
            const fai_vec none = fai_splat(0);
            const fai_vec even = 2 * i < keys ? fai_load(s + 2 * i * width + c) : none;
            const fai_vec odd = 2 * i + 1 < keys ? fai_load(s + (2 * i + 1) * width + c) : none;
            const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
            _mm512_storeu_si512(s + i * width + c, _mm512_permutexvar_epi16(order, both));
        }
}

/* O[dim][row] = O * factor, where a factor is not 1. */
static void fai_rescale(const fai_tile *t, const fai_scratch *w, fai_panel p, float *o) {
    const float *factor = w->factor + p.at;
    int32_t same = 1;
    for (int32_t r = 0; r < p.width; ++r) same &= factor[r] == 1;
    if (same) return;
    for (int32_t d = 0; d < t->dim; ++d)
        for (int32_t c = 0; c < p.width; c += FAI_LANES) {
            float *to = o + d * p.width + c;
            fai_store(to, fai_load(to) * fai_load(factor + c));
        }
}

/* O[dim][row] += V^T[dim][key] P[key][row] for 32 dims; where head_dim ends with 16 of them, the
 * others are computed and left. */
static void fai_output_tiles(const fai_tile *t, const fai_scratch *w, fai_panel p, int32_t d,
                             int32_t keys, float *o) {
    const int32_t v_pitch = fai_turned_pitch(t);
    const uint16_t *v = (const uint16_t *)w->kv + d * v_pitch;
    const float *pairs = w->s + p.at * FAI_TILE_KEYS;
    const int32_t pitch = p.width * 4, second = d + 16 < t->dim;
    float *to = o + d * p.width;
    FAI_MEMORY_FENCE();
    _tile_loadd(0, to, pitch);
    if (p.width == 32) _tile_loadd(1, to + 16, pitch);
    if (second) {
        _tile_loadd(2, to + 16 * p.width, pitch);
        if (p.width == 32) _tile_loadd(3, to + 16 * p.width + 16, pitch);
    }
    for (int32_t key = 0; key < keys; key += 32)
        if (p.width == 32)
            FAI_MULTIPLY_TILES(v + key, v_pitch * 2, pairs + key * 16, 128, 2);
        else
            FAI_MULTIPLY_TILES(v + key, v_pitch * 2, pairs + key * 8, 64, 1);
    _tile_stored(0, to, pitch);
    if (p.width == 32) _tile_stored(1, to + 16, pitch);
    if (second) {
        _tile_stored(2, to + 16 * p.width, pitch);
        if (p.width == 32) _tile_stored(3, to + 16 * p.width + 16, pitch);
    }
    FAI_MEMORY_FENCE();
}

/* Fetches as many rows of what is ahead as [j, end) are. Each panel fetches its share, since
 * fetches in a burst wait for each other. */
static void fai_fetch_rows(const fai_tile *t, const fai_scratch *w, int32_t j, int32_t end) {
    const char *row = w->fetch ? w->fetch + j * t->row_size : w->next[j] + w->next_at;
    const int64_t pitch = w->fetch ? t->row_size : w->next[j + 1] - w->next[j];
    for (; j < end; ++j, row += pitch)
        for (int32_t at = 0; at < t->row_size; at += 64) FAI_PREFETCH_FAR(row + at);
}

static void fai_block_weights(const fai_tile *t, fai_scratch *w, int32_t keys) {
    int32_t least, most;
    fai_copy_keys(t, w, keys);
    for (fai_panel p = fai_panel_at(t, 0); p.at < t->width; p = fai_panel_at(t, p.at + p.width)) {
        fai_range_of_limits(w->limit + p.at, p.width, &least, &most);
        fai_fetch_rows(t, w, keys * p.at / t->width, keys * (p.at + p.width) / t->width);
        for (int32_t key = 0; key < most; key += 32) fai_score_tiles(t, w, p, key);
        for (int32_t c = 0; c < p.width; c += FAI_LANES)
            fai_softmax(w->s + p.at * FAI_TILE_KEYS + c, most, p.width,
                        least < keys ? w->limit + p.at + c : NULL, w->max + p.at + c,
                        w->sum + p.at + c, w->factor + p.at + c, FAI_LANES);
        fai_pair_weights(w->s + p.at * FAI_TILE_KEYS, p.width, most);
    }
}

/* From the last panel, which sees the most keys, to the first. */
static void fai_block_outputs(const fai_tile *t, fai_scratch *w, int32_t keys) {
    int32_t least, most, end = 0;
    for (int32_t next = t->width; next > 0;) {
        const fai_panel p = fai_panel_of(t, next - 1);
        float *o = w->o + p.at * t->dim;
        next = p.at;
        fai_fetch_rows(t, w, keys * p.at / t->width, keys * (p.at + p.width) / t->width);
        fai_range_of_limits(w->limit + p.at, p.width, &least, &most);
        if (most == 0) continue;
        if (end == 0) fai_turn_values(t, w, end = most);
        fai_clear_values(t, w, most, end);
        end = most;
        fai_rescale(t, w, p, o);
        for (int32_t d = 0; d < t->dim; d += 32) fai_output_tiles(t, w, p, d, most, o);
    }
}

#endif /* FA_CPU_AMX_H */
