/* device_cuda.cu - one NVIDIA GPU as a device to measure: memory, events, L2 flush, ceilings.
 *
 * Inputs come from cuRAND, the matmul ceiling from cuBLAS, the read ceiling from a kernel here that
 * keeps bulk copies in flight. It changes when a new architecture reads or multiplies otherwise. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <curand.h>

#include "bench.h"
#include "fa_dtype.h"

namespace {

void must(bool good, const char *what, const char *why) {
    if (good) return;
    fprintf(stderr, "fa_bench: %s: %s\n", what, why);
    exit(1);
}
void must(cudaError_t error, const char *what) {
    must(error == cudaSuccess, what, cudaGetErrorString(error));
}

cudaDeviceProp device;
cudaEvent_t event_begin, event_end;
unsigned *sink;    /* one word that no kernel ever writes in practice, so that reads stay */
bool bulk_reads;   /* bulk_kernel is compiled for this GPU */
uint4 *flush_data; /* much larger than the L2 */
size_t flush_bytes;

/* ---- kernels ---- */

__global__ void empty_kernel() {}

/* Busy for ns, so that the host is ahead when the clock starts: else a short call's time would hold
 * its own launch latency. */
__global__ void delay_kernel(long long ns) {
    long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - begin < ns);
}

template <typename element> __global__ void round_kernel(element *to, const float *from, size_t n) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += step)
        to[i] = element(from[i]);
}

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

/* ---- memory ---- */

int cuda_open() {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return 1;
    must(cudaSetDevice(0), "device 0");
    must(cudaGetDeviceProperties(&device, 0), "device 0");
    must(cudaEventCreate(&event_begin), "event");
    must(cudaEventCreate(&event_end), "event");
    must(cudaMalloc(&sink, sizeof *sink), "memory");
    cudaFuncAttributes built;
    must(cudaFuncGetAttributes(&built, bulk_kernel), "bulk_kernel");
    bulk_reads = built.ptxVersion >= 90;
    if (bulk_reads)
        must(cudaFuncSetAttribute(bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kBulkSmemBytes),
             "shared memory");
    flush_bytes = std::max((size_t)8 * device.l2CacheSize, (size_t)256 << 20);
    must(cudaMalloc(&flush_data, flush_bytes), "memory for the L2 flush");
    must(cudaMemset(flush_data, 1, flush_bytes), "memory for the L2 flush");
    return 0;
}

void *cuda_alloc(size_t bytes) {
    void *memory = nullptr;
    if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
    cudaGetLastError(); /* no memory is an answer here, not a sticky error */
    return nullptr;
}

void cuda_release(void *memory) { must(cudaFree(memory), "free"); }

void cuda_set_bytes(void *memory, int value, size_t bytes) {
    must(cudaMemset(memory, value, bytes), "memset");
}

