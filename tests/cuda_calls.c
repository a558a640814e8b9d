/* cuda_calls.c - how calls behave on a GPU beside their numbers: streams, graphs, threads, several
 * GPUs, and launches that fail.
 *
 *     fa_cuda_calls [seconds=60]               the library under test (FA_SUBJECT)
 *     fa_cuda_calls refused STATUS OTHER.so [KERNEL]
 *                                              every launch of OTHER fails with this status
 *
 * Whether a result is right is the case list's matter; here it has the bits of the same call alone
 * on the default stream. Ids name reported faults of other libraries (CASES.md). Exits with 77
 * where there is no GPU, with 1 when a fact does not hold. */
#define _POSIX_C_SOURCE 200809L
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fa_inputs.h"
#include "memory.h"
#include "subject.h"

enum { kThreads = 16, kFirstThreads = 8, kFirstCalls = 2000, kPage = 64, kReplays = 3 };

/* Shapes whose kernels want different amounts of shared memory; all families, with and without
 * splits, ragged and paged. */
typedef struct problem {
    const char *name;
    int32_t batch, heads_q, heads_kv, dim, q_len, kv_len, num_splits;
    int ragged, paged;
} problem;

static const problem problems[] = {{"decode", 3, 8, 2, 128, 1, 3000, 0, 0, 0},
                                   {"prefill", 2, 8, 2, 128, 300, 700, 0, 0, 0},
                                   {"wide prefill", 1, 4, 4, 256, 200, 200, 0, 0, 0},
                                   {"paged", 4, 8, 1, 64, 1, 2000, 0, 1, 1},
                                   {"splits", 2, 8, 2, 192, 5, 1500, 7, 0, 0},
                                   {"chunk", 1, 16, 4, 96, 70, 2000, 0, 0, 0},
                                   {"ragged", 5, 6, 3, 64, 33, 500, 3, 1, 0},
                                   {"wide decode", 2, 8, 8, 256, 1, 900, 0, 1, 0}};
enum { kProblems = sizeof problems / sizeof *problems };

static int facts, wrong;
static void fact(int holds, const char *what, const char *which, long long number) {
    facts++, wrong += !holds;
    printf("%s %s, %s: %lld\n", holds ? "ok   " : "WRONG", what, which, number);
    fflush(stdout);
}

