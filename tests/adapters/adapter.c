/* adapter.c - a library of this ABI that forwards dense calls to a Python process, so that the same
 * cases judge a peer. The environment says which: FA_ADAPTER=numpy|numpy_dialect|torch|... of
 * engines.py, FA_ADAPTER_PYTHON the interpreter.
 *
 * The contract's checks are this library's own, linked in under the prefix real_; the arithmetic is
 * the peer's. Views are gathered here into (b, s, h, d), so a peer is not judged by strides that it
 * cannot have; a field that it has no word for is FA_ERR_UNSUPPORTED and named. With CUDA, tensors
 * travel through the host by the driver's copies, which wait for the default stream.
 *
 * Protocol, native byte order. At the start the server sends one line, its dialect (conform.h).
 * Request: struct request, then q, k, v. Answer: int32 status, int32 text bytes, the text; with
 * status 0 then o, and lse (b, h, q) in float32. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fa_dtype.h"
#include "fa_internal.h" /* compiled with FA_PREFIX=real_ */

typedef struct request {
    int32_t device, dtype, batch, heads_q, heads_kv, head_dim, q_len, kv_len;
    int32_t given, offset; /* FA_ALIGN_OFFSET, and its offset */
    float scale;
} request;

static int server = -1; /* the socket to the Python process; a judge's process has one */
static pid_t server_process;
static int server_tried;
static char dialect[64];

static int send_all(const void *data, size_t bytes) {
    for (const char *p = data; bytes > 0;) {
        const ssize_t n = send(server, p, bytes, MSG_NOSIGNAL);
        if (n <= 0) return 0;
        p += n, bytes -= (size_t)n;
    }
    return 1;
}

static int receive_all(void *data, size_t bytes) {
    for (char *p = data; bytes > 0;) {
        const ssize_t n = recv(server, p, bytes, 0);
        if (n <= 0) return 0;
        p += n, bytes -= (size_t)n;
    }
    return 1;
}

/* A process that died in a call is that call's failure, not the next one's: that gets a new one. */
static fa_status lose_server(void) {
    close(server);
    waitpid(server_process, NULL, 0);
    server = -1;
    server_tried = 0;
    return fai_fail(FA_ERR_LAUNCH, "the adapter's process ended");
}

