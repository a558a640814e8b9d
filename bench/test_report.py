"""test_report.py - a record made now, its figures recomputed from shapes and times alone.

    python3 bench/test_report.py FA_BENCH [FOLDER]

Runs FA_BENCH --quick and checks the record as JSON that Google-Benchmark tools read, every derived
figure against this file's own arithmetic, and report.py's table against both. With FOLDER the page
is made there too and must be complete in itself. Exits non-zero at the first false fact.
"""

import csv
import html.parser
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

REPORT = pathlib.Path(__file__).with_name("report.py")
PEERS = REPORT.parent / "records" / "h200-cuda_sm80-against-fa2.csv"


def check(fact, *what):
    check.count += 1
    if not fact:
        sys.exit("FALSE: " + " ".join(str(w) for w in what))


check.count = 0


def close(name, got, want):
    check(math.isclose(got, want, rel_tol=1e-6), name, "is", got, "and should be", want)


def visible_pairs(q, kv):
    return sum(max(0, min(kv, row + kv - q + 1)) for row in range(q))


def check_google_benchmark(record):
    check(isinstance(record["context"]["date"], str), "context has a date")
    names = [b["name"] for b in record["benchmarks"]]
    check(len(set(names)) == len(names) > 0, "names are unique")
    for b in record["benchmarks"]:
        check(b["run_type"] == "iteration" and b["time_unit"] == "us", "run_type and time_unit")
        for key in ("real_time", "cpu_time", "iterations", "repetition_index", "threads"):
            check(isinstance(b[key], (int, float)), b["name"], key)
        check(b["real_time"] > 0 and b["iterations"] >= 1, b["name"], "was timed")


def check_context(context):
    for key in ("processor", "caches", "compiler", "flags", "library_version", "git_describe",
                "ceiling_arithmetic", "formula", "pinning"):
        check(context.get(key), "context has", key)
    check(re.fullmatch("[0-9a-f]{64}", context["source_digest"]), "the digest is a SHA-256")


def check_point(context, b, empty_us, read_us, padded):
    element = {"f32": 4, "f16": 2, "bf16": 2}[b["dtype"]]
    pairs = visible_pairs(b["q_len"], b["kv_len"])
    flops = 4 * b["head_dim"] * pairs * b["heads_q"] * b["batch"]
    kv_bytes = 2 * b["batch"] * b["kv_len"] * b["heads_kv"] * b["head_dim"] * element
    qo_bytes = 2 * b["batch"] * b["q_len"] * b["heads_q"] * b["head_dim"] * element
    us = b["real_time"]

    floor = max(empty_us + 1e6 * flops / context["ceiling_flops_per_second"],
                read_us * (kv_bytes + qo_bytes) / kv_bytes)
    close("visible_pairs", b["visible_pairs"], pairs)
    close("flops", b["flops"], flops)
    close("kv_bytes", b["kv_bytes"], kv_bytes)
    close("bytes", b["bytes"], kv_bytes + qo_bytes)
    close("flops_per_second", b["flops_per_second"], flops / us * 1e6)
    close("floor_us", b["floor_us"], floor)
    close("floor_share", b["floor_share"], floor / us)
    close("real_time", us, b["minimum_us"])
    order = [b[k] for k in ("minimum_us", "lower_quartile_us", "median_us", "upper_quartile_us")]
    check(order == sorted(order), b["name"], "quartiles are in order")
    close("spread", b["spread"], (order[3] - order[1]) / order[2])
    for key in ("error_against_oracle", "error_against_oracle_worst_row"):
        check(0 <= b[key] <= 1, b["name"], key, b[key])
    if b["role"] != "native":
        return
    check(0 <= b["error_against_padded"] <= 1, b["name"], "agrees with padded q")
    close("padded_us", b["padded_us"], padded["real_time"])
    close("speed_up", b["speed_up"], padded["real_time"] / us)
    close("padded_flops", b["padded_flops"], padded["flops"])
    close("extra_bytes", b["extra_bytes"], qo_bytes / b["q_len"] * (b["kv_len"] - b["q_len"]))
    within = 4 * b["q_len"] <= b["kv_len"] and b["kv_len"] >= 1000
    check(within == ("bound_us" in b), b["name"], "has a bound where one is due")
    if within:
        bound = empty_us + 1.5 * max(padded["real_time"] * pairs / padded["visible_pairs"], read_us)
        close("bound_us", b["bound_us"], bound)
        check((b["within_bound"] == "yes") == (us <= bound), b["name"], "within_bound")


def check_record(record):
    points = record["benchmarks"]
    empty, = [b for b in points if b["role"] == "empty"]
    padded, = [b for b in points if b["role"] == "padded"]
    read, = [b for b in points if b["role"] == "read"]
    natives = [b for b in points if b["role"] == "native"]
    check([b["q_len"] for b in natives] == [1, 16, 256], "the quick run has q 1, 16, 256")
    check(padded["q_len"] == padded["kv_len"] == 1024, "padded q has kv_len rows")
    for b in [padded, *natives]:
        check_point(record["context"], b, empty["real_time"], read["real_time"], padded)
        check(record["context"]["dtype"] == b["dtype"], "one dtype")


def check_table(record, text):
    """The printed table has a line for each native point, with its time, ratio and work."""
    lines = [line.split() for line in text.splitlines()]
    for b in [b for b in record["benchmarks"] if b["role"] == "native"]:
        mine = [w for w in lines if w[:2] == [str(b["kv_len"]), str(b["q_len"])]]
        check(len(mine) == 1, b["name"], "has one line in the table")
        pairs, square = visible_pairs(b["q_len"], b["kv_len"]), visible_pairs(*[b["kv_len"]] * 2)
        for column, want in ((2, b["minimum_us"]), (3, b["padded_us"]),
                             (4, b["padded_us"] / b["minimum_us"]), (7, square / pairs)):
            got = float(mine[0][column].rstrip("x"))
            check(abs(got / want - 1) < 0.006, b["name"], "column", column, got, "and", want)


