/* fa_plan_decode_sm90.c - which calls the Hopper decode kernels take, and how many blocks share a
 * (sequence, kv head). Pure C: tested on a host without a GPU. It changes when these kernels learn
 * a case or a threshold is measured again. */
#include "fa_internal.h"

#include "cuda/fa_decode_sm90.h"

/* The head_dim that the kernels are compiled for, 0 where the build leaves it out. 96 takes the
 * kernel of 128: what lies past a row is zero-filled and costs no memory traffic. */
static int32_t decode_dim(int32_t head_dim) {
#ifndef FA_NO_HEAD_DIM_64
    if (head_dim <= 64) return 64;
#endif
#ifndef FA_NO_HEAD_DIM_128
    if (head_dim > 64 && head_dim <= 128) return 128;
#endif
#ifndef FA_NO_HEAD_DIM_192
    if (head_dim > 128 && head_dim <= 192) return 192;
#endif
#ifndef FA_NO_HEAD_DIM_256
    if (head_dim > 192) return 256;
#endif
    return 0;
}

/* A stride along which the copy engine can step. */
static int is_step(int64_t extent, int64_t stride) {
    return extent <= 1 || (stride > 0 && stride % 8 == 0 && stride < (int64_t)1 << 39);
}

/* Whether the copy engine can walk k or v. A query may leave the view out. */
static int is_walkable(const fa_args *a, const fa_view *view) {
    const int64_t seq = a->page_size > 0 ? a->page_size : a->cu_seqlens_k ? a->total_k : a->kv_len;
    const int64_t batch = a->page_size > 0 ? a->num_pages : a->cu_seqlens_k ? 1 : a->batch;
    return !view->data ||
           ((uintptr_t)view->data % 16 == 0 && is_step(seq, view->stride_seq) &&
            is_step(a->heads_kv, view->stride_head) && is_step(batch, view->stride_batch));
}

/* q is read in pairs of elements. */
static int is_paired(const fa_view *view) {
    return (uintptr_t)view->data % 4 == 0 && view->stride_batch % 2 == 0 &&
           view->stride_head % 2 == 0 && view->stride_seq % 2 == 0;
}

/* What the kernels cannot do, or null. */
static const char *what_is_missing(const fa_args *a, const fai_machine *machine, int64_t rows) {
    if (machine->cc != 90) return "not a Hopper GPU";
    if (rows > kFaiDecodeRowsMost) return "more than 128 packed rows";
    if (a->num_splits > 0 || a->split_keys > 0) return "the caller splits the keys";
    if (a->kv_len < 1 || a->kv_len > 1 << 30) return "no keys, or more than 2^30";
    if (a->cu_seqlens_k && a->total_k < 1) return "no keys";
    if (a->page_size > 0 && (a->page_size % kFaiDecodeKeys || a->leftpad_k || a->num_pages < 1))
        return "pages are no multiple of 16 keys or padded on the left, or there are none";
    if ((a->k.data && !is_walkable(a, &a->k)) || !is_walkable(a, &a->v))
        return "the copy engine cannot walk k or v";
    if (a->q.data && !is_paired(&a->q)) return "q is not aligned to pairs of elements";
    return 0;
}

/* Where the generic kernel is faster on an H200. Below 4 heads at most 3 clusters read at 110 GB/s
 * a block: 1 head of 32k keys takes 25 us against 36, and 21 us for each 32k more. Several tiles
 * read the keys several times from the L2: 2 tiles of 8 heads of 32k keys take 52 us against 65, of
 * 128k 171 against 164; 4 tiles of 8k 32 against 42, of 16k 53 against 51. Rows that are no
 * multiple of 64 columns need a copy for each 64: 16 heads of 96 and 8k keys take 23 against 25, 64
 * heads 66 against 64. */
static int is_better_split(const fa_args *a, int64_t units, int64_t tiles) {
    const double elements = (double)(units * tiles) * a->kv_len * a->head_dim;
    return (units < 4 && a->kv_len > 32768) || (tiles == 2 && elements > 1 << 26) ||
           ((tiles > 2 || a->head_dim % 64) && elements > 1 << 25);
}

/* Blocks that share a tile's keys, as a power of 2. All clusters should run at once: an H200 with
 * 132 multiprocessors runs 15 clusters of 8 or 30 of 4 (a cluster lies within one group of
 * multiprocessors). 64 busy multiprocessors already read at full bandwidth, and one alone reads
 * 110 GB/s. Lengths that only the device knows may be uneven, so there a long sequence must not be
 * left to one block: 64 sequences of 1 to 128k keys take 972, 791, 715 and 740 us with 1, 2, 4 and
 * 8 blocks (floor 691), 8 even ones of 8k 67 us with 2 and 80 with 4. */
static int32_t choose_cluster(const fa_args *a, int64_t sms, int64_t tiles) {
    const int is_ragged = a->seqused_k || a->cu_seqlens_k;
    if (tiles * 132 <= 15 * sms) return 3;
    if (tiles * 132 <= 30 * sms || (is_ragged && a->kv_len >= 32768)) return 2;
    return tiles * 2 <= sms || (is_ragged && a->kv_len >= 4096) ? 1 : 0;
}

/* The workspace is that of the generic family: which of the two runs may depend on strides and
 * pointers, the workspace must not. */
int fai_plan_decode_sm90(const fa_args *a, const fai_machine *machine, fai_plan *plan) {
    if (!fai_plan_cuda_sm80(a, machine, plan)) return 0;
    const int64_t rows = (int64_t)a->heads_q / a->heads_kv * a->q_len;
    const int64_t units = (int64_t)a->batch * a->heads_kv;
    const int32_t dim = decode_dim(a->head_dim);
    plan->refusal = FA_ERR_UNSUPPORTED;
    plan->why = what_is_missing(a, machine, rows);
    if (plan->why) return 0;
    plan->tile_rows = rows <= 4 ? 4 : rows <= 8 ? 8 : kFaiDecodeTileMost;
    plan->tile_keys = kFaiDecodeKeys;
    plan->tile_dim = dim;
    plan->tiles = fai_ceil_div(rows, plan->tile_rows);
    if (is_better_split(a, units, plan->tiles)) {
        plan->why = "measured: the splits of the generic kernel are faster here";
        return 0;
    }
    const int32_t cluster_log2 = choose_cluster(a, machine->sm_count, plan->tiles * units);
    plan->splits = 1 << cluster_log2;
    plan->smem_bytes = dim ? fai_decode_smem_bytes(dim, plan->tile_rows, cluster_log2) : 0;
    plan->stages = dim ? fai_decode_slots(dim, plan->tile_rows) : 0;
    plan->why = "clusters of blocks share the keys of a kv head and merge in shared memory";
    if (dim && plan->smem_bytes <= machine->smem_bytes &&
        plan->tiles * units << cluster_log2 <= INT32_MAX)
        return 1;
    plan->refusal = FA_ERR_NOT_BUILT;
    plan->why = "left out of the build, too little shared memory, or too many blocks";
    return 0;
}
