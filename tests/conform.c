/* conform.c - what fa_conform judges, one item at a time. */
#define _GNU_SOURCE
#include "conform.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bad_input_table.h"
#include "fa_dtype.h"
#include "fuzz.h"

const conform_difference conform_differences[CONFORM_DIFFERENCES] = {
    {'t', DIALECT_TOP_LEFT, "top-left", "the default diagonal is top-left: row r sees keys 0 to r"},
    {'b', DIALECT_BASE_2, "lse base 2", "lse is a base-2 logarithm"},
    {'n', DIALECT_NO_LSE, "no lse", "lse is not written"},
    {'p', DIALECT_PLUS_INF, "empty lse +inf", "lse of a row without keys is +inf"},
    {'l', DIALECT_EMPTY_LSE, "empty lse", "lse of a row without keys is not -inf"},
    {'e', DIALECT_EMPTY_O, "empty o", "o of a row without keys is not 0"},
    {'c', DIALECT_COARSE_LSE, "coarse lse", "lse is as accurate as the dtype, not as float32"},
    {'u', DIALECT_UNSUPPORTED, "unsupported", "refuses a call that the contract allows"},
};

bool conform_read_dialect(const char *text, int *bits) {
    *bits = 0;
    for (; *text; text++) {
        int n = 0;
        while (n < CONFORM_DIFFERENCES && conform_differences[n].letter != *text) n++;
        if (n == CONFORM_DIFFERENCES) return false;
        *bits |= conform_differences[n].bit;
    }
    return true;
}

const char *conform_letters(void) {
    static char letters[CONFORM_DIFFERENCES + 1];
    for (int n = 0; n < CONFORM_DIFFERENCES; n++) letters[n] = conform_differences[n].letter;
    return letters;
}

int conform_declared(const subject *s) {
    const char *(*declared)(void) = NULL;
    void *symbol = dlsym(s->handle, "fa_dialect");
    int bits = 0;
    memcpy(&declared, &symbol, sizeof symbol);
    if (!symbol) return 0;
    const char *text = declared();
    return text && conform_read_dialect(text, &bits) ? bits : -1;
}

/* ---- calls ---- */

/* Those differences of bits that this case can show. */
static int bearing(const test_case *c, int bits) {
    const bool coarse = c->dtype != FA_DTYPE_F32; /* float32 has no coarser lse */
    int seen = c->no_lse ? 0 : bits & (DIALECT_BASE_2 | DIALECT_NO_LSE);
    if (!c->no_lse && coarse) seen |= bits & DIALECT_COARSE_LSE;
    for (int32_t i = 0; i < c->batch; i++) {
        const int64_t q_len = case_q_len(c, i), kv_len = case_kv_len(c, i);
        const bool moves = c->align == FA_ALIGN_BOTTOM_RIGHT && q_len != kv_len;
        const bool top_left = moves && bits & DIALECT_TOP_LEFT;
        if (top_left) seen |= DIALECT_TOP_LEFT;
        if (q_len == 0 || (kv_len > 0 && (top_left || case_offset(c, i) >= 0))) continue;
        seen |= bits & (DIALECT_PLUS_INF | DIALECT_EMPTY_LSE | DIALECT_EMPTY_O);
    }
    return seen;
}

/* Runs a case as the contract says it and, where that is wrong, in the declared dialect. */
static conform_state run_case(const conform_run *run, const test_case *c, case_result *r,
                              conform_item *item) {
    const int declared = run->shared->dialect;
    test_case said = *c;
    if (case_run(subject_get(), &said, r)) return CONFORM_RIGHT;
    snprintf(item->why, sizeof item->why, "%.*s", (int)strcspn(r->why, "\n"), r->why);
    const bool refused = r->status >= FA_ERR_UNSUPPORTED && r->status < FA_ERR_LAUNCH;
    if (refused && declared & DIALECT_UNSUPPORTED) {
        item->dialect |= DIALECT_UNSUPPORTED;
        return CONFORM_UNSUPPORTED;
    }
    said.dialect = bearing(c, declared);
    if (r->status != FA_OK || !said.dialect) return CONFORM_WRONG;
    case_result_free(r);
    if (!case_run(subject_get(), &said, r)) {
        snprintf(item->why, sizeof item->why, "%.*s", (int)strcspn(r->why, "\n"), r->why);
        return CONFORM_WRONG;
    }
    item->dialect |= said.dialect;
    return CONFORM_DIALECT;
}

static void judge_line(const conform_run *run, const test_case *c, conform_item *item) {
    case_result r;
    item->state = run_case(run, c, &r, item);
    case_result_free(&r);
}

/* ---- identities ---- */

/* Rows from a_row of call a are rows from b_row of call b; count 0: all of both. */
typedef struct identity {
    const char *name, *a, *b;
    int a_row, b_row, count;
    bool bits; /* else within what either may be off the truth */
} identity;

