/* memory.h - where a case's tensors live: the host, or a CUDA device.
 *
 * The case list is one for all backends; only this table differs. It changes when a backend with
 * another kind of memory comes. */
#ifndef TESTS_MEMORY_H
#define TESTS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "fa_fwd_causal.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct memory {
    fa_device device;
    void *(*alloc)(size_t bytes); /* page aligned; null when there is not enough. On the host a page
                                   * costs memory only once it is touched. */
    void (*free)(void *data, size_t bytes);
    void (*upload)(void *to, const void *from, size_t bytes);
    void (*download)(void *to, const void *from, size_t bytes);
    /* Forbids (on) or allows reads and writes of a zone; null where that cannot be done. */
    void (*fence)(void *data, size_t bytes, bool on);
    /* Before each call: leaves junk where a kernel may not look; null where there is no such place.
     * False when it could not. */
    bool (*begin)(void);
    bool (*finish)(void); /* waits for the call; false when the device reports a fault */
} memory;

/* The memory of a device, null when this build or machine has none. A program that is to run on
 * such a device prints MEMORY_NO_DEVICE and exits with MEMORY_SKIPPED: ctest calls it skipped. */
enum { MEMORY_SKIPPED = 77 };
#define MEMORY_NO_DEVICE "no GPU: nothing run"
const memory *memory_of(fa_device device);

#ifdef FA_WITH_CUDA
const memory *memory_cuda(void); /* memory_cuda.cu */
#endif

#ifdef __cplusplus
}
#endif

#endif /* TESTS_MEMORY_H */