/* Starts the server where there is none; false when it did not say its line, and from then on. */
static int connected(void) {
    int ends[2];
    const char *engine = getenv("FA_ADAPTER"), *python = getenv("FA_ADAPTER_PYTHON");
    if (!python) python = "python3";
    if (server_tried || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return server >= 0;
    server_tried = 1;
    server_process = fork();
    if (server_process == 0) {
        char end[16];
        close(ends[0]);
        snprintf(end, sizeof end, "%d", ends[1]);
        /* A virtual environment's interpreter finds its packages by its own name. */
        execlp(python, python, FA_ADAPTER_SERVER, engine ? engine : "numpy", end, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    server = ends[0];
    for (size_t at = 0; server_process > 0 && at + 1 < sizeof dialect; at++) {
        if (!receive_all(dialect + at, 1)) break;
        if (dialect[at] == '\n') return dialect[at] = 0, 1;
    }
    close(server);
    server = -1;
    return 0;
}

/* ---- rows between the call's tensors and dense host memory ---- */

typedef int (*driver_copy)(uint64_t to, uint64_t from, size_t bytes);

/* A function of the CUDA driver, null where there is none. The argument order of both copies is
 * (to, from, bytes), and a host pointer travels as an integer as well as a device's. */
static driver_copy driver(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    void *symbol = library ? dlsym(library, name) : NULL;
    driver_copy copy;
    memcpy(&copy, &symbol, sizeof symbol);
    return copy;
}

/* Between a view and its dense (b, s, h, width) twin of elements of size bytes. data is the view's
 * element (0, 0, 0); copy is the driver's where that is on a device, null where it is here. */
static int copy_rows(const fa_args *a, const fa_view *v, char *data, int64_t seq, int64_t heads,
                     int64_t width, int64_t size, char *dense, int out, driver_copy copy) {
    const size_t bytes = (size_t)(width * size);
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t s = 0; s < seq; s++)
            for (int64_t h = 0; h < heads; h++, dense += bytes) {
                const int64_t at = b * v->stride_batch + s * v->stride_seq + h * v->stride_head;
                char *row = data + at * size, *to = out ? row : dense, *from = out ? dense : row;
                if (!copy)
                    memcpy(to, from, bytes);
                else if (copy((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, bytes) != 0)
                    return 0;
            }
    return 1;
}

/* Adds the elements from the first to the last index of an axis to a span around element 0. */
static void widen(int64_t span[2], int64_t extent, int64_t stride) {
    if (extent > 1) span[stride > 0] += (extent - 1) * stride;
}

/* The same for a view of either device. A copy a row would take minutes, so all that lies between
 * the first and the last element comes here and, when the view is written, goes back; nothing else
 * uses that memory meanwhile. Only rows that are far apart travel one by one. */
static int copy_view(const fa_args *a, const fa_view *v, int64_t seq, int64_t heads, int64_t width,
                     int64_t size, char *dense, int out) {
    enum { kMostSpan = 1 << 28 }; /* bytes */
    int64_t span[2] = {0, width};
    if (a->device == FA_DEVICE_CPU)
        return copy_rows(a, v, v->data, seq, heads, width, size, dense, out, NULL);
    if (a->batch == 0 || seq == 0 || heads == 0) return 1;
    const driver_copy take = driver("cuMemcpyDtoH_v2"), give = driver("cuMemcpyHtoD_v2");
    if (!take || !give) return 0;
    widen(span, a->batch, v->stride_batch);
    widen(span, seq, v->stride_seq);
    widen(span, heads, v->stride_head);
    const int64_t bytes = (span[1] - span[0]) * size;
    if (bytes > kMostSpan)
        return copy_rows(a, v, v->data, seq, heads, width, size, dense, out, out ? give : take);
    const uint64_t there = (uint64_t)(uintptr_t)v->data + (uint64_t)(span[0] * size);
    char *here = malloc((size_t)bytes);
    int ok = here && take((uint64_t)(uintptr_t)here, there, (size_t)bytes) == 0;
    if (ok) copy_rows(a, v, here - span[0] * size, seq, heads, width, size, dense, out, NULL);
    if (ok && out) ok = give(there, (uint64_t)(uintptr_t)here, (size_t)bytes) == 0;
    free(here);
    return ok;
}

/* ---- a call ---- */

static const char *unsupported_field(const fa_args *a) {
    if (a->page_size > 0) return "page_size";
    if (a->cu_seqlens_q || a->cu_seqlens_k) return "cu_seqlens";
    if (a->seqused_q || a->seqused_k) return "seqused";
    if (a->leftpad_q || a->leftpad_k) return "leftpad";
    if (a->causal_offsets) return "causal_offsets";
    if (a->task_count > 0) return "task_count";
    return NULL;
}

/* The answer to a request that was sent: its status, with o and lse when it is FA_OK. */
static fa_status take_answer(char *o, size_t o_bytes, float *lse, size_t lse_bytes) {
    int32_t head[2];
    char text[256] = "";
    if (!receive_all(head, sizeof head) || head[1] < 0 || head[1] >= (int32_t)sizeof text ||
        !receive_all(text, (size_t)head[1]))
        return lose_server();
    if (head[0] != FA_OK) return fai_fail((fa_status)head[0], "%s", text);
    if (!receive_all(o, o_bytes) || !receive_all(lse, lse_bytes)) return lose_server();
    return FA_OK;
}

static fa_status forward(const fa_args *a) {
    const int64_t size = fa_dtype_size(a->dtype), dim = a->head_dim;
    const int64_t q_rows = (int64_t)a->batch * a->q_len * a->heads_q;
    const int64_t k_rows = (int64_t)a->batch * a->kv_len * a->heads_kv;
    const size_t q_bytes = (size_t)(q_rows * dim * size), k_bytes = (size_t)(k_rows * dim * size);
    const request r = {a->device, a->dtype,  a->batch, a->heads_q,       a->heads_kv, a->head_dim,
                       a->q_len,  a->kv_len, a->align, a->causal_offset, a->scale};
    char *q = malloc(q_bytes + 1), *k = malloc(k_bytes + 1), *v = malloc(k_bytes + 1);
    float *lse = malloc((size_t)q_rows * sizeof *lse + 1);
    fa_status status = q && k && v && lse ? FA_OK : fai_fail(FA_ERR_LAUNCH, "no memory");
    if (!status && !(copy_view(a, &a->q, a->q_len, a->heads_q, dim, size, q, 0) &&
                     copy_view(a, &a->k, a->kv_len, a->heads_kv, dim, size, k, 0) &&
                     copy_view(a, &a->v, a->kv_len, a->heads_kv, dim, size, v, 0)))
        status = fai_fail(FA_ERR_LAUNCH, "a copy from the device failed");
    if (!status && !connected())
        status = fai_fail(FA_ERR_NO_DEVICE, "the adapter has no server for this engine");
    if (!status && !(send_all(&r, sizeof r) && send_all(q, q_bytes) && send_all(k, k_bytes) &&
                     send_all(v, k_bytes)))
        status = lose_server();
    /* o has the shape of q. */
    if (!status) status = take_answer(q, q_bytes, lse, (size_t)q_rows * sizeof *lse);
    if (!status && !copy_view(a, &a->o, a->q_len, a->heads_q, dim, size, q, 1))
        status = fai_fail(FA_ERR_LAUNCH, "a copy to the device failed");
    /* The server's lse is (b, q, h), as copy_view walks. */
    if (!status && a->lse.data &&
        !copy_view(a, &a->lse, a->q_len, a->heads_q, 1, 4, (char *)lse, 1))
        status = fai_fail(FA_ERR_LAUNCH, "a copy to the device failed");
    free(q), free(k), free(v), free(lse);
    return status;
}

/* fa_check.c, compiled for CUDA, asks; without the runtime's headers nobody here can know. */
fa_status fai_cuda_check_pointers(const fa_args *a) {
    (void)a;
    return FA_OK;
}

/* The peer needs no workspace, but the contract's rules about it are this library's. */
static fa_status check_workspace(const fa_args *a) {
    fai_plan plan;
    const fai_machine machine = fai_cpu_machine();
    if (a->device != FA_DEVICE_CPU) return FA_OK;
    const fa_status status = fai_make_plan(a, &machine, &plan);
    if (status || plan.workspace_bytes == 0) return status;
    if (a->workspace && a->workspace_size >= plan.workspace_bytes &&
        (uintptr_t)a->workspace % FAI_WORKSPACE_ALIGN == 0)
        return FA_OK;
    return fai_fail(FA_ERR_WORKSPACE, "workspace is %p, workspace_size is %zu: %zu and 16 needed",
                    a->workspace, a->workspace_size, plan.workspace_bytes);
}

/* From here on the names are those of the ABI. */
#undef fa_fwd_causal
#undef fa_fwd_causal_workspace
#undef fa_explain
#undef fa_status_string
#undef fa_last_error
#undef fa_version
#define EXPORTED __attribute__((visibility("default")))

EXPORTED const char *fa_dialect(void) { return connected() ? dialect : NULL; }

EXPORTED fa_status fa_fwd_causal(const fa_args *args, struct CUstream_st *stream) {
    fa_args a;
    (void)stream;
    fa_status status = fai_check(args, FAI_FOR_RUN, &a);
    if (!status) status = check_workspace(&a);
    if (status) return status;
    const char *field = unsupported_field(&a);
    if (field) return fai_fail(FA_ERR_UNSUPPORTED, "%s: the peer has no such thing", field);
    if (a.batch == 0 || a.q_len == 0) return FA_OK;
    return forward(&a);
}

EXPORTED fa_status fa_fwd_causal_workspace(const fa_args *args, size_t *bytes) {
    fa_args a;
    if (!args || args->device != FA_DEVICE_CUDA) return real_fa_fwd_causal_workspace(args, bytes);
    const fa_status status = fai_check(args, FAI_FOR_QUERY, &a);
    if (!status) *bytes = 0;
    return status;
}

EXPORTED fa_status fa_explain(const fa_args *args, char *text, size_t text_size) {
    return real_fa_explain(args, text, text_size);
}

EXPORTED const char *fa_status_string(fa_status status) { return real_fa_status_string(status); }

EXPORTED const char *fa_last_error(void) { return real_fa_last_error(); }

EXPORTED int32_t fa_version(void) { return real_fa_version(); }
