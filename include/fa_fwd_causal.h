/* fa_fwd_causal.h - the whole public API and contract of fa_fwd_causal(), a causal FlashAttention
 * forward pass that meets a past KV cache without padding q. MIT licence, see LICENSE.
 *
 * C99, also valid C++17; 64-bit hosts. This file changes only when the contract does: the struct
 * grows at its end, a status number never changes its meaning, and CHANGELOG.md says what came.
 *
 *     fa_args a = fa_args_default();
 *     a.device = FA_DEVICE_CPU;  a.dtype = FA_DTYPE_F32;
 *     a.batch = 1;  a.heads_q = 32;  a.heads_kv = 8;  a.head_dim = 128;
 *     a.q_len = 4;  a.kv_len = 4096;
 *     a.q = fa_bshd(q, a.q_len, a.heads_q, a.head_dim);
 *     a.k = fa_bhsd(k, a.heads_kv, capacity, a.head_dim);       a cache longer than its used part
 *     a.v = fa_bhsd(v, a.heads_kv, capacity, a.head_dim);
 *     a.o = fa_bshd(o, a.q_len, a.heads_q, a.head_dim);
 *     if (fa_fwd_causal(&a, NULL) != FA_OK) puts(fa_last_error());
 *
 * WHAT IS COMPUTED. Sequence i of the batch has L_q query rows and L_k key rows, both counted from
 * the sequence's first real one. Query head h reads key/value head h / (heads_q / heads_kv).
 * Key j is visible to row r when j <= r + offset, in 64-bit arithmetic.
 *
 *     logit(r, j) = scale * (q[r] . k[j])        over the visible j only
 *     o[r]        = sum_j softmax_j(logit(r, j)) * v[j]
 *     lse[r]      = ln(sum_j exp(logit(r, j)))   natural logarithm, float32
 *
 * A row that sees no key gets o = 0 and lse = -inf: never NaN, +inf or a finite stand-in.
 * By default offset = L_k - L_q, so that the last query sees the last key (bottom-right):
 *
 *     L_q = 2, L_k = 5                 L_q = 5, L_k = 2
 *         key  0 1 2 3 4                   key  0 1
 *     row 0    x x x x .               row 0    . .    o = 0, lse = -inf
 *     row 1    x x x x x               row 1    . .    o = 0, lse = -inf
 *                                      row 2    . .    o = 0, lse = -inf
 *                                      row 3    x .
 *                                      row 4    x x
 *
 * PROMISES
 * - Everything is checked before anything is written, in this order: args itself; version and
 *   struct size; sizes; heads, dtype, head_dim, and that the tensors' bytes fit 63 bits; options;
 *   null pointers; alignment; strides; device; the values of host arrays (CPU only); workspace. The
 *   first fault found is the one returned, and fa_last_error() names the field, its value and what
 *   would do. After an error o, lse and workspace are as before; only after FA_ERR_LAUNCH are they
 *   undefined.
 * - Only owned rows of o and lse are written; rows outside the sequences keep their bytes. What
 *   lies outside a sequence's keys (padding, a cache's tail, unused pages: NaN, Inf, stale data)
 *   never reaches a result. A NaN or Inf in k at a key that a row does not see never matters to
 *   that row; in v it may reach rows of the same tile (a product with weight 0): the one exception.
 * - Bits. The same call gives the same bits, on any stream, from any number of host threads, with
 *   splits too. With num_splits = 1 or split_keys a sequence's bits depend on the sequence and the
 *   kernel family only (fa_explain prints it), not on the rest of the batch.
 * - No state but a per-thread error sentence and facts about each device read once. No allocation,
 *   synchronisation, exit, abort or print. Up to 448 KB of stack for each CPU thread, 576 KB for
 *   the calling one.
 * - Every offset is computed in 64 bits: tensors beyond 2^31 elements and strides of any size work.
 */
#ifndef FA_FWD_CAUSAL_H
#define FA_FWD_CAUSAL_H

#include <stddef.h>
#include <stdint.h>