static const identity identities[] = {
    {"the same call twice, bit for bit", "hq=8 hkv=2 q=33 kv=200", "hq=8 hkv=2 q=33 kv=200", 0, 0,
     0, true},
    {"chunk 1 of 3 of a growing cache", "b=1 hq=4 hkv=2 q=150 kv=150",
     "b=1 hq=4 hkv=2 q=63 kv=63 K=bhsd:c87 V=bhsd:c87", 0, 0, 63, false},
    {"chunk 2 of 3, one row", "b=1 hq=4 hkv=2 q=150 kv=150",
     "b=1 hq=4 hkv=2 fr=63 q=1 kv=64 K=bhsd:c86 V=bhsd:c86", 63, 0, 1, false},
    {"chunk 3 of 3", "b=1 hq=4 hkv=2 q=150 kv=150", "b=1 hq=4 hkv=2 fr=64 q=86 kv=150", 64, 0, 86,
     false},
    {"padded q keeps the last rows", "hq=4 hkv=4 q=130 kv=130", "hq=4 hkv=4 fr=123 q=7 kv=130", 123,
     0, 7, false},
    {"sequence 1 of a batch alone", "b=3 hq=4 hkv=2 q=9 kv=70", "b=1 fb=1 hq=4 hkv=2 q=9 kv=70", 9,
     0, 9, false},
    {"layout (b,h,s,d)", "b=2 hq=4 hkv=2 q=9 kv=70",
     "b=2 hq=4 hkv=2 q=9 kv=70 Q=bhsd K=bhsd V=bhsd O=bhsd L=bhsd", 0, 0, 0, false},
    {"a fused qkv buffer", "b=2 hq=4 hkv=4 q=70 kv=70",
     "b=2 hq=4 hkv=4 q=70 kv=70 Q=fused K=fused V=fused", 0, 0, 0, false},
    {"a cache longer than used", "b=2 hq=4 hkv=2 q=9 kv=70",
     "b=2 hq=4 hkv=2 q=9 kv=70 K=bshd:c33 V=bhsd:c7", 0, 0, 0, false},
    {"lengths by seqused", "b=2 hq=4 hkv=2 q=9 kv=70", "b=2 hq=4 hkv=2 q=9 kv=90 kr=u ks=70", 0, 0,
     0, false},
    {"packed", "b=2 hq=4 hkv=2 q=9 kv=70", "b=2 hq=4 hkv=2 q=9 kv=70 qr=c kr=c", 0, 0, 0, false},
    {"left padding", "b=2 hq=4 hkv=2 q=9 kv=70", "b=2 hq=4 hkv=2 q=12 kv=81 qr=l kr=l qs=9 ks=70",
     0, 0, 0, false},
    {"pages", "b=2 hq=4 hkv=2 q=9 kv=70", "b=2 hq=4 hkv=2 q=9 kv=70 page=16", 0, 0, 0, false},
    {"four splits", "b=2 hq=4 hkv=2 q=9 kv=700", "b=2 hq=4 hkv=2 q=9 kv=700 splits=4", 0, 0, 0,
     false},
    {"splits at multiples of 100 keys", "b=2 hq=4 hkv=2 q=9 kv=700",
     "b=2 hq=4 hkv=2 q=9 kv=700 split_keys=100", 0, 0, 0, false},
    {"the default offset, given", "b=2 hq=4 hkv=2 q=9 kv=70",
     "b=2 hq=4 hkv=2 q=9 kv=70 align=given offset=61", 0, 0, 0, false},
    {"no lse asked for", "b=2 hq=4 hkv=2 q=9 kv=70", "b=2 hq=4 hkv=2 q=9 kv=70 nolse=1", 0, 0, 0,
     false},
};
enum { kIdentities = sizeof identities / sizeof *identities };

/* The first value of o or lse that differs, in words; "" when none does. */
static void compare_rows(const identity *id, const test_case *c, const case_result *a,
                         const case_result *b, char *why, size_t why_size) {
    const int64_t rows = id->count ? id->count : a->rows, n = (int64_t)c->heads_q * c->head_dim;
    const double near_o = a->report.largest_o_tolerance + b->report.largest_o_tolerance;
    const double near_lse = a->report.largest_lse_tolerance + b->report.largest_lse_tolerance;
    const int64_t values = rows * n, lses = a->lse && b->lse ? rows * c->heads_q : 0;
    for (int64_t at = 0; at < values + lses; at++) {
        const bool is_lse = at >= values;
        const int64_t i = is_lse ? at - values : at, width = is_lse ? c->heads_q : n;
        const int64_t ia = id->a_row * width + i, ib = id->b_row * width + i;
        const double x = is_lse ? (double)a->lse[ia] : (double)fa_dtype_get(c->dtype, a->o, ia);
        const double y = is_lse ? (double)b->lse[ib] : (double)fa_dtype_get(c->dtype, b->o, ib);
        const double tolerance = id->bits ? 0 : (is_lse ? near_lse : near_o);
        if (x == y || fabs(x - y) <= tolerance) continue;
        snprintf(why, why_size,
                 "%s row %lld head %lld dim %lld is %.9g in one call and %.9g in the other, "
                 "tolerance %.3g (%s)",
                 is_lse ? "lse" : "o", (long long)(i / width),
                 (long long)(i % width / (is_lse ? 1 : c->head_dim)),
                 (long long)(is_lse ? 0 : i % c->head_dim), x, y, tolerance,
                 id->bits ? "the same bits" : "what both may be off the truth");
        return;
    }
}