class Tables(html.parser.HTMLParser):
    """The cells of every table, row by row, and the marks of every plot."""

    def __init__(self):
        super().__init__()
        self.tables, self.marks, self.cell = [], [], False

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.cell = True
        elif "data-y" in dict(attrs):
            self.marks.append((float(dict(attrs)["data-x"]), float(dict(attrs)["data-y"])))

    def handle_endtag(self, tag):
        self.cell = self.cell and tag not in ("td", "th")

    def handle_data(self, data):
        if self.cell:
            self.tables[-1][-1][-1] += data


def near(text, want):
    return abs(float(text.rstrip("x%")) - want) <= 0.006 * abs(want)


def check_peers(tables):
    """The committed comparison's tables: ratio and rate of every line, from the file itself."""
    lines = [line for line in PEERS.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    found = [dict(zip(table[0], row)) for table in tables for row in table[1:]
             if "fa2 / ours" in table[0]]
    points = list(csv.DictReader(lines))
    check(len(found) == len(points) > 50, "every point of the comparison has its row")
    for row, p in zip(found, points):
        q, kv, us = int(p["q_len"]), int(p["kv_len"]), float(p["ours_us"])
        # visible_pairs without its loop: q is at most kv here, or both are equal.
        pairs = q * kv - q * (q - 1) // 2
        flops = 4 * int(p["head_dim"]) * pairs * int(p["heads_q"]) * int(p["batch"])
        check(row["q"] == p["q_len"] and row["kv"] == p["kv_len"], "rows are in order")
        check(near(row["fa2 / ours"], float(p["fa2_us"]) / us), "ratio of", p)
        check(near(row["TFLOP/s"], flops / us / 1e6), "rate of", p)
        moved = 4 * int(p["batch"]) * int(p["head_dim"]) * (
            kv * int(p["heads_kv"]) + q * int(p["heads_q"]))
        floor = max(2.7 + flops / 795e6, 3.6 + moved / 4.58e6)
        check(near(row["floor us"], floor), "floor of", p)
        check(abs(float(row["of floor"].rstrip("%")) - 100 * floor / us) <= 0.51, "share of", p)
    means = next(table for table in tables if table[0][0] == "peer")
    for grid, shown in zip(means[0][1:], means[1][1:]):
        ratios = [float(p["fa2_us"]) / float(p["ours_us"]) for p in points if p["grid"] == grid]
        mean = math.prod(ratios) ** (1 / len(ratios))
        check(abs(float(shown.rstrip("x")) - mean) <= 0.0051, "mean of grid", grid)


def check_page(record, record_path, folder):
    page = pathlib.Path(folder) / "report.html"
    subprocess.run([sys.executable, REPORT, record_path, PEERS, "--html", page], check=True,
                   stdout=subprocess.DEVNULL)
    text = page.read_text(encoding="utf-8")
    seen = Tables()
    seen.feed(text)
    check(not re.search(r"(src|href)=[\"'](?!#)|url\(", text), "the page loads nothing")
    check("prefers-color-scheme: dark" in text and "currentColor" in text, "light and dark")
    check("AVX" in text or "vectors" in text, "the page names the ceiling's arithmetic")
    for key in ("processor", "compiler", "source_digest", "date"):
        check(record["context"][key] in text, "the machine block has", key)
    natives = [b for b in record["benchmarks"] if b["role"] == "native"]
    rows = [dict(zip(seen.tables[0][0], row)) for row in seen.tables[0][1:]]
    check(len(rows) == len(natives), "a row for each native point")
    for row, b in zip(rows, natives):
        check(near(row["native us"], b["minimum_us"]), "us of", b["name"])
        check(near(row["time ratio"], b["padded_us"] / b["minimum_us"]), "ratio of", b["name"])
        check(abs(float(row["error"]) - b["error_against_oracle"]) < 0.0051, "error of", b["name"])
        for x, y in ((b["q_len"], b["minimum_us"]), (b["q_len"], b["padded_us"] / b["minimum_us"]),
                     (b["q_len"], 100 * b["floor_us"] / b["minimum_us"])):
            check(any(m[0] == x and math.isclose(m[1], y, rel_tol=1e-6) for m in seen.marks),
                  "a mark at", x, y)
    check_peers(seen.tables)
    beside = list(csv.reader(page.with_name("report-tables.csv").open(encoding="utf-8")))
    for table in seen.tables:
        check(all(row in beside for row in table), "the CSV has every row of", table[0])
    print(f"page: {page}, {len(text) // 1024} KB")


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "quick.json"
        subprocess.run([sys.argv[1], "--quick", "--json", path], check=True,
                       stdout=subprocess.DEVNULL)
        record = json.loads(path.read_text(encoding="utf-8"))
        check_google_benchmark(record)
        check_context(record["context"])
        check_record(record)
        text = subprocess.run([sys.executable, REPORT, path], check=True, text=True,
                              capture_output=True).stdout
        check_table(record, text)
        if len(sys.argv) > 2:
            check_page(record, path, sys.argv[2])
        unknown = subprocess.run([sys.argv[1], "--grid", "none"], capture_output=True, check=False)
        check(unknown.returncode == 2, "an unknown grid is a bad option")
        absent = subprocess.run([sys.argv[1], "--device", "none"], capture_output=True, check=False)
        check(absent.returncode == 4, "an absent device has its own exit code")
    print(f"bench record and report: {check.count} checks, all true")


main()
