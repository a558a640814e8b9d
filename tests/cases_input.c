/* cases_input.c - what q, k and v hold: functions of the logical index alone, never of the layout,
 * so that any two layouts, batches or parts of a case hold the same numbers. */
#include <math.h>

#include "cases.h"
#include "fa_inputs.h"

enum { kStreamCode = 100, kStreamTarget = 101 }; /* beside FA_INPUT_Q, _K and _V */
enum { kRiseKeys = 128 };

static uint64_t row_index(int64_t i, int64_t head, int64_t row) {
    return ((uint64_t)i << 46 | (uint64_t)head << 29 | (uint64_t)row << 9);
}

static float normal(const test_case *c, uint64_t stream, uint64_t index) {
    const fa_input_rule rule = {FA_INPUT_NORMAL, (uint64_t)c->seed, 1};
    return fa_input_value(rule, stream, index);
}

static double scale_of(const test_case *c) {
    return c->scale > 0 ? (double)c->scale : 1 / sqrt(c->head_dim);
}

/* +1 or -1: the code word of a key. Words of at least 32 letters differ enough for INPUT_PICK. */
static float code(const test_case *c, int64_t i, int64_t head, int64_t key, int32_t column) {
    const uint64_t index = row_index(i, head, key) + (uint64_t)column;
    return fa_input_word((uint64_t)c->seed, kStreamCode, index) >> 63 ? 1.0f : -1.0f;
}

/* A row of q under INPUT_PICK: the code of one key that the row sees, times what makes it outweigh
 * the others by e^104, beyond which float32 knows no weight. 0 where the row sees none. */
static float pick(const test_case *c, int32_t i, int32_t head, int64_t row, int32_t column) {
    const int64_t kv_head = head / (c->heads_q / c->heads_kv);
    int64_t seen = row + case_offset(c, i) + 1;
    if (seen > case_kv_len(c, i)) seen = case_kv_len(c, i);
    if (seen <= 0) return 0;
    const int64_t at_head = head + (int64_t)c->from_head * (c->heads_q / c->heads_kv);
    const uint64_t at = row_index(i + c->from_batch, at_head, row + c->from_row);
    uint64_t target = fa_input_word((uint64_t)c->seed, kStreamTarget, at) % (uint64_t)seen;
    if (c->pick_key >= 0 && c->pick_key < seen) target = (uint64_t)c->pick_key;
    /* Columns of many sizes: a sum of equal terms would round the same way each time. */
    return (float)((48 + column * 37 % 32) / scale_of(c)) *
           code(c, i + c->from_batch, kv_head + c->from_head, (int64_t)target + c->from_key,
                column);
}

/* The logit of a key under INPUT_RISE, CREEP and FALL, apart from noise. */
static double slope(const test_case *c, int64_t key) {
    const double step = c->input == INPUT_RISE ? 5 : c->input == INPUT_CREEP ? 0.1 : -5;
    return step * log(2.0) * (double)(key / kRiseKeys);
}

/* Under INPUT_LOW: the last column of every q, negated, and of every k. It alone makes the logit
 * low, and only column 0 makes it differ: a sum of many large terms would round by more than the
 * logits' differences, and the case is about the sentinel, not about that. */
static float low(const test_case *c) { return (float)sqrt(1e5 / scale_of(c)); }

static float q_value(const test_case *c, int32_t i, int32_t head, int64_t row, int32_t column,
                     float noise) {
    switch (c->input) {
    case INPUT_LARGE:
        return 28 * noise;
    case INPUT_EQUAL:
        return 0;
    case INPUT_SINK:
        return column == c->head_dim / 2 ? noise / 4 + 1 : noise;
    case INPUT_RISE:
    case INPUT_CREEP:
    case INPUT_FALL:
        return column == 0 ? (float)(1 / scale_of(c)) : noise / 2;
    case INPUT_LOW:
        return column == c->head_dim - 1 ? -low(c) : (column == 0 ? -1.0f : 0.0f);
    case INPUT_SIXTY:
        return 60 * code(c, 0, 0, 0, column);
    case INPUT_DOWN:
        return column == 0 ? (float)(-170 / scale_of(c)) : 0;
    case INPUT_PICK:
        return pick(c, i, head, row, column);
    default:
        return noise;
    }
}

