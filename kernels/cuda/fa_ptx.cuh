/* fa_ptx.cuh - one wrapper an instruction. Kernels hold no inline assembly; this file changes when
 * they need another instruction. Shared memory is addressed in its own 32-bit window. */
#ifndef FA_PTX_CUH
#define FA_PTX_CUH

#include <stdint.h>

#define FAI_DEVICE static __device__ __forceinline__

/* The 16-bit formats by name only: the kernels never do arithmetic in them. */
struct fai_f16 {};
struct fai_bf16 {};

FAI_DEVICE uint32_t fai_smem_address(const void *shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

/* Copies 16 bytes to shared memory, or 16 zero bytes without reading when !live. */
FAI_DEVICE void fai_cp_async(uint32_t to, const void *from, bool live) {
    const int bytes = live ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
FAI_DEVICE void fai_cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending> FAI_DEVICE void fai_cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
/* The instruction takes a constant; waiting for more than asked is right too, only earlier. */
FAI_DEVICE void fai_cp_async_wait(int pending) {
    switch (pending) {
    case 0:
        return fai_cp_async_wait<0>();
    case 1:
        return fai_cp_async_wait<1>();
    case 2:
        return fai_cp_async_wait<2>();
    case 3:
        return fai_cp_async_wait<3>();
    case 4:
        return fai_cp_async_wait<4>();
    case 5:
        return fai_cp_async_wait<5>();
    default:
        return fai_cp_async_wait<6>();
    }
}

/* Waits until kThreads threads have come to barrier kId, from whatever places in the code;
 * __syncthreads() asks for the same place. Barrier 0 is __syncthreads()'s. */
template <int kId, int kThreads> FAI_DEVICE void fai_barrier() {
    asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}

FAI_DEVICE void fai_st_shared(uint32_t to, uint4 value) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
}
FAI_DEVICE void fai_st_shared(uint32_t to, uint32_t value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
FAI_DEVICE uint4 fai_ld_shared(uint32_t from) {
    uint4 value;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(from)
                 : "memory");
    return value;
}

/* Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. */
FAI_DEVICE void fai_ldmatrix(uint32_t (&to)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}
FAI_DEVICE void fai_ldmatrix_trans(uint32_t (&to)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

/* c[16x8] += a[16x16] * b[16x8], float32 sums. With g = lane / 4 and t = lane % 4: c[0], c[1] are
 * row g, columns 2t and 2t + 1; c[2], c[3] the same of row g + 8; a[0], a[2] are row g, columns 2t
 * and 2t + 8 (pairs), a[1], a[3] row g + 8; b0, b1 are column g, rows 2t and 2t + 8 (pairs). */
FAI_DEVICE void fai_mma(fai_f16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
FAI_DEVICE void fai_mma(fai_bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two floats rounded to nearest even, the first in the low half. */
FAI_DEVICE uint32_t fai_pack(fai_f16, float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
FAI_DEVICE uint32_t fai_pack(fai_bf16, float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* 2^x within 2 ulp; 0 for -inf. */
FAI_DEVICE float fai_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Within 2^-22 of log2 of x; -inf for 0. */
FAI_DEVICE float fai_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Adds 1, or goes back to 0 from `last`: the last of last + 1 arrivals leaves the word at 0. What
 * the block wrote before its barrier is visible to whoever sees this arrival. */
FAI_DEVICE uint32_t fai_atomic_inc_acq_rel(uint32_t *word, uint32_t last) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(word), "r"(last)
                 : "memory");
    return before;
}

/* Reads past the multiprocessor's own cache, which other blocks' writes do not reach. */
FAI_DEVICE float fai_ld_cg(const float *from) { return __ldcg(from); }
FAI_DEVICE float4 fai_ld_cg(const float4 *from) { return __ldcg(from); }

/* ---- sm_90, decode: clusters, and partial results pushed between their blocks ---------------- */

/* An 8x8 matrix of 16-bit elements, a row a quad, transposed among the lanes of a warp. */
FAI_DEVICE uint32_t fai_movmatrix(uint32_t from) {
    uint32_t to;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(from));
    return to;
}

/* A barrier in shared memory: one arrival, which also says how many bytes are to come. */
FAI_DEVICE void fai_arrival_init(uint32_t barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
/* Lets the copy engine and the cluster's other blocks see the barriers made so far. */
FAI_DEVICE void fai_arrival_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
FAI_DEVICE void fai_arrival_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Returns once the phase of this parity is complete and what the copy engine counted is visible. */
FAI_DEVICE void fai_arrival_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* The same for what other blocks of the cluster pushed. */
FAI_DEVICE void fai_arrival_wait_cluster(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Copies a box of a tensor map to this block's shared memory and counts its bytes at the
 * barrier. */
FAI_DEVICE void fai_copy_box(uint32_t to, const void *map, int x, int row, int chunk, int head,
                             int batch, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
                 "l"(map), "r"(x), "r"(row), "r"(chunk), "r"(head), "r"(batch), "r"(barrier)
                 : "memory");
}

/* True in one lane of a whole warp, always the same one. */
FAI_DEVICE bool fai_elect() {
    uint32_t elected;
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "selp.b32 %0, 1, 0, one;\n"
                 "}"
                 : "=r"(elected));
    return elected;
}

FAI_DEVICE int fai_cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}
/* Relaxed: a release would wait for every store under way; initialised barriers have their
 * fence. */
FAI_DEVICE void fai_cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
FAI_DEVICE void fai_cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* The same place in the shared memory of the cluster's block `rank`. */
FAI_DEVICE uint32_t fai_cluster_address(uint32_t shared, int rank) {
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
    return address;
}
/* Stores into another block's shared memory and counts the bytes at that block's barrier. */
FAI_DEVICE void fai_push(uint32_t to, float x, float y, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, "
                 "[%3];" ::"r"(to),
                 "f"(x), "f"(y), "r"(barrier)
                 : "memory");
}
FAI_DEVICE void fai_push(uint32_t to, float4 x, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, "
                 "%4}, [%5];" ::"r"(to),
                 "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
                 : "memory");
}

/* ---- sm_90a, prefill: warpgroups, and barriers that their warps arrive at -------------------- */

/* A barrier in shared memory that counts `count` arrivals, and bytes. */
FAI_DEVICE void fai_arrival_init(uint32_t barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
FAI_DEVICE void fai_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Barriers 1 to 15 by number; all `threads` wait. */
FAI_DEVICE void fai_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* One of the threads that the others wait for, which itself goes on. */
FAI_DEVICE void fai_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* What this thread wrote to shared memory is seen by the copy engine and the tensor cores. */
FAI_DEVICE void fai_fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* The warpgroup gives registers away, or takes some of what others gave. */
template <int kCount> FAI_DEVICE void fai_registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount> FAI_DEVICE void fai_registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

/* Products of a warpgroup: fence, issue, commit, wait; between, nobody touches their registers. */
FAI_DEVICE void fai_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FAI_DEVICE void fai_wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending> FAI_DEVICE void fai_wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/* Tells the compiler that products in flight use the registers: no use moves past this place. */
template <int kCount> FAI_DEVICE void fai_pin(float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int kCount> FAI_DEVICE void fai_pin(uint32_t (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

/* The inverse of fai_ldmatrix. */
FAI_DEVICE void fai_stmatrix(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

#endif /* FA_PTX_CUH */
