/* test_truth_table.c - the axes of the contract against each other, on every kernel path.
 *
 * A pairwise cover: any two values of any two axes meet in a call that the oracle judges. At the
 * end a table of cells, each value of each axis by kernel path, says how many calls had it; a
 * reachable cell without one fails. This file changes when the contract gains an axis or a value.
 */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "counts.h"
#include "cover.h"

/* ---- the axes: values are named, and said in the keys of a case where that suffices ---- */

typedef struct value {
    const char *name, *keys;
} value;

typedef struct axis {
    const char *name;
    value value[COVER_VALUES];
} axis;

enum { LENGTHS, RATIO, DIM, LAYOUT, RAGGED, PAGES, SPLITS, INPUT, TAIL, OFFSET, RUN, LSE, kAxes };

static const axis axes[kAxes] = {
    [LENGTHS] = {"lengths",
                 {{"q=kv", ""},
                  {"q<kv", ""},
                  {"q>kv", ""},
                  {"q=1", ""},
                  {"q=0", ""},
                  {"kv=0", ""},
                  {"kv=1", ""},
                  {"tile-1", ""},
                  {"tile", ""},
                  {"tile+1", ""},
                  {"diagonal over two blocks", ""}}},
    [RATIO] = {"head ratio",
               {{"1", "hq=2 hkv=2"},
                {"3", "hq=6 hkv=2"},
                {"5", "hq=5 hkv=1"},
                {"7", "hq=7 hkv=1"},
                {"8", "hq=8 hkv=1"},
                {"all", "hq=11 hkv=1"}}},
    /* Classes; the values of a class take turns. */
    [DIM] = {"head_dim",
             {{"8-64", ""},
              {"72-128", ""},
              {"136-192", ""},
              {"200-256", ""},
              {"not of 8", ""},
              {"above 256", ""}}},
    [LAYOUT] = {"layout",
                {{"bshd", ""},
                 {"bhsd", "Q=bhsd K=bhsd V=bhsd O=bhsd"},
                 {"fused qkv", "Q=fused K=fused V=fused"},
                 {"cache longer than used", "K=bhsd:c37 V=bhsd:c37"},
                 {"base off by one", "Q=bshd:s1 K=bhsd:s1 V=bshd:s1 O=bhsd:s1 L=bhsd:s1"},
                 {"odd pitch", "Q=bhsd:p1 K=bshd:p3 V=bhsd:p1 O=bshd:p5 L=bhsd:p1"},
                 {"k and v differ", "K=bshd V=bhsd O=bhsd"},
                 {"k and v broadcast over heads", "K=bshd:H0 V=bshd:H0"}}},
    [RAGGED] = {"ragged",
                {{"no", ""},
                 {"packed", "qr=c kr=c"},
                 {"left", "qr=l kr=l"},
                 {"right", "qr=u kr=u"},
                 {"packed with seqused", "qr=cu kr=cu"},
                 {"left and used", "qr=ul kr=ul qp=2,0,5 kp=3,1,0"},
                 {"empty ones between", "qr=cul kr=cul"}}},
    [PAGES] = {"pages",
               {{"no", ""},
                {"1", "page=1"},
                {"3", "page=3"},
                {"16", "page=16"},
                {"64", "page=64"},
                {"256", "page=256"},
                {"16 shared", "page=16 share=1"}}},
    [SPLITS] = {"splits",
                {{"0", ""},
                 {"1", "splits=1"},
                 {"2", "splits=2"},
                 {"5", "splits=5"},
                 {"33, most empty", "splits=33"},
                 {"split_keys=32", "split_keys=32"},
                 {"split_keys=7", "split_keys=7"}}},
    [INPUT] = {"input",
               {{"normal", ""},
                {"large", "in=large"},
                {"equal", "in=equal"},
                {"one key outweighs", "in=pick v=index"},
                {"near -1e5", "in=low"},
                {"sink", "in=sink"}}},
    [TAIL] = {"past the end", {{"NaN", ""}, {"Inf", "tail=inf"}, {"huge", "tail=huge"}}},
    [OFFSET] = {"offset",
                {{"bottom-right", ""},
                 {"0", "align=given"},
                 {"one for all", "align=given offset=11"},
                 {"negative", "align=given offset=-9"},
                 {"one each", "align=given offsets=4,-3,0"},
                 {"extremes", "align=given offsets=2147483647,-2147483648"}}},
    [RUN] = {"run",
             {{"threads 0", ""},
              {"threads 1", "threads=1"},
              {"threads 2", "threads=2"},
              {"3 tasks", "tasks=3"}}},
    [LSE] = {"lse", {{"(b,h,s)", "L=bhsd"}, {"(b,s,h)", "L=bshd"}, {"none", "nolse=1"}}},
};

