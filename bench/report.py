"""report.py - one self-contained page, a CSV beside it, and a table as text, from records.

    python3 bench/report.py RECORD ... [--html PAGE.html] [--title TEXT]

A record is fa_bench's JSON, or a CSV of an interleaved comparison with peers: the columns of
bench/records, one <peer>_us a peer. Nothing but the standard library is needed. All figures come
from the records; nothing is measured or assumed here. It changes when a record gains something that
people should see.
"""

import argparse
import csv
import json
import math
import pathlib
import sys

import page
from plots import SERIES, curves, legend, rows, significant


def load(path):
    if str(path).endswith(".csv"):
        return load_peers(path)
    with open(path, encoding="utf-8") as file:
        record = json.load(file)
    for key in ("context", "benchmarks"):
        if key not in record:
            sys.exit(f"{path}: not a record of fa_bench: no '{key}'")
    return record


def groups(record):
    """Lists of points that one table shows; grid padded has one for each batch, heads, head_dim."""
    found = {}
    for point in record["benchmarks"]:
        key = (point["grid"],)
        if point["grid"] == "padded":
            key += tuple(point[k] for k in ("batch", "heads_q", "heads_kv", "head_dim"))
        found.setdefault(key, []).append(point)
    return list(found.values())


def role(points, name):
    return [point for point in points if point["role"] == name]


def heading(record, points):
    context, first = record["context"], points[0]
    text = f"{context['device']}, {context['dtype']}, grid {first['grid']}"
    if first["grid"] == "padded":
        text += (f": batch {first['batch']}, heads {first['heads_q']}/{first['heads_kv']}, "
                 f"head_dim {first['head_dim']}")
    return text


def padded_columns(point, other):
    """Time, work and memory of a native call beside those of padded q."""
    return {
        "kv": str(point["kv_len"]),
        "q": str(point["q_len"]),
        "native us": significant(point["real_time"]),
        "padded us": significant(point["padded_us"]),
        "time ratio": significant(point["speed_up"]) + "x",
        "native GFLOP": significant(point["flops"] / 1e9),
        "padded GFLOP": significant(point["padded_flops"] / 1e9),
        "work ratio": significant(point["padded_flops"] / point["flops"]) + "x",
        "extra MB": significant(point["extra_bytes"] / 1e6),
        **speed_columns(point, other),
        "bound us": significant(point["bound_us"]) if "bound_us" in point else "-",
        "within": point.get("within_bound", "-"),
    }


def grid_columns(point, other):
    return {
        "B": str(point["batch"]),
        "heads": f"{point['heads_q']}/{point['heads_kv']}",
        "D": str(point["head_dim"]),
        "q": str(point["q_len"]),
        "kv": str(point["kv_len"]),
        "us": significant(point["real_time"]),
        **speed_columns(point, other),
    }


def speed_columns(point, other):
    return {
        "+-%": f"{100 * point['spread']:.0f}",
        "GFLOP/s": significant(point["flops_per_second"] / 1e9),
        "GB/s": significant(point["bytes"] / point["real_time"] / 1e3),
        "floor us": significant(point["floor_us"]),
        "of floor": f"{100 * point['floor_share']:.0f}%",
        f"{other} us": significant(point[f"{other}_us"]) if f"{other}_us" in point else "-",
        "error": f"{point['error_against_oracle']:.2f}",
        "worst row": f"{point['error_against_oracle_worst_row']:.2f}",
    }


def table(record, points):
    """(column names, rows of text) of a group."""
    natives = role(points, "native")
    columns = padded_columns if all("padded_us" in p for p in natives) else grid_columns
    other = "cold" if record["context"]["temperature"] == "warm" else "warm"
    rows = [columns(point, other) for point in natives]
    return list(rows[0]), [list(row.values()) for row in rows]


def machine(record):
    """(name, value) of everything known about the machine and the build, and the ceilings."""
    context = record["context"]
    skip = ("ceiling_", "record_version", "executable", "formula", "num_cpus", "library_build_type")
    facts = [(k, f"{v:.3g}" if isinstance(v, float) else str(v))
             for k, v in context.items() if not k.startswith(skip)]
    peak = f"{context['ceiling_flops_per_second'] / 1e9:.1f} GFLOP/s"
    facts.append(("peak measured", f"{peak} ({context['ceiling_arithmetic']})"))
    memory = f"{context['ceiling_memory_bytes_per_second'] / 1e9:.1f} GB/s"
    if context["ceiling_cache_bytes_per_second"]:
        cache = f"{context['ceiling_cache_bytes_per_second'] / 1e9:.1f} GB/s"
        memory = f"{cache} from the last cache, {memory} from memory"
    facts.append(("read rate measured", memory))
    for point in role(record["benchmarks"], "empty")[:1]:
        facts.append(("empty call", f"{significant(point['real_time'])} us"))
    return facts


