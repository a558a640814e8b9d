/* fa_cuda.cu - the host side of the CUDA backend: the device's facts, whose memory a pointer is,
 * and the launch. No allocation, no synchronisation; the only state is facts read once a device, in
 * atomics, so that any number of threads may call. It changes when a kernel family comes. */
#include "fa_cuda.h"
#include "fa_merge.cuh"
#include "fa_tiles.cuh"
#include "fa_tiles_sm80.h"

#include <atomic>
#include <cuda_runtime.h>

enum { kDevices = 64 }; /* whose facts are kept; later ones are asked each time */

fa_status fai_cuda_fail(cudaError_t error, const char *what) {
    cudaGetLastError();
    fa_status status = FA_ERR_LAUNCH;
    switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorSystemNotReady:
    case cudaErrorStubLibrary:
    case cudaErrorCompatNotSupportedOnDevice:
        status = FA_ERR_NO_DEVICE;
        break;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInvalidPtx:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
        status = FA_ERR_ARCH;
        break;
    default:
        break;
    }
    return fai_fail(status, "%s: %s (%s)", what, cudaGetErrorName(error),
                    cudaGetErrorString(error));
}

static cudaError_t read_machine(int device, fai_machine *machine) {
    int major = 0, minor = 0, sm_count = 0, smem_bytes = 0;
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (!error) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (!error) error = cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device);
    if (!error)
        error =
            cudaDeviceGetAttribute(&smem_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    machine->cc = major * 10 + minor;
    machine->sm_count = sm_count;
    machine->smem_bytes = smem_bytes;
    return error;
}

/* Facts packed into one word, 0 while unread: threads that race write the same word. */
cudaError_t fai_cuda_facts(int device, fai_machine *machine) {
    static std::atomic<uint64_t> facts[kDevices];
    *machine = fai_machine();
    machine->device = FA_DEVICE_CUDA;
    const uint64_t known = device < kDevices ? facts[device].load(std::memory_order_relaxed) : 0;
    if (known) {
        machine->cc = (int32_t)(known >> 48);
        machine->sm_count = (int32_t)(known >> 32 & 0xffff);
        machine->smem_bytes = (int32_t)known;
        return cudaSuccess;
    }
    const cudaError_t error = read_machine(device, machine);
    if (!error && device < kDevices)
        facts[device].store((uint64_t)machine->cc << 48 | (uint64_t)machine->sm_count << 32 |
                                (uint64_t)machine->smem_bytes,
                            std::memory_order_relaxed);
    return error;
}

cudaError_t fai_cuda_prepare(const void *kernel, std::atomic<uint64_t> *prepared, int device,
                             int smem_bytes) {
    const uint64_t bit = device < kDevices ? (uint64_t)1 << device : 0;
    if (prepared->load(std::memory_order_relaxed) & bit) return cudaSuccess;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (!error) prepared->fetch_or(bit, std::memory_order_relaxed);
    return error;
}

