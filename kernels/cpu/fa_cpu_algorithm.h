/* fa_cpu_algorithm.h - the CPU kernel: one tile of packed rows against the keys of one split.
 *
 * Included once by each fa_cpu_<set>.c, which says FAI_LANES and may override operations of
 * fa_cpu_vector.h. It changes when the algorithm does; masks and addresses come from fa_mask.h.
 *
 * The rows of a tile lie in the lanes. Q, the scores S and O are kept transposed ([dim][row],
 * [key][row], [dim][row]), so that maxima, sums and rescaling go down the lanes without a single
 * shuffle, and an element of K or V is a scalar that is read once for 8 to 24 rows. K and V need
 * no packing: a block of keys is a list of pointers to float32 rows, which are the caller's own
 * where that is possible and scratch where they are converted.
 *
 * With up to FAI_FEW_ROWS rows most lanes would be idle: then the lanes run along head_dim, each
 * row of K and V being read once for all rows of the tile. A narrow tile is bound by reading K and
 * V, so its task may take several kv heads: block by block, K of every head, then V of every head,
 * which is the order in which (batch, seq, head, dim) has them.
 *
 * Sums over keys are made in blocks, each from zero, so that rounding grows with the number of
 * blocks and not of keys. */
#ifdef FAI_PAIRS
#include "fa_cpu_amx.h"
#else
#include "fa_cpu_few.h"
#include "fa_cpu_panels.h"

static void fai_block_weights(const fai_tile *t, fai_scratch *w, int32_t keys) {
    if (t->few)
        fai_few_weights(t, w, keys);
    else
        fai_panel_weights(t, w, keys);
}
static void fai_block_outputs(const fai_tile *t, fai_scratch *w, int32_t keys) {
    if (t->few)
        fai_few_outputs(t, w, keys);
    else
        fai_panel_outputs(t, w);
}
#endif

/* Divides a row of o by the sum of its weights and writes it and its lse. A sum of 0 means no key,
 * or none but -inf: o is 0 and lse -inf. */
static void fai_finish_row(const fa_args *a, int64_t seq, int64_t head, int64_t place, float *row,
                           float max, float sum) {
    const float divisor = sum == 0 ? 1 : sum;
    for (int32_t d = 0; d < a->head_dim; ++d) row[d] /= divisor;
    const int64_t at = fai_q_offset(a, &a->o, seq, head, place);
    fai_row_from_float((void *)fai_element(a->o.data, at, a->dtype), row, a->head_dim, a->dtype);
    if (a->lse.data)
        ((float *)a->lse.data)[fai_q_offset(a, &a->lse, seq, head, place)] = fai_log_sum(max, sum);
}

/* Row r of the head in turn: finished, or left for the merge of splits. */
static void fai_write_row(const fai_tile *t, const fai_scratch *w, int32_t r, float *row) {
    const fa_args *a = t->a;
    const int64_t head = fai_head(t, r), query = fai_query(t, r);
    float sum = w->sum[r];
    for (int32_t i = r + t->few; t->few && i < FAI_LANES; i += t->few) sum += w->sum[i];
    if (t->plan->splits == 1) {
        fai_finish_row(a, t->task.seq, head, t->q_rows.begin + query, row, w->max[r], sum);
        return;
    }
    const int64_t rows = (int64_t)a->batch * a->heads_q * a->q_len;
    const int64_t at = t->task.split * rows + (t->task.seq * a->heads_q + head) * a->q_len + query;
    memcpy(t->call->partial_o + at * a->head_dim, row, (size_t)a->head_dim * sizeof(float));
    t->call->partial_state[2 * at] = w->max[r];
    t->call->partial_state[2 * at + 1] = sum;
}
static void fai_write_rows(const fai_tile *t, const fai_scratch *w) {
    float rows[FAI_LANES][FAI_MAX_HEAD_DIM_CPU];
    for (int32_t r = 0; r < t->rows; r += FAI_LANES) {
        const fai_panel panel = fai_panel_of(t, r);
        const float *from = w->o + panel.at * t->dim + (r - panel.at);
        for (int32_t d = 0; !t->few && d < t->dim; d += FAI_LANES)
            fai_transpose(rows[0] + d, FAI_MAX_HEAD_DIM_CPU, from + d * panel.width, panel.width);
        for (int32_t i = 0; i < FAI_LANES && r + i < t->rows; ++i)
            fai_write_row(t, w, r + i, t->few ? w->o + (r + i) * t->dim : rows[i]);
    }
}

/* Keys of the block at `key` that each row sees; rows that only fill a vector see what the last row
 * sees. */
static void fai_set_limits(const fai_tile *t, fai_scratch *w, int64_t key, int32_t keys) {
    for (int32_t r = 0; r < t->width; ++r) {
        const int64_t query = fai_query(t, r < t->rows ? r : t->rows - 1);
        const int64_t seen = fai_visible_keys(query, t->offset, t->kv_len) - key;
        w->limit[r] = (int32_t)fai_clamp64(seen, 0, keys);
    }
}