def print_text(record, out):
    for name, value in machine(record):
        print(f"{name:20} {value}", file=out)
    for points in groups(record):
        print(f"\n{heading(record, points)}\n{record['context']['formula']}", file=out)
        names, rows = table(record, points)
        widths = [max(len(n), *(len(r[i]) for r in rows)) for i, n in enumerate(names)]
        for row in [names, *rows]:
            print("  ".join(cell.rjust(w) for cell, w in zip(row, widths)), file=out)


# ---- plots -------------------------------------------------------------------------------------


def padded_plots(points):
    """Time, gain over padded q, and share of the floor, by q_len; one line a kv_len."""
    natives = role(points, "native")
    times, gains, shares, names = [], [], [], []
    for n, kv in enumerate(sorted({p["kv_len"] for p in natives})):
        name, mine = f"kv {kv}", [p for p in natives if p["kv_len"] == kv]

        def column(of, mine=mine):
            return [(p["q_len"], of(p)) for p in mine]

        times.append((name, n, column(lambda p: p["padded_us"]), "dashed"))
        times.append((name, n, column(lambda p: p["real_time"]), ""))
        gains.append((name, n, column(lambda p: p["padded_flops"] / p["flops"]), "dotted"))
        gains.append((name, n, column(lambda p: p["speed_up"]), ""))
        shares.append((name, n, column(lambda p: 100 * p["floor_share"]), ""))
        names.append((name, n, ""))
    keys = legend([*names, ("padded q", 5, "dashed"), ("work saved", 5, "dotted")])
    return keys + '<div class="plots">' + "".join([
        curves("Time, us", times, "q_len"),
        curves("Padded over native: time, and work", gains, "q_len", level=1),
        curves("Share of the measured limit", shares, "q_len", log_y=False, limits=(0, 105),
               level=100, percent=True)]) + "</div>"


def shape_of(point):
    return (f"b{point['batch']} h{point['heads_q']}/{point['heads_kv']} d{point['head_dim']} "
            f"q{point['q_len']} kv{point['kv_len']}")


def grid_plots(points):
    natives = role(points, "native")
    share = [100 * p["floor_share"] for p in natives]
    return '<div class="plots">' + rows(
        "Share of the measured limit", [shape_of(p) for p in natives],
        [("share", 0, share)], log=False, limits=(0, 105), level=100, unit="%") + "</div>"


# ---- records of peers --------------------------------------------------------------------------

PEER_NAMES = {"fa2": "FlashAttention-2", "fa3": "FlashAttention-3", "fa4": "FlashAttention-4",
              "cudnn": "cuDNN", "flashinfer": "FlashInfer"}  # others are named as they are