typedef struct cells {
    fa_device device;
    int paths;
    const char *path[SUBJECT_MAX_PATHS];
    int count[kAxes][COVER_VALUES][SUBJECT_MAX_PATHS];
    int dim[513][SUBJECT_MAX_PATHS];
    int refused[SUBJECT_MAX_PATHS]; /* by a forced kernel that does not do such a call */
} cells;

/* "tasks cut rows, never keys": the contract refuses the two together. */
static bool may_meet(int a, int x, int b, int y) {
    return !(a == SPLITS && b == RUN && y == 3 && x >= 2);
}

/* Values of an axis; the last ones of head_dim and run are the CPU's alone. */
static int size_of(fa_device device, int a) {
    int size = 0;
    if (device == FA_DEVICE_CUDA && a == DIM) return 4;
    if (device == FA_DEVICE_CUDA && a == RUN) return 1;
    while (size < COVER_VALUES && axes[a].value[size].name) ++size;
    return size;
}

/* ---- head dims: every multiple of 8, and what only the CPU takes ---- */

static const int32_t odd_dims[] = {1, 47, 2, 33, 3, 100, 5, 127, 7, 161, 31, 250};
static const int32_t wide_dims[] = {264, 384, 511, 512};

/* The head_dim of a class that was used least. in=pick needs at least 32 letters to a word. */
static int32_t dim_of(int class, const int (*used)[SUBJECT_MAX_PATHS], int path, bool pick) {
    int32_t best = 0;
    const int count = class == 5 ? 4 : (class == 4 ? 12 : 8);
    for (int n = 0; n < count; ++n) {
        const int32_t dim =
            class == 5 ? wide_dims[n] : (class == 4 ? odd_dims[n] : class * 64 + 8 * (n + 1));
        if (pick && dim < 32) continue;
        if (best == 0 || used[dim][path] < used[best][path]) best = dim;
    }
    return best;
}

/* ---- a row of the cover as a case ---- */

static void set_lengths(test_case *c, int x, int32_t rows, int32_t keys) {
    const int32_t q[] = {keys + 9, 7,    keys + 20, 1,    0,        17,
                         9,        keys, rows - 1,  rows, rows + 1, keys / 2 + 5};
    const int32_t kv[] = {keys + 9, 2 * keys + 3, 40,       keys + 1,       20, 0, 1,
                          keys - 1, keys,         keys + 1, keys + keys / 2};
    c->q_len = x < 7 ? q[x] : q[x + 1];
    c->kv_len = kv[x];
}

/* Three sequences of different lengths: the declared one, shorter ones, and empty ones where the
 * value says so. Packed keys cannot be paged: lengths then come from seqused. */
static void set_ragged(test_case *c, int x) {
    if (x == 0) return;
    const bool empties = x == 6;
    const int32_t q[3] = {c->q_len / 2 + (c->q_len > 0), empties ? 0 : c->q_len, c->q_len};
    const int32_t k[3] = {c->kv_len, c->kv_len / 3, empties ? 0 : c->kv_len};
    c->batch = 3;
    c->q_lens.count = c->k_lens.count = 3;
    memcpy(c->q_lens.value, q, sizeof q);
    memcpy(c->k_lens.value, k, sizeof k);
    if (c->page_size > 0 && (c->ragged_k & CASE_RAGGED_CU))
        c->ragged_k = CASE_RAGGED_USED | (c->ragged_k & CASE_RAGGED_LEFT);
}

static int32_t tile(const subject *s, const test_case *c, const char *key) {
    fa_args a = fa_args_default();
    char text[32];
    a.device = c->device;
    a.dtype = c->dtype;
    a.batch = 1;
    a.heads_q = c->heads_q;
    a.heads_kv = c->heads_kv;
    a.head_dim = c->head_dim;
    a.q_len = a.kv_len = 64;
    if (s->force_kernel) s->force_kernel(*c->kernel ? c->kernel : NULL);
    subject_explain_value(s, &a, key, text, sizeof text);
    if (s->force_kernel) s->force_kernel(NULL);
    const int32_t size = atoi(text);
    return size > 0 ? size : 64;
}

static test_case case_of_row(const subject *s, int32_t dtype, const cells *t, int path,
                             const int *row, int n) {
    char line[CASE_LINE_MAX] = "b=2", why[CASE_LINE_MAX];
    for (int a = 0; a < kAxes; ++a) {
        const size_t used = strlen(line);
        snprintf(line + used, sizeof line - used, " %s", axes[a].value[row[a]].keys);
    }
    test_case c;
    cr_assert(case_parse(line, &c, why, sizeof why), "%s", why);
    snprintf(c.id, sizeof c.id, "cover-%d", n);
    snprintf(c.kernel, sizeof c.kernel, "%s", t->path[path]);
    c.device = t->device;
    c.dtype = dtype;
    c.seed = n + 1;
    c.head_dim = dim_of(row[DIM], t->dim, path, c.input == INPUT_PICK);
    const int32_t group = c.heads_q / c.heads_kv;
    set_lengths(&c, row[LENGTHS], tile(s, &c, "tile_rows") / group + 2, tile(s, &c, "tile_keys"));
    if (c.view[TENSOR_Q].layout == LAYOUT_FUSED && c.page_size > 0)
        c.view[TENSOR_Q].layout = LAYOUT_BSHD; /* pages hold k and v fused */
    if (row[RAGGED] == 1 || row[RAGGED] == 4 || row[RAGGED] == 6)
        c.view[TENSOR_Q].spare = c.view[TENSOR_K].spare = 0;
    set_ragged(&c, row[RAGGED]);
    return c;
}