#define FA_VERSION_MAJOR 0
#define FA_VERSION_MINOR 1
#define FA_VERSION_PATCH 0
/* One integer that compares as the version does: 10.0.0 is newer than 9.9.0. Minor and patch stay
 * below 1000. */
#define FA_MAKE_VERSION(major, minor, patch) ((major)*1000000 + (minor)*1000 + (patch))
#define FA_VERSION FA_MAKE_VERSION(FA_VERSION_MAJOR, FA_VERSION_MINOR, FA_VERSION_PATCH)

#ifdef __cplusplus
#define FA_STATIC_ASSERT(cond, name) static_assert(cond, #name)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define FA_STATIC_ASSERT(cond, name) _Static_assert(cond, #name)
#else
#define FA_STATIC_ASSERT(cond, name) typedef char fa_assert_##name[(cond) ? 1 : -1]
#endif

/* Fails to compile unless this header is of that major version and at least that minor one. */
#define FA_REQUIRE_VERSION(major, minor)                                         \
    FA_STATIC_ASSERT(FA_VERSION_MAJOR == (major) && FA_VERSION_MINOR >= (minor), \
                     header_older_than_required_or_of_another_major)

/* -DFA_PREFIX=x_ renames every symbol (x_fa_fwd_causal ...), in the library and in its callers
 * alike, so that one process can hold two versions. */
#ifdef FA_PREFIX
#define FA_JOIN2(a, b) a##b
#define FA_JOIN(a, b) FA_JOIN2(a, b)
#define fa_fwd_causal FA_JOIN(FA_PREFIX, fa_fwd_causal)
#define fa_fwd_causal_workspace FA_JOIN(FA_PREFIX, fa_fwd_causal_workspace)
#define fa_explain FA_JOIN(FA_PREFIX, fa_explain)
#define fa_status_string FA_JOIN(FA_PREFIX, fa_status_string)
#define fa_last_error FA_JOIN(FA_PREFIX, fa_last_error)
#define fa_version FA_JOIN(FA_PREFIX, fa_version)
#endif

/* Define FA_SHARED when building the shared library; otherwise nothing is exported from a shared
 * object that these sources are compiled into. */
#if defined(__GNUC__) && defined(FA_SHARED)
#define FA_API __attribute__((visibility("default")))
#elif defined(__GNUC__) && defined(FA_BUILDING)
#define FA_API __attribute__((visibility("hidden")))
#else
#define FA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers are for ever: none is reused or changes its meaning. Gaps are for later ones. */
typedef enum fa_status {
    FA_OK = 0,

    /* The caller's fault, in the order of the checks. */
    FA_ERR_VERSION = 1, /* version of another major or a newer minor; struct_size; reserved != 0 */
    FA_ERR_SIZE = 10,   /* a negative size, or sizes whose product does not fit 63 bits */
    FA_ERR_HEADS = 11,  /* a head count below 1, or heads_q not a multiple of heads_kv */
    FA_ERR_DTYPE = 12,  /* not one of fa_dtype, or float32 on CUDA */
    FA_ERR_HEAD_DIM = 13, /* CPU: 1 to 512. CUDA: multiples of 8 from 8 to 256 */
    FA_ERR_SCALE = 20,    /* negative, NaN or infinite */
    FA_ERR_MASK = 21,     /* align, causal_offset and causal_offsets contradict each other */
    FA_ERR_RAGGED = 22,   /* cu_seqlens, total_q and total_k contradict each other or the pages */
    FA_ERR_PAGES = 23,    /* page_size, num_pages, block_table_cols or block_table_stride */
    FA_ERR_SPLITS = 24,   /* num_splits or split_keys */
    FA_ERR_TASKS = 25,    /* threads, task_index or task_count */
    FA_ERR_NULL = 30, /* args itself, or a pointer that is null though its tensor is not empty */
    FA_ERR_ALIGNMENT = 31,  /* an address not aligned to its element */
    FA_ERR_STRIDE = 32,     /* stride 0 on o or lse, or an offset that passes 63 bits */
    FA_ERR_DEVICE = 33,     /* not one of fa_device, or a tensor of another device */
    FA_ERR_LENGTHS = 34,    /* CPU: an entry of cu_seqlens, seqused or leftpad out of its range */
    FA_ERR_PAGE_INDEX = 35, /* CPU: a used entry of block_table that is not a page of the pool */
    FA_ERR_WORKSPACE = 40,  /* workspace null, too small or not 16-byte aligned */
    FA_ERR_TEXT_SIZE = 41,  /* fa_explain: the text did not fit and was cut */

    /* The library's or the machine's limits: the call is legal, but not here. */
    FA_ERR_UNSUPPORTED = 50, /* legal by the contract, but no kernel does it yet */
    FA_ERR_NOT_BUILT = 51, /* left out of this build: CUDA, a head_dim, an architecture, threads */
    FA_ERR_NO_DEVICE = 52, /* no usable CUDA device or driver */
    FA_ERR_ARCH = 53,      /* this processor has no kernel in this build */
    FA_ERR_LAUNCH = 54     /* the device refused the launch; o, lse and workspace are undefined */
} fa_status;

