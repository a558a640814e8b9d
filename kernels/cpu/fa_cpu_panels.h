/* fa_cpu_panels.h - the kernel for many rows: the rows lie in the lanes.
 *
 * Part of fa_cpu_algorithm.h; it changes when a micro-kernel does. The micro-kernels keep 8 or 12
 * sums in flight, which hides the latency of an FMA, or 16 and 24 where registers allow it, since
 * each sum's operand is then loaded for more of them. */
#ifndef FA_CPU_PANELS_H
#define FA_CPU_PANELS_H

#include "fa_cpu_softmax.h"

/* Keys, or columns of o, that a step with more than one vector of rows takes. */
#ifndef FAI_STEP
#define FAI_STEP 4
#endif

/* Lines of what is ahead that are fetched during a step, some at a time: fetches in a burst wait
 * for each other. Only the first panel of a tile fetches, for loops cut into lines cost 2 %. */
typedef struct fai_lines {
    const char *at;
    int64_t pitch, advance;
    int32_t count;
} fai_lines;

FAI_INLINE void fai_fetch_lines(fai_lines *lines, int32_t count) {
    for (int32_t i = 0; i < count; ++i) FAI_PREFETCH_FAR(lines->at + i * lines->pitch);
    lines->at += lines->advance;
}

/* While scores of the keys [key, key + step) are made: as many rows, on and on where they lie
 * together, else a line of each in turn, as far apart as the first two. */
static inline fai_lines fai_lines_of_keys(const fai_tile *t, const fai_scratch *w, int32_t key,
                                          int32_t step) {
    fai_lines lines = {w->next[key] + w->next_at, w->next[key + 1] - w->next[key], 64, step};
    if (w->fetch) {
        lines.at = w->fetch + key * t->row_size;
        lines.pitch = 64;
        lines.advance = 64 * step;
    }
    return lines;
}

/* While the columns [d, d + step) of o are made: for each 8 keys as many lines as hold `step`
 * elements of 8 rows. Where rows do not lie together, the steps of one line share the 8 rows. */
static inline fai_lines fai_lines_of_columns(const fai_tile *t, const fai_scratch *w, int32_t d,
                                             int32_t keys, int32_t step) {
    const int32_t size = fai_element_size(t->a->dtype), line = 64 / size;
    const int32_t count = 8 * step / line, first = d % line / step * count;
    const int64_t pitch = w->next[first + 1] - w->next[first];
    fai_lines lines = {w->next[first] + w->next_at + d * size, pitch, 8 * pitch, count};
    if (w->fetch) {
        lines.at = w->fetch + (int64_t)keys * d * size;
        lines.pitch = 64;
        lines.advance = 64 * count;
    }
    return lines;
}

/* S[key][row] = scale * K[key] . Q[row] for `step` keys and `span` vectors of rows. */
FAI_INLINE void fai_score_step(const fai_tile *t, const fai_scratch *w, int32_t key, const float *q,
                               float *s, const int step, const int span, const int fetches) {
    const int32_t dim = t->a->head_dim;
    const int32_t cut = fetches ? 64 / fai_element_size(t->a->dtype) : dim;
    fai_lines lines = {0};
    if (fetches) lines = fai_lines_of_keys(t, w, key, step);
    fai_vec sum[8][FAI_MAX_SPAN];
    const float *k[8];
    for (int i = 0; i < step; ++i) {
        k[i] = (const float *)(const void *)(w->rows[key + i] + w->rows_at);
        for (int c = 0; c < span; ++c) sum[i][c] = fai_splat(0);
    }
    for (int32_t begin = 0; begin < dim; begin += cut) {
        const int32_t end = begin + cut < dim ? begin + cut : dim;
        if (fetches) fai_fetch_lines(&lines, step);
        for (int32_t d = begin; d < end; ++d, q += span * FAI_LANES) {
            fai_vec x[FAI_MAX_SPAN];
            for (int c = 0; c < span; ++c) x[c] = fai_load(q + c * FAI_LANES);
            for (int i = 0; i < step; ++i)
                for (int c = 0; c < span; ++c)
                    sum[i][c] = FAI_FMA(fai_splat(k[i][d]), x[c], sum[i][c]);
        }
    }
    for (int i = 0; i < step; ++i)
        for (int c = 0; c < span; ++c)
            fai_store(s + (i * span + c) * FAI_LANES, sum[i][c] * fai_splat(t->a->scale));
}