/* ---- the run, and its table ---- */

static void count_cells(cells *t, int path, const int *row, int32_t head_dim, int64_t elements) {
    for (int a = 0; a < kAxes; ++a) ++t->count[a][row[a]][path];
    t->dim[head_dim][path] += elements > 0;
}

/* Prints "name n/n" for a value; returns how many of its cells are empty. */
static int print_cells(const char *name, const int *count, int paths) {
    int empty = 0;
    printf("  %s", name);
    for (int p = 0; p < paths; ++p) {
        printf("%s%d", p ? "/" : " ", count[p]);
        empty += count[p] == 0;
    }
    return empty;
}

static int print_table(const cells *t, const char *dtype) {
    int empty = 0, all = 0;
    printf("cells of %s on the %s: calls a value, by path (0 = the library's choice", dtype,
           t->device == FA_DEVICE_CPU ? "CPU" : "GPU");
    for (int p = 1; p < t->paths; ++p) printf(", %d = %s", p, t->path[p]);
    printf(")\n");
    for (int a = 0; a < kAxes; ++a) {
        printf("%-14s", axes[a].name);
        for (int x = 0; x < size_of(t->device, a); ++x, all += t->paths)
            empty += print_cells(axes[a].value[x].name, t->count[a][x], t->paths);
        printf("\n");
    }
    printf("%-14s", "each head_dim");
    for (int32_t d = 8; d <= 256; d += 8, all += t->paths) {
        char name[8];
        snprintf(name, sizeof name, "%d:", d);
        empty += print_cells(name, t->dim[d], t->paths);
    }
    printf("\n");
    printf("not reachable here: %ssplits with tasks (refused by contract)\n",
           memory_of(FA_DEVICE_CUDA) ? "" : "device=cuda (no GPU), ");
    counts_add(0, 0, all);
    return empty;
}

static int run_path(const subject *s, int32_t dtype, int path, cells *t) {
    static int rows[COVER_ROWS][COVER_AXES];
    int sizes[kAxes], wrong = 0;
    for (int a = 0; a < kAxes; ++a) sizes[a] = size_of(t->device, a);
    const int count = cover_rows(kAxes, sizes, may_meet, rows);
    cr_assert(count > 0, "the cover needs more than %d rows", COVER_ROWS);
    for (int n = 0; n < count; ++n) {
        const test_case c = case_of_row(s, dtype, t, path, rows[n], n);
        case_result r;
        if (case_run(s, &c, &r))
            count_cells(t, path, rows[n], c.head_dim, r.report.elements);
        else if (path > 0 && r.status == FA_ERR_UNSUPPORTED)
            ++t->refused[path];
        else if (++wrong <= 5)
            cr_log_error("%s", r.why);
        case_result_free(&r);
    }
    printf("%d calls on path '%s', %d wrong, %d refused\n", count, t->path[path], wrong,
           t->refused[path]);
    return wrong;
}

static void run_dtype_on(fa_device device, int32_t dtype, const char *name) {
    static cells t;
    const subject *s = subject_get();
    int wrong = 0;
    memset(&t, 0, sizeof t);
    t.device = device;
    t.paths = subject_paths(s, device, t.path);
    for (int path = 0; path < t.paths; ++path) wrong += run_path(s, dtype, path, &t);
    const int empty = print_table(&t, name);
    fflush(stdout);
    cr_expect(wrong == 0, "%d calls are wrong", wrong);
    cr_expect(empty == 0, "%d cells of the table are empty", empty);
}

static void run_dtype(int32_t dtype, const char *name) {
    run_dtype_on(FA_DEVICE_CPU, dtype, name);
    if (dtype != FA_DTYPE_F32 && memory_of(FA_DEVICE_CUDA))
        run_dtype_on(FA_DEVICE_CUDA, dtype, name);
}

Test(truth_table, every_pair_of_values_in_float32) { run_dtype(FA_DTYPE_F32, "f32"); }
Test(truth_table, every_pair_of_values_in_float16) { run_dtype(FA_DTYPE_F16, "f16"); }
Test(truth_table, every_pair_of_values_in_bfloat16) { run_dtype(FA_DTYPE_BF16, "bf16"); }
