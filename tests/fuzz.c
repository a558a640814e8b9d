/* fuzz.c - random legal calls, and illegal ones, which must give an error and write nothing.
 *
 * New fields of the contract get a line in one of the random_ functions and a row among the
 * spoilers. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fuzz.h"
#include "fa_inputs.h"

typedef struct random {
    uint64_t seed, call, count;
} random_source;

/* From low to high, both included. */
static int64_t between(random_source *r, int64_t low, int64_t high) {
    const uint64_t word = fa_input_word(r->seed, r->call, r->count++);
    return low + (int64_t)(word % (uint64_t)(high - low + 1));
}

static bool chance(random_source *r, int percent) { return between(r, 1, 100) <= percent; }

#define PICK(r, list) ((list)[between(r, 0, (int64_t)(sizeof(list) / sizeof *(list)) - 1)])

/* Lengths gather where kernels break: 0, 1, around multiples of a tile. */
static int32_t random_length(random_source *r, int32_t most) {
    static const int32_t tiles[] = {16, 32, 64, 96, 128, 192, 256};
    int64_t length = between(r, 0, most);
    if (chance(r, 15)) length = between(r, 0, 2);
    if (chance(r, 40)) length = PICK(r, tiles) * between(r, 1, 3) + between(r, -1, 1);
    return (int32_t)(length > most ? most : length);
}

static void random_list(random_source *r, case_list *list, int32_t count, int64_t low,
                        int64_t high) {
    list->count = count < CASE_LIST_MAX ? count : CASE_LIST_MAX;
    for (int32_t i = 0; i < list->count; i++)
        list->value[i] = (int32_t)(chance(r, 20) ? low : between(r, low, high));
}

static void random_shape(random_source *r, test_case *c) {
    static const int32_t dtypes[] = {FA_DTYPE_F16, FA_DTYPE_BF16, FA_DTYPE_F32};
    static const int32_t ratios[] = {1, 1, 2, 3, 4, 5, 7, 8, 16};
    const bool cuda = c->device == FA_DEVICE_CUDA;
    c->dtype = dtypes[between(r, 0, cuda ? 1 : 2)];
    c->batch = (int32_t)(chance(r, 3) ? 0 : between(r, 1, 4));
    c->heads_kv = (int32_t)between(r, 1, 3);
    c->heads_q = c->heads_kv * PICK(r, ratios);
    c->head_dim = (int32_t)(8 * between(r, 1, 32));
    if (chance(r, 40)) c->head_dim = chance(r, 50) ? 64 : 128;
    if (!cuda && chance(r, 30)) c->head_dim = (int32_t)between(r, 1, chance(r, 80) ? 130 : 512);
    c->q_len = random_length(r, chance(r, 50) ? 8 : 200);
    c->kv_len = random_length(r, chance(r, 30) ? 70 : 700);
    /* The oracle is slow: at most about 20 ms a call. */
    const double most = 6e6, each = (double)c->batch * c->heads_q * c->head_dim;
    if (each * c->q_len * c->kv_len > most) c->kv_len = (int32_t)(most / each / c->q_len);
}

static void random_ragged(random_source *r, test_case *c) {
    static const int32_t pages[] = {1, 2, 3, 16, 19, 64, 100, 256};
    if (chance(r, 25)) c->page_size = PICK(r, pages);
    c->shared_pages = c->page_size && chance(r, 20);
    if (chance(r, 40)) c->ragged_q = (int32_t)between(r, 1, 7);
    if (chance(r, 50)) c->ragged_k = (int32_t)between(r, 1, 7);
    if (c->page_size) c->ragged_k &= ~CASE_RAGGED_CU;
    if (c->ragged_q) random_list(r, &c->q_lens, c->batch, 0, c->q_len);
    if (c->ragged_k) random_list(r, &c->k_lens, c->batch, 0, c->kv_len);
    if (c->ragged_q & CASE_RAGGED_LEFT) random_list(r, &c->q_pads, c->batch, 0, 9);
    if (c->ragged_k & CASE_RAGGED_LEFT) random_list(r, &c->k_pads, c->batch, 0, 70);
    c->slack = (int32_t)between(r, 0, 5);
    /* Without a key there is no page, and a pool without pages has no rows to skip. */
    int64_t keys = 0;
    for (int32_t i = 0; i < c->batch; i++) keys += case_kv_len(c, i);
    if (c->page_size && keys == 0) c->ragged_k &= ~CASE_RAGGED_LEFT;
}