void cuda_fetch(void *host, const void *memory, size_t row_bytes, size_t pitch, int64_t rows) {
    /* Few rows may lie further apart than a pitch may be. */
    if (rows > 2) {
        must(cudaMemcpy2D(host, row_bytes, memory, pitch, row_bytes, (size_t)rows,
                          cudaMemcpyDeviceToHost),
             "fetch");
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        must(cudaMemcpy((char *)host + r * row_bytes, (const char *)memory + r * pitch, row_bytes,
                        cudaMemcpyDeviceToHost),
             "fetch");
}

void cuda_fill_normal(void *memory, int64_t count, int32_t dtype, uint64_t seed) {
    constexpr size_t kChunk = (size_t)1 << 24;
    float *normal = nullptr;
    curandGenerator_t generator;
    must(cudaMalloc(&normal, kChunk * sizeof *normal), "memory for the inputs");
    must(curandCreateGenerator(&generator, CURAND_RNG_PSEUDO_PHILOX4_32_10) ==
                 CURAND_STATUS_SUCCESS &&
             curandSetPseudoRandomGeneratorSeed(generator, seed) == CURAND_STATUS_SUCCESS,
         "cuRAND", "no generator");
    for (size_t at = 0; at < (size_t)count; at += kChunk) {
        const size_t part = std::min(kChunk, (size_t)count - at);
        must(curandGenerateNormal(generator, normal, kChunk, 0, 1) == CURAND_STATUS_SUCCESS,
             "cuRAND", "no numbers");
        if (dtype == FA_DTYPE_F16)
            round_kernel<<<1024, 256>>>((__half *)memory + at, normal, part);
        else
            round_kernel<<<1024, 256>>>((__nv_bfloat16 *)memory + at, normal, part);
    }
    must(cudaDeviceSynchronize(), "inputs");
    curandDestroyGenerator(generator);
    must(cudaFree(normal), "free");
}

/* ---- time ---- */

/* Bytes beyond the last whole tile are left out: at most a hundredth from 4 MB on. */
void cuda_read(const void *memory, size_t bytes) {
    const int sms = device.multiProcessorCount;
    if (bulk_reads && bytes >= kTileBytes)
        bulk_kernel<<<sms, 128, kBulkSmemBytes>>>((const char *)memory, bytes / kTileBytes, sink);
    else
        load_kernel<<<8 * sms, 256>>>((const uint4 *)memory, bytes / sizeof(uint4), sink);
}

void cuda_flush() {
    load_kernel<<<8 * device.multiProcessorCount, 256>>>(flush_data, flush_bytes / sizeof(uint4),
                                                         sink);
}

double cuda_time_us(fb_action action, void *context, int *failed) {
    float ms = 0;
    delay_kernel<<<1, 1>>>(20000);
    must(cudaEventRecord(event_begin), "event");
    *failed = action(context);
    must(cudaEventRecord(event_end), "event");
    must(cudaEventSynchronize(event_end), "the timed call");
    must(cudaEventElapsedTime(&ms, event_begin, event_end), "event");
    return 1e3 * ms;
}

/* Median of cold calls. */
template <typename function> double cold_us(int calls, function f) {
    std::vector<double> us;
    for (int i = 0; i <= calls; i++) {
        int failed = 0;
        cuda_flush();
        const double t = cuda_time_us(
            [](void *context) {
                (*(function *)context)();
                return 0;
            },
            &f, &failed);
        if (i > 0) us.push_back(t); /* the first warms up */
    }
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
}

/* ---- ceilings ---- */

double matmul_flops_per_second(int32_t dtype, int size) {
    const size_t bytes = (size_t)size * size * 2;
    const cudaDataType type = dtype == FA_DTYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
    const float one = 1, zero = 0;
    void *a = cuda_alloc(bytes), *b = cuda_alloc(bytes), *c = cuda_alloc(bytes);
    cublasHandle_t blas;
    must(a && b && c && cublasCreate(&blas) == CUBLAS_STATUS_SUCCESS, "cuBLAS", "no handle");
    cuda_fill_normal(a, (int64_t)size * size, dtype, 4);
    cuda_fill_normal(b, (int64_t)size * size, dtype, 5);
    const double us = cold_us(10, [&] {
        const cublasStatus_t status =
            cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, size, size, size, &one, a, type, size, b,
                         type, size, &zero, c, type, size, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        must(status == CUBLAS_STATUS_SUCCESS, "cuBLAS", cublasGetStatusString(status));
    });
    cublasDestroy(blas);
    cuda_release(a), cuda_release(b), cuda_release(c);
    return 2.0 * size * size * size / (1e-6 * us);
}

void cuda_ceilings(fb_ceilings *c, int32_t dtype, int quick) {
    const size_t small = (size_t)16 << 20, large = (size_t)(quick ? 256 : 2048) << 20;
    void *data = cuda_alloc(large);
    must(data != nullptr, "read ceiling", "no memory");
    cuda_set_bytes(data, 1, large);
    const double small_us = cold_us(25, [=] { cuda_read(data, small); });
    const double large_us = cold_us(25, [=] { cuda_read(data, large); });
    cuda_release(data);
    /* The slope: what a launch costs is in each group's own read. */
    c->memory_bytes_per_second = (double)(large - small) / (1e-6 * (large_us - small_us));
    c->fixed_us = cold_us(25, [] { empty_kernel<<<device.multiProcessorCount, 128>>>(); });
    c->cache_bytes_per_second = 0;
    c->cache_bytes = device.l2CacheSize;
    c->flops_per_second = matmul_flops_per_second(dtype, 8192);
    snprintf(c->arithmetic, sizeof c->arithmetic, "%s matmul 8192^3 (cuBLAS), %s reads",
             fb_dtype_name(dtype), bulk_reads ? "bulk" : "plain");
    must(cudaGetLastError(), "ceilings");
}

void cuda_describe(fb_facts *facts) {
    int driver = 0, runtime = 0;
    char line[160] = "";
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    fb_fact(facts, "processor", "%s, sm_%d%d, %d SMs", device.name, device.major, device.minor,
            device.multiProcessorCount);
    fb_fact(facts, "caches", "L2 %.1f MiB, flushed by reading %.0f MiB",
            device.l2CacheSize / 1048576.0, (double)flush_bytes / 1048576.0);
    fb_fact(facts, "cuda", "runtime %d.%d, driver for %d.%d", runtime / 1000, runtime % 1000 / 10,
            driver / 1000, driver % 1000 / 10);
    FILE *smi = popen("nvidia-smi -i 0 --format=csv,noheader --query-gpu="
                      "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit 2>&1",
                      "r");
    if (smi && fgets(line, sizeof line, smi)) line[strcspn(line, "\n")] = 0;
    if (smi) pclose(smi);
    fb_fact(facts, "clocks", "%s (driver, SM, memory, SM at most, power limit)", line);
}

} // namespace

const fb_device fb_device_cuda = {
    "cuda",       FA_DEVICE_CUDA,   FB_COLD,        0,
    15,           cuda_open,        cuda_describe,  cuda_alloc,
    cuda_release, cuda_fill_normal, cuda_set_bytes, cuda_fetch,
    cuda_read,    cuda_flush,       cuda_time_us,   cuda_ceilings,
};