/* DLPack's device numbers. */
typedef enum fa_device { FA_DEVICE_CPU = 1, FA_DEVICE_CUDA = 2 } fa_device;

/* DLPack's data type as code * 256 + bits. */
typedef enum fa_dtype {
    FA_DTYPE_F16 = 2 * 256 + 16,
    FA_DTYPE_F32 = 2 * 256 + 32, /* CPU only */
    FA_DTYPE_BF16 = 4 * 256 + 16
} fa_dtype;

typedef enum fa_align {
    FA_ALIGN_BOTTOM_RIGHT = 0, /* offset = L_k - L_q */
    FA_ALIGN_OFFSET = 1        /* offset is given; 0 is then top-left */
} fa_align;

/* A strided tensor of (batch, head, seq, dim); strides in elements, any sign and size; the elements
 * of dim are contiguous. The stride of a dimension of size 1 is ignored. A stride of 0 broadcasts
 * q, k or v; on o and lse it is an error where that dimension exceeds 1, and their rows must not
 * overlap. Any address aligned to the element works; 16-byte aligned rows are the fast case. */
typedef struct fa_view {
    void *data; /* q, k and v are only read */
    int64_t stride_batch;
    int64_t stride_head;
    int64_t stride_seq;
} fa_view;

/* One call. Fill fa_args_default() and set what differs. Zero means "default" for options only:
 * struct_size, version, device, dtype, batch, the head counts, head_dim and the lengths are given.
 * B = batch, Hq = heads_q, Hkv = heads_kv, D = head_dim. Arrays of int32 live where the tensors do;
 * device arrays are read when the call executes and must stay until then, the host never reads any.
 *
 * The rows of sequence i on either side (shown for q; k alike):
 *     start   = cu_seqlens_q ? cu_seqlens_q[i]             : 0
 *     segment = cu_seqlens_q ? cu_seqlens_q[i + 1] - start : q_len
 *     pad     = leftpad_q ? leftpad_q[i]                   : 0
 *     L_q     = seqused_q ? seqused_q[i]                   : segment - pad
 * with 0 <= start <= total_q, 0 <= pad <= segment and L_q <= min(segment - pad, q_len). Row r of
 * the sequence is row start + pad + r of the view: of batch entry i, or, when packed, of the one
 * long sequence (stride_batch is then ignored). On the CPU a value outside these bounds is
 * FA_ERR_LENGTHS and names the entry. On a GPU values are clamped to them, not trusted, and page
 * numbers to the pool: that sequence may come out wrong, the others are right and nothing outside
 * the declared tensors is touched. */