static void judge_identity(const conform_run *run, conform_item *item) {
    static const char *const dtypes[] = {"f16", "bf16", "f32"};
    const identity *id = &identities[item->index % kIdentities];
    const char *device = run->device == FA_DEVICE_CUDA ? "cuda" : "cpu";
    const char *dtype = dtypes[item->index / kIdentities];
    const test_case a = case_of("id=identity device=%s dtype=%s %s%s %s", device, dtype,
                                *run->kernel ? "kernel=" : "", run->kernel, id->a);
    const test_case b = case_of("id=identity device=%s dtype=%s %s%s %s", device, dtype,
                                *run->kernel ? "kernel=" : "", run->kernel, id->b);
    case_result x, y = {0};
    item->state = run_case(run, &a, &x, item);
    if (item->state == CONFORM_RIGHT) item->state = run_case(run, &b, &y, item);
    if (item->state == CONFORM_RIGHT) {
        item->why[0] = 0;
        compare_rows(id, &a, &x, &y, item->why, sizeof item->why);
        if (item->why[0]) item->state = CONFORM_WRONG;
    }
    case_result_free(&x);
    case_result_free(&y);
}

/* ---- random calls and error rows ---- */

static void judge_fuzz(const conform_run *run, conform_item *item) {
    bool illegal;
    test_case c = fuzz_case(run->seed, (uint64_t)item->index, run->device, &illegal);
    if (*run->kernel) snprintf(c.kernel, sizeof c.kernel, "%s", run->kernel);
    if (!illegal) {
        judge_line(run, &c, item);
        return;
    }
    const bool right =
        fuzz_illegal(run->seed, (uint64_t)item->index, run->device, item->why, sizeof item->why);
    item->state = right ? CONFORM_RIGHT : CONFORM_WRONG;
}

static void judge_error(conform_item *item) {
    static small_memory m;
    const fault *f = &faults[item->index];
    item->state = CONFORM_RIGHT;
    for (int kind = 0; kind < SMALL_KINDS && item->state == CONFORM_RIGHT; kind++) {
        if (!applies_to(f, kind)) continue;
        fa_args a = small_call(&m, (small_kind)kind, subject_get());
        apply_fault(f, &a);
        if (fault_is_refused(f, &a, &m, subject_get(), item->why, sizeof item->why)) continue;
        item->state = CONFORM_WRONG;
    }
}

/* ---- the list ---- */

static void add(const conform_run *run, conform_item *item, int *count, conform_section section,
                int index, const char *name) {
    conform_item one = {.section = section, .index = index};
    snprintf(one.name, sizeof one.name, "%s/%d %s", conform_section_name(section), index, name);
    if (!strstr(one.name, run->only)) return;
    const char *device = run->device == FA_DEVICE_CUDA ? " device=cuda" : "";
    if (section == SECTION_CASES)
        snprintf(one.repeat, sizeof one.repeat, "FA_SUBJECT=%s fa_case '%s'", run->library, name);
    else
        snprintf(one.repeat, sizeof one.repeat, "fa_conform %s%s seed=%llu only='%s/%d '",
                 run->library, device, (unsigned long long)run->seed, conform_section_name(section),
                 index);
    if (item) item[*count] = one;
    ++*count;
}

int conform_list(const conform_run *run, conform_item *item) {
    int count = 0;
    const bool cuda = run->device == FA_DEVICE_CUDA;
    for (int i = 0; i < case_line_count; i++) {
        char line[CASE_LINE_MAX];
        snprintf(line, sizeof line, "%s%s%s%s", case_lines[i], cuda ? " device=cuda" : "",
                 *run->kernel ? " kernel=" : "", run->kernel);
        const test_case c = case_of("%s", line);
        if (case_fits_device(&c)) add(run, item, &count, SECTION_CASES, i, line);
    }
    for (int i = 0; i < kIdentities * (cuda ? 2 : 3); i++)
        add(run, item, &count, SECTION_IDENTITIES, i, identities[i % kIdentities].name);
    for (int i = 0; i < run->fuzz; i++) add(run, item, &count, SECTION_FUZZ, i, "random call");
    for (int i = 0; i < kFaults && !cuda; i++)
        add(run, item, &count, SECTION_ERRORS, i, faults[i].words[0]);
    return count;
}

void conform_judge(const conform_run *run, conform_item *item) {
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    if (item->section == SECTION_CASES) {
        const char *line = strchr(item->name, ' ');
        const test_case c = case_of("%s", line + 1);
        judge_line(run, &c, item);
    } else if (item->section == SECTION_IDENTITIES) {
        judge_identity(run, item);
    } else if (item->section == SECTION_FUZZ) {
        judge_fuzz(run, item);
    } else {
        judge_error(item);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    item->milliseconds =
        1e3 * (double)(to.tv_sec - from.tv_sec) + 1e-6 * (double)(to.tv_nsec - from.tv_nsec);
    if (item->state == CONFORM_RIGHT) item->why[0] = 0;
}