static void random_view(random_source *r, const test_case *c, case_tensor t, case_view *view) {
    static const int32_t pitches[] = {1, 2, 3, 4, 8, 16, 40};
    const int64_t dim = t == TENSOR_LSE ? 1 : c->head_dim;
    view->layout = (int32_t)between(r, LAYOUT_BSHD, LAYOUT_BHSD);
    if (chance(r, 30)) view->pitch = PICK(r, pitches);
    if (chance(r, 30)) view->shift = (int32_t)between(r, 1, 9);
    if (chance(r, 30)) view->spare = (int32_t)between(r, 1, 20);
    if (chance(r, 5)) { /* rows, or heads, in falling order */
        const int x = view->layout == LAYOUT_BHSD ? 2 : 1;
        view->set[x] = true;
        view->stride[x] = -(dim + view->pitch);
    } else if (t <= TENSOR_V && chance(r, 5)) { /* a broadcast */
        view->set[between(r, 0, 2)] = true;
    }
}

static void random_views(random_source *r, test_case *c) {
    for (case_tensor t = TENSOR_Q; t <= TENSOR_LSE; t++) random_view(r, c, t, &c->view[t]);
    const bool same_packing = (c->ragged_q & CASE_RAGGED_CU) == (c->ragged_k & CASE_RAGGED_CU);
    if (c->page_size || !same_packing || !chance(r, 15)) return;
    memset(c->view, 0, TENSOR_O * sizeof c->view[0]);
    for (case_tensor t = TENSOR_Q; t <= TENSOR_V; t++) c->view[t].layout = LAYOUT_FUSED;
}

/* A build without OpenMP refuses them. */
static bool has_threads(void) {
    fa_args a = fa_args_default();
    size_t bytes;
    a.device = FA_DEVICE_CPU;
    a.dtype = FA_DTYPE_F32;
    a.heads_q = a.heads_kv = a.head_dim = 1;
    a.threads = 2;
    return subject_get()->workspace(&a, &bytes) != FA_ERR_NOT_BUILT;
}

static void random_options(random_source *r, test_case *c) {
    static const int32_t splits[] = {1, 1, 2, 3, 4, 7, 8, 17, 64};
    static const int32_t extremes[] = {INT_MIN, INT_MAX, -1000, 1000, 0, -1};
    if (chance(r, 25)) {
        c->align = FA_ALIGN_OFFSET;
        c->offset = (int32_t)between(r, -c->q_len - 2, c->kv_len + 2);
        if (chance(r, 20)) c->offset = PICK(r, extremes);
        if (chance(r, 40)) random_list(r, &c->offsets, c->batch, -c->q_len - 2, c->kv_len + 2);
        if (c->offsets.count) c->offset = 0;
    }
    if (chance(r, 40))
        c->num_splits = PICK(r, splits);
    else if (chance(r, 20))
        c->split_keys = (int32_t)between(r, chance(r, 20) ? 1 : 16, 200);
    if (chance(r, 30)) c->scale = (float)between(r, 1, 64) / 64;
    c->no_lse = chance(r, 10);
    if (c->device != FA_DEVICE_CPU) return;
    if (chance(r, 50)) c->threads = (int32_t)between(r, 1, has_threads() ? 3 : 1);
    if (c->num_splits > 1 || c->split_keys || !chance(r, 15)) return;
    c->threads = 0;
    c->tasks = (int32_t)between(r, 1, 5);
}

