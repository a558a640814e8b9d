/* fa_prefill_rows.cuh - what a thread of the prefill kernel keeps of its two rows of a tile, and
 * what is done to it: scores, softmax, sums, output. It changes when the softmax or the epilogue
 * does.
 *
 * The softmax has two forms. The exact one takes the row's maximum as its reference; it is used
 * for a tile's first block and for blocks under the mask. All others keep the reference: no
 * maximum, no exchange between lanes, no rescaling. Every factor of the reference cancels, so the
 * result is as exact as long as no weight overflows, which the sum tells: where a lane's sum of
 * its weights passes 2^13 (which 16 bits hold), the row is scaled down by a power of two; where it
 * is no longer a finite number, the row's scores are computed again and the exact form is used.
 * Each row decides for itself, so its bits do not depend on the rows beside it. */
#ifndef FA_PREFILL_ROWS_CUH
#define FA_PREFILL_ROWS_CUH

#include "fa_prefill_work.cuh"
#include "fa_softmax.cuh"
#include "fa_wgmma.cuh"

#define FAI_PREFILL_MOST 8192.f
#define FAI_PREFILL_FINITE 1e30f

/* A tile in shared memory as a product reads it: chunks of 64 columns, 128 bytes a row, swizzled.
 * `columns` is the distance of two chunks for tiles whose columns are those of the result. */
FAI_DEVICE uint64_t fai_describe(uint32_t shared, int columns) {
    return (uint64_t)((shared & 0x3ffff) >> 4) | (uint64_t)(columns >> 4) << 16 | 64ull << 32 |
           1ull << 62;
}

