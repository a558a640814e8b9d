"""What a clean CPU build costs a vendor: printed for each file, and bounded.

usage: budget.py CC SOURCE_DIR, in a folder to fill
"""
import glob
import os
import subprocess
import sys

# A whole clean build of two cores' machine in half a minute, so that nobody avoids rebuilding it;
# no file that a small build machine cannot compile; a library that nobody minds shipping.
MAX_SECONDS = 30.0
MAX_COMPILER_BYTES = 1 << 30
MAX_OBJECT_BYTES = 1 << 20


def compile_file(cc, top, source):
    """Compiles one file; returns its seconds, the compiler's peak memory and the object's bytes."""
    obj = os.path.basename(source) + ".o"
    command = [cc, "-O3", "-fPIC", "-I" + top + "/include", "-c", source, "-o", obj]
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)  # includes the compiler that the driver starts
    seconds = usage.ru_utime + usage.ru_stime  # processor time: a busy machine does not change it
    if status != 0:
        sys.exit("FAILED: " + " ".join(command))
    size = subprocess.run(["size", obj], capture_output=True, text=True, check=True)
    return seconds, usage.ru_maxrss * 1024, sum(map(int, size.stdout.splitlines()[1].split()[:3]))


def main():
    cc, top = sys.argv[1:]
    sources = sorted(glob.glob(top + "/kernels/*.c") + glob.glob(top + "/kernels/cpu/*.c"))
    print(f"{'file':32} {'seconds':>8} {'compiler MB':>12} {'object KB':>10}")
    totals = [0.0, 0, 0]
    for source in sources:
        seconds, memory, size = compile_file(cc, top, source)
        totals = [totals[0] + seconds, max(totals[1], memory), totals[2] + size]
        print(f"{os.path.relpath(source, top):32} {seconds:8.2f} {memory / 1e6:12.0f} "
              f"{size / 1e3:10.1f}")
    print(f"{'all, peak, all':32} {totals[0]:8.2f} {totals[1] / 1e6:12.0f} {totals[2] / 1e3:10.1f}")
    limits = [MAX_SECONDS, MAX_COMPILER_BYTES, MAX_OBJECT_BYTES]
    print(f"{'limits':32} {limits[0]:8.2f} {limits[1] / 1e6:12.0f} {limits[2] / 1e3:10.1f}")
    within = all(total <= limit for total, limit in zip(totals, limits))
    print("within the budget" if within else "FAILED: over the budget")
    return 0 if sources and within else 1


if __name__ == "__main__":
    sys.exit(main())
