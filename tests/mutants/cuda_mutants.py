"""cuda_mutants.py - wrong CUDA kernels, each of which the cases must reject.

    python3 tests/mutants/cuda_mutants.py SOURCE_DIR --apply               every fault still applies
    python3 tests/mutants/cuda_mutants.py SOURCE_DIR --compile WORK_DIR    and compiles; needs nvcc
    python3 tests/mutants/cuda_mutants.py SOURCE_DIR --judge FA_CASE WORK_DIR   and is killed; a GPU

A mutant is the sm_80 family with one text of one file replaced, built with head_dim 64 alone and
forced by name, so that no other family steps in. The unspoilt build must pass all lines. A race may
stay unseen in one call, so its line is run many times. --arch names the image (default: sm_90a).
A text that is no longer in its file fails: the fault must then be planted anew.
"""

import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

FORWARD, TILES, MERGE, SOFTMAX = ("fa_forward_sm80.cuh", "fa_tiles.cuh", "fa_merge.cuh",
                                  "fa_softmax.cuh")
PREFILL = "dtype=f16 b=2 hq=8 hkv=2 d=64 q=200 kv=700"
DECODE = "dtype=bf16 b=2 hq=8 hkv=2 d=64 q=1 kv=1500"
SPLITS = "dtype=f16 b=2 hq=8 hkv=2 d=64 q=1 kv=1500 splits=7"
TAIL = "dtype=f16 b=2 hq=4 hkv=2 d=64 q=33 kv=97 K=bshd:c9 V=bshd:c9"
PAGES = "dtype=bf16 b=3 hq=4 hkv=2 d=64 q=5 kv=150 page=16 kr=u ks=150,0,77"
NARROW = "dtype=f16 b=2 hq=4 hkv=2 d=64 q=33 kv=97 K=bshd:p1"
FAR = "dtype=f16 hq=2 hkv=2 d=64 q=5 kv=2050 V=bshd:S1048584"
RISE = "dtype=bf16 hq=4 hkv=2 d=64 q=9 kv=1500 in=rise"
LINES = (PREFILL, DECODE, SPLITS, TAIL, PAGES, NARROW, FAR, RISE)
RACE = 40  # calls
# Translation units that the spoilt headers go into; the rest is the unspoilt build's.
SPOILT = ("kernels/cuda/fa_forward_sm80_d64.cu", "kernels/cuda/fa_merge.cu")

# name, file, what stands there, what the mutant says instead, the line that kills it, how often run
MUTANTS = (
    ("missing_barrier", FORWARD, "fai_barrier<1, Shape::kThreads>();", "__syncwarp();", PREFILL,
     RACE),
    ("tile_not_waited_for", FORWARD, "fai_cp_async_wait(p.stages - 2);",
     "fai_cp_async_wait(p.stages - 1);", PREFILL, RACE),
    ("warps_merged_early", FORWARD,
     "__syncthreads();\n    for (int i = threadIdx.x; i < w.count * Shape::kDimTiles",
     "__syncwarp();\n    for (int i = threadIdx.x; i < w.count * Shape::kDimTiles", DECODE, RACE),
    ("splits_merged_by_the_first", FORWARD, "(p.control + w.tile_idx, last) == last;",
     "(p.control + w.tile_idx, last) == 0;", SPLITS, RACE),
    ("diagonal_late", FORWARD, "if (n * 8 + e >= seen)", "if (n * 8 + e > seen)", PREFILL, 1),
    ("first_masked_block_unmasked", FORWARD, "if (block >= w.blocks_full)",
     "if (block > w.blocks_full)", PREFILL, 1),
    ("split_dropped", MERGE, "for (int s = 0; s < live; ++s) {",
     "for (int s = 0; s < live - (live > 1); ++s) {", SPLITS, 1),
    ("merge_unweighted", MERGE, "const float weight = fai_merge_weight(",
     "const float weight = 1 + 0 * fai_merge_weight(", SPLITS, 1),
    ("swizzle_of_one_chunk", TILES, "return row * kPitch + ((unit ^ x) << 4);",
     "return row * kPitch + ((unit ^ (row == 5 && unit == 3 ? x ^ 1 : x)) << 4);", PREFILL, 1),
    ("int32_offset", TILES, "((int64_t)key + row) * stride + unit * 8",
     "(int)((unsigned)(key + row) * (unsigned)stride) + unit * 8", FAR, 1),
    ("stale_tail", TILES, "const int end = w.kv_len - key;", "const int end = w.kv_len - key + 1;",
     TAIL, 1),
    ("page_table_ignored", TILES, "const int page = min(max(entry, 0), p.a.num_pages - 1);",
     "const int page = (entry & 0) + col % p.a.num_pages;", PAGES, 1),
    ("narrow_load_shifted", TILES, "(uint32_t)from[2 * i + 1] << 16",
     "(uint32_t)from[2 * i + 1] << 15", NARROW, 1),
    ("sum_not_rescaled", SOFTMAX, "sum[tile][half] *= factor;", "sum[tile][half] *= 1.f;", RISE, 1),
)


