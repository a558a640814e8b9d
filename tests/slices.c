/* slices.c - an engine's own threads: one call cut into task slices, and independent calls at once.
 *
 * A program of its own, on POSIX threads and without Criterion, because it is meant for the thread
 * sanitizer (OpenMP runtimes are not instrumented). It checks the bits wherever it runs. It changes
 * when the contract's words about threads do. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fa_inputs.h"
#include "subject.h"

enum { kThreads = 8, kRepeats = 6, kPage = 16 };

typedef struct problem {
    const char *name;
    int32_t dtype, batch, heads_q, heads_kv, dim, q_len, kv_len, num_splits;
    int ragged, paged;
} problem;

static const problem problems[] = {
    {"prefill", FA_DTYPE_F32, 1, 4, 2, 64, 150, 150, 1, 0, 0},
    {"decode", FA_DTYPE_BF16, 9, 8, 2, 128, 1, 333, 1, 0, 0},
    {"long cache", FA_DTYPE_BF16, 1, 10, 5, 64, 2, 4000, 0, 0, 0}, /* split by the library */
    {"ragged", FA_DTYPE_F16, 4, 6, 3, 40, 33, 100, 1, 1, 0},
    {"paged", FA_DTYPE_BF16, 3, 5, 1, 72, 20, 130, 0, 1, 1},
    {"splits", FA_DTYPE_F16, 2, 4, 2, 64, 7, 300, 4, 0, 0}, /* not for slices */
};
enum { kProblems = sizeof problems / sizeof *problems };

/* A call with buffers of its own; inputs are a function of the problem alone. */
typedef struct job {
    fa_args args;
    size_t o_bytes, lse_bytes;
    void *q, *k, *v, *o, *lse, *workspace;
    int32_t lengths[16], *table;
    fa_status status;
} job;

static void *filled(const problem *p, fa_input_tensor tensor, int64_t count) {
    const fa_input_rule rule = {FA_INPUT_NORMAL, 7, 1};
    void *data = malloc((size_t)(count * fa_dtype_size(p->dtype)));
    fa_input_fill(rule, tensor, p->dtype, data, count);
    return data;
}

static void lay_pages(job *j, const problem *p) {
    const int32_t cols = (p->kv_len + kPage - 1) / kPage, pages = p->batch * cols;
    j->table = malloc((size_t)pages * sizeof *j->table);
    for (int32_t at = 0; at < pages; at++) j->table[at] = pages - 1 - at;
    j->args.page_size = kPage;
    j->args.num_pages = pages;
    j->args.block_table = j->table;
    j->args.block_table_cols = cols;
    j->args.block_table_stride = cols;
}

static void poison(job *j) {
    memset(j->o, 0xff, j->o_bytes);
    memset(j->lse, 0xff, j->lse_bytes);
}

static void open_job(job *j, const problem *p, const subject *s) {
    memset(j, 0, sizeof *j);
    fa_args *a = &j->args;
    *a = fa_args_default();
    a->device = FA_DEVICE_CPU;
    a->dtype = p->dtype;
    a->batch = p->batch, a->heads_q = p->heads_q, a->heads_kv = p->heads_kv, a->head_dim = p->dim;
    a->q_len = p->q_len, a->kv_len = p->kv_len;
    a->num_splits = p->num_splits;
    a->threads = 1;
    const int64_t q_count = (int64_t)p->batch * p->heads_q * p->q_len * p->dim;
    const int64_t kv_rows = (p->kv_len + kPage - 1) / kPage * kPage;
    const int64_t kv_count = p->batch * p->heads_kv * kv_rows * p->dim;
    j->o_bytes = (size_t)(q_count * fa_dtype_size(p->dtype));
    j->lse_bytes = (size_t)(q_count / p->dim) * sizeof(float);
    j->q = filled(p, FA_INPUT_Q, q_count);
    j->k = filled(p, FA_INPUT_K, kv_count);
    j->v = filled(p, FA_INPUT_V, kv_count);
    j->o = malloc(j->o_bytes);
    j->lse = malloc(j->lse_bytes);
    a->q = fa_bshd(j->q, p->q_len, p->heads_q, p->dim);
    a->o = fa_bshd(j->o, p->q_len, p->heads_q, p->dim);
    a->lse = fa_bhsd(j->lse, p->heads_q, p->q_len, 1);
    a->k = fa_bhsd(j->k, p->heads_kv, p->paged ? kPage : kv_rows, p->dim);
    a->v = fa_bhsd(j->v, p->heads_kv, p->paged ? kPage : kv_rows, p->dim);
    for (int32_t i = 0; i < p->batch; i++) j->lengths[i] = p->kv_len * (i + 1) / p->batch;
    if (p->ragged) a->seqused_k = j->lengths;
    if (p->paged) lay_pages(j, p);
    s->workspace(a, &a->workspace_size);
    a->workspace = j->workspace = aligned_alloc(64, (a->workspace_size + 127) / 64 * 64);
    memset(j->workspace, 0, a->workspace_size);
    poison(j);
}

