"""cuda_builds.py - other builds of the CUDA kernels, and what each must do on a GPU.

    python3 tests/mutants/cuda_builds.py SOURCE_DIR --apply                every text still applies
    python3 tests/mutants/cuda_builds.py SOURCE_DIR --compile WORK_DIR     all build; needs nvcc
    python3 tests/mutants/cuda_builds.py SOURCE_DIR --judge TESTS_DIR WORK_DIR   and behave; a GPU

With ptxas at lower levels of optimisation a race shows that the order of instructions hid: each
family must give the same bits at every level and in every repeat (B108 in CASES.md). Builds whose
launches cannot succeed must return their status and write nothing, and the next good call is right
(B23, B118). head_dim 64 alone, as cuda_mutants.py builds. TESTS_DIR holds fa_case and
fa_cuda_calls.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

from cuda_mutants import LINES, copy_library, flags, nvcc, sources_of

FAMILIES = ("cuda_decode_sm90", "cuda_prefill_sm90", "cuda_sm80")
REPEATS = 50  # of each line
# name: image or none for --arch's, options of nvcc, (file, text, text in its place) or none
BUILDS = {
    "O3": (None, (), None),
    "O2": (None, ("-Xptxas", "-O2"), None),
    "O1": (None, ("-Xptxas", "-O1"), None),
    "one_byte_too_much": (None, (), ("fa_cuda.cu", "(size_t)plan->smem_bytes, stream);",
                                     "(size_t)machine.smem_bytes + 1, stream);")),
    "image_of_sm_80": ("sm_80", (), None),
    "image_of_sm_120": ("sm_120", (), None),
}
# name: the status, and the family that is forced
REFUSALS = {"one_byte_too_much": ("FA_ERR_LAUNCH", "cuda_sm80"),
            "image_of_sm_80": ("FA_ERR_ARCH", ""), "image_of_sm_120": ("FA_ERR_ARCH", "")}


def applies(source):
    """Whether every text to be replaced is in its file once."""
    good = True
    for name, (_, _, fault) in BUILDS.items():
        path = fault and source / "kernels" / "cuda" / fault[0]
        count = path.read_text(encoding="utf-8").count(fault[1]) if fault else 1
        if count != 1:
            print(f"{name}: {path.name} has {count} times '{fault[1]}': plant it anew")
        good &= count == 1
    print(f"CUDA builds: {len(BUILDS)} {'apply' if good else 'do NOT apply'}")
    return good


def run(command, folder=None):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def compile_one(options, folder, source):
    image, more, _ = BUILDS[folder.name]
    own = argparse.Namespace(arch=image or options.arch)
    done = run([nvcc(), *flags(own), *more, "-c", source, "-o", f"{source}.o"], folder)
    if done.returncode:
        print(f"{folder.name}: {source} does not compile\n{done.stderr[-2000:]}")
    return done.returncode == 0


def build(options):
    """The libraries by name, or None."""
    folders = [options.work / name for name in BUILDS]
    for folder in folders:
        copy_library(options.source, folder)
        fault = BUILDS[folder.name][2]
        if fault:
            path = folder / "kernels" / "cuda" / fault[0]
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(fault[1], fault[2]), encoding="utf-8")
    jobs = [(folder, source) for folder in folders for source in sources_of(folder)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        if not all(pool.map(lambda job: compile_one(options, *job), jobs)):
            return None
    libraries = {}
    for folder in folders:
        done = run([nvcc(), "-shared", *(f"{s}.o" for s in sources_of(folder)), "-o",
                    "library.so"], folder)
        if done.returncode:
            print(f"{folder.name}: does not link\n{done.stderr[-2000:]}")
            return None
        libraries[folder.name] = folder / "library.so"
    print(f"CUDA builds: {len(libraries)}/{len(BUILDS)} build")
    return libraries


def bits(options, library, family):
    """{line: the bits of o and lse in all repeats}, or None when a result is wrong."""
    lines = [f"{line} device=cuda kernel={family}" for line in LINES]
    done = subprocess.run([options.judge / "fa_case", *(lines * REPEATS)], capture_output=True,
                          text=True, check=False, env={**os.environ, "FA_SUBJECT": str(library)})
    found = {}
    for line, hashed in re.findall(r"^(dtype=.*)\n    \w+, bits (\w+): ok", done.stdout, re.M):
        found.setdefault(line, set()).add(hashed)
    if done.returncode or len(found) != len(lines):
        print(next((x for x in done.stdout.splitlines() if "WRONG" in x), done.stderr)[:200])
        return None
    return found


def judge(options, libraries):
    good = True
    for family in FAMILIES:
        found = {level: bits(options, libraries[level], family) for level in ("O3", "O2", "O1")}
        one = all(f and all(len(b) == 1 for b in f.values()) for f in found.values())
        same = one and found["O3"] == found["O2"] == found["O1"]
        print(f"  {family:20} {len(LINES)} lines x {REPEATS} at O1, O2, O3: "
              + ("the same bits" if same else "right, other bits" if one else "WRONG"))
        good &= same
    for name, (status, family) in REFUSALS.items():
        done = subprocess.run([options.judge / "fa_cuda_calls", "refused", status, libraries[name],
                               family], capture_output=True, text=True, check=False)
        tail = done.stdout.splitlines()[-1:] or [done.stderr]
        print(f"  {name:20} {status}: {tail[0]}" + ("" if done.returncode == 0 else ", WRONG"))
        for line in done.stdout.splitlines():
            if "WRONG" in line:
                print("   ", line)
        good &= done.returncode == 0
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path, nargs="?")
    parser.add_argument("--apply", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--judge", type=pathlib.Path, metavar="TESTS_DIR")
    parser.add_argument("--arch", default="sm_90a")
    options = parser.parse_intermixed_args()
    if not applies(options.source):
        return 1
    if options.apply:
        return 0
    options.work = options.work.resolve()
    libraries = build(options)
    if not libraries:
        return 1
    return 0 if not options.judge or judge(options, libraries) else 1


if __name__ == "__main__":
    sys.exit(main())
