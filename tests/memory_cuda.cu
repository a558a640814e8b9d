/* memory_cuda.cu - the current CUDA device's memory behind memory.h. Only in builds with CUDA. */
#include "memory.h"

#include <cuda_runtime_api.h>
#include <stdint.h>

static void *device_alloc(size_t bytes) {
    void *data = NULL;
    return cudaMalloc(&data, bytes) == cudaSuccess ? data : NULL;
}

static void device_free(void *data, size_t bytes) {
    (void)bytes;
    cudaFree(data);
}

static void device_upload(void *to, const void *from, size_t bytes) {
    cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
}

static void device_download(void *to, const void *from, size_t bytes) {
    cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost);
}

/* Volatile, for nobody reads what it writes. */
static __global__ void fill_shared(uint32_t pattern, int words) {
    extern __shared__ uint32_t shared[];
    volatile uint32_t *to = shared;
    for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = pattern;
}

/* All shared memory of all multiprocessors holds NaN of every dtype, or by turns huge numbers: what
 * a kernel reads there before it wrote shows in its result, or in its bits from call to call. */
static bool device_begin(void) {
    static uint32_t pattern = 0xffa5ffa5;
    int device = 0, count = 0, bytes = 0;
    if (cudaGetDevice(&device) ||
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) ||
        cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ||
        cudaFuncSetAttribute(fill_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
        return false;
    pattern ^= 0x80da80da; /* 0x7f7f7f7f: 3e38, 3e38 and NaN */
    fill_shared<<<count, 256, bytes>>>(pattern, bytes / 4);
    return cudaGetLastError() == cudaSuccess;
}

/* Also takes the last error, so that a fault of one case is not charged to the next. */
static bool device_finish(void) {
    return cudaDeviceSynchronize() == cudaSuccess && cudaGetLastError() == cudaSuccess;
}

const memory *memory_cuda(void) {
    static const memory cuda = {FA_DEVICE_CUDA,  device_alloc, device_free,  device_upload,
                                device_download, NULL,         device_begin, device_finish};
    static int count = -1;
    if (count < 0 && cudaGetDeviceCount(&count) != cudaSuccess) {
        count = 0;
        cudaGetLastError();
    }
    return count > 0 ? &cuda : NULL;
}