static void random_values(random_source *r, test_case *c) {
    c->seed = between(r, 0, 1 << 30);
    c->tail = (int32_t)between(r, TAIL_NAN, TAIL_HUGE);
    if (chance(r, 20)) c->values = (int32_t)between(r, VALUES_ONE, VALUES_INT);
    if (chance(r, 25)) c->input = (int32_t)between(r, INPUT_LARGE, INPUT_PICK);
    if (c->head_dim < 32 && c->input == INPUT_PICK) c->input = INPUT_NORMAL;
    if (c->kv_len > 0 && chance(r, 4)) c->nan_key = (int32_t)between(r, 0, c->kv_len - 1);
}

static test_case random_case(random_source *r, fa_device device) {
    test_case c = case_of("id=fuzz device=%s", device == FA_DEVICE_CPU ? "cpu" : "cuda");
    const char *paths[SUBJECT_MAX_PATHS];
    const int count = subject_paths(subject_get(), device, paths);
    random_shape(r, &c);
    random_ragged(r, &c);
    random_views(r, &c);
    random_options(r, &c);
    random_values(r, &c);
    snprintf(c.kernel, sizeof c.kernel, "%s", paths[between(r, 0, count - 1)]);
    return c;
}

/* ---- illegal calls ---- */

/* An array with one entry spoilt, instead of the call's own. */
typedef struct spoilt_array {
    int32_t entries[CASE_LIST_MAX + 1];
} spoilt_array;

/* Spoils the call for certain, or returns false where it cannot spoil this one. */
typedef bool (*spoiler)(random_source *r, fa_args *a, spoilt_array *array);

static int32_t negative(random_source *r) {
    return (int32_t)(chance(r, 30) ? INT_MIN : between(r, -5, -1));
}

static bool spoil_version(random_source *r, fa_args *a, spoilt_array *array) {
    (void)array;
    switch (between(r, 0, 3)) {
    case 0:
        a->version = negative(r);
        break;
    case 1:
        a->version += 1000 * (int32_t)between(r, 1, 2000);
        break;
    case 2:
        a->struct_size = (int32_t)between(r, -400, FA_ARGS_MIN_SIZE - 1);
        break;
    default:
        a->struct_size += (int32_t)between(r, 1, 1 << 20);
        break;
    }
    return true;
}

static bool spoil_size(random_source *r, fa_args *a, spoilt_array *array) {
    (void)array;
    int32_t *const fields[] = {&a->batch,      &a->q_len,      &a->kv_len,     &a->total_q,
                               &a->total_k,    &a->heads_q,    &a->heads_kv,   &a->head_dim,
                               &a->page_size,  &a->num_splits, &a->split_keys, &a->threads,
                               &a->task_index, &a->task_count};
    *PICK(r, fields) = negative(r);
    return true;
}

static bool spoil_shape(random_source *r, fa_args *a, spoilt_array *array) {
    (void)array;
    switch (between(r, 0, 4)) {
    case 0:
        a->heads_kv = a->heads_q + (int32_t)between(r, 1, 9);
        break;
    case 1:
        a->heads_kv = 0;
        break;
    case 2:
        a->head_dim = (int32_t)(chance(r, 50) ? 0 : between(r, 513, INT_MAX));
        break;
    case 3:
        a->dtype = (int32_t)between(r, 0, 500);
        break;
    default:
        a->device = (int32_t)between(r, 3, 99);
        break;
    }
    return true;
}

static bool spoil_option(random_source *r, fa_args *a, spoilt_array *array) {
    static const float scales[] = {-1e-30f, -1, NAN, INFINITY, -INFINITY};
    (void)array;
    switch (between(r, 0, 5)) {
    case 0:
        a->scale = PICK(r, scales);
        break;
    case 1:
        a->align = (int32_t)between(r, 2, INT_MAX);
        break;
    case 2:
        a->num_splits = (int32_t)between(r, 1025, INT_MAX);
        break;
    case 3:
        a->num_splits = a->split_keys = (int32_t)between(r, 1, 64);
        break;
    case 4:
        a->task_count = 2, a->task_index = (int32_t)between(r, 2, INT_MAX);
        break;
    default:
        a->reserved = (int32_t)between(r, 1, INT_MAX);
        break;
    }
    return true;
}