static float k_value(const test_case *c, int64_t i, int64_t head, int64_t key, int32_t column,
                     float noise) {
    if (key == c->nan_key) return NAN;
    switch (c->input) {
    case INPUT_LARGE:
        return 28 * noise;
    case INPUT_SINK:
        return key == 0 && column == c->head_dim / 2 ? (float)(24 / scale_of(c)) : noise;
    case INPUT_RISE:
    case INPUT_CREEP:
    case INPUT_FALL:
        return column == 0 ? (float)slope(c, key) : noise / 2;
    case INPUT_LOW:
        if (column == c->head_dim - 1) return low(c);
        return column == 0 ? (float)((double)noise / scale_of(c)) : noise;
    case INPUT_SIXTY:
        return key < 2 ? (key ? -60 : 60) * code(c, 0, 0, 0, column)
                       : 60 * code(c, i, head, key, column);
    case INPUT_DOWN:
        return column == 0 ? noise + 2 : noise;
    case INPUT_PICK:
        return code(c, i, head, key, column);
    default:
        return noise;
    }
}

static float v_value(const test_case *c, int64_t key, int32_t column, uint64_t index, float noise) {
    const fa_input_rule small = {FA_INPUT_SMALL_INT, (uint64_t)c->seed, 1};
    switch (c->values) {
    case VALUES_ONE:
        return 1;
    case VALUES_INDEX:
        return (float)((key >> 7 * (column % 3)) & 127);
    case VALUES_THREE:
        return 3;
    case VALUES_THOUSAND:
        return 1000;
    case VALUES_BIG:
        return 60000;
    case VALUES_FLIP:
        return key % 2 ? -60000 : 60000;
    case VALUES_UNIT:
        return key % c->head_dim == column;
    case VALUES_INT:
        return fa_input_value(small, FA_INPUT_V, index);
    default:
        return noise;
    }
}

static bool broadcast(const test_case *c, case_tensor t, int dimension) {
    return c->view[t].set[dimension] && c->view[t].stride[dimension] == 0;
}

void case_fill_row(const test_case *c, case_tensor t, int32_t i, int32_t head, int64_t row,
                   void *to) {
    const int32_t group = c->heads_q / c->heads_kv;
    /* Where the tensor repeats, it repeats the first. */
    const bool same_batch = broadcast(c, t, 0) || (t != TENSOR_Q && c->shared_pages);
    const int64_t at_batch = same_batch ? 0 : i + c->from_batch;
    const int64_t first_head = t == TENSOR_Q ? (int64_t)c->from_head * group : c->from_head;
    const int64_t at_head = broadcast(c, t, 1) ? 0 : head + first_head;
    const int64_t at_row =
        broadcast(c, t, 2) ? 0 : row + (t == TENSOR_Q ? c->from_row : c->from_key);
    const uint64_t index = row_index(at_batch, at_head, at_row);
    const uint64_t stream = t == TENSOR_Q ? FA_INPUT_Q : (t == TENSOR_K ? FA_INPUT_K : FA_INPUT_V);
    for (int32_t column = 0; column < c->head_dim; ++column) {
        const float noise = normal(c, stream, index + (uint64_t)column);
        float value;
        if (t == TENSOR_Q)
            value = q_value(c, i, head, row, column, noise);
        else if (t == TENSOR_K)
            value = k_value(c, at_batch, at_head, at_row, column, noise);
        else
            value = v_value(c, at_row, column, index + (uint64_t)column, noise);
        fa_dtype_set(c->dtype, to, column, value);
    }
}