def spoil(source, mutant, to):
    """A copy of the library's sources with the mutant's fault; false when it does not apply."""
    name, file, before, after = mutant[:4]
    path = source / "kernels" / "cuda" / file
    text = path.read_text(encoding="utf-8")
    if text.count(before) != 1:
        print(f"{name}: kernels/cuda/{file} has {text.count(before)} times '{before}': "
              "plant it anew")
        return False
    if to:
        copy_library(source, to)
        (to / "kernels" / "cuda" / file).write_text(text.replace(before, after), encoding="utf-8")
    return True


def copy_library(source, to):
    shutil.rmtree(to, ignore_errors=True)
    for room in ("include", "kernels"):
        shutil.copytree(source / room, to / room)


def nvcc():
    found = os.environ.get("CUDACXX") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not pathlib.Path(found).exists():
        sys.exit("no nvcc in CUDACXX, PATH or /usr/local/cuda")
    return found


def flags(options):
    arch = options.arch.removeprefix("sm_")
    return ["-O3", "-Iinclude", "-DFA_WITH_CUDA", "-DFA_SHARED", "-DFA_TEST_HOOKS",
            *(f"-DFA_NO_HEAD_DIM_{dim}" for dim in (96, 128, 192, 256)),
            "-Xcompiler", "-fPIC,-fvisibility=hidden",
            "-gencode", f"arch=compute_{arch},code=sm_{arch}"]


def compile_one(options, folder, source):
    """An object beside its source; False with the compiler's words printed."""
    run = subprocess.run([nvcc(), *flags(options), "-c", source, "-o", f"{source}.o"], cwd=folder,
                         capture_output=True, text=True, check=False)
    if run.returncode:
        print(f"{folder.name}: {source} does not compile\n{run.stderr[-2000:]}")
    return run.returncode == 0


def link(options, folder, common):
    """The mutant's own objects, and the unspoilt ones of the rest."""
    objects = [str(folder / f"{source}.o" if source in SPOILT else common / f"{source}.o")
               for source in sources_of(common)]
    run = subprocess.run([nvcc(), *flags(options), "-shared", *objects, "-o", "library.so"],
                         cwd=folder, capture_output=True, text=True, check=False)
    if run.returncode:
        print(f"{folder.name}: does not link\n{run.stderr[-2000:]}")
    return run.returncode == 0


def sources_of(folder):
    return [str(p.relative_to(folder)) for p in sorted(folder.rglob("*"))
            if p.suffix in (".c", ".cu")]


def build(options, folders):
    """The libraries by name, or None. Only what includes a spoilt file is compiled again."""
    common = folders["none"]
    jobs = [(common, source) for source in sources_of(common)]
    jobs += [(folder, source) for name, folder in folders.items() if name != "none"
             for source in SPOILT]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(lambda job: compile_one(options, *job), jobs))
        if not all(done):
            return None
        linked = list(pool.map(lambda folder: link(options, folder, common), folders.values()))
    print(f"CUDA mutants: {sum(linked)}/{len(linked)} build, the unspoilt one among them")
    if not all(linked):
        return None
    return {name: folder / "library.so" for name, folder in folders.items()}


def verdict(options, library, lines):
    """(exit code, the first thing wrong) of fa_case on these lines."""
    words = [f"{line} device=cuda kernel={options.kernel}" for line in lines]
    try:
        run = subprocess.run([options.judge, *words], capture_output=True, text=True, check=False,
                             timeout=60, env={**os.environ, "FA_SUBJECT": str(library)})
    except subprocess.TimeoutExpired:
        return -1, "did not end"
    wrong = [line for line in run.stdout.splitlines() if line.startswith("WRONG")]
    return run.returncode, (wrong or run.stderr.splitlines() or [""])[0][:150]


def judge(options, libraries):
    code, why = verdict(options, libraries["none"], LINES)
    print(f"  {'none':28} {'accepted' if code == 0 else 'REJECTED: ' + why}")
    killed = 0
    for name, _, _, _, line, times in MUTANTS:
        spoilt, why = verdict(options, libraries[name], [line] * times)
        killed += spoilt != 0
        print(f"  {name:28} {'killed by ' + why if spoilt else 'SURVIVED ' + line}")
    print(f"CUDA mutants: {killed}/{len(MUTANTS)} killed")
    return code == 0 and killed == len(MUTANTS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path, nargs="?")
    parser.add_argument("--apply", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--judge", metavar="FA_CASE")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--kernel", default="cuda_sm80")
    options = parser.parse_intermixed_args()
    if options.apply:
        applied = [spoil(options.source, mutant, None) for mutant in MUTANTS]
        print(f"CUDA mutants: {sum(applied)}/{len(applied)} apply")
        return not all(applied)
    options.work = options.work.resolve()
    folders = {"none": options.work / "none"}
    copy_library(options.source, folders["none"])
    for mutant in MUTANTS:
        folders[mutant[0]] = options.work / mutant[0]
        if not spoil(options.source, mutant, folders[mutant[0]]):
            return 1
    built = build(options, folders)
    if not built:
        return 1
    return 0 if not options.judge or judge(options, built) else 1


if __name__ == "__main__":
    sys.exit(main())
