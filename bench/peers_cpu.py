"""peers_cpu.py - this library against what a user would pick instead, on a CPU, and against the
machine's limits.

    FA_LIBRARY=libfa_fwd_causal_shared.so python3 bench/peers_cpu.py OUT.csv [--bench FA_BENCH]
        [--only REGEX] [--peers REGEX] [--seconds S] [--threads N] [--reuse-limits] [--quick]

Rows are prefill, chunks, speculative steps and decode in float32 and in 16 bits (ours bfloat16, a
peer the 16-bit type that it has), named as `f32 prefill q256 kv256 h8/2 d64`; --only chooses some.
Peers, each where installed (peers_cpu_engines.py): torch's SDPA, onnxruntime's Attention (opset 23)
and GroupQueryAttention, openvino's SDPA, ggml's flash_attn_ext (pip: libggml-python).

Before a row is timed, sampled rows of ours are compared with float64 (the tests' limits) and every
peer's whole output with ours; after it, ours must have the same bits. Then calls alternate: in each
turn an engine whose call is short makes one to wake its threads, then some that are timed. Figures
are minima, in us; ratios within this run count, absolute times do not. fa_bench measures the limits
before and after the rows, for these threads and for one (OUT-limits-*.json).
OUT.csv is a record for report.py; the table printed has a verdict, by the targets below.
"""

import argparse
import collections
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

import numpy as np

from peers_cpu_engines import ENGINES, Call, Unsupported, ours, rounded, widened
from report import flops_of

HERE = pathlib.Path(__file__).resolve().parent
FIELDS = ("grid", "batch", "heads_q", "heads_kv", "head_dim", "q_len", "kv_len")
POINTS = [("prefill", 256, 256), ("prefill", 1024, 1024), ("prefill", 4096, 4096),
          ("chunk", 128, 1024), ("chunk", 128, 8192), ("spec", 4, 8192),
          ("decode", 1, 1024), ("decode", 1, 8192), ("decode", 1, 32768)]
ROWS = [dict(zip(FIELDS, (f"{dtype} {name}", 1, 8, heads_kv, head_dim, q_len, kv_len)))
        for dtype in ("f32", "bf16") for name, q_len, kv_len in POINTS
        for heads_kv in (8, 2) for head_dim in (64, 128)]
QUICK = r"^(f32|bf16) (prefill q256 kv256|decode q1 kv1024) h8/2 d64"
OURS_ERROR = {"f32": 2e-6, "bf16": 0.0026, "f16": 4e-4}  # relative Frobenius, as the tests have it
# A peer has to compute the same thing; how exactly is its own affair (ggml sums in float16).
PEER_ERROR = {"f32": 1e-5, "bf16": 0.02, "f16": 0.02}


def name_of(row):
    return "{grid} q{q_len} kv{kv_len} h{heads_q}/{heads_kv} d{head_dim}".format(**row)


def dtype_of(row):
    return row["grid"].split()[0]


def kv_bytes_of(row):
    element = 4 if dtype_of(row) == "f32" else 2
    return 2 * row["batch"] * row["heads_kv"] * row["kv_len"] * row["head_dim"] * element


# ---- limits and targets --------------------------------------------------------------------------

# peak: FLOP/s of float32; cache, memory: bytes/s; cache_bytes: of the last cache; bf16: FLOP/s of
# the widest bfloat16 products over peak
Limits = collections.namedtuple("Limits", "peak cache memory cache_bytes disturbance bf16")


def limits_of(contexts, bf16):
    """The best of several records of fa_bench: a busy moment lowers a limit, nothing raises it."""
    def best(key):
        return max(c[f"ceiling_{key}"] for c in contexts)
    return Limits(best("flops_per_second"), best("cache_bytes_per_second"),
                  best("memory_bytes_per_second"), best("cache_bytes"),
                  min(c["disturbance"] for c in contexts), bf16)


def floor_us(row, limits):
    """Arithmetic at the peak, or K and V read once: from the cache where they fit 3/4 of it."""
    peak = limits.peak * (1 if dtype_of(row) == "f32" else limits.bf16)
    kv_bytes = kv_bytes_of(row)
    rate = limits.cache if kv_bytes <= 0.75 * limits.cache_bytes else limits.memory
    return 1e6 * max(flops_of(row) / peak, kv_bytes / rate)


