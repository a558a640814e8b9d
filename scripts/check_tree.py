"""Checks of the tree itself, which no compiler makes; prints each fault, exits 1 if there is one.

usage: check_tree.py SOURCE_DIR

Relative links of every Markdown file lead to a file; nothing is marked as left to do; no path of
somebody's machine; the version is one; the README's program is examples/hello.c; files and lines
stay small; what threads write to shared memory is fenced before the copy engine or the tensor cores
are told of it (B107 in tests/CASES.md).
"""
import os
import re
import sys

SKIP = {"build", ".git", "__pycache__", ".venv"}
TEXT = (".c", ".h", ".cu", ".cuh", ".py", ".sh", ".md", ".txt", ".cmake", ".json", ".in", "run",
        "Makefile", ".yml")
CODE = (".c", ".h", ".cu", ".cuh", ".py", ".sh")
MAX_LINES, MAX_COLUMNS = 500, 100
# Written so that this file does not find itself.
LEFT_TO_DO = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")
LOCAL_PATH = re.compile(r"(?<![\w.\"$}])/(wor" r"k|hom" r"e|roo" r"t|Use" r"rs|mnt|data)/\w")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def files(top):
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in SKIP)
        for name in sorted(names):
            if name.endswith(TEXT):
                yield os.path.join(folder, name)


def check_file(top, path):
    """The faults of one file."""
    shown = os.path.relpath(path, top)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    faults = []
    for number, line in enumerate(text.splitlines(), 1):
        if LEFT_TO_DO.search(line):
            faults.append(f"{shown}:{number}: marked as left to do: {line.strip()}")
        if LOCAL_PATH.search(line):
            faults.append(f"{shown}:{number}: a path of one machine: {line.strip()}")
        if path.endswith(CODE) and len(line) > MAX_COLUMNS:
            faults.append(f"{shown}:{number}: {len(line)} columns, at most {MAX_COLUMNS}")
    if path.endswith(CODE) and text.count("\n") > MAX_LINES:
        faults.append(f"{shown}: {text.count(chr(10))} lines, at most {MAX_LINES}")
    if path.endswith(".md"):
        for target in LINK.findall(text):
            if re.match(r"[a-z]+:|#", target):
                continue
            if not os.path.exists(os.path.join(os.path.dirname(path), target.split("#")[0])):
                faults.append(f"{shown}: no such file: {target}")
    return faults


# In the files of the kernels that use warpgroup products: what writes shared memory by a thread's
# own stores, what lets the copy engine or the tensor cores at it, and the fence between them.
WRITES = re.compile(r"\b(fai_st_shared|fai_stmatrix|rows\.store)\(")
TELLS = re.compile(r"\b(fai_barrier|fai_arrive|release|fai_wgmma|fai_copy_box)\(")
FENCE = re.compile(r"\bfai_fence_async\(\)")
FUNCTION_END = re.compile(r"^(    )?}$", re.M)


def check_fences(top):
    """Each write's next event in its function is the fence, unless the function ends: then its
    caller's call is such a write, and is in WRITES."""
    faults, writes, folder = [], 0, os.path.join(top, "kernels", "cuda")
    for name in sorted(os.listdir(folder)):
        text = read(folder, name)
        if name != "fa_ptx.cuh" and "fence.proxy" in text:
            faults.append(f"{name}: a proxy fence beside its wrapper")
        if name not in ("fa_ptx.cuh", "fa_wgmma.cuh") and re.search(r"\basm\b", text):
            faults.append(f"{name}: inline assembly, which belongs to fa_ptx.cuh")
        if not name.startswith("fa_prefill_") or not name.endswith(".cuh"):
            continue
        for write in WRITES.finditer(text):
            at, writes = write.end(), writes + 1
            fence, end = FENCE.search(text, at), FUNCTION_END.search(text, at).start()
            told = TELLS.search(text, at)
            if told and told.start() < end and not (fence and fence.start() < told.start()):
                line = text.count("\n", 0, write.start()) + 1
                faults.append(f"{name}:{line}: {write.group(1)} is followed by {told.group(1)} and "
                              "no fai_fence_async() between")
    print(f"{writes} writes to shared memory before warpgroup products, fenced or passed on")
    return faults if writes else [*faults, "kernels/cuda: no write to shared memory was found"]


def read(top, name):
    with open(os.path.join(top, name), encoding="utf-8") as file:
        return file.read()


def check_version(top):
    """The header's version is the changelog's newest; CMake reads the header."""
    header = read(top, "include/fa_fwd_causal.h")
    version = ".".join(re.search(rf"FA_VERSION_{part} (\d+)", header).group(1)
                       for part in ("MAJOR", "MINOR", "PATCH"))
    newest = re.search(r"^## (\d+\.\d+\.\d+)", read(top, "CHANGELOG.md"), re.M).group(1)
    print(f"version: header {version}, changelog {newest}")
    faults = [] if newest == version else ["CHANGELOG.md: its newest version is not the header's"]
    if not re.search(r"project\(fa_fwd_causal VERSION \$\{", read(top, "CMakeLists.txt")):
        faults.append("CMakeLists.txt: the version is not read from the header")
    return faults


def main():
    top = sys.argv[1]
    faults, count = check_version(top) + check_fences(top), 0
    if read(top, "examples/hello.c") not in read(top, "README.md"):
        faults.append("README.md: its program is not examples/hello.c")
    for path in files(top):
        faults += check_file(top, path)
        count += 1
    print("\n".join(faults + [f"{count} files checked, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
