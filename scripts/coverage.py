"""Line coverage of the library's C files from gcov; exits 1 below the least share.

usage: coverage.py BUILD_DIR SOURCE_DIR MIN_PERCENT

A line counts as run when any object that holds it ran it: the static library, the shared one. Files
of an instruction set that this processor lacks cannot run here; they are named and left out.
"""
import glob
import json
import os
import subprocess
import sys

# The file's name says its instruction set; the flag is /proc/cpuinfo's.
NEEDS_FLAG = {"avx2": "avx2", "avx512": "avx512f", "amx": "amx_tile", "neon": "asimd"}


def cpu_flags():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith(("flags", "Features")):
                return set(line.split(":")[1].split())
    return set()


def runnable(path, flags):
    name = os.path.basename(path)
    return all(flag in flags for isa, flag in NEEDS_FLAG.items() if isa in name)


def line_counts(build, source):
    """{path below source: {line number: times run}} of kernels/*.[ch] and kernels/cpu/*.[ch]."""
    counts = {}
    for data in glob.glob(build + "/CMakeFiles/fa_*.dir/**/*.gcda", recursive=True):
        out = subprocess.run(["gcov", "--stdout", "--json-format", os.path.abspath(data)],
                             capture_output=True, check=True).stdout
        for report in map(json.loads, out.splitlines()):
            for entry in report["files"]:
                path = os.path.realpath(os.path.join(report["current_working_directory"],
                                                     entry["file"]))
                path = os.path.relpath(path, source)
                if os.path.dirname(path) in ("kernels", "kernels/cpu"):
                    lines = counts.setdefault(path, {})
                    for line in entry["lines"]:
                        number = line["line_number"]
                        lines[number] = lines.get(number, 0) + line["count"]
    return counts


def main():
    build, source, least = sys.argv[1], os.path.realpath(sys.argv[2]), float(sys.argv[3])
    counts, flags = line_counts(build, source), cpu_flags()
    for path in sorted(glob.glob(source + "/kernels/*.c") + glob.glob(source + "/kernels/cpu/*.c")):
        counts.setdefault(os.path.relpath(path, source), {})
    run_total = all_total = 0
    print(f"{'file':36} {'lines':>6} {'run':>6} {'share':>7}  not run")
    for path, lines in sorted(counts.items()):
        run = sum(1 for times in lines.values() if times)
        missed = [str(number) for number, times in sorted(lines.items()) if not times]
        if not runnable(path, flags):
            print(f"{path:36} {len(lines):6}      -       -  this processor cannot run it")
            continue
        run_total, all_total = run_total + run, all_total + len(lines)
        share = f"{100 * run / len(lines):6.1f}%" if lines else "      -"
        print(f"{path:36} {len(lines):6} {run:6} {share}  {' '.join(missed[:12])}"
              + (" ..." if len(missed) > 12 else ""))
    percent = 100 * run_total / all_total if all_total else 0.0
    enough = percent >= least
    print(f"line coverage {percent:.1f} %, at least {least:g} % wanted: "
          + ("passed" if enough else "FAILED"))
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
