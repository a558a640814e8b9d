"""test_peers.py - the arithmetic and the records of peers.py, without a GPU.

    python3 bench/test_peers.py FOLDER

Measured figures are made up here; what is derived from them is computed a second time.
"""

import json
import math
import pathlib
import random
import sys

import peers
import peers_record
import report

checks = 0


def check(fact, *what):
    global checks
    checks += 1
    if not fact:
        sys.exit("FALSE: " + " ".join(str(w) for w in what))


def test_rows():
    rows = peers.grid_rows()
    count = {grid: sum(r["grid"] == grid for r in rows) for grid in ("A", "A2", "B", "C", "D")}
    check(count == {"A": 16, "A2": 3, "B": 12, "C": 13, "D": 14}, count)
    check(rows[13] == dict(zip(peers_record.FIELDS, ("A", 8, 32, 8, 128, 2048, 2048))), rows[13])


def test_interval():
    """The ranks of the sign test's tables, and how often the interval holds the true median."""
    for n, rank in ((15, 4), (25, 8), (51, 19), (101, 41)):
        found = peers_record.median_interval(range(1, n + 1))
        check(found == (rank, (n + 1) // 2, n + 1 - rank), n, found)
    dice = random.Random(7)
    held = 0
    for _ in range(4000):
        low, _, high = peers_record.median_interval([dice.expovariate(1) for _ in range(25)])
        held += low <= math.log(2) <= high
    check(3780 <= held <= 3920, held)  # 95.7 % of 4000 is 3828, 13 the standard deviation


def made_up(row, best):
    us = {"ours": 100.0, "fa2": 150.0, "fa3": 90.0}
    samples = {n: [t + i for i in range(-7, 8)] for n, t in us.items()}
    ratios = {n: peers_record.median_interval([p / o for p, o in zip(samples[n], samples["ours"])])
              for n in us if n != "ours"}
    return {"row": row, "us": us, "samples": samples, "errors": dict.fromkeys(us, 0.002),
            "ratios": ratios, "best": best,
            "plans": {"ours": {"kernel": "k", "tile_rows": "64", "tile_keys": "16", "splits": 2}}}


def test_records(folder):
    rows = peers.grid_rows()
    points = [made_up(rows[0], "fa3"), made_up(rows[40], "fa2")]
    context = {"processor": "a GPU", "torch": "0", "cudnn": 0, "date": "today", "dtype": "bf16",
               "source_digest": "d", "peers": {"fa2": "1", "fa3": "2"}, "clocks_before": "b",
               "clocks_after": "a"}
    ceilings = {"flops_per_second": 8e14, "bytes_per_second": 4.5e12, "empty_us": 2.5,
                "read_us": 3.5}
    csv_path, json_path = folder / "made_up.csv", folder / "made_up.json"
    peers_record.write_csv(csv_path, context, ceilings, points, ["ours", "fa2", "fa3"])
    peers_record.write_json(json_path, context, ceilings, points)
    record = report.load_peers(csv_path)
    check(record["peers"] == ["fa2", "fa3"] and record["ceilings"] == ceilings, record["peers"])
    first = record["points"][0]
    check(first["fa3_us"] == 90.0 and first["best"] == "fa3" and first["splits"] == 2, first)
    low, middle, high = (first[name] for name in ("ratio_low", "ratio", "ratio_high"))
    check(abs(middle - 0.9) < 1e-4 and low < middle < high, first)
    entries = json.loads(json_path.read_text(encoding="utf-8"))["benchmarks"]
    check(len(entries) == 6 and entries[1]["name"] == "peers/fa2/A/b32/h32/32/d64/q512/kv512",
          entries[1]["name"])
    check(entries[0]["flops"] == 4 * 64 * 512 * 513 // 2 * 32 * 32, entries[0]["flops"])
    line = peers_record.table_line(points[0], ceilings)
    check("fa3 90.0 x0.900 [" in line and "]* | k 64x16 s2 | fa2 150.0 x1.5" in line, line)


def main():
    folder = pathlib.Path(sys.argv[1])
    test_rows()
    test_interval()
    test_records(folder)
    print(f"{checks} facts hold")


if __name__ == "__main__":
    main()