Target = collections.namedtuple("Target", "text value bound holds")


def at_most(text, value, bound):
    return Target(text, value, bound, value <= bound)


def at_least(text, value, bound):
    return Target(text, value, bound, value >= bound)


def targets(row, us, best, limits):
    """What is asked of a row. us: by engine, with ours_1_thread and ours_f32 in the same turns
    where they were timed; best: the best peer's time, or None where there is no peer."""
    dtype, mine, found = dtype_of(row), us["ours"], []
    few, grouped = row["q_len"] <= 4, row["heads_kv"] < row["heads_q"]
    rate = 1e6 * flops_of(row) / mine / limits.peak
    from_memory = row["q_len"] == 1 and not grouped and kv_bytes_of(row) > 2 * limits.cache_bytes
    if from_memory:
        found.append(at_least("read rate", 1e6 * kv_bytes_of(row) / mine / limits.memory, 0.9))
    if best and from_memory:
        found.append(at_most("of the best peer", mine / best, 1.05))
    elif best:
        # bf16: of twice the peak, at 0.6 of the share
        share = (0.7 if row["head_dim"] >= 128 else 0.62) * (1 if dtype == "f32" else 1.2)
        allowed = max(0.85 * best, 1e6 * flops_of(row) / limits.peak / share)
        found.append(at_most("of the best peer", mine / best, allowed / best))
    if best and few and grouped:
        found.append(at_most("of the best peer, grouped", mine / best, 0.45))
    if dtype == "f32" and row["q_len"] == row["kv_len"] == 4096 and row["head_dim"] == 128:
        found.append(at_least("of the FMA peak", rate, 0.72))
    if "ours_f32" in us:
        found.append(at_most("of float32's time", mine / us["ours_f32"], 0.65))
    if "ours_1_thread" in us:
        found.append(at_least("times one thread", us["ours_1_thread"] / mine, 1.85))
    return found


def measured_limits(bench, out, threads, reuse, part):
    """fa_bench's context; it is made in seconds, since only its ceilings are asked for. Its passes
    are too short for threads that sleep in between, as those of this process do."""
    path = out.with_name(f"{out.stem}-limits-{threads}-{part}.json")
    if not (reuse and path.exists()):
        made = subprocess.run([bench, "--quick", "--json", path], text=True, capture_output=True,
                              env=os.environ | {"OMP_NUM_THREADS": str(threads),
                                                "OMP_WAIT_POLICY": "active"})
        if made.returncode:
            raise SystemExit(f"{bench}: {made.stderr}")
    return json.loads(path.read_text(encoding="utf-8"))["context"]


# ---- one row -------------------------------------------------------------------------------------


def calls_of(row, threads):
    """{dtype: Call}: the same normal numbers, rounded."""
    random = np.random.default_rng(1)
    shapes = [(row["batch"], row["heads_q"], row["q_len"], row["head_dim"])] + \
        2 * [(row["batch"], row["heads_kv"], row["kv_len"], row["head_dim"])]
    exact = [random.standard_normal(shape, np.float32) for shape in shapes]
    dtypes = ["f32"] if dtype_of(row) == "f32" else ["bf16", "f16", "f32"]
    return {dtype: Call(dtype, *(rounded(x, dtype) for x in exact), threads) for dtype in dtypes}


