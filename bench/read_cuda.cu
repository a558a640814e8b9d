/* read_cuda.cu - what a GPU needs at least: a kernel that only reads, as fast as it can, and one
 * that does nothing. They set the floors of fa_bench and of peers.py, which loads this file alone:
 * nvcc -shared. It changes when a new architecture reads otherwise. */
#include <cuda_runtime.h>

#include "bench.h"

namespace {

__global__ void empty_kernel() {}

/* Grid: any; each thread has 8 loads of 16 bytes in flight. */
__global__ void __launch_bounds__(256) load_kernel(const uint4 *data, size_t count, unsigned *out) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    uint4 sum = make_uint4(0, 0, 0, 0);
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 7 * step < count; i += 8 * step) {
        uint4 part[8];
#pragma unroll
        for (int j = 0; j < 8; j++) part[j] = __ldg(data + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; j++) sum.x ^= part[j].x ^ part[j].y ^ part[j].z ^ part[j].w;
    }
    for (; i < count; i += step) sum.x ^= __ldg(data + i).x;
    if (sum.x == 0x5eed1e55) *out = sum.x;
}

constexpr int kTileBytes = 32768, kStages = 6;
constexpr int kBulkSmemBytes = kStages * kTileBytes;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void barrier_init(unsigned barrier) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier));
}
__device__ void barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ void barrier_wait(unsigned barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2;"
                     " selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
}
__device__ void bulk_load(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
#endif

/* Grid: one block an SM; block b reads tiles b, b + gridDim.x, ... with kStages in flight. Plain
 * loads reach some 8 % less on sm_90. Empty below sm_90: the host then takes load_kernel. */
__global__ void __launch_bounds__(128) bulk_kernel(const char *data, size_t tiles, unsigned *out) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char stage[];
    __shared__ __align__(8) unsigned long long barriers[kStages];
    const int count = blockIdx.x < tiles ? (int)((tiles - blockIdx.x - 1) / gridDim.x + 1) : 0;
    auto load = [&](int i) {
        const unsigned barrier = shared_address(&barriers[i % kStages]);
        barrier_expect(barrier, kTileBytes);
        bulk_load(shared_address(stage + i % kStages * kTileBytes),
                  data + (blockIdx.x + (size_t)i * gridDim.x) * kTileBytes, kTileBytes, barrier);
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; s++) barrier_init(shared_address(&barriers[s]));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int i = 0; i < kStages && i < count; i++) load(i);
    }
    __syncthreads();
    unsigned sum = 0;
    for (int i = 0; i < count; i++) {
        barrier_wait(shared_address(&barriers[i % kStages]), i / kStages & 1);
        sum ^= *(volatile unsigned *)(stage + i % kStages * kTileBytes + threadIdx.x * 16);
        __syncthreads();
        if (threadIdx.x == 0 && i + kStages < count) load(i + kStages);
    }
    if (sum == 0x5eed1e55) *out = sum;
#else
    (void)data, (void)tiles, (void)out;
#endif
}

struct reader {
    int sms = 0;
    bool bulk = false; /* bulk_kernel is compiled for this GPU */
    unsigned *sink =
        nullptr; /* one word that no kernel ever writes in practice, so that reads stay */
    cudaError_t error;

    reader() {
        int device = 0;
        cudaFuncAttributes built;
        error = cudaGetDevice(&device);
        if (!error) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
        if (!error) error = cudaMalloc(&sink, sizeof *sink);
        if (!error) error = cudaFuncGetAttributes(&built, bulk_kernel);
        bulk = !error && built.ptxVersion >= 90;
        if (bulk)
            error = cudaFuncSetAttribute(bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         kBulkSmemBytes);
    }
};

/* For the device that is current at the first call. */
const reader &the_reader() {
    static const reader once;
    return once;
}

} // namespace

int fb_cuda_reads_in_bulk(void) { return the_reader().bulk; }

/* Bytes beyond the last whole tile are left out: at most a hundredth from 4 MB on. */
int fb_cuda_read(const void *memory, size_t bytes) {
    const reader &r = the_reader();
    if (r.error) return r.error;
    if (r.bulk && bytes >= kTileBytes)
        bulk_kernel<<<r.sms, 128, kBulkSmemBytes>>>((const char *)memory, bytes / kTileBytes,
                                                    r.sink);
    else
        load_kernel<<<8 * r.sms, 256>>>((const uint4 *)memory, bytes / sizeof(uint4), r.sink);
    return cudaGetLastError();
}

int fb_cuda_empty(void) {
    const reader &r = the_reader();
    if (r.error) return r.error;
    empty_kernel<<<r.sms, 128>>>();
    return cudaGetLastError();
}
