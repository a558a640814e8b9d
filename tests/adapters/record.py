"""record.py - what fa_conform says of this library, a mutant and peers, as one record.

    python3 tests/adapters/record.py BUILD OUT.csv SUBJECT ... [key=value ...]

A SUBJECT is `library`, `mutant:NAME` (tests/mutants) or an engine of engines.py; key=value goes to
fa_conform (device=cuda, fuzz=500). Subjects are judged side by side, `jobs=N` at a time (1), each
in at most `seconds=N` (600). The TAP, JUnit and JSON of each come to lie in the folder OUT, beside
OUT.csv. Engines run in the Python that runs this.

A verdict is no error here, whatever it is: the exit code is 0 when every subject that is installed
was judged, this library conforms and mutants do not.
"""

import collections
import concurrent.futures
import csv
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = {"numpy": "numpy", "torch": "torch", "flash2": "flash-attn", "flash3": "fa3-fwd",
            "flash4": "flash-attn-4", "onnxruntime": "onnxruntime"}
STATES = ("right", "dialect", "unsupported", "wrong", "not run")
COLUMNS = ("subject", "version", "verdict", *(s.replace(" ", "_") for s in STATES), "differences",
           "wrong_items")
MOST_NAMED = 12


def version_of(subject, library_version):
    if subject == "library" or subject.startswith("mutant:"):
        parts = library_version // 1000000, library_version // 1000 % 1000, library_version % 1000
        return ".".join(map(str, parts))
    try:
        version = importlib.metadata.version(PACKAGES[subject.split("_")[0]])
    except importlib.metadata.PackageNotFoundError:
        return "?"
    if subject == "torch_cudnn":
        import torch
        version += f" (cuDNN {torch.backends.cudnn.version()})"
    return version


def judge(build, folder, subject, words, seconds):
    """(exit code of fa_conform, what it printed, its JSON record or None)."""
    tests = build / "tests"
    library, name = tests / "adapters" / "fa_adapter.so", subject.replace(":", "-")
    environment = {**os.environ, "FA_ADAPTER": subject, "FA_ADAPTER_PYTHON": sys.executable}
    if subject == "library":
        library = build / "libfa_fwd_causal_shared.so"
    elif subject.startswith("mutant:"):
        library = next((tests / "mutants").glob("*fa_mutant.so"))
        environment["FA_MUTANT"] = subject.partition(":")[2]
    stem = folder / name
    stem.with_suffix(".json").unlink(missing_ok=True)
    command = [tests / "fa_conform", library, f"out={stem}", *words]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment,
                             timeout=seconds)
    except subprocess.TimeoutExpired:
        return 124, f"not judged in {seconds} s\n", None
    text = run.stdout + run.stderr
    (folder / f"{name}.log").write_text(text, encoding="utf-8")
    found = stem.with_suffix(".json")
    return run.returncode, text, json.loads(found.read_text()) if found.exists() else None


def row_of(subject, record):
    states = collections.Counter(r["state"] for r in record["results"])
    wrong = [r["name"] for r in record["results"] if r["state"] in ("wrong", "not run")]
    named = wrong[:MOST_NAMED]
    if len(wrong) > len(named):
        named.append(f"and {len(wrong) - len(named)} more")
    return [subject, version_of(subject, record["version"]), record["verdict"],
            *(states[s] for s in STATES),
            " ".join(f"{d['letter']}:{d['items']}" for d in record["differences"]),
            "; ".join(named)]


def device_name(words):
    if "device=cuda" in words:
        import torch
        return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    found = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(
        encoding="utf-8"), re.M)
    return found[1].strip() if found else platform.machine()


def sources():
    """The git tree of kernels/, or a word that says that there is none."""
    run = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD:kernels"], capture_output=True,
                         text=True, check=False)
    return f"git tree {run.stdout.strip()} of kernels/" if run.returncode == 0 else "not in git"


def main():
    build, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    words = dict(w.split("=", 1) for w in sys.argv[3:] if "=" in w)
    subjects = [w for w in sys.argv[3:] if "=" not in w]
    jobs, seconds = int(words.pop("jobs", 1)), int(words.pop("seconds", 600))
    judged = [f"{key}={value}" for key, value in words.items()]
    folder = out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    good, rows = True, []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = pool.map(lambda s: judge(build, folder, s, judged, seconds), subjects)
        for subject, (code, text, record) in zip(subjects, runs):
            print(f"==== {subject}\n{text}", flush=True)
            if record:
                rows.append(row_of(subject, record))
            absent = code == 2 and subject not in ("library",) and "nothing to judge" in text
            good &= absent or (record is not None and code in (0, 1, 3))
            good &= code == {"library": 0, "mutant": 1}.get(subject.split(":")[0], code)
    with open(out, "w", encoding="utf-8", newline="") as file:
        print(f"# fa_conform {' '.join(judged)}: {device_name(judged)}; {datetime.date.today()}; "
              f"Python {platform.python_version()}; this library: {sources()}", file=file)
        print("# differences: letter of the dialect (tests/README.md) and its items; wrong_items: "
              f"the first {MOST_NAMED}", file=file)
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows(rows)
    print(f"{len(rows)} of {len(subjects)} subjects judged: "
          + ", ".join(f"{r[0]} {r[2]}" for r in rows))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