template <class Element, int kDim> struct fai_prefill_rows {
    using shape = fai_prefill_shape<kDim>;
    static constexpr int kKeys = shape::kKeys;

    float s[kKeys / 2], o[kDim / 2];
    uint32_t weights[kKeys / 4];
    float reference[2], sum[2], factor[2]; /* references in octaves; -inf before any key */
    int seen[2];                           /* keys [0, seen) of the sequence that the row sees */
    int row;                               /* of the tile; the other is row + 8 */

    /* Issues s = Q K^T. */
    __device__ __forceinline__ void score(uint64_t q, uint64_t k) {
        fai_pin(s);
        fai_wgmma_fence();
#pragma unroll
        for (int i = 0; i < kDim / 16; ++i)
            fai_wgmma(Element(), s, q + i / 4 * (shape::kQChunk / 16) + i % 4 * 2,
                      k + i / 4 * (shape::kKvChunk / 16) + i % 4 * 2, i > 0);
        fai_wgmma_commit();
    }
    /* Issues o += P V. */
    __device__ __forceinline__ void accumulate(uint64_t v) {
        fai_pin(o);
        fai_pin(weights);
        fai_wgmma_fence();
#pragma unroll
        for (int i = 0; i < kKeys / 16; ++i)
            fai_wgmma(Element(), o, weights + 4 * i, v + i * (16 * 128 / 16));
        fai_wgmma_commit();
    }

    /* The factor of what was summed at an older reference; 0 where nothing was. */
    static __device__ __forceinline__ float fall(float old, float reference) {
        return old == -INFINITY ? 0.f : fai_exp2(old - reference);
    }

    /* The exact form, under the mask. Unseen keys get -inf by selection: their scores may be NaN.
     * key is that of the block's first column. */
    template <bool kFirst> __device__ __forceinline__ void weigh_exactly(float c, int key) {
        const int column = threadIdx.x % 4 * 2;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int limit = seen[h] - key - column;
            float most = -INFINITY, other = -INFINITY;
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j) {
                float *x = &s[4 * j + 2 * h];
                if (8 * j >= limit) x[0] = -INFINITY;
                if (8 * j + 1 >= limit) x[1] = -INFINITY;
                most = fmaxf(most, x[0]);
                other = fmaxf(other, x[1]);
            }
            most = fai_quad_max(fmaxf(most, other)) * c;
            if (!kFirst) most = fmaxf(most, reference[h]);
            factor[h] = kFirst ? 0.f : fall(reference[h], most);
            sum[h] = kFirst ? 0.f : sum[h] * factor[h];
            reference[h] = most;
            const float bias = fai_bias(most, 1.f);
            float total = 0.f;
            other = 0.f;
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j) {
                float *x = &s[4 * j + 2 * h];
                x[0] = fai_exp2(fmaf(x[0], c, bias));
                x[1] = fai_exp2(fmaf(x[1], c, bias));
                total += x[0];
                other += x[1];
            }
            sum[h] += total + other;
        }
    }

    /* The short form. Returns whether o must be multiplied by factor. */
    __device__ __forceinline__ bool weigh(const fai_prefill_params &p, const fai_prefill_work *w,
                                          float c, int key) {
        const float bias[2] = {fai_bias(reference[0], 1.f), fai_bias(reference[1], 1.f)};
        float total[2][2] = {};
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[4 * j + i] = fai_exp2(fmaf(s[4 * j + i], c, bias[i / 2]));
                total[i / 2][i % 2] += s[4 * j + i];
            }
        float t[2] = {total[0][0] + total[0][1], total[1][0] + total[1][1]};
        const bool passed = __any_sync(~0u, !(fmaxf(t[0], t[1]) <= FAI_PREFILL_MOST));
        if (__builtin_expect(passed, 0)) lower(p, w, c, key, t);
        sum[0] += t[0];
        sum[1] += t[1];
        return passed;
    }

    /* Rows whose weights have grown too large: t are the lane's sums of them. */
    __device__ __forceinline__ void lower(const fai_prefill_params &p, const fai_prefill_work *w,
                                          float c, int key, float (&t)[2]) {
        bool again[2], large[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            /* Rows that are not the call's may hold anything. */
            const bool live = is_row(p, w, row + 8 * h);
            const float all = fai_quad_sum(t[h]), most = fai_quad_max(t[h]);
            again[h] = live && !(all < FAI_PREFILL_FINITE);
            large[h] = live && !again[h] && most > FAI_PREFILL_MOST;
            factor[h] = 1.f;
        }
        if (!__any_sync(~0u, again[0] || again[1] || large[0] || large[1])) return;
        if (__any_sync(~0u, again[0] || again[1])) rescore(p, w, key, again);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float most = -INFINITY, total = 0.f;
#pragma unroll
            for (int i = 0; i < kKeys / 4; ++i) most = fmaxf(most, s[i / 2 * 4 + 2 * h + i % 2]);
            most = fai_quad_max(most);
            const int octaves = large[h] ? (int)(__float_as_uint(most) >> 23) - 127 : 0;
            const float raised =
                again[h] ? fmaxf(most * c, reference[h]) : reference[h] + (float)octaves;
            const float scale = again[h] ? c : __uint_as_float((uint32_t)(127 - octaves) << 23);
            const float bias = fai_bias(raised, 1.f);
            factor[h] = again[h] ? fall(reference[h], raised) : scale;
            reference[h] = raised;
            sum[h] *= factor[h];
#pragma unroll
            for (int i = 0; i < kKeys / 4; ++i) {
                float *x = &s[i / 2 * 4 + 2 * h + i % 2];
                *x = again[h] ? fai_exp2(fmaf(*x, scale, bias)) : *x * scale;
                total += *x;
            }
            t[h] = again[h] || large[h] ? total : t[h];
        }
        __syncwarp();
    }

    /* Two neighbouring elements of a row, or zeros past head_dim. */
    static __device__ __forceinline__ uint32_t pair(const uint16_t *from, int at, int head_dim) {
        return at < head_dim ? __ldg(reinterpret_cast<const uint32_t *>(from + at)) : 0;
    }

    /* The scores once more, from global memory, for rows that ask: K has left shared memory. */
    __device__ __forceinline__ void rescore(const fai_prefill_params &p, const fai_prefill_work *w,
                                            int key, const bool (&again)[2]) {
        const fa_args &a = p.cuda.a;
        const int lane = threadIdx.x % 32, column = lane % 4 * 2;
        const uint16_t *q[2];
#pragma unroll
        for (int h = 0; h < 2; ++h)
            q[h] = static_cast<const uint16_t *>(a.q.data) + at(p, w, a.q, row + 8 * h) + column;
        const int head = w->head_kv, last = max(w->kv_len - 1, 0);
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
            const int mine = w->k_begin + min(key + 8 * j + lane / 4, last);
            const uint16_t *k = static_cast<const uint16_t *>(a.k.data) +
                                fai_kv_offset(&a, &a.k, w->batch, head, mine) + column;
            float x[4] = {};
#pragma unroll 1
            for (int d = 0; d < a.head_dim; d += 16) {
                const uint32_t rows[4] = {pair(q[0], d, a.head_dim), pair(q[1], d, a.head_dim),
                                          pair(q[0], d + 8, a.head_dim),
                                          pair(q[1], d + 8, a.head_dim)};
                fai_mma(Element(), x, rows, pair(k, d, a.head_dim), pair(k, d + 8, a.head_dim));
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (again[i / 2]) s[4 * j + i] = x[i];
        }
    }

    /* Weights as the second product wants them. */
    __device__ __forceinline__ void pack() {
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i)
            weights[i] = fai_pack(Element(), s[2 * i], s[2 * i + 1]);
    }
    __device__ __forceinline__ void rescale() {
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) o[i] *= factor[i % 4 / 2];
    }

    /* Whether a row of the tile is one of the call's, and where it stands in a view of q, o or lse;
     * rows that are not are given the tile's first. */
    static __device__ __forceinline__ bool is_row(const fai_prefill_params &p,
                                                  const fai_prefill_work *w, int row) {
        const int head = row >> p.queries_log2, query = row - (head << p.queries_log2);
        return head < p.heads && query < w->queries;
    }
    static __device__ __forceinline__ int64_t at(const fai_prefill_params &p,
                                                 const fai_prefill_work *w, const fa_view &view,
                                                 int row) {
        int head = row >> p.queries_log2, query = row - (head << p.queries_log2);
        if (!is_row(p, w, row)) head = query = 0;
        return fai_q_offset(&p.cuda.a, &view, w->batch, w->head + head,
                            w->q_begin + w->query + query);
    }
    /* The row's place among all rows of a split's partial results. */
    static __device__ __forceinline__ int64_t partial_at(const fai_prefill_params &p,
                                                         const fai_prefill_work *w, int row) {
        const int head = row >> p.queries_log2, query = row - (head << p.queries_log2);
        const int64_t unit = ((int64_t)w->split * p.cuda.a.batch + w->batch) * p.cuda.a.heads_q;
        return (unit + w->head + head) * p.cuda.a.q_len + w->query + query;
    }

    /* Ends the softmax: o becomes the rows' result, sum their lse. */
    __device__ __forceinline__ void finish() {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float all = fai_quad_sum(sum[h]);
            factor[h] = fai_finish(all);
            sum[h] = (log2f(all) - fai_bias(reference[h], 1.f)) * FAI_LN2;
        }
        /* By selection where a row has no keys: v may hold NaN. */
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) {
            const float x = factor[i % 4 / 2];
            o[i] = x == 0.f ? 0.f : o[i] * x;
        }
    }

    __device__ __forceinline__ void store_partial(const fai_prefill_params &p,
                                                  const fai_prefill_work *w) {
        const int column = threadIdx.x % 4 * 2, head_dim = p.cuda.a.head_dim;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (!is_row(p, w, row + 8 * h)) continue;
            const int64_t to = partial_at(p, w, row + 8 * h);
            if (column == 0) p.cuda.partial_lse[to] = sum[h];
            float *part = p.cuda.partial_o + to * head_dim + column;
#pragma unroll
            for (int j = 0; j < kDim / 8; ++j)
                if (8 * j < head_dim)
                    *reinterpret_cast<float2 *>(part + 8 * j) =
                        make_float2(o[4 * j + 2 * h], o[4 * j + 2 * h + 1]);
        }
    }

    /* Through shared memory, where a warp writes and reads only its own 16 rows, so that 8 lanes
     * store 128 bytes of a row. */
    __device__ __forceinline__ void store(const fai_prefill_params &p, const fai_prefill_work *w,
                                          uint32_t staged) {
        const int lane = threadIdx.x % 32, first = row - lane / 4;
        const int mine = first + lane % 16;
#pragma unroll
        for (int j = 0; j < kDim / 8; j += 2) {
            const int unit = j % 8 + lane / 16;
            fai_stmatrix(staged + j / 8 * shape::kQChunk + mine * 128 + ((unit ^ (mine & 7)) << 4),
                         fai_pack(Element(), o[4 * j], o[4 * j + 1]),
                         fai_pack(Element(), o[4 * j + 2], o[4 * j + 3]),
                         fai_pack(Element(), o[4 * j + 4], o[4 * j + 5]),
                         fai_pack(Element(), o[4 * j + 6], o[4 * j + 7]));
        }
        float *lse = static_cast<float *>(p.cuda.a.lse.data);
        if (lse && lane % 4 == 0)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                if (is_row(p, w, row + 8 * h)) lse[at(p, w, p.cuda.a.lse, row + 8 * h)] = sum[h];
        __syncwarp();
#pragma unroll
        for (int pass = 0; pass < 4; ++pass) {
            const int r = first + pass * 4 + lane / 8, unit = lane % 8;
            const int64_t to = at(p, w, p.cuda.a.o, r) + unit * 8;
            if (!is_row(p, w, r)) continue;
#pragma unroll
            for (int chunk = 0; chunk < shape::kChunks; ++chunk)
                if (chunk * 64 + unit * 8 < p.cuda.a.head_dim)
                    fai_store_o(p.cuda, to + chunk * 64,
                                fai_ld_shared(staged + chunk * shape::kQChunk + r * 128 +
                                              ((unit ^ (r & 7)) << 4)));
        }
        __syncwarp();
    }
};

#endif /* FA_PREFILL_ROWS_CUH */