def load_peers(path):
    """A CSV of a comparison, its lines of '#' first: what was measured, and how."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    notes = [line.lstrip("# ") for line in lines if line.startswith("#")]
    points = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    if not points or "ours_us" not in points[0]:
        sys.exit(f"{path}: not a comparison with peers: no column 'ours_us'")
    for point in points:
        for key, value in point.items():
            try:
                point[key] = float(value) if "." in value else int(value)
            except ValueError:
                point[key] = value
    peers = [key[:-3] for key in points[0] if key.endswith("_us") and key != "ours_us"]
    ceilings = [dict(word.split("=") for word in note.split() if "=" in word)
                for note in notes if note.startswith("ceilings:")]
    return {"notes": notes, "points": points, "peers": peers,
            "ceilings": {k: float(v) for k, v in ceilings[0].items()} if ceilings else None}


def visible_pairs(q, kv):
    return q * (kv - q) + q * (q + 1) // 2 if kv >= q else kv * (kv + 1) // 2


def flops_of(point):
    pairs = visible_pairs(point["q_len"], point["kv_len"])
    return 4 * point["head_dim"] * pairs * point["heads_q"] * point["batch"]


def floor_us(point, ceilings):
    """As the CSV's ceilings say: max of arithmetic and of reading all bytes once, each with what a
    call costs before its first."""
    rows_of_16_bits = (2 * point["kv_len"] * point["heads_kv"] + 2 * point["q_len"]
                       * point["heads_q"])
    moved = 2 * point["batch"] * point["head_dim"] * rows_of_16_bits
    return max(ceilings["empty_us"] + 1e6 * flops_of(point) / ceilings["flops_per_second"],
               ceilings["read_us"] + 1e6 * moved / ceilings["bytes_per_second"])


def peer_row(point, record):
    peers = record["peers"]
    row = {"B": point["batch"], "heads": f"{point['heads_q']}/{point['heads_kv']}",
           "D": point["head_dim"], "q": point["q_len"], "kv": point["kv_len"],
           "us": significant(point["ours_us"]),
           "TFLOP/s": significant(flops_of(point) / point["ours_us"] / 1e6)}
    if record["ceilings"]:
        floor = floor_us(point, record["ceilings"])
        row |= {"floor us": significant(floor),
                "of floor": f"{100 * floor / point['ours_us']:.0f}%"}
    for peer in peers:
        row[f"{peer} us"] = significant(point[f"{peer}_us"]) if point[f"{peer}_us"] else "-"
        row[f"{peer} / ours"] = (f"{point[f'{peer}_us'] / point['ours_us']:.3f}"
                                 if point[f"{peer}_us"] else "-")
    return {key: str(value) for key, value in row.items()}


def done_by(peer, points):
    """A peer that cannot do a call leaves its cell empty."""
    return [p for p in points if p[f"{peer}_us"]]


def mean_ratio(points, peer):
    logs = [math.log(p[f"{peer}_us"] / p["ours_us"]) for p in done_by(peer, points)]
    return math.exp(sum(logs) / len(logs))


def peer_name(peer):
    return PEER_NAMES.get(peer, peer)


def peer_grids(record):
    found = {}
    for point in record["points"]:
        found.setdefault(point["grid"], []).append(point)
    return found


def peer_means(record):
    """Column names and rows: a peer's geometric mean in each grid."""
    grids = peer_grids(record)
    return ["peer", *grids], [
        [peer_name(peer), *(f"{mean_ratio(points, peer):.2f}x" if done_by(peer, points) else "-"
                            for points in grids.values())] for peer in record["peers"]]


def share_plot(record, points):
    """Of the floor where the record has ceilings, else the rate."""
    labels = [shape_of(p) for p in points]
    if not record["ceilings"]:
        return rows("Visible TFLOP/s", labels, [("ours", SERIES - 1, [
            flops_of(p) / p["ours_us"] / 1e6 for p in points])])
    shares = [(peer_name(who), number, [
        100 * floor_us(p, record["ceilings"]) / p[f"{who}_us"] if p[f"{who}_us"] else None
        for p in points]) for number, who in [*enumerate(record["peers"]), (SERIES - 1, "ours")]]
    return rows("Share of the floor", labels, shares, log=False, limits=(0, 105), level=100,
                unit="%")


def peer_section(record):
    title, *notes = record["notes"]
    peers, parts = record["peers"], []
    parts.append(f"<h2>{page.escape(title.split(';')[0])}</h2>")
    grids = peer_grids(record)
    parts.append('<p class="note">Geometric means of a peer\'s time over ours, of the rows that it '
                 "can do: above 1 ours is faster.</p>")
    parts.append(page.table(*peer_means(record), set(grids)))
    parts.append("<details open><summary>what was measured</summary>" + "".join(
        f'<p class="note">{page.escape(note)}</p>' for note in [title, *notes]) + "</details>")
    for grid, points in grids.items():
        parts.append(f"<h3>Grid {page.escape(grid)}</h3>")
        parts.append(legend([*((peer_name(p), n, "none") for n, p in enumerate(peers)
                               if done_by(p, points)),
                             ("ours", SERIES - 1, "none")]))
        ratios = [(peer_name(peer), n, [p[f"{peer}_us"] / p["ours_us"] if p[f"{peer}_us"] else None
                                        for p in points]) for n, peer in enumerate(peers)]
        parts.append('<div class="plots">' + rows(
            "Peer's time over ours: right of the line we are faster", [shape_of(p) for p in points],
            ratios, level=1, unit="x") + share_plot(record, points) + "</div>")
        table_rows = [peer_row(point, record) for point in points]
        parts.append(page.table(list(table_rows[0]), [list(r.values()) for r in table_rows],
                                {f"{peer} / ours" for peer in peers}))
    return "".join(parts)