static void close_job(job *j) {
    void *const all[] = {j->q, j->k, j->v, j->o, j->lse, j->workspace, j->table};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static int same(const job *a, const job *b) {
    return memcmp(a->o, b->o, a->o_bytes) == 0 && memcmp(a->lse, b->lse, a->lse_bytes) == 0;
}

/* What one thread does: one slice of a shared call, or calls of its own. */
typedef struct worker {
    pthread_t thread;
    const subject *s;
    const job *shared;
    const problem *own;
    const job *want;
    int32_t index, count;
    int wrong;
} worker;

static void *run_slice(void *argument) {
    worker *w = argument;
    fa_args a = w->shared->args;
    a.task_index = w->index;
    a.task_count = w->count;
    a.threads = 0;
    w->wrong = w->s->fwd_causal(&a, NULL) != FA_OK;
    return NULL;
}

/* A refused call between any two: sentences belong to their thread. */
static void *run_calls(void *argument) {
    worker *w = argument;
    job j;
    open_job(&j, w->own, w->s);
    for (int n = 0; n < kRepeats; n++) {
        fa_args bad = j.args;
        char number[16];
        bad.head_dim = -1000 - w->index;
        snprintf(number, sizeof number, "%d", bad.head_dim);
        w->wrong += w->s->fwd_causal(&bad, NULL) != FA_ERR_HEAD_DIM;
        poison(&j);
        w->wrong += w->s->fwd_causal(&j.args, NULL) != FA_OK || !same(&j, w->want);
        w->wrong += strstr(w->s->last_error(), number) == NULL;
    }
    close_job(&j);
    return NULL;
}

static int run_workers(worker workers[kThreads], void *(*work)(void *)) {
    int wrong = 0;
    for (int t = 0; t < kThreads; t++)
        if (pthread_create(&workers[t].thread, NULL, work, &workers[t]) != 0) exit(2);
    for (int t = 0; t < kThreads; t++) {
        pthread_join(workers[t].thread, NULL);
        wrong += workers[t].wrong;
    }
    return wrong;
}

static int check_slices(const subject *s, const problem *p, const job *whole) {
    int wrong = 0;
    job j;
    open_job(&j, p, s);
    for (int32_t count = kThreads; count <= kThreads * 8; count *= 8) {
        poison(&j);
        for (int32_t first = 0; first < count; first += kThreads) {
            worker workers[kThreads];
            memset(workers, 0, sizeof workers);
            for (int32_t t = 0; t < kThreads; t++) {
                workers[t].s = s, workers[t].shared = &j;
                workers[t].index = first + t, workers[t].count = count;
            }
            wrong += run_workers(workers, run_slice);
        }
        wrong += !same(&j, whole);
    }
    close_job(&j);
    return wrong;
}

int main(void) {
    const subject *s = subject_get();
    job whole[kProblems];
    int wrong = 0;
    for (int p = 0; p < kProblems; p++) {
        open_job(&whole[p], &problems[p], s);
        const fa_status status = s->fwd_causal(&whole[p].args, NULL);
        const bool sliced = problems[p].num_splits <= 1;
        int bad = status != FA_OK;
        if (sliced) bad += check_slices(s, &problems[p], &whole[p]);
        printf("slices: %-8s %s\n", problems[p].name,
               bad ? (status ? s->last_error() : "WRONG")
                   : (sliced ? "same bits as the whole call" : "whole"));
        wrong += bad;
    }
    worker workers[kThreads];
    memset(workers, 0, sizeof workers);
    for (int t = 0; t < kThreads; t++) {
        workers[t].s = s, workers[t].index = t;
        workers[t].own = &problems[t % kProblems], workers[t].want = &whole[t % kProblems];
    }
    const int bad = run_workers(workers, run_calls);
    printf("slices: %d threads x %d calls at once, %d wrong\n", kThreads, kRepeats, bad);
    for (int p = 0; p < kProblems; p++) close_job(&whole[p]);
    return wrong + bad != 0;
}
