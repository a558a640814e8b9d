"""gate.py - did a change make anything slower or wrong? Two records of fa_bench in, a verdict out.

    python3 bench/gate.py BASE.json NEW.json [AGAIN.json ...] [--tree DIR] [--margin M] [--json OUT]
    python3 bench/gate.py --stale --tree DIR RECORD ...      which records measured other sources

A point is slower when its time rose by more than its own spread (and the margin, 5 %), and its time
over the floor of its own run did too: what slows a whole machine slows the floor. It is also slower
when it left its bound. Where AGAIN repeats the measurement, a point is slower only if it is so in
all of them. It is a failure when its result left the oracle's tolerance, or it is gone. Exit code:
0 nothing slower; 1 slower or failed; 2 refused: not records, or of another device; 3 slower, but
measured on a disturbed machine, which shows nothing: run again.
"""

import argparse
import datetime
import hashlib
import json
import math
import pathlib
import sys

SAME = ("device", "processor", "dtype", "statistic", "temperature")
QUIET = 1.2  # disturbance (README.md) up to which a record is a result


class Refused(Exception):
    """These records cannot be compared; the text says why."""


def load(path):
    try:
        record = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        return {"path": str(path), "context": record["context"],
                "points": {p["name"]: p for p in record["benchmarks"]}}
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise Refused(f"{path} is not a record of fa_bench: {why}") from why


def digest_of(tree):
    """As build_info.cmake computes it: SHA-256 over the SHA-256 of each file, in order of path."""
    top = pathlib.Path(tree)
    names = sorted(str(p.relative_to(top)) for room in ("include", "kernels")
                   for p in (top / room).rglob("*")
                   if p.suffix in (".h", ".c", ".cu", ".cuh"))
    lines = "".join(f"{hashlib.sha256((top / name).read_bytes()).hexdigest()}  {name}\n"
                    for name in names)
    return hashlib.sha256(lines.encode()).hexdigest()


def comparable(base, new):
    for key in SAME:
        old, now = base["context"].get(key), new["context"].get(key)
        if old != now:
            raise Refused(f"{key} is {now} in {new['path']} and {old} in {base['path']}")


def failures(old, new):
    """What went wrong at a point that was right."""
    found = []
    for key in ("error_against_oracle", "error_against_oracle_worst_row", "error_against_padded"):
        if key in old and not new.get(key, math.inf) <= 1:
            found.append(f"{key} is {new.get(key)}")
    return found


def left_bound(old, new):
    return old.get("within_bound") == "yes" and new.get("within_bound") != "yes"


def compare_point(old, new, margin):
    """(time ratio, ratio of time over floor, what a ratio may be, failures)."""
    time = new["real_time"] / old["real_time"]
    floors = old.get("floor_us"), new.get("floor_us")
    share = time * floors[0] / floors[1] if all(floors) else time
    allowed = 1 + max(margin, math.hypot(old["spread"], new["spread"]))
    return time, share, allowed, failures(old, new)


def judge(base, repeats, margin):
    """A row for each point that the base has for a call, worst first."""
    rows = []
    for name, old in base["points"].items():
        if old["role"] not in ("native", "padded"):
            continue
        found = [record["points"].get(name) for record in repeats]
        if not all(found):
            rows.append({"name": name, "verdict": "failed", "why": "gone"})
            continue
        runs = [compare_point(old, point, margin) for point in found]
        beyond = all(left_bound(old, point) for point in found)
        slower = beyond or all(min(time, share) > allowed for time, share, allowed, _ in runs)
        faster = all(max(time, share) < 1 / allowed for time, share, allowed, _ in runs)
        wrong = [text for run in runs for text in run[3]]
        time, share, allowed, _ = min(runs, key=lambda run: min(run[0], run[1]))
        rows.append({
            "name": name, "base_us": old["real_time"], "new_us": old["real_time"] * time,
            "time_ratio": time, "floor_ratio": share, "allowed": allowed,
            "verdict": "failed" if wrong else "slower" if slower else "faster" if faster
            else "same", "why": "; ".join(wrong or ["beyond its bound"] * beyond)})
    return rows


def age(record):
    try:
        then = datetime.datetime.fromisoformat(record["context"]["date"].replace("Z", "+00:00"))
    except (KeyError, ValueError):
        return "of unknown age"
    return f"{(datetime.datetime.now(datetime.timezone.utc) - then).days} days old"


def print_row(row):
    if "base_us" not in row:
        print(f"  {row['verdict']:7} {row['name']}: {row['why']}")
        return
    print(f"  {row['verdict']:7} {row['name']}: {row['base_us']:.4g} -> {row['new_us']:.4g} us, "
          f"time x{row['time_ratio']:.3f}, over its floor x{row['floor_ratio']:.3f}, "
          f"allowed x{row['allowed']:.3f}{': ' + row['why'] if row['why'] else ''}")


def is_stale(record, tree):
    """Whether it measured other sources than the tree's; says so."""
    mine, theirs = digest_of(tree), record["context"].get("source_digest", "none")
    if mine == theirs:
        return False
    print(f"stale: {record['path']} ({age(record)}) measured sources {theirs[:12]}, the tree is "
          f"{mine[:12]}")
    return True


def gate(options):
    base, *repeats = [load(path) for path in options.records]
    if not repeats:
        raise Refused("one record is no comparison")
    for record in repeats:
        comparable(base, record)
        if options.tree and is_stale(record, options.tree):
            raise Refused(f"{record['path']} did not measure this tree")
    if options.tree:
        is_stale(base, options.tree)
    disturbed = [r for r in [base, *repeats] if not 0 <= r["context"]["disturbance"] <= QUIET]
    rows = judge(base, repeats, options.margin)
    for row in sorted(rows, key=lambda row: -row.get("floor_ratio", math.inf)):
        print_row(row)
    new = [name for name in repeats[0]["points"] if name not in base["points"]]
    for name in new:
        print(f"  new     {name}")
    if not rows:
        raise Refused(f"{base['path']} has no call")
    count = {v: sum(row["verdict"] == v for row in rows) for v in
             ("failed", "slower", "faster", "same")}
    code = 1 if count["failed"] or count["slower"] else 0
    if code and not count["failed"] and disturbed:
        code = 3
    for record in disturbed:
        print(f"disturbed: {record['path']}, by {record['context']['disturbance']:.3g}")
    verdict = ["PASS", "FAIL", "", "UNDECIDED, on a disturbed machine"][code]
    print(f"gate: {verdict}: " + ", ".join(f"{n} {v}" for v, n in count.items())
          + f", base {age(base)}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"verdict": verdict, "rows": rows},
                                                         indent=1), encoding="utf-8")
    return code


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="+")
    parser.add_argument("--tree", help="the sources that NEW must have measured")
    parser.add_argument("--stale", action="store_true", help="only say which records are stale")
    parser.add_argument("--margin", type=float, default=0.05)
    parser.add_argument("--json", help="write the rows here")
    options = parser.parse_args()
    try:
        if options.stale:
            stale = [is_stale(load(path), options.tree or ".") for path in options.records]
            print(f"{sum(stale)} of {len(stale)} records are stale")
            return 1 if any(stale) else 0
        return gate(options)
    except Refused as why:
        print(f"gate: REFUSED: {why}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
