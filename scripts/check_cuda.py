"""Reads the compiled CUDA kernels: prints what each one uses and finds spills where they cost.

usage: check_cuda.py CUOBJDUMP FILE...      FILE: object, archive or shared library

A main loop is a backward branch around tensor-core instructions, with no smaller such loop inside
and no exit: a wait's retry, moved behind the kernel's end, jumps back over everything. Where there
are warpgroup products (HGMMA), only loops around them count: the others are their rare cases.
Local memory (LDL, STL) in a main loop fails the check: there a spill is paid for on every block of
keys. Elsewhere it is counted and shown. Shared memory is the static part; the rest is asked for at
launch.
"""
import re
import subprocess
import sys

INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,6})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def demangle(name):
    try:
        return run("c++filt", name).strip().removeprefix("void ").split("(")[0]
    except (OSError, subprocess.CalledProcessError):
        return name


def resources(cuobjdump, path):
    """{(arch, function): "REG:.. STACK:.. SHARED:.."} in the order of the file."""
    found, arch, function = {}, "", ""
    for line in run(cuobjdump, "--dump-resource-usage", path).splitlines():
        if match := re.match(r"arch = (\w+)", line.strip()):
            arch = match.group(1)
        elif match := re.match(r"Function (\S+):", line.strip()):
            function = match.group(1)
        elif line.strip().startswith("REG:"):
            found[arch, function] = dict(re.findall(r"(\w+):(\d+)", line))
    return found


def functions(cuobjdump, path):
    """(arch, function, [(address, opcode, operands)]) of every kernel's machine code."""
    arch, name, code = "", "", []
    for line in run(cuobjdump, "--dump-sass", path).splitlines():
        if match := re.match(r"\s*(?:arch = (\w+)|Function : (\S+))\s*$", line):
            if name and code:
                yield arch, name, code
            arch, name, code = match.group(1) or arch, match.group(2) or "", []
        elif match := INSTRUCTION.search(line):
            code.append((int(match.group(1), 16), match.group(2), match.group(3)))
    if name and code:
        yield arch, name, code


def main_loops(code):
    """[first, last] addresses of the innermost loops that hold tensor-core instructions."""
    loops = []
    tensor = "HGMMA" if any(op.startswith("HGMMA") for _, op, _ in code) else "HMMA"
    for address, opcode, operands in code:
        target = re.search(r"(?:`\(\S+\)|0x([0-9a-f]+))\s*$", operands)
        if opcode.startswith("BRA") and target and target.group(1):
            first = int(target.group(1), 16)
            body = [op for at, op, _ in code if first <= at <= address]
            if any(op.startswith(tensor) for op in body) and "EXIT" not in body:
                loops.append((first, address))
    return [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]


def main():
    cuobjdump, paths = sys.argv[1], sys.argv[2:]
    bad = kernels = 0
    print(f"{'arch':8} {'regs':>4} {'smem':>6} {'stack':>6} {'local':>6} {'loops':>6} "
          f"{'in loop':>8}  kernel")
    for path in paths:
        used = resources(cuobjdump, path)
        for arch, name, code in functions(cuobjdump, path):
            loops = main_loops(code)
            local = [at for at, op, _ in code if op.startswith(("LDL", "STL"))]
            in_loop = sum(1 for at in local if any(a <= at <= b for a, b in loops))
            usage = used.get((arch, name), {})
            print(f"{arch:8} {usage.get('REG', '?'):>4} {usage.get('SHARED', '?'):>6} "
                  f"{usage.get('STACK', '?'):>6} {len(local):6} {len(loops):6} {in_loop:8}"
                  f"  {demangle(name)}" + ("  FAILED" if in_loop else ""))
            kernels, bad = kernels + 1, bad + (in_loop > 0)
    print(f"{kernels} kernels, {bad} with local memory in a main loop")
    return 1 if bad or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
