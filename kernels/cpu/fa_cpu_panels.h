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

/* S[key][row] = scale * K[key] . Q[row] for `step` keys and `span` vectors of rows. */
FAI_INLINE void fai_score_step(const fai_scratch *w, int32_t key, const float *q, int32_t dim,
                               float scale, float *s, const int step, const int span) {
    fai_vec sum[8][FAI_MAX_SPAN];
    const float *k[8];
    for (int i = 0; i < step; ++i) {
        k[i] = (const float *)(const void *)(w->rows[key + i] + w->rows_at);
        for (int c = 0; c < span; ++c) sum[i][c] = fai_splat(0);
    }
    for (int32_t d = 0; d < dim; ++d, q += span * FAI_LANES) {
        fai_vec x[FAI_MAX_SPAN];
        for (int c = 0; c < span; ++c) x[c] = fai_load(q + c * FAI_LANES);
        for (int i = 0; i < step; ++i)
            for (int c = 0; c < span; ++c) sum[i][c] = FAI_FMA(fai_splat(k[i][d]), x[c], sum[i][c]);
    }
    for (int i = 0; i < step; ++i)
        for (int c = 0; c < span; ++c)
            fai_store(s + (i * span + c) * FAI_LANES, sum[i][c] * fai_splat(scale));
}

/* O[dim][row] = O * factor + sum over the keys of V[key][dim] * P[key][row], for `step` dims. */
FAI_INLINE void fai_output_step(const fai_scratch *w, int32_t at, const float *p, int32_t keys,
                                const float *factor, float *o, const int step, const int span) {
    fai_vec sum[8][FAI_MAX_SPAN];
    for (int i = 0; i < step; ++i)
        for (int c = 0; c < span; ++c) sum[i][c] = fai_splat(0);
    const char *const *row = w->rows;
    const int64_t row_at = w->rows_at + at * (int64_t)sizeof(float);
    for (int32_t j = 0; j < keys; ++j, p += span * FAI_LANES) {
        const float *v = (const float *)(const void *)(row[j] + row_at);
        fai_vec x[FAI_MAX_SPAN];
        for (int c = 0; c < span; ++c) x[c] = fai_load(p + c * FAI_LANES);
        for (int i = 0; i < step; ++i)
            for (int c = 0; c < span; ++c) sum[i][c] = FAI_FMA(fai_splat(v[i]), x[c], sum[i][c]);
    }
    for (int i = 0; i < step; ++i)
        for (int c = 0; c < span; ++c) {
            float *to = o + (i * span + c) * FAI_LANES;
            fai_store(to, FAI_FMA(fai_load(to), fai_load(factor + c * FAI_LANES), sum[i][c]));
        }
}

/* A panel's scores, and its share of o. The block ahead is fetched along with the first panel. */
FAI_INLINE void fai_scores(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys,
                           const int step, const int span) {
    for (int32_t j = 0; j < keys; j += step) {
        if (at == 0) fai_fetch(t, w, j, step);
        fai_score_step(w, j, w->q + at * t->dim, t->a->head_dim, t->a->scale,
                       w->s + at * FAI_CPU_TILE_KEYS + j * span * FAI_LANES, step, span);
    }
}
FAI_INLINE void fai_outputs(const fai_tile *t, fai_scratch *w, int32_t at, int32_t keys,
                            const int step, const int span) {
    for (int32_t d = 0; d < t->dim; d += step) {
        const int32_t j = keys * d / t->dim, end = keys * (d + step) / t->dim;
        if (at == 0 && j < end) fai_fetch(t, w, j, end - j);
        fai_output_step(w, d, w->s + at * FAI_CPU_TILE_KEYS, keys, w->factor + at,
                        w->o + at * t->dim + d * span * FAI_LANES, step, span);
    }
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
            fai_softmax(w->s + p.at * FAI_CPU_TILE_KEYS + c, most, p.width,
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