/* Step 1: q. Step 2: the blocks of keys that any row sees. Step 3: o and lse. */
static void fai_run_part(fai_tile *t, fai_scratch *w) {
    const fa_args *a = t->a;
    const int64_t block = fai_block_keys(t), heads = t->task.heads;
    const fai_range queries = {fai_query(t, 0), fai_query(t, t->rows - 1) + 1};
    const fai_range split = fai_split_keys(t->task.split, t->plan->splits, a->split_keys, t->kv_len,
                                           t->plan->tile_keys);
    const fai_blocks blocks = fai_key_blocks(queries, split, t->offset, t->kv_len, block);
    const int64_t end =
        fai_min64(split.end, fai_visible_keys(queries.end - 1, t->offset, t->kv_len));
    for (int64_t h = 0; h < heads; ++h) {
        fai_turn_to_head(t, w, h);
        fai_load_q(t, w);
    }
    w->here = w->rows_of_caller[0];
    w->ahead = w->rows_of_caller[1];
    if (blocks.end > 0)
        fai_look_ahead(t, &a->k, split.begin, (int32_t)fai_min64(block, end - split.begin), w);
    for (int64_t b = 0; b < blocks.end; ++b) {
        const int64_t key = split.begin + b * block, next = key + block;
        const int32_t keys = w->ahead_count;
        if (b == 0 || b >= blocks.full) fai_set_limits(t, w, key, keys);
        fai_step_ahead(w);
        fai_look_ahead(t, &a->v, key, keys, w);
        for (int64_t h = 0; h < heads; ++h) {
            fai_turn_to_head(t, w, h);
            fai_take_rows(t, w, keys, 0);
            fai_block_weights(t, w, keys);
        }
        fai_step_ahead(w);
        fai_look_ahead(t, &a->k, next, (int32_t)fai_clamp64(end - next, 0, block), w);
        for (int64_t h = 0; h < heads; ++h) {
            fai_turn_to_head(t, w, h);
            fai_take_rows(t, w, keys, 1);
            fai_block_outputs(t, w, keys);
        }
    }
    for (int64_t h = 0; h < heads; ++h) {
        fai_turn_to_head(t, w, h);
        fai_write_rows(t, w);
    }
}

/* The splits that a sequence's keys reach; those after are neither computed nor merged. */
static int64_t fai_live_splits(const fa_args *a, const fai_plan *plan, int64_t kv_len) {
    const fai_range first = fai_split_keys(0, plan->splits, a->split_keys, kv_len, plan->tile_keys);
    return kv_len > 0 ? fai_ceil_div(kv_len, first.end) : 1;
}

static void fai_run_tile(const fai_cpu_call *call, const fai_cpu_task *task) {
    const fa_args *a = call->a;
    const fai_plan *plan = call->plan;
    fai_scratch scratch;
    fai_tile t;
    t.call = call;
    t.a = a;
    t.plan = plan;
    t.task = *task;
    t.q_rows = fai_q_rows(a, task->seq);
    t.k_rows = fai_k_rows(a, task->seq);
    t.q_len = t.q_rows.end - t.q_rows.begin;
    t.kv_len = t.k_rows.end - t.k_rows.begin;
    if (task->split >= fai_live_splits(a, plan, t.kv_len)) return;
    t.offset = fai_offset(a, task->seq, t.q_len, t.kv_len);
    t.group = a->heads_q / a->heads_kv;
    t.dim = fai_round_up(a->head_dim, FAI_PAD);
    t.row_size = a->head_dim * fai_element_size(a->dtype);
    t.fetches = 2.0 * a->batch * a->kv_len * a->heads_kv * t.row_size > FAI_CACHED_BYTES;
    const int64_t begin = task->tile * plan->tile_rows;
    const int64_t end = fai_min64(begin + plan->tile_rows, t.q_len * t.group);
    const int64_t part = fai_part_rows(t.dim);
    for (t.first = begin; t.first < end; t.first += part) {
        t.rows = (int32_t)fai_min64(part, end - t.first);
        t.few = FAI_LANES == 1 || t.rows > FAI_FEW_ROWS ? 0 : fai_few_rows(t.rows);
        t.width = fai_round_up(t.rows, FAI_LANES);
        fai_run_part(&t, &scratch);
    }
}

/* Joins the splits of one row in their order, each weighed by what its maximum is to the largest.
 */
static void fai_merge_row(const fai_cpu_call *call, int64_t seq, int64_t head, int64_t query) {
    const fa_args *a = call->a;
    const int64_t rows = (int64_t)a->batch * a->heads_q * a->q_len;
    const int64_t flat = (seq * a->heads_q + head) * a->q_len + query;
    const float *o = call->partial_o, *state = call->partial_state;
    const fai_range keys = fai_k_rows(a, seq);
    const int64_t live = fai_live_splits(a, call->plan, keys.end - keys.begin);
    float row[FAI_MAX_HEAD_DIM_CPU] = {0}, max = -INFINITY, sum = 0;
    for (int64_t s = 0; s < live; ++s) {
        const float x = state[2 * (s * rows + flat)];
        max = max < x ? x : max;
    }
    const float base = max < -FLT_MAX ? 0 : max;
    for (int64_t s = 0; s < live; ++s) {
        const int64_t at = s * rows + flat;
        const float weight = fai_largest(fai_exp2(fai_splat((state[2 * at] - base) * FAI_LOG2_E)));
        sum += weight * state[2 * at + 1];
        for (int32_t d = 0; d < a->head_dim; ++d) row[d] += weight * o[at * a->head_dim + d];
    }
    fai_finish_row(a, seq, head, fai_q_rows(a, seq).begin + query, row, max, sum);
}