static void must(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    printf("WRONG: %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

/* A call whose memory is the current device's; q, k and v also stand in pinned host memory. */
typedef struct job {
    fa_args args;
    size_t q_bytes, kv_bytes, lse_bytes;
    void *host_q, *host_k, *host_v, *host_o, *host_lse;
    void *lengths, *table;
} job;

static void *on_device(const void *from, size_t bytes) {
    void *data = NULL;
    must(cudaMalloc(&data, bytes ? bytes : 16), "memory");
    if (from) must(cudaMemcpy(data, from, bytes, cudaMemcpyHostToDevice), "upload");
    return data;
}

static void *pinned(fa_input_tensor tensor, size_t bytes) {
    const fa_input_rule rule = {FA_INPUT_NORMAL, 7, 1};
    void *data = NULL;
    must(cudaMallocHost(&data, bytes), "pinned memory");
    fa_input_fill(rule, tensor, FA_DTYPE_BF16, data, (int64_t)bytes / 2);
    return data;
}

static void poison(const job *j, cudaStream_t stream) {
    must(cudaMemsetAsync(j->args.o.data, 0xff, j->q_bytes, stream), "poison");
    must(cudaMemsetAsync(j->args.lse.data, 0xff, j->lse_bytes, stream), "poison");
}

static void open_job(job *j, const problem *p, const subject *s) {
    int32_t lengths[16], table[256];
    memset(j, 0, sizeof *j);
    fa_args *a = &j->args;
    *a = fa_args_default();
    a->device = FA_DEVICE_CUDA, a->dtype = FA_DTYPE_BF16;
    a->batch = p->batch, a->heads_q = p->heads_q, a->heads_kv = p->heads_kv, a->head_dim = p->dim;
    a->q_len = p->q_len, a->kv_len = p->kv_len, a->num_splits = p->num_splits;
    const int64_t cols = (p->kv_len + kPage - 1) / kPage, rows = p->paged ? kPage : p->kv_len;
    j->q_bytes = (size_t)p->batch * (size_t)(p->heads_q * p->q_len * p->dim) * 2;
    j->kv_bytes = (size_t)(p->batch * cols * kPage) * (size_t)(p->heads_kv * p->dim) * 2;
    j->lse_bytes = j->q_bytes / (size_t)p->dim * 2;
    j->host_q = pinned(FA_INPUT_Q, j->q_bytes);
    j->host_k = pinned(FA_INPUT_K, j->kv_bytes);
    j->host_v = pinned(FA_INPUT_V, j->kv_bytes);
    must(cudaMallocHost(&j->host_o, j->q_bytes), "pinned memory");
    must(cudaMallocHost(&j->host_lse, j->lse_bytes), "pinned memory");
    a->q = fa_bshd(on_device(j->host_q, j->q_bytes), p->q_len, p->heads_q, p->dim);
    a->o = fa_bshd(on_device(NULL, j->q_bytes), p->q_len, p->heads_q, p->dim);
    a->k = fa_bhsd(on_device(j->host_k, j->kv_bytes), p->heads_kv, rows, p->dim);
    a->v = fa_bhsd(on_device(j->host_v, j->kv_bytes), p->heads_kv, rows, p->dim);
    a->lse = fa_bhsd(on_device(NULL, j->lse_bytes), p->heads_q, p->q_len, 1);
    for (int32_t i = 0; i < p->batch; i++) lengths[i] = p->kv_len * (i + 1) / p->batch;
    j->lengths = on_device(lengths, (size_t)p->batch * sizeof *lengths);
    if (p->ragged) a->seqused_k = j->lengths;
    if (p->paged) {
        for (int32_t at = 0; at < p->batch * cols; at++)
            table[at] = (int32_t)(p->batch * cols) - 1 - at;
        j->table = on_device(table, (size_t)(p->batch * cols) * sizeof *table);
        a->page_size = kPage, a->num_pages = (int32_t)(p->batch * cols);
        a->block_table = j->table, a->block_table_cols = (int32_t)cols;
        a->block_table_stride = cols;
    }
    if (s->workspace(a, &a->workspace_size) != FA_OK) {
        printf("WRONG: %s: %s\n", p->name, s->last_error());
        exit(1);
    }
    a->workspace = on_device(NULL, a->workspace_size);
    must(cudaMemset(a->workspace, 0, a->workspace_size ? a->workspace_size : 16), "workspace");
    poison(j, NULL);
    must(cudaDeviceSynchronize(), "a job's memory");
}

static void close_job(job *j) {
    void *const device[] = {j->args.q.data,   j->args.k.data,    j->args.v.data, j->args.o.data,
                            j->args.lse.data, j->args.workspace, j->lengths,     j->table};
    void *const host[] = {j->host_q, j->host_k, j->host_v, j->host_o, j->host_lse};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) cudaFree(device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) cudaFreeHost(host[i]);
}

/* o and lse to the host, in the order of the stream. */
static void fetch(job *j, cudaStream_t stream) {
    must(cudaMemcpyAsync(j->host_o, j->args.o.data, j->q_bytes, cudaMemcpyDeviceToHost, stream),
         "fetch");
    must(cudaMemcpyAsync(j->host_lse, j->args.lse.data, j->lse_bytes, cudaMemcpyDeviceToHost,
                         stream),
         "fetch");
}

static int is_poison(const job *j) {
    size_t bad = 0;
    for (size_t at = 0; at < j->q_bytes; at++) bad += ((unsigned char *)j->host_o)[at] != 0xff;
    for (size_t at = 0; at < j->lse_bytes; at++) bad += ((unsigned char *)j->host_lse)[at] != 0xff;
    return bad == 0;
}

static int same(const job *a, const job *b) {
    return memcmp(a->host_o, b->host_o, a->q_bytes) == 0 &&
           memcmp(a->host_lse, b->host_lse, a->lse_bytes) == 0;
}

/* The call alone: what all others are compared with. */
static void open_wanted(job *j, const problem *p, const subject *s) {
    open_job(j, p, s);
    const fa_status status = s->fwd_causal(&j->args, NULL);
    fetch(j, NULL);
    must(cudaDeviceSynchronize(), p->name);
    fact(status == FA_OK && !is_poison(j), "the call alone", p->name, status);
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct worker {
    pthread_t thread;
    const subject *s;
    pthread_barrier_t *start;
    job *jobs; /* one a problem, this thread's own */
    const job *wanted;
    int index, device, first, calls;
    double seconds;
    long long done, bad;
} worker;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Calls of one problem (B113), or of all in a random order with a refused call between any two
 * (B115). Bits are looked at each time or, of very many calls, now and then. */
static void *run_worker(void *argument) {
    worker *w = argument;
    cudaStream_t stream;
    uint32_t random = 12345u + (uint32_t)w->index;
    char number[16];
    must(cudaSetDevice(w->device), "device"); /* a thread begins with device 0 */
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    pthread_barrier_wait(w->start);
    const double end = now_s() + w->seconds;
    for (long long n = 0; w->calls ? n < w->calls : now_s() < end; n++) {
        random = random * 1664525u + 1013904223u;
        job *j = &w->jobs[w->calls ? w->first : (int)(random >> 16) % kProblems];
        const int look = !w->calls || n == 0 || n % 100 == 99;
        if (look) poison(j, stream);
        w->bad += w->s->fwd_causal(&j->args, (struct CUstream_st *)stream) != FA_OK;
        if (look) {
            fetch(j, stream);
            must(cudaStreamSynchronize(stream), "a thread's stream");
            w->bad += w->wanted ? !same(j, &w->wanted[j - w->jobs]) : is_poison(j);
        }
        if (!w->calls) {
            fa_args refused = j->args;
            refused.head_dim = -1000 - w->index;
            snprintf(number, sizeof number, "%d", refused.head_dim);
            w->bad += w->s->fwd_causal(&refused, NULL) != FA_ERR_HEAD_DIM;
            w->bad += strstr(w->s->last_error(), number) == NULL;
        }
        w->done++;
    }
    must(cudaStreamSynchronize(stream), "a thread's stream");
    must(cudaStreamDestroy(stream), "stream");
    return NULL;
}

/* Returns the calls that were wrong. Threads of the first calls keep their last output. */
static long long run_threads(const subject *s, int threads, int calls, double seconds, job *jobs,
                             const job *wanted, long long *done) {
    worker workers[kThreads];
    pthread_barrier_t start;
    long long bad = 0;
    int device = 0;
    must(cudaGetDevice(&device), "device");
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    memset(workers, 0, sizeof workers);
    *done = 0;
    for (int t = 0; t < threads; t++) {
        worker *w = &workers[t];
        w->s = s, w->start = &start, w->jobs = jobs + t * kProblems, w->wanted = wanted;
        w->index = t, w->device = device, w->first = t % kProblems, w->calls = calls,
        w->seconds = seconds;
        if (pthread_create(&w->thread, NULL, run_worker, w)) exit(2);
    }
    for (int t = 0; t < threads; t++) {
        pthread_join(workers[t].thread, NULL);
        bad += workers[t].bad;
        *done += workers[t].done;
    }
    pthread_barrier_destroy(&start);
    return bad;
}

/* ---- streams and graphs ---------------------------------------------------------------------- */

static void sleep_50_ms(void *unused) {
    const struct timespec t = {0, 50 * 1000 * 1000};
    (void)unused;
    nanosleep(&t, NULL);
}

/* B110: inputs that arrive late on the call's own stream, which waits for no other. */
static void check_stream(const subject *s, const problem *p, const job *wanted) {
    job j;
    cudaStream_t stream;
    open_job(&j, p, s);
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    must(cudaMemset(j.args.q.data, 0xff, j.q_bytes), "junk");
    must(cudaMemset(j.args.k.data, 0xff, j.kv_bytes), "junk");
    must(cudaMemset(j.args.v.data, 0xff, j.kv_bytes), "junk");
    must(cudaDeviceSynchronize(), "junk");
    must(cudaLaunchHostFunc(stream, sleep_50_ms, NULL), "delay");
    must(cudaMemcpyAsync(j.args.q.data, j.host_q, j.q_bytes, cudaMemcpyHostToDevice, stream), "q");
    must(cudaMemcpyAsync(j.args.k.data, j.host_k, j.kv_bytes, cudaMemcpyHostToDevice, stream), "k");
    must(cudaMemcpyAsync(j.args.v.data, j.host_v, j.kv_bytes, cudaMemcpyHostToDevice, stream), "v");
    const double began = now_s();
    const fa_status status = s->fwd_causal(&j.args, (struct CUstream_st *)stream);
    const double took = now_s() - began;
    fetch(&j, stream);
    must(cudaStreamSynchronize(stream), "stream");
    fact(status == FA_OK && same(&j, wanted), "B110 inputs that come late on the stream", p->name,
         status);
    fact(took < 0.04, "B110 the call waits for nothing, us", p->name, (long long)(1e6 * took));
    must(cudaStreamDestroy(stream), "stream");
    close_job(&j);
}

/* B112: a capture in global mode forbids what allocates or synchronises, and any work on the legacy
 * stream; the graph holds the call's kernels (B110) and replays to the eager bits, also after its
 * inputs changed and came back. */
static void check_graph(const subject *s, const problem *p, const job *wanted) {
    job j;
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaGraphNode_t nodes[16];
    size_t count = 0, kernels = 0;
    open_job(&j, p, s);
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    const fa_status status = s->fwd_causal(&j.args, (struct CUstream_st *)stream);
    const cudaError_t error = cudaStreamEndCapture(stream, &graph);
    fact(status == FA_OK && error == cudaSuccess, "B112 captured in global mode", p->name, error);
    if (error != cudaSuccess) return;
    must(cudaGraphGetNodes(graph, NULL, &count), "nodes");
    const size_t all = count;
    if (count > 16) count = 16;
    must(cudaGraphGetNodes(graph, nodes, &count), "nodes");
    for (size_t i = 0; i < count; i++) {
        enum cudaGraphNodeType type;
        must(cudaGraphNodeGetType(nodes[i], &type), "node");
        kernels += type == cudaGraphNodeTypeKernel;
    }
    fact(kernels >= 1 && kernels == all, "B110 the graph holds kernels and nothing else", p->name,
         (long long)kernels);
    must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    int bad = 0;
    for (int replay = 0; replay < 2 * kReplays; replay++) {
        const int junk = replay % 2; /* the values of k in the place of q's and back */
        must(cudaMemcpyAsync(j.args.q.data, junk ? j.host_k : j.host_q,
                             j.q_bytes < j.kv_bytes ? j.q_bytes : j.kv_bytes,
                             cudaMemcpyHostToDevice, stream),
             "q");
        poison(&j, stream);
        must(cudaGraphLaunch(exec, stream), "replay");
        fetch(&j, stream);
        must(cudaStreamSynchronize(stream), "replay");
        bad += same(&j, wanted) == junk;
    }
    fact(bad == 0, "B112 replays with the eager bits, wrong", p->name, bad);
    must(cudaGraphExecDestroy(exec), "graph");
    must(cudaGraphDestroy(graph), "graph");
    must(cudaStreamDestroy(stream), "stream");
    close_job(&j);
}

/* ---- two GPUs -------------------------------------------------------------------------------- */

/* Refused with nothing written, and the current device is what it was. */
static void check_refused(const subject *s, job *j, int current, const char *what) {
    int after = -1;
    must(cudaSetDevice(current), "device");
    const fa_status status = s->fwd_causal(&j->args, NULL);
    must(cudaGetDevice(&after), "device");
    fetch(j, NULL);
    must(cudaDeviceSynchronize(), "device");
    fact(status == FA_ERR_DEVICE && is_poison(j) && after == current, "B114", what, status);
}

/* B114, with one job on each device; wanted is device 0's. */
static void check_two_gpus(const subject *s, const job *wanted) {
    job j[2];
    for (int device = 0; device < 2; device++) {
        must(cudaSetDevice(device), "device");
        open_job(&j[device], &problems[0], s);
    }
    check_refused(s, &j[1], 0, "tensors of 1, current 0");
    check_refused(s, &j[0], 1, "tensors of 0, current 1");
    job mixed = j[0];
    mixed.args.k = j[1].args.k;
    check_refused(s, &mixed, 0, "k of 1, the rest of 0, current 0");
    must(cudaSetDevice(1), "device");
    const fa_status status = s->fwd_causal(&j[1].args, NULL);
    fetch(&j[1], NULL);
    must(cudaDeviceSynchronize(), "device 1");
    fact(status == FA_OK && same(&j[1], wanted), "B114", "all on 1, current 1", status);
    for (int device = 0; device < 2; device++) {
        must(cudaSetDevice(device), "device");
        close_job(&j[device]);
    }
    must(cudaSetDevice(0), "device");
}

/* ---- launches that fail ---------------------------------------------------------------------- */

/* B23, B118: the status, nothing written, no error left for the next call, which is right. */
static int check_failing(const char *status_name, const char *path, const char *kernel) {
    subject bad;
    char why[256];
    if (!subject_open(&bad, path, why, sizeof why)) {
        printf("WRONG: %s\n", why);
        return 1;
    }
    for (int p = 0; p < kProblems; p++) {
        if (problems[p].dim != 64) continue; /* as cuda_mutants.py builds */
        job j, again;
        if (*kernel && bad.force_kernel) bad.force_kernel(kernel);
        open_job(&j, &problems[p], &bad);
        const fa_status status = bad.fwd_causal(&j.args, NULL);
        const int named = strcmp(bad.status_string(status), status_name) == 0;
        const cudaError_t left = cudaGetLastError();
        fetch(&j, NULL);
        must(cudaDeviceSynchronize(), "after a refused launch");
        printf("      %s: %s\n", bad.status_string(status), bad.last_error());
        fact(named && is_poison(&j) && left == cudaSuccess, "a launch fails, nothing is written",
             problems[p].name, status);
        open_wanted(&again, &problems[p], subject_get());
        close_job(&j);
        close_job(&again);
    }
    return wrong != 0;
}

int main(int argc, char **argv) {
    int devices = 0;
    long long done = 0;
    double seconds = 60;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        puts(MEMORY_NO_DEVICE);
        return MEMORY_SKIPPED;
    }
    if (argc >= 4) {
        const int failed = check_failing(argv[2], argv[3], argc > 4 ? argv[4] : "");
        printf("%d facts, %d wrong\n", facts, wrong);
        return failed;
    }
    if (argc == 2) sscanf(argv[1], "seconds=%lf", &seconds);
    const subject *s = subject_get();
    /* B113: the process's first calls are made by all threads at once, so what is right is found
     * out afterwards; where there is a second GPU, that one comes first. */
    job *jobs = calloc(kThreads * kProblems, sizeof *jobs), wanted[kProblems];
    for (int device = devices > 1; device >= 0; device--) {
        must(cudaSetDevice(device), "device");
        for (int t = 0; t < kFirstThreads; t++) open_job(&jobs[t * kProblems + t], &problems[t], s);
        long long bad = run_threads(s, kFirstThreads, kFirstCalls, 0, jobs, NULL, &done);
        for (int p = 0; p < kProblems; p++) {
            open_wanted(&wanted[p], &problems[p], s);
            bad += !same(&jobs[p * kProblems + p], &wanted[p]);
            close_job(&jobs[p * kProblems + p]);
            if (device) close_job(&wanted[p]);
        }
        fact(bad == 0 && done == kFirstThreads * kFirstCalls,
             device ? "B113 first calls at once, GPU 1" : "B113 first calls at once, GPU 0",
             "wrong", bad);
    }
    for (int p = 0; p < kProblems; p++) {
        check_stream(s, &problems[p], &wanted[p]);
        check_graph(s, &problems[p], &wanted[p]);
    }
    if (devices > 1)
        check_two_gpus(s, &wanted[0]);
    else
        puts("skipped B114: one GPU");
    for (int at = 0; at < kThreads * kProblems; at++)
        open_job(&jobs[at], &problems[at % kProblems], s);
    const long long bad = run_threads(s, kThreads, 0, seconds, jobs, wanted, &done);
    printf("      %lld calls of %d threads\n", done, kThreads);
    fact(bad == 0 && done > 0, "B115 threads with streams of their own", "wrong", bad);
    printf("%d facts, %d wrong\n", facts, wrong);
    return wrong != 0;
}