/* O[dim][row] = O * factor + sum over the keys of V[key][dim] * P[key][row], for `step` dims. */
FAI_INLINE void fai_output_step(const fai_tile *t, const fai_scratch *w, int32_t at, const float *p,
                                int32_t keys, const float *factor, float *o, const int step,
                                const int span, const int fetches) {
    const int32_t cut = fetches ? 8 : keys;
    fai_lines lines = {0};
    if (fetches) lines = fai_lines_of_columns(t, w, at, keys, step);
    fai_vec sum[8][FAI_MAX_SPAN];
    for (int i = 0; i < step; ++i)
        for (int c = 0; c < span; ++c) sum[i][c] = fai_splat(0);
    const char *const *row = w->rows;
    const int64_t row_at =
        w->rows_at + at / FAI_RUN * w->run_bytes + at % FAI_RUN * (int64_t)sizeof(float);
    for (int32_t begin = 0; begin < keys; begin += cut) {
        const int32_t end = begin + cut < keys ? begin + cut : keys;
        if (fetches) fai_fetch_lines(&lines, lines.count);
        for (int32_t j = begin; j < end; ++j, p += span * FAI_LANES) {
            const float *v = (const float *)(const void *)(row[j] + row_at);
            fai_vec x[FAI_MAX_SPAN];
            for (int c = 0; c < span; ++c) x[c] = fai_load(p + c * FAI_LANES);
            for (int i = 0; i < step; ++i)
                for (int c = 0; c < span; ++c)
                    sum[i][c] = FAI_FMA(fai_splat(v[i]), x[c], sum[i][c]);
        }
    }
    for (int i = 0; i < step; ++i)
        for (int c = 0; c < span; ++c) {
            float *to = o + (i * span + c) * FAI_LANES;
            fai_store(to, FAI_FMA(fai_load(to), fai_load(factor + c * FAI_LANES), sum[i][c]));
        }
}

/* A panel's scores, and its share of o. */
FAI_INLINE void fai_scores(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys,
                           const int step, const int span) {
    const float *q = w->q + at * t->dim;
    float *s = w->s + at * FAI_TILE_KEYS;
    const int32_t turn = step * span * FAI_LANES;
    if (at == 0)
        for (int32_t j = 0; j < keys; j += step, s += turn)
            fai_score_step(t, w, j, q, s, step, span, 1);
    else
        for (int32_t j = 0; j < keys; j += step, s += turn)
            fai_score_step(t, w, j, q, s, step, span, 0);
}
FAI_INLINE void fai_outputs(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys,
                            const int step, const int span) {
    const float *p = w->s + at * FAI_TILE_KEYS, *factor = w->factor + at;
    float *o = w->o + at * t->dim;
    const int32_t turn = step * span * FAI_LANES;
    if (at == 0)
        for (int32_t d = 0; d < t->dim; d += step, o += turn)
            fai_output_step(t, w, d, p, keys, factor, o, step, span, 1);
    else
        for (int32_t d = 0; d < t->dim; d += step, o += turn)
            fai_output_step(t, w, d, p, keys, factor, o, step, span, 0);
}

/* Functions of their own, for a compiler that inlines them together runs out of registers. */
static void fai_scores_by_1(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys) {
    fai_scores(t, w, at, keys, 8, 1);
}
static void fai_scores_by_2(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys) {
    fai_scores(t, w, at, keys, FAI_STEP, 2);
}
static void fai_scores_by_3(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys) {
    fai_scores(t, w, at, keys, FAI_STEP, 3);
}
static void fai_outputs_by_1(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys) {
    fai_outputs(t, w, at, keys, 8, 1);
}
static void fai_outputs_by_2(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys) {
    fai_outputs(t, w, at, keys, FAI_STEP, 2);
}
static void fai_outputs_by_3(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys) {
    fai_outputs(t, w, at, keys, FAI_STEP, 3);
}

typedef void (*fai_panel_step)(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys);

/* Scores and weights of the keys that each panel sees. */
static void fai_panel_weights(const fai_tile *t, fai_scratch *w, int32_t keys) {
    static const fai_panel_step scores[FAI_MAX_SPAN] = {fai_scores_by_1, fai_scores_by_2,
                                                        fai_scores_by_3};
    int32_t least, most;
    for (fai_panel p = fai_panel_at(t, 0); p.at < t->width; p = fai_panel_at(t, p.at + p.width)) {
        fai_range_of_limits(w->limit + p.at, p.width, &least, &most);
        scores[p.width / FAI_LANES - 1](t, w, p.at, most);
        for (int32_t c = 0; c < p.width; c += FAI_LANES)
            fai_softmax(w->s + p.at * FAI_TILE_KEYS + c, most, p.width,
                        least < keys ? w->limit + p.at + c : NULL, w->max + p.at + c,
                        w->sum + p.at + c, w->factor + p.at + c, FAI_LANES);
    }
}
static void fai_panel_outputs(const fai_tile *t, fai_scratch *w) {
    static const fai_panel_step outputs[FAI_MAX_SPAN] = {fai_outputs_by_1, fai_outputs_by_2,
                                                         fai_outputs_by_3};
    int32_t least, most;
    for (fai_panel p = fai_panel_at(t, 0); p.at < t->width; p = fai_panel_at(t, p.at + p.width)) {
        fai_range_of_limits(w->limit + p.at, p.width, &least, &most);
        if (most > 0) outputs[p.width / FAI_LANES - 1](t, w, p.at, most);
    }
}

#endif /* FA_CPU_PANELS_H */