def relative(got, want):
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def error_of(call, got):
    """Of up to 32 rows of all heads, the first and the last among them, against float64."""
    q_len, kv_len, group = call.q.shape[2], call.k.shape[2], call.q.shape[1] // call.k.shape[1]
    chosen = np.unique(np.linspace(0, q_len - 1, min(q_len, 32)).astype(int))
    hidden = np.arange(kv_len)[None] > chosen[:, None] + kv_len - q_len
    want = np.empty((*call.q.shape[:2], len(chosen), call.q.shape[3]))
    for head in range(call.q.shape[1]):
        q, k, v = (widened(x).astype(np.float64) for x in (
            call.q[:, head, chosen], call.k[:, head // group], call.v[:, head // group]))
        logits = np.where(hidden, -np.inf, q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]))
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        want[:, head] = weights @ v / weights.sum(-1, keepdims=True)
    return relative(got[:, :, chosen], want)


def checked_ours(call):
    """(run, output as float32), near float64."""
    run, read = ours(call)
    output = read(run())
    error = error_of(call, output)
    if not error <= OURS_ERROR[call.dtype]:
        raise SystemExit(f"ours, {call.dtype}: relative error {error} against float64")
    return run, output


def runs_of(row, calls, names, gaps):
    """({name: run} of all that are timed, ours first, each result proven; our run; its output).
    gaps gets the reasons of what no peer could do, each of which is printed once."""
    dtype = dtype_of(row)
    own, wants = {}, {}
    own[dtype], wants[dtype] = checked_ours(calls[dtype])
    runs = {"ours": own[dtype]}
    if "prefill" in row["grid"] and calls[dtype].threads > 1:
        runs["ours_1_thread"], single = checked_ours(calls[dtype]._replace(threads=1))
        if single.tobytes() != wants[dtype].tobytes():
            raise SystemExit(f"{name_of(row)}: one thread gives other bits")
    for other in set(calls) - {dtype}:
        own[other], wants[other] = checked_ours(calls[other])
        if other == "f16" or "prefill" in row["grid"]:
            runs[f"ours_{other}"] = own[other]
    for name in names:
        for kind in ["f32"] if dtype == "f32" else ENGINES[name][2]:
            try:
                run, read = ENGINES[name][1](calls[kind])
                got = read(run())
            except (Unsupported, RuntimeError, ValueError) as why:
                gap = f"{name}, {kind}: {str(why)[:160]}"
                if gap not in gaps:
                    print(f"{name_of(row)}: {gap}", file=sys.stderr)
                gaps.add(gap)
                continue
            error = relative(got, wants[kind])
            if not error <= PEER_ERROR[kind]:
                raise SystemExit(f"{name_of(row)}: {name}, {kind}: relative error {error}")
            runs[name] = run
            break
    return runs, own[dtype], wants[dtype]


def time_in_turns(runs, seconds):
    """{name: us of every timed call}, at least 3 turns."""
    samples, bursts = {name: [] for name in runs}, {}
    for name, run in runs.items():
        began = time.perf_counter()
        run()
        bursts[name] = min(10, int(1e-3 / (time.perf_counter() - began)))
    until, turns = time.monotonic() + seconds, 0
    while turns < 3 or time.monotonic() < until and turns < 300:
        for name, run in runs.items():
            if bursts[name]:
                run()
            for _ in range(max(1, bursts[name])):
                began = time.perf_counter()
                run()
                samples[name].append(1e6 * (time.perf_counter() - began))
        turns += 1
    return samples


def spread_of(samples):
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / middle


def measure(row, names, options, limits, gaps):
    runs, own, want = runs_of(row, calls_of(row, options.threads), names, gaps)
    samples = time_in_turns(runs, options.seconds)
    if widened(own()).tobytes() != want.tobytes():
        raise SystemExit(f"{name_of(row)}: other bits after timing")
    us = {name: min(taken) for name, taken in samples.items()}
    peers = [name for name in us if not name.startswith("ours")]
    best = min(peers, key=us.get, default=None)
    return {"row": row, "us": us, "best": best, "floor": floor_us(row, limits),
            "spread": {name: spread_of(taken) for name, taken in samples.items()},
            "targets": targets(row, us, best and us[best], limits)}


# ---- output --------------------------------------------------------------------------------------

HEAD = (f"{'row':42} {'best peer':14} {'us':>9} +-%  {'ours us':>9} +-%  {'ours/peer':>9} "
        f"{'of limit':>8}  verdict")


def verdict(point):
    missed = [f"{t.value:.2f} {t.text} for {t.bound:.2f}" for t in point["targets"] if not t.holds]
    return "; ".join(missed) if missed else "ok" if point["targets"] else "no target"


def line_of(point):
    us, best, spread = point["us"], point["best"], point["spread"]
    text = f"{name_of(point['row']):42} "
    text += f"{best:14} {us[best]:9.1f} {100 * spread[best]:3.0f}  " if best else f"{'-':30}"
    text += f"{us['ours']:9.1f} {100 * spread['ours']:3.0f}  "
    text += f"{us['ours'] / us[best]:9.3f} " if best else f"{'-':>9} "
    return text + f"{point['floor'] / us['ours']:8.0%}  {verdict(point)}"


def write_csv(path, notes, points, names):
    """A record for report.py: what ends in _us is a peer, so one thread's time does not."""
    columns = [*names, "ours_f16", "ours_f32"]
    with open(path, "w", encoding="utf-8") as out:
        for note in notes:
            print(f"# {note}", file=out)
        print(",".join([*FIELDS, "ours_us", *(f"{n}_us" for n in columns), "ours_1_thread", "best",
                        "ours_over_best", "share_of_limit", "spread", "verdict"]), file=out)
        for p in points:
            us, best = p["us"], p["best"]
            cells = [*p["row"].values(), *(f"{us[n]:.1f}" if n in us else "" for n in
                                           ("ours", *columns, "ours_1_thread")), best or "",
                     f"{us['ours'] / us[best]:.4f}" if best else "",
                     f"{p['floor'] / us['ours']:.4f}", f"{p['spread']['ours']:.3f}", verdict(p)]
            print(",".join(map(str, cells)), file=out)


def versions(pattern):
    """Installed engines and their versions."""
    found = {}
    for name, (version, _, _) in ENGINES.items():
        try:
            if re.search(pattern, name):
                found[name] = version()
        except ImportError:
            print(f"{name}: not installed", file=sys.stderr)
    return found


def processor():
    """(name, whether it multiplies bfloat16)"""
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*: (.*)", text, re.MULTILINE)
    return model[1] if model else platform.processor(), "avx512_bf16" in text


def note_of(limits, threads):
    bf16 = f"{limits.bf16} times that" if limits.bf16 > 1 else "widened to float32 on this CPU"
    return (f"limits, threads {threads}: FMA {limits.peak / 1e9:.1f} GFLOP/s (bf16: {bf16}), reads "
            f"{limits.cache / 1e9:.1f} GB/s from the last cache ({limits.cache_bytes >> 20} MiB), "
            f"{limits.memory / 1e9:.1f} GB/s from memory; disturbance {limits.disturbance:.2f}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--bench", default=HERE.parent / "build/release/bench/fa_bench")
    parser.add_argument("--only", default="", help="regular expression on the names of rows")
    parser.add_argument("--peers", default="", help="regular expression on the names of peers")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each row")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--reuse-limits", action="store_true", help="those of the run before")
    parser.add_argument("--quick", action="store_true", help="four rows, to try the program")
    options = parser.parse_args()
    if options.quick:
        options.only, options.seconds = QUICK, 0.1
    return options