typedef struct fa_args {
    int32_t struct_size; /* sizeof(fa_args) in bytes; beyond an older, shorter struct all reads 0 */
    int32_t version;     /* FA_VERSION of the caller's header */
    int32_t device;      /* fa_device */
    int32_t dtype;       /* fa_dtype of q, k, v and o */

    int32_t batch;    /* B >= 0 */
    int32_t heads_q;  /* Hq >= 1, a multiple of Hkv */
    int32_t heads_kv; /* Hkv >= 1 */
    int32_t head_dim; /* D; CPU 1 to 512, CUDA a multiple of 8 up to 256 */
    int32_t q_len;    /* >= 0; the length, or the largest (capacity) where the batch is ragged */
    int32_t kv_len;   /* >= 0; likewise */

    float scale;   /* 0: (float)(1 / sqrt((double)head_dim)); else finite and positive */
    int32_t align; /* fa_align */

    fa_view q; /* (B, Hq, q_len, D), or (Hq, total_q, D) when packed */
    fa_view k; /* (B, Hkv, kv_len, D), (Hkv, total_k, D), or pages (num_pages, Hkv, page_size, D) */
    fa_view v; /* as k */
    fa_view o; /* as q */
    fa_view lse; /* float32, (B, Hq, q_len) or (Hq, total_q); data may be null: then not written */

    /* Ragged batches. Each may be null. */
    const int32_t *cu_seqlens_q; /* B + 1 starts, not decreasing, within [0, total_q] */
    const int32_t *cu_seqlens_k; /* B + 1 starts, within [0, total_k]; not with pages */
    const int32_t *seqused_q;    /* B lengths, counted after the left padding */
    const int32_t *seqused_k;
    const int32_t *leftpad_q; /* B rows to skip at each sequence's start; logical rows when paged */
    const int32_t *leftpad_k;
    int32_t total_q; /* rows of the packed q and o; 0 unless cu_seqlens_q is given */
    int32_t total_k; /* rows of the packed k and v; 0 unless cu_seqlens_k is given */

    /* Paged KV, when page_size > 0: logical row j of sequence i is row j % page_size of page
     * block_table[i * block_table_stride + j / page_size]; stride_batch of k and v is the stride
     * from page to page. In a pool of 0 pages every L_k is 0; the table is then not read and may be
     * null. */
    int32_t page_size;          /* rows of a page, any from 1; 0: not paged */
    int32_t num_pages;          /* pages in the pool */
    int32_t block_table_cols;   /* entries of a row that may be read; cols * page_size >= kv_len */
    int32_t causal_offset;      /* with FA_ALIGN_OFFSET: the offset of every sequence */
    int64_t block_table_stride; /* entries from a sequence's row to the next, >= the cols */
    const int32_t *block_table;
    const int32_t *causal_offsets; /* B offsets instead of causal_offset */

    /* Splitting the keys of long sequences for parallelism. The scratch is the caller's: it lives
     * where the tensors do, is 16-byte aligned, and zero-filled once after allocating; each
     * completed call leaves it ready for the next. Calls that can overlap need one each. */
    int32_t num_splits;    /* 0: the library chooses; 1: never; n up to 1024 */
    int32_t split_keys;    /* instead: cut at multiples of this many keys from the first */
    void *workspace;       /* null when 0 bytes are needed */
    size_t workspace_size; /* bytes; at least what fa_fwd_causal_workspace says */

    /* CPU only. With task_count > 0 the call runs slice task_index of that many, in the calling
     * thread; all slices together are the call. A slice never cuts a row's keys, so slices go with
     * threads and num_splits of 0 or 1 and without split_keys. */
    int32_t threads;    /* 0: as many as help; more than 256 are not used; more than 1 in a build
                         * without OpenMP is FA_ERR_NOT_BUILT */
    int32_t task_index; /* 0 <= task_index < task_count */
    int32_t task_count; /* 0: no slices */
    int32_t reserved;   /* 0 */
} fa_args;

FA_STATIC_ASSERT(sizeof(void *) == 8 && sizeof(size_t) == 8, fa_needs_a_64_bit_host);
FA_STATIC_ASSERT(sizeof(fa_view) == 32, fa_view_has_no_holes);
FA_STATIC_ASSERT(offsetof(fa_args, q) == 48 && offsetof(fa_args, lse) == 176, fa_args_views);
FA_STATIC_ASSERT(offsetof(fa_args, cu_seqlens_q) == 208 && offsetof(fa_args, total_q) == 256 &&
                     offsetof(fa_args, page_size) == 264 && offsetof(fa_args, block_table) == 288,
                 fa_args_ragged);
