"""peers_record.py - what peers.py writes: its table, its CSV and its JSON, and the figures
that are derived from samples. It changes when a record gains something; columns are only added,
since committed records stay readable.
"""

import csv
import json
import math
import pathlib
import statistics

from report import floor_us, flops_of

FIELDS = ("grid", "batch", "heads_q", "heads_kv", "head_dim", "q_len", "kv_len")
FROBENIUS = {"bf16": 0.0026, "f16": 4e-4}  # on N(0, 1) inputs, as the tests have it
FORMULA = "pairs = q*(kv-q) + q*(q+1)/2, q <= kv; flops = 4 * head_dim * pairs, a head"


def name_of(row):
    return ("{grid} b{batch} h{heads_q}/{heads_kv} d{head_dim} q{q_len} kv{kv_len}"
            .format(**row))


def median_interval(values):
    """(lower end, median, upper end): the ends are the order statistics that cover the median of
    their distribution with at least 95 %."""
    ordered, n = sorted(values), len(values)
    below, k = 0.0, 0  # P(fewer than k + 1 of n coins fall on one side)
    while k < n // 2:
        below += math.comb(n, k) / 2 ** n
        if below > 0.025:
            break
        k += 1
    first = max(k - 1, 0)
    return ordered[first], statistics.median(ordered), ordered[n - 1 - first]


def describe(plan):
    return (f"{plan.get('kernel', '?')} {plan.get('tile_rows', '?')}x{plan.get('tile_keys', '?')}"
            f" s{plan.get('splits', '?')}")


def ratio_text(name, point):
    low, middle, high = point["ratios"][name]
    return f"{name} {point['us'][name]:.1f} x{middle:.3f} [{low:.3f} {high:.3f}]"


def table_line(point, ceilings):
    """Ours, the best peer (* where the lower end is below 0.98), our plan, the others."""
    row, us, best = point["row"], point["us"]["ours"], point["best"]
    text = (f"{row['grid']:2} {row['batch']:3} {row['heads_q']:2}/{row['heads_kv']:<2} "
            f"{row['head_dim']:3} {row['q_len']:5} {row['kv_len']:6} {us:9.1f} us "
            f"{flops_of(row) / us / 1e6:5.0f} TF {floor_us(row, ceilings) / us:4.0%}")
    if best:
        text += f" | {ratio_text(best, point)}" + " *"[point["ratios"][best][0] < 0.98]
    others = [ratio_text(name, point) for name in point["ratios"] if name != best]
    return f"{text} | {describe(point['plans']['ours'])} | " + ", ".join(others)


def write_csv(path, context, ceilings, points, names):
    peers = ", ".join(f"{n} {v}" for n, v in context["peers"].items())
    with open(path, "w", encoding="utf-8", newline="") as out:
        print(f"# {context['processor']}, torch {context['torch']}, cuDNN {context['cudnn']}, "
              f"{context['date']}; {context['dtype']}, (b,s,h,d), bottom-right; sources "
              f"{context['source_digest']}", file=out)
        print(f"# peers: {peers}; us: median of device events, cold, in turns; ratio: the best "
              "peer's time over ours, paired, with its 95 % interval", file=out)
        print("# results compared with float32 first, relative Frobenius error at most "
              f"{FROBENIUS[context['dtype']]}; clocks {context['clocks_before']} / "
              f"{context['clocks_after']}", file=out)
        print("# ceilings: " + " ".join(f"{k}={v:.6g}" for k, v in ceilings.items())
              + " , measured in the same run", file=out)
        table = csv.writer(out, lineterminator="\n")
        table.writerow([*FIELDS, *(f"{n}_us" for n in names), "best", "ratio", "ratio_low",
                        "ratio_high", "kernel", "tile", "splits", "rounds"])
        for p in points:
            low, middle, high = p["ratios"].get(p["best"], (math.nan,) * 3)
            plan = p["plans"]["ours"]
            table.writerow([*p["row"].values(), *(f"{p['us'][n]:.2f}" if n in p["us"] else ""
                                                  for n in names),
                            p["best"] or "", f"{middle:.4f}", f"{low:.4f}", f"{high:.4f}",
                            plan.get("kernel", ""), f"{plan.get('tile_rows')}x"
                            f"{plan.get('tile_keys')}", plan.get("splits", ""),
                            len(p["samples"]["ours"])])


def write_json(path, context, ceilings, points):
    found = []
    for p in points:
        for name, us in p["us"].items():
            entry = f"peers/{name}/{name_of(p['row'])}".replace(" ", "/")
            found.append({"name": entry, "run_name": entry, "run_type": "iteration",
                          "iterations": len(p["samples"][name]), "real_time": us, "cpu_time": 0,
                          "time_unit": "us", "role": name, **p["row"],
                          "label": describe(p["plans"][name]) if name in p["plans"] else name,
                          "floor_us": floor_us(p["row"], ceilings), "flops": flops_of(p["row"]),
                          "relative_error": p["errors"][name],
                          "ratio_to_ours": p["ratios"].get(name), "plan": p["plans"].get(name),
                          "samples_us": [round(s, 3) for s in p["samples"][name]]})
    context = context | {f"ceiling_{k}": v for k, v in ceilings.items()}
    pathlib.Path(path).write_text(json.dumps({"context": context, "benchmarks": found}, indent=1),
                                  encoding="utf-8")


def summary(points):
    """A line a grid: geometric mean of the ratio to the best peer, and the rows that lost."""
    grids = {}
    for p in points:
        if p["best"]:
            grids.setdefault(p["row"]["grid"], []).append(p["ratios"][p["best"]])
    for name, ratios in grids.items():
        mean = math.exp(statistics.fmean(math.log(r[1]) for r in ratios))
        lost = sum(r[0] < 0.98 for r in ratios)
        print(f"grid {name}: {len(ratios)} rows, best peer's time over ours {mean:.3f} (geometric "
              f"mean), lowest {min(r[1] for r in ratios):.3f}, lower end below 0.98 in {lost} (*)")


