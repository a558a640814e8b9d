"""test_gate.py - the gate fires on what is slower or wrong, and on nothing else.

    python3 bench/test_gate.py FA_BENCH SOURCE_DIR

Measures the same build twice with FA_BENCH --quick, then plants faults into copies of the record.
The ratios that the gate gives are computed here a second time.
"""

import copy
import json
import math
import pathlib
import subprocess
import sys
import tempfile

GATE = pathlib.Path(__file__).with_name("gate.py")
PASS, FAIL, REFUSED, UNDECIDED = 0, 1, 2, 3
checks = 0


def check(fact, *what):
    global checks
    checks += 1
    if not fact:
        sys.exit("FALSE: " + " ".join(str(w) for w in what))


def gate(folder, *records, options=()):
    """(exit code, rows, text) of the gate on these records."""
    paths = []
    for n, record in enumerate(records):
        paths.append(folder / f"gate-{n}.json")
        paths[-1].write_text(json.dumps(record))
    out = folder / "verdict.json"
    out.unlink(missing_ok=True)
    run = subprocess.run([sys.executable, GATE, *paths, "--json", out, *options], text=True,
                         capture_output=True, check=False)
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    return run.returncode, {row["name"]: row for row in rows}, run.stdout


def measure(program, folder):
    """fa_bench refuses figures that beat its ceilings, as where a busy moment met those: again."""
    path = folder / "record.json"
    for last in (False, False, False, False, True):
        run = subprocess.run([program, "--quick", "--json", path], check=last,
                             stdout=subprocess.DEVNULL)
        if run.returncode == 0:
            return json.loads(path.read_text())


def with_point(record, name, factor=1.0, **values):
    """A copy in which one point is slower by a factor and has other values."""
    made = copy.deepcopy(record)
    point = next(p for p in made["benchmarks"] if p["name"] == name)
    for key in ("real_time", "minimum_us", "lower_quartile_us", "median_us", "upper_quartile_us"):
        point[key] *= factor
    point.update(values)
    return made


def main():
    program, tree = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        first, second, third = (measure(program, folder) for _ in range(3))
        code, rows, text = gate(folder, first, second, third, options=("--tree", tree))
        check(code in (PASS, UNDECIDED), "the same build is not slower than itself\n", text)
        calls = [p for p in first["benchmarks"] if p["role"] in ("native", "padded")]
        check(set(rows) == {p["name"] for p in calls}, "every call is judged")

        quiet = copy.deepcopy(first)
        quiet["context"]["disturbance"] = 1.0
        code, rows, text = gate(folder, quiet, quiet)
        check(code == PASS and "4 same" in text, "a record is equal to itself")
        target = next(p for p in calls if p["q_len"] == 16)
        factor = 1.1 * (1 + max(0.05, math.sqrt(2) * target["spread"]))
        slow = with_point(quiet, target["name"], factor)
        code, rows, text = gate(folder, quiet, slow)
        check(code == FAIL and "FAIL" in text, "a planted slowdown fires")
        for point in calls:
            row, planted = rows[point["name"]], point["name"] == target["name"]
            check(row["verdict"] == ("slower" if planted else "same"), point["name"])
            check(math.isclose(row["time_ratio"], factor if planted else 1), "its time ratio")
            check(math.isclose(row["floor_ratio"], row["time_ratio"]), "its share of the floor")
            check(math.isclose(row["allowed"], 1 + max(0.05, math.sqrt(2) * point["spread"])),
                  "what its spread allows")
        check(gate(folder, quiet, slow, quiet)[0] == PASS, "a slowdown that does not repeat")
        steady = copy.deepcopy(quiet)
        for point in steady["benchmarks"]:
            point["spread"] = 0.01
        for planted, want in ((1.03, PASS), (1.10, FAIL)):
            made = with_point(steady, target["name"], planted)
            check(gate(folder, steady, made)[0] == want, f"x{planted} at a spread of 1 %")
        check(gate(folder, slow, quiet)[1][target["name"]]["verdict"] == "faster", "a gain")
        machine = with_point(quiet, target["name"], factor, floor_us=factor * target["floor_us"])
        check(gate(folder, quiet, machine)[0] == PASS, "the machine's own slowdown is none")
        busy = copy.deepcopy(slow)
        busy["context"]["disturbance"] = 5
        check(gate(folder, quiet, busy)[0] == UNDECIDED, "a disturbed machine decides nothing")

        wrong = with_point(quiet, target["name"], error_against_oracle=1.5)
        check(gate(folder, quiet, wrong)[0] == FAIL, "a wrong result fires")
        bounded = with_point(quiet, target["name"], within_bound="yes")
        beyond = with_point(quiet, target["name"], within_bound="no")
        check(gate(folder, bounded, beyond)[0] == FAIL, "a point beyond its bound fires")
        check(gate(folder, beyond, beyond)[0] == PASS, "but not where it was so before")
        nan = with_point(quiet, target["name"], error_against_oracle=math.nan)
        check(gate(folder, quiet, nan)[0] == FAIL, "NaN is no pass")
        gone = copy.deepcopy(quiet)
        gone["benchmarks"] = [p for p in gone["benchmarks"] if p["name"] != target["name"]]
        code, rows, _ = gate(folder, quiet, gone)
        check(code == FAIL and rows[target["name"]]["why"] == "gone", "a missing point fires")

        other = copy.deepcopy(quiet)
        other["context"]["processor"] = "another one"
        code, _, text = gate(folder, quiet, other)
        check(code == REFUSED and "processor" in text, "another device is refused")
        check(gate(folder, quiet)[0] == REFUSED, "one record is no comparison")
        check(gate(folder, quiet, {"context": {}})[0] == REFUSED, "no record")
        old = copy.deepcopy(quiet)
        old["context"]["source_digest"] = "0" * 64
        code, _, text = gate(folder, old, quiet, options=("--tree", tree))
        check(code == PASS and "stale:" in text and "000000" in text, "a stale base is reported")
        code, *_ = gate(folder, quiet, old, options=("--tree", tree))
        check(code == REFUSED, "a new record of other sources is refused")
    print(f"gate: {checks} checks, all true")


main()