/* Certainly so; a packed or paged side may be empty in other ways. */
static bool is_full(const fa_args *a) {
    return a->batch > 0 && a->q_len > 0 && a->kv_len > 0 && !a->cu_seqlens_q && !a->cu_seqlens_k &&
           a->page_size == 0;
}

static bool spoil_tensor(random_source *r, fa_args *a, spoilt_array *array) {
    (void)array;
    fa_view *const views[] = {&a->q, &a->k, &a->v, &a->o};
    fa_view *const view = PICK(r, views);
    if (!is_full(a)) return false;
    if (chance(r, 30))
        view->data = NULL;
    else if (chance(r, 50))
        view->data = (char *)view->data + 1;
    else if (view == &a->o && a->heads_q > 1)
        view->stride_head = 0;
    else
        return false;
    return true;
}

static bool spoil_entry(random_source *r, fa_args *a, spoilt_array *array) {
    const int32_t **const fields[] = {&a->seqused_q, &a->seqused_k,    &a->leftpad_q,
                                      &a->leftpad_k, &a->cu_seqlens_q, &a->cu_seqlens_k};
    const int field = (int)between(r, 0, 5);
    if (a->device != FA_DEVICE_CPU || !*fields[field] || a->batch == 0) return false;
    const int count = a->batch + (field >= 4);
    memcpy(array->entries, *fields[field], (size_t)count * sizeof(int32_t));
    array->entries[between(r, 0, count - 1)] =
        chance(r, 50) ? negative(r) : (int32_t)between(r, 1 << 20, INT_MAX);
    *fields[field] = array->entries;
    return true;
}

static bool spoil_workspace(random_source *r, fa_args *a, spoilt_array *array) {
    (void)array;
    if (a->workspace_size == 0) return false;
    switch (between(r, 0, 2)) {
    case 0:
        a->workspace = NULL;
        break;
    case 1:
        a->workspace_size = 0;
        break;
    default:
        a->workspace = (char *)a->workspace + 4 * between(r, 1, 3);
        break;
    }
    return true;
}

static const spoiler spoilers[] = {spoil_version, spoil_size,  spoil_shape,    spoil_option,
                                   spoil_tensor,  spoil_entry, spoil_workspace};
enum { kSpoilers = sizeof spoilers / sizeof *spoilers };

/* True when the call was refused and left everything as it was. */
static bool run_illegal(random_source *r, test_case *c, char *why, size_t why_size) {
    c->tasks = 0;
    case_bed *bed = case_open(c, why, why_size);
    if (!bed) return false;
    spoilt_array array;
    fa_args *a = case_args(bed);
    bool right = case_give_workspace(bed, subject_get()) == FA_OK;
    if (!right) snprintf(why, why_size, "no workspace: %s", subject_get()->last_error());
    /* Neighbours in the list, each at most once: one must not undo another. */
    const int64_t first = between(r, 0, kSpoilers - 1), wanted = between(r, 1, 3);
    for (int64_t i = 0, spoilt = 0; spoilt < wanted && i < kSpoilers; i++)
        spoilt += spoilers[(first + i) % kSpoilers](r, a, &array);
    const fa_status status = right ? case_call(bed, subject_get()) : FA_OK;
    if (right && (status == FA_OK || !*subject_get()->last_error())) {
        right = false;
        snprintf(why, why_size, "an illegal call was not refused: status %d", (int)status);
    }
    right = right && case_untouched(bed, true, why, why_size);
    case_close(bed);
    return right;
}

/* ---- call n of a seed ---- */

static test_case call_of(random_source *r, fa_device device, bool *illegal) {
    *illegal = chance(r, 20);
    return random_case(r, device);
}

test_case fuzz_case(uint64_t seed, uint64_t call, fa_device device, bool *illegal) {
    random_source r = {seed, call, 0};
    return call_of(&r, device, illegal);
}

bool fuzz_illegal(uint64_t seed, uint64_t call, fa_device device, char *why, size_t why_size) {
    random_source r = {seed, call, 0};
    bool illegal;
    test_case c = call_of(&r, device, &illegal);
    return run_illegal(&r, &c, why, why_size);
}