namespace {

const void *find_sm80_kernel(int32_t dim, int is_bf16, int32_t rows) {
    switch (dim) {
#ifndef FA_NO_HEAD_DIM_64
    case 64:
        return fai_sm80_kernel_d64(is_bf16, rows);
#endif
#ifndef FA_NO_HEAD_DIM_96
    case 96:
        return fai_sm80_kernel_d96(is_bf16, rows);
#endif
#ifndef FA_NO_HEAD_DIM_128
    case 128:
        return fai_sm80_kernel_d128(is_bf16, rows);
#endif
#ifndef FA_NO_HEAD_DIM_192
    case 192:
        return fai_sm80_kernel_d192(is_bf16, rows);
#endif
#ifndef FA_NO_HEAD_DIM_256
    case 256:
        return fai_sm80_kernel_d256(is_bf16, rows);
#endif
    default:
        return nullptr;
    }
}

/* Whether rows can be copied 16 bytes at a time: head_dim is a multiple of 8 elements already. */
bool is_wide(const fa_view &view) {
    return (uintptr_t)view.data % 16 == 0 && view.stride_batch % 8 == 0 &&
           view.stride_head % 8 == 0 && view.stride_seq % 8 == 0;
}

/* Blocks of a tile in the larger of its launches. */
int64_t parts_most(const fai_plan *plan) {
    return plan->splits > plan->tile_rows ? plan->splits : plan->tile_rows;
}

/* Units side by side. Their keys should lie in 32 MB of L2 together, and the longest tile, which
 * sees twice the keys of the average, should not outlast its section: 2 tiles for each of `slots`
 * blocks that run at once. The sections are equal, since a small last one would leave the GPU idle:
 * 42 units of 3 MB and 64 tiles, 264 slots: at least 10, so 4 sections of 11. */
int64_t choose_section(const fa_args *a, const fai_plan *plan, int64_t units, int64_t slots) {
    const int64_t unit_bytes = (int64_t)a->kv_len * a->head_dim * 4;
    const int64_t in_l2 = (32 << 20) / (unit_bytes > 0 ? unit_bytes : 1);
    const int64_t full = fai_ceil_div(2 * slots, plan->tiles);
    const int64_t least = fai_clamp64(in_l2 > full ? in_l2 : full, 1, units);
    const int64_t section = fai_ceil_div(units, units / least);
    return fai_min64(section, fai_clamp64(INT32_MAX / (plan->tiles * parts_most(plan)), 1, units));
}

/* Launches `parts` blocks for each tile of each unit; fai_find_work knows their order. */
cudaError_t launch(const void *kernel, fai_cuda_params *p, int64_t parts, unsigned threads,
                   size_t smem_bytes, cudaStream_t stream) {
    const int64_t sections = fai_ceil_div(p->units, p->section);
    const unsigned y = (unsigned)fai_min64(sections, 65535);
    const dim3 grid((unsigned)(p->tiles * parts * p->section), y,
                    (unsigned)fai_ceil_div(sections, y));
    void *arguments[] = {p};
    return cudaLaunchKernel(kernel, grid, dim3(threads), arguments, smem_bytes, stream);
}

} // namespace

void fai_cuda_fill_params(fai_cuda_params *p, const fa_args *a, const fai_plan *plan,
                          int64_t slots) {
    *p = fai_cuda_params();
    p->a = *a;
    p->group = a->heads_q / a->heads_kv;
    p->units = a->batch * a->heads_kv;
    p->tiles = (int32_t)plan->tiles;
    p->splits = plan->splits;
    p->tile_rows = plan->tile_rows;
    p->tile_keys = plan->tile_keys;
    p->stages = plan->stages;
    p->section = (int32_t)choose_section(a, plan, p->units, slots);
    p->by_section = fai_make_divisor(p->section);
    p->by_group = fai_make_divisor(p->group);
    p->by_splits = fai_make_divisor(p->splits);
    p->by_heads_kv = fai_make_divisor(a->heads_kv);
    p->by_page = fai_make_divisor(a->page_size > 0 ? a->page_size : 1);
    p->wide_q = is_wide(a->q);
    p->wide_kv = is_wide(a->k) && is_wide(a->v);
    p->wide_o = is_wide(a->o);
    p->c = fai_exponent_factor(a);
    p->octave = 1 / p->c;
    char *workspace = static_cast<char *>(a->workspace);
    p->partial_o = reinterpret_cast<float *>(workspace + plan->partial_o_at);
    p->partial_lse = reinterpret_cast<float *>(workspace + plan->partial_state_at);
}

cudaError_t fai_cuda_launch_merge(fai_cuda_params *p, int is_bf16, cudaStream_t stream) {
    return launch(fai_cuda_merge_kernel(is_bf16), p, fai_ceil_div(p->tile_rows, kFaiMergeRows), 128,
                  0, stream);
}

