/* fa_wgmma.cuh - the warpgroup product of sm_90a, m64nNk16: 64 rows by N columns of float32 sums,
 * N / 2 a thread. Thread t of the warpgroup has, of rows 16 * (t / 32) + t % 32 / 4 and + 8,
 * columns 8 * j + 2 * (t % 4) and + 1: d[4 * j], d[4 * j + 1] of the first row, d[4 * j + 2] and
 * + 3 of the second. It changes when a tile of another width comes.
 *
 * An instruction names each of its registers, so their lists are spelled out, once, as text
 * (FAI_SUMS_*) and as operands (FAI_OUT*). */
#ifndef FA_WGMMA_CUH
#define FA_WGMMA_CUH

#include "fa_ptx.cuh"

#define FAI_SUMS_32                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FAI_SUMS_32_48 \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FAI_SUMS_48_64 \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FAI_SUMS_64_96                                                               \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FAI_SUMS_96_128                                                                            \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"   \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
    "%127"
#define FAI_SUMS_48 FAI_SUMS_32 ", " FAI_SUMS_32_48
#define FAI_SUMS_64 FAI_SUMS_48 ", " FAI_SUMS_48_64
#define FAI_SUMS_96 FAI_SUMS_64 ", " FAI_SUMS_64_96
#define FAI_SUMS_128 FAI_SUMS_96 ", " FAI_SUMS_96_128

#define FAI_OUT4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FAI_OUT16(i) FAI_OUT4(i), FAI_OUT4(i + 4), FAI_OUT4(i + 8), FAI_OUT4(i + 12)
#define FAI_OUT_32 FAI_OUT16(0), FAI_OUT16(16)
#define FAI_OUT_48 FAI_OUT_32, FAI_OUT16(32)
#define FAI_OUT_64 FAI_OUT_48, FAI_OUT16(48)
#define FAI_OUT_96 FAI_OUT_64, FAI_OUT16(64), FAI_OUT16(80)
#define FAI_OUT_128 FAI_OUT_96, FAI_OUT16(96), FAI_OUT16(112)

/* d = (add ? d : 0) + a b^T: a and b are tiles of shared memory whose rows run along k. */
#define FAI_WGMMA_ROWS(N, R, ELEMENT, TYPE, A, B, ADD)                                        \
    FAI_DEVICE void fai_wgmma(ELEMENT, float(&d)[R], uint64_t a, uint64_t b, int add) {       \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " ADD ", 0; wgmma.mma_async.sync.aligned" \
                     ".m64n" N "k16.f32." TYPE "." TYPE " {" FAI_SUMS_##R "}, " A ", " B      \
                                                                          ", p, 1, 1, 0, 0;}" \
                     : FAI_OUT_##R                                                            \
                     : "l"(a), "l"(b), "r"(add));                                             \
    }

/* d += a b: a in registers, b a tile of shared memory whose rows run along d's columns. */
#define FAI_WGMMA_COLUMNS(N, R, ELEMENT, TYPE, A, B)                                  \
    FAI_DEVICE void fai_wgmma(ELEMENT, float(&d)[R], const uint32_t *a, uint64_t b) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE   \
                     " {" FAI_SUMS_##R "}, {" A "}, " B ", 1, 1, 1, 1;"               \
                     : FAI_OUT_##R                                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));           \
    }

FAI_WGMMA_ROWS("64", 32, fai_bf16, "bf16", "%32", "%33", "%34")
FAI_WGMMA_ROWS("64", 32, fai_f16, "f16", "%32", "%33", "%34")
FAI_WGMMA_ROWS("96", 48, fai_bf16, "bf16", "%48", "%49", "%50")
FAI_WGMMA_ROWS("96", 48, fai_f16, "f16", "%48", "%49", "%50")
FAI_WGMMA_ROWS("128", 64, fai_bf16, "bf16", "%64", "%65", "%66")
FAI_WGMMA_ROWS("128", 64, fai_f16, "f16", "%64", "%65", "%66")

FAI_WGMMA_COLUMNS("64", 32, fai_bf16, "bf16", "%32, %33, %34, %35", "%36")
FAI_WGMMA_COLUMNS("64", 32, fai_f16, "f16", "%32, %33, %34, %35", "%36")
FAI_WGMMA_COLUMNS("96", 48, fai_bf16, "bf16", "%48, %49, %50, %51", "%52")
FAI_WGMMA_COLUMNS("96", 48, fai_f16, "f16", "%48, %49, %50, %51", "%52")
FAI_WGMMA_COLUMNS("128", 64, fai_bf16, "bf16", "%64, %65, %66, %67", "%68")
FAI_WGMMA_COLUMNS("128", 64, fai_f16, "f16", "%64, %65, %66, %67", "%68")
FAI_WGMMA_COLUMNS("192", 96, fai_bf16, "bf16", "%96, %97, %98, %99", "%100")
FAI_WGMMA_COLUMNS("192", 96, fai_f16, "f16", "%96, %97, %98, %99", "%100")
FAI_WGMMA_COLUMNS("256", 128, fai_bf16, "bf16", "%128, %129, %130, %131", "%132")
FAI_WGMMA_COLUMNS("256", 128, fai_f16, "f16", "%128, %129, %130, %131", "%132")

#endif /* FA_WGMMA_CUH */