# ---- page --------------------------------------------------------------------------------------

LEAD = """<p class="lead">Native: q_len rows against kv_len keys, bottom-right causal. Padded: q
padded at its front to kv_len, the square causal call of the same kernel, its last q_len rows kept;
both results were compared before and after timing.</p><details><summary>How the columns are
made</summary><p class="note">Floor: max(empty call + visible flops / measured peak, time to only
read the same K and V, measured in turns with the call, * all bytes / theirs); of floor: floor /
time. Bound: 1.5 * max(padded time * visible pairs native / padded, that read) + an empty call,
where kv &ge; 1k and q &le; kv/4. Error, worst row: distance to the float64 oracle over what the
dtype grants on N(0,1) inputs, of the whole and of the worst row; up to 1 passes.</p></details>"""


def record_tiles(record):
    natives = role(record["benchmarks"], "native")
    padded = [p for p in natives if "speed_up" in p]
    found = []
    if padded:
        best = max(padded, key=lambda p: p["speed_up"])
        found.append((significant(best["speed_up"]) + "x", "faster than padded q at q "
                      f"{best['q_len']}, kv {best['kv_len']}"))
        found.append((significant(sorted(p["speed_up"] for p in padded)[len(padded) // 2]) + "x",
                      f"faster than padded q, median of {len(padded)} points"))
    shares = sorted(100 * p["floor_share"] for p in natives)
    found.append((f"{shares[len(shares) // 2]:.0f}%", "of the measured limit, median"))
    error = max(p["error_against_oracle_worst_row"] for p in natives)
    found.append((f"{error:.2f}", "largest error of a row against float64, over its limit"))
    return page.tiles(found)


def record_section(record):
    context = record["context"]
    parts = [f"<h2>{page.escape(context['processor'])}</h2>", record_tiles(record)]
    if context.get("disturbance", 0) > 1.2:
        parts.append(f'<p class="note">Other programs were in the way (disturbance '
                     f'{context["disturbance"]:.2f}, at most 1.2 wanted): read these figures as '
                     "leads, not results.</p>")
    parts.append(f"<details open><summary>machine and build</summary>"
                 f"{page.facts(machine(record))}</details>")
    for points in groups(record):
        parts.append(f"<h3>{page.escape(heading(record, points))}</h3>")
        padded = all("padded_us" in p for p in role(points, "native"))
        parts.append(padded_plots(points) if padded else grid_plots(points))
        parts.append(f"<p><code>{page.escape(context['formula'])}</code></p>")
        parts.append(page.table(*table(record, points), {"time ratio"}))
    return "".join(parts)


def is_peers(record):
    return "peers" in record


def write_csv(records, path):
    """Every table of the page, one after another, each with its heading."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        for record in records:
            if is_peers(record):
                names, lines = peer_means(record)
                out.writerow([f"{record['notes'][0]}, geometric means"])
                out.writerows([names, *lines])
                for grid, points in peer_grids(record).items():
                    lines = [peer_row(point, record) for point in points]
                    out.writerow([f"{record['notes'][0]}, grid {grid}"])
                    out.writerow(list(lines[0]))
                    out.writerows(list(line.values()) for line in lines)
            else:
                for points in groups(record):
                    names, lines = table(record, points)
                    out.writerow([heading(record, points)])
                    out.writerow(names)
                    out.writerows(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="+")
    parser.add_argument("--html", help="write the page here")
    parser.add_argument("--title", default="fa_fwd_causal: native q_len against padded q")
    options = parser.parse_args()
    records = [load(path) for path in options.records]
    for record in records:
        if not is_peers(record):
            print_text(record, sys.stdout)
    if options.html:
        sections = [peer_section(r) if is_peers(r) else record_section(r) for r in records]
        path = pathlib.Path(options.html)
        path.write_text(page.page(options.title, LEAD, sections), encoding="utf-8")
        tables = path.with_name(path.stem + "-tables.csv")
        write_csv(records, tables)
        print(f"\nreport: {path}, its tables: {tables}")


if __name__ == "__main__":
    main()
