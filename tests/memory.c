/* memory.c - host memory behind memory.h. */
#define _GNU_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include "memory.h"

#include <string.h>
#include <sys/mman.h>

/* No reservation: a view of 4 GB whose rows lie far apart costs only the pages that rows touch. */
static void *host_alloc(size_t bytes) {
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return data == MAP_FAILED ? NULL : data;
}

static void host_free(void *data, size_t bytes) {
    if (data) munmap(data, bytes);
}

static void host_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
static void host_fence(void *data, size_t bytes, bool on) {
    if (on)
        ASAN_POISON_MEMORY_REGION(data, bytes);
    else
        ASAN_UNPOISON_MEMORY_REGION(data, bytes);
}
#define HOST_FENCE host_fence
#else
#define HOST_FENCE NULL
#endif

static bool host_finish(void) { return true; }

const memory *memory_of(fa_device device) {
    static const memory host = {FA_DEVICE_CPU, host_alloc, host_free, host_copy,
                                host_copy,     HOST_FENCE, NULL,      host_finish};
    if (device == FA_DEVICE_CPU) return &host;
#ifdef FA_WITH_CUDA
    if (device == FA_DEVICE_CUDA) return memory_cuda();
#endif
    return NULL;
}
