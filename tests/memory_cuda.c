/* memory_cuda.c - the current CUDA device's memory behind memory.h. Only in builds with CUDA. */
#include "memory.h"

#include <cuda_runtime_api.h>

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

/* Also takes the last error, so that a fault of one case is not charged to the next. */
static bool device_finish(void) {
    return cudaDeviceSynchronize() == cudaSuccess && cudaGetLastError() == cudaSuccess;
}

const memory *memory_cuda(void) {
    static const memory cuda = {FA_DEVICE_CUDA,  device_alloc, device_free,  device_upload,
                                device_download, NULL,         device_finish};
    static int count = -1;
    if (count < 0 && cudaGetDeviceCount(&count) != cudaSuccess) {
        count = 0;
        cudaGetLastError();
    }
    return count > 0 ? &cuda : NULL;
}