FA_STATIC_ASSERT(offsetof(fa_args, num_splits) == 304 && offsetof(fa_args, workspace) == 312 &&
                     offsetof(fa_args, threads) == 328 && sizeof(fa_args) == 344,
                 fa_args_has_no_holes);

/* The smallest struct_size accepted: everything through lse, a dense call. */
#define FA_ARGS_MIN_SIZE 208

struct CUstream_st; /* CUDA's stream, cudaStream_t and CUstream alike */

/* Computes o and, where lse.data is set, lse.
 *
 * In:      *args and what it points to. args may die when the call returns; tensors and arrays stay
 *          the caller's and must live until the work is done (on the CPU: until the call returns).
 *          stream is, on CUDA, the stream of the current device to run on, null for the default
 *          one; on the CPU it is ignored. The current device stays the current one.
 * Returns: FA_OK, or the first fault in the order above. On the CPU the work is then complete; on
 *          CUDA it is ordered in the stream, which may be under capture into a graph.
 * Zero sizes are legal: with B = 0 or q_len = 0 nothing is written, with kv_len = 0 every row is
 * empty. */
FA_API fa_status fa_fwd_causal(const fa_args *args, struct CUstream_st *stream);

/* Writes to *bytes the scratch that this call needs, 0 when none. Same checks, but q, k, v, o and
 * all arrays may be null, a view without data is not looked at, host arrays are not read, and
 * workspace is ignored. The size follows from the sizes, dtype, options and current device; never
 * from pointers, strides or live lengths (a graph captured at length 1 replays at full length), and
 * with num_splits 0 or 1 it does not grow with kv_len. After an error *bytes is as before. */
FA_API fa_status fa_fwd_causal_workspace(const fa_args *args, size_t *bytes);

/* Writes lines of key=value: the kernel, tiles, packing, splits and workspace that this call would
 * use, and why; or status= and error= if it is refused. Runs nothing; null pointers as above.
 * text_size counts bytes with the closing 0; 1024 is enough for every call. Returns what the call
 * would, or FA_ERR_TEXT_SIZE when the text was cut. Keys are stable; new ones may be added. */
FA_API fa_status fa_explain(const fa_args *args, char *text, size_t text_size);

/* The name of a status ("FA_ERR_HEADS"), "unknown status" for any other number; never null. */
FA_API const char *fa_status_string(fa_status status);

/* One sentence about this thread's last call that returned an error, "" before any. Valid until the
 * thread's next failing call. */
FA_API const char *fa_last_error(void);

/* FA_VERSION of the library that is linked or loaded. */
FA_API int32_t fa_version(void);

/* All zero but the struct's size and this header's version. */
static inline fa_args fa_args_default(void) {
#ifdef __cplusplus
    fa_args args = {};
#else
    fa_args args = {0};
#endif
    args.struct_size = (int32_t)sizeof(fa_args);
    args.version = FA_VERSION;
    return args;
}

static inline fa_view fa_strided(const void *data, int64_t stride_batch, int64_t stride_head,
                                 int64_t stride_seq) {
    fa_view view;
    view.data = (void *)data;
    view.stride_batch = stride_batch;
    view.stride_head = stride_head;
    view.stride_seq = stride_seq;
    return view;
}

/* A contiguous (batch, seq, heads, dim) tensor; seq is its full extent, not the used part. For an
 * lse of (batch, seq, heads) dim is 1. */
static inline fa_view fa_bshd(const void *data, int64_t seq, int64_t heads, int64_t dim) {
    return fa_strided(data, seq * heads * dim, dim, heads * dim);
}

/* A contiguous (batch, heads, seq, dim) tensor, as engines keep a transposed cache. */
static inline fa_view fa_bhsd(const void *data, int64_t heads, int64_t seq, int64_t dim) {
    return fa_strided(data, heads * seq * dim, seq * dim, dim);
}

#ifdef __cplusplus
}
#endif
#endif /* FA_FWD_CAUSAL_H */
