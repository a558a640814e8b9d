"""objects.py - what the library's objects hold: no instruction outside its own file, no call that
allocates or waits (B112 in CASES.md); and on an emulated processor the kernel that its feature bits
allow, with right results (B121).

    python3 tests/objects.py FA_CASE OBJECT_DIR...

The folders hold the library's own objects. Disassembles them with objdump, and runs small cases of
the list under qemu-x86_64, which knows no AVX-512. Exits with 77 where it is not installed, after
the objects have been looked at; with 1 when a fact does not hold.
"""

import math
import os
import pathlib
import re
import shutil
import subprocess
import sys

# What only these objects may hold, by the names of their files.
WIDE = ("avx2", "avx512", "amx")
INSTRUCTIONS = (
    ("AVX", r"%ymm|\tv[a-z]+[0-9a-z]* ", WIDE),
    ("AVX-512", r"%zmm|%k[1-7]|%[xy]mm(1[6-9]|2\d|3[01])", WIDE[1:]),
    ("AMX", r"%tmm|\tldtilecfg|\ttilerelease", WIDE[2:]),
    ("VNNI or BF16 vectors", r"\tvpdp|\tv(dp|cvtne)\w*bf16", WIDE[1:]),
)
# The library's promises: memory is the caller's, and a call never waits for the device.
FORBIDDEN = (r"\b(?:malloc|calloc|realloc|aligned_alloc|posix_memalign|mmap|_Znwm|_Znam|"
             r"cuda(?:Malloc|Free|HostAlloc)\w*|cuda\w*Synchronize|cudaStreamCreate\w*)\b")
# A processor, and what the library must choose there: each feature bit counts, and so does the
# operating system's word (XGETBV) that it keeps the wide registers.
PROCESSORS = (
    ("Nehalem", "cpu_portable"), ("Haswell", "cpu_avx2"), ("Haswell,-avx2", "cpu_portable"),
    ("Haswell,-fma", "cpu_portable"), ("Haswell,-f16c", "cpu_portable"),
    ("Haswell,-xsave", "cpu_portable"),
)
SMALL = 1 << 20  # products of a case that an emulator does in 50 ms

facts = {"hold": 0, "fail": 0}


def fact(holds, *what):
    facts["hold" if holds else "fail"] += 1
    print("ok  " if holds else "FALSE", *what)


def check_objects(folders):
    objects = sorted(p for folder in folders for p in pathlib.Path(folder).rglob("*.c.o"))
    fact(len(objects) >= 8, len(objects), "objects")
    wanted = subprocess.run(["nm", "-u", *objects, *pathlib.Path(folders[0]).rglob("*.cu.o")],
                            check=True, capture_output=True, text=True).stdout
    calls = sorted(set(re.findall(FORBIDDEN, wanted)))
    fact(not calls, "no allocation, no synchronisation", *calls)
    for name, pattern, homes in INSTRUCTIONS:
        holders = {}
        for path in objects:
            code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], check=True,
                                  capture_output=True, text=True).stdout
            found = re.findall(rf"^.*(?:{pattern}).*$", code, re.M)
            if found:
                holders[path.name.split(".")[0]] = found[0].strip()
        strangers = {n: line for n, line in holders.items() if n.rsplit("_", 1)[-1] not in homes}
        fact(not strangers, name, "instructions in", ", ".join(holders) or "no object", *strangers
             and [f"also {strangers}"])


def small_cases(fa_case):
    """Lines of the list, one an id, that an emulator can do soon."""
    lines, seen = [], set()
    listed = subprocess.run([fa_case, "--list"], check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        keys = dict(word.split("=", 1) for word in line.split())
        sizes = math.prod(int(keys.get(k, d)) for k, d in
                          (("b", 1), ("hq", 1), ("d", 64), ("q", 1), ("kv", 1)))
        if sizes <= SMALL and keys["id"] not in seen and not re.search(r"S1048|c65594", line):
            lines.append(line)
            seen.add(keys["id"])
    return lines


def check_processor(fa_case, processor, kernel, lines):
    run = subprocess.run(["qemu-x86_64", "-cpu", processor, fa_case, *lines], capture_output=True,
                         text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "2"})
    used = set(re.findall(r"^    (\w+), bits \w+: ok", run.stdout, re.M))
    counts = run.stdout.splitlines()[-1:] or [run.stderr]
    wrong = [line for line in run.stdout.splitlines() if line.startswith("WRONG")]
    fact(run.returncode == 0 and used == {kernel}, f"{processor}: {', '.join(sorted(used))},",
         counts[0].split(", subject")[0], *wrong[:1])


def main():
    fa_case, *folders = sys.argv[1:]
    if not shutil.which("objdump"):
        print("no objdump")
        return 77
    check_objects(folders)
    emulator = shutil.which("qemu-x86_64")
    if emulator:
        lines = small_cases(fa_case)
        for processor, kernel in PROCESSORS:
            check_processor(fa_case, processor, kernel, lines)
    print(f"{facts['hold']} facts hold, {facts['fail']} do not"
          + ("" if emulator else "; no qemu-x86_64, so no processor was emulated"))
    return 1 if facts["fail"] else 0 if emulator else 77


if __name__ == "__main__":
    sys.exit(main())