def main():
    options = parse()
    found, (model, has_bf16) = versions(options.peers), processor()

    def limits_after(*parts):
        return {n: limits_of([measured_limits(options.bench, options.out, n, options.reuse_limits,
                                              part) for part in parts], 2 if has_bf16 else 1)
                for n in {1, options.threads}}
    limits = limits_after("before")[options.threads]
    points, gaps = [], set()
    for row in (r for r in ROWS if re.search(options.only, name_of(r))):
        points.append(measure(row, found, options, limits, gaps))
        print(line_of(points[-1]), file=sys.stderr, flush=True)
    limits = limits_after("before", "after")
    for p in points:  # once more, as the limits may have risen
        p["floor"] = floor_us(p["row"], limits[options.threads])
        p["targets"] = targets(p["row"], p["us"], p["best"] and p["us"][p["best"]],
                               limits[options.threads])
    notes = [f"{model}, {options.threads} threads, {time.strftime('%Y-%m-%d')}; (b,h,s,d), "
             "bottom-right; 16 bits: ours bfloat16, peers the type they have",
             "peers: " + (", ".join(f"{n} {v}" for n, v in found.items()) or "none"),
             "us: minimum of calls in turns, warm; results compared first, ours with float64, "
             "peers with ours", *(note_of(limits[n], n) for n in sorted(limits))]
    write_csv(options.out, notes, points, found)
    print("\n".join([*notes, HEAD, *map(line_of, points)]))
    asked = [target for p in points for target in p["targets"]]
    print(f"{len(points)} rows, {sum(not t.holds for t in asked)} of {len(asked)} targets missed")


if __name__ == "__main__":
    main()