fa_status fai_cuda_machine(fai_machine *machine) {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (!error) error = fai_cuda_facts(device, machine);
    if (!error) return FA_OK;
    cudaGetLastError();
    return fai_fail(FA_ERR_NO_DEVICE, "device is FA_DEVICE_CUDA: no usable GPU or driver: %s (%s)",
                    cudaGetErrorName(error), cudaGetErrorString(error));
}

fa_status fai_cuda_check_pointers(const fa_args *a) {
    const struct {
        const char *field;
        const void *data;
    } tensors[] = {{"q", a->q.data},
                   {"k", a->k.data},
                   {"v", a->v.data},
                   {"o", a->o.data},
                   {"lse", a->lse.data},
                   {"cu_seqlens_q", a->cu_seqlens_q},
                   {"cu_seqlens_k", a->cu_seqlens_k},
                   {"seqused_q", a->seqused_q},
                   {"seqused_k", a->seqused_k},
                   {"leftpad_q", a->leftpad_q},
                   {"leftpad_k", a->leftpad_k},
                   {"block_table", a->block_table},
                   {"causal_offsets", a->causal_offsets},
                   {"workspace", a->workspace}};
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error) return fai_cuda_fail(error, "the current CUDA device");
    for (const auto &tensor : tensors) {
        if (!tensor.data) continue;
        cudaPointerAttributes found;
        error = cudaPointerGetAttributes(&found, tensor.data);
        if (error) return fai_cuda_fail(error, "the memory behind a tensor");
        if (found.type == cudaMemoryTypeManaged ||
            (found.type == cudaMemoryTypeHost && found.devicePointer == tensor.data))
            continue;
        if (found.type != cudaMemoryTypeDevice)
            return fai_fail(FA_ERR_DEVICE,
                            "%s is at %p, memory of the host: must be memory of CUDA device %d",
                            tensor.field, tensor.data, device);
        if (found.device != device)
            return fai_fail(FA_ERR_DEVICE,
                            "%s is at %p, memory of CUDA device %d: must be of the current "
                            "device, %d",
                            tensor.field, tensor.data, found.device, device);
    }
    return FA_OK;
}

fa_status fai_cuda_run_sm80(const fa_args *a, const fai_plan *plan, struct CUstream_st *stream) {
    enum { kTiles = sizeof(fai_sm80_tiles) / sizeof(fai_sm80_tiles[0]) };
    static std::atomic<uint64_t> prepared[kTiles][2];
    const int is_bf16 = a->dtype == FA_DTYPE_BF16;
    int row = 0; /* of the table of tiles */
    while (fai_sm80_tiles[row].dim != plan->tile_dim || fai_sm80_tiles[row].rows != plan->tile_rows)
        ++row;
    const void *kernel = find_sm80_kernel(plan->tile_dim, is_bf16, plan->tile_rows);
    const fai_sm80_tile &tile = fai_sm80_tiles[row];

    int device = 0;
    fai_machine machine;
    cudaError_t error = cudaGetDevice(&device);
    if (!error) error = fai_cuda_facts(device, &machine);
    if (!error)
        error = fai_cuda_prepare(kernel, &prepared[row][is_bf16], device, machine.smem_bytes);
    if (error) return fai_cuda_fail(error, "preparing the sm_80 kernel");

    const int64_t tiles = plan->tiles * a->batch * a->heads_kv;
    const bool last_arriver = tile.warps_keys > 1 && tiles <= FAI_CONTROL_WORDS;
    fai_cuda_params p;
    fai_cuda_fill_params(&p, a, plan, (int64_t)machine.sm_count * tile.blocks);
    if (last_arriver) p.control = static_cast<uint32_t *>(a->workspace);
    const unsigned threads = (unsigned)(tile.warps_rows * tile.warps_keys * 32);
    error = launch(kernel, &p, plan->splits, threads, (size_t)plan->smem_bytes, stream);
    if (!error && plan->splits > 1 && !last_arriver)
        error = fai_cuda_launch_merge(&p, is_bf16, stream);
    return error ? fai_cuda_fail(error, "launching the sm_80 kernel") : FA_OK;
}
