/* device_cuda.cu - one NVIDIA GPU as a device to measure: memory, events, L2 flush, ceilings.
 *
 * Inputs come from cuRAND, the matmul ceiling from cuBLAS, the read ceiling from
 * read_cuda.cu. It changes when what is measured of a device does. */
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
void *flush_data; /* much larger than the L2 */
size_t flush_bytes;

/* ---- kernels ---- */

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

/* ---- memory ---- */

int cuda_open() {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return 1;
    must(cudaSetDevice(0), "device 0");
    must(cudaGetDeviceProperties(&device, 0), "device 0");
    must(cudaEventCreate(&event_begin), "event");
    must(cudaEventCreate(&event_end), "event");
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

void cuda_read(const void *memory, size_t bytes) {
    must((cudaError_t)fb_cuda_read(memory, bytes), "read");
}

void cuda_flush() { cuda_read(flush_data, flush_bytes); }

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
    c->fixed_us = cold_us(25, [] { must((cudaError_t)fb_cuda_empty(), "an empty call"); });
    c->cache_bytes_per_second = 0;
    c->cache_bytes = device.l2CacheSize;
    c->flops_per_second = matmul_flops_per_second(dtype, 8192);
    snprintf(c->arithmetic, sizeof c->arithmetic, "%s matmul 8192^3 (cuBLAS), %s reads",
             fb_dtype_name(dtype), fb_cuda_reads_in_bulk() ? "bulk" : "plain");
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
