"""test_peers_cpu.py - the arithmetic and the record of peers_cpu.py: no peer and no library needed.

    python3 bench/test_peers_cpu.py FOLDER

Times are made up; floors, targets, errors and rounding are computed a second time.
"""

import math
import pathlib
import re
import sys

import numpy as np

import peers_cpu
import report
from peers_cpu_engines import Call, bias_of, mask_of, rounded, widened

checks = 0
LIMITS = peers_cpu.Limits(200e9, 100e9, 25e9, 32 << 20, 1.0, 2)


def check(fact, *what):
    global checks
    checks += 1
    if not fact:
        sys.exit("FALSE: " + " ".join(str(w) for w in what))


def row_of(name):
    return next(row for row in peers_cpu.ROWS if peers_cpu.name_of(row) == name)


def test_rows():
    names = [peers_cpu.name_of(row) for row in peers_cpu.ROWS]
    check(len(set(names)) == len(names) == 2 * 9 * 2 * 2, len(names))
    check(names[0] == "f32 prefill q256 kv256 h8/8 d64", names[0])
    quick = [name for name in names if re.search(peers_cpu.QUICK, name)]
    check(len(quick) == 4, quick)


def test_rounding():
    """By the neighbours: no bfloat16 is nearer, and of two as near the even one is taken."""
    x = np.random.default_rng(3).standard_normal(20000, np.float32)
    x = np.concatenate([x, [0, 1 + 2 ** -8, 1 + 3 * 2 ** -8, -1 - 2 ** -8, 3e38]])
    x = x.astype(np.float32)
    bits = rounded(x, "bf16")
    taken, error = widened(bits), np.abs(widened(bits) - x)
    for step in (-1, 1):
        other = np.abs(widened((bits.astype(np.int64) + step).clip(0, 65535).astype(np.uint16)) - x)
        check(np.all((error < other) | ((error == other) & (bits % 2 == 0))), step)
    check(list(taken[-4:-1]) == [1.0, 1 + 2 ** -6, -1.0], taken[-4:])
    check(rounded(x[:4], "f16").dtype == np.float16 and rounded(x, "f32") is not None, "dtypes")


def test_mask():
    check(mask_of(2, 5).astype(int).tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], mask_of(2, 5))
    call = Call("f32", np.zeros((1, 1, 2, 4)), np.zeros((1, 1, 5, 4)), None, 1)
    check(bias_of(call).tolist() == [[0, 0, 0, 0, -math.inf], [0] * 5], bias_of(call))
    check(bias_of(call._replace(q=np.zeros((1, 1, 1, 4)))) is None, "one row sees all keys")


def test_floor():
    """Arithmetic, the cache's rate and the memory's, each where it is the limit."""
    flops = 4 * 128 * 8 * sum(range(1, 4097))
    for name, want in (("f32 prefill q4096 kv4096 h8/8 d128", flops / 200e9),
                       ("bf16 prefill q4096 kv4096 h8/8 d128", flops / 400e9),
                       ("f32 decode q1 kv8192 h8/2 d64", 2 * 2 * 8192 * 64 * 4 / 100e9),
                       ("f32 decode q1 kv8192 h8/8 d64", 2 * 8 * 8192 * 64 * 4 / 25e9),
                       ("bf16 decode q1 kv8192 h8/8 d64", 2 * 8 * 8192 * 64 * 2 / 100e9)):
        found = peers_cpu.floor_us(row_of(name), LIMITS)
        check(math.isclose(found, 1e6 * want), name, found, 1e6 * want)


def holds(name, text, **us):
    """Whether the target of that text holds; None where it is not asked."""
    best = us.pop("best", None)
    found = [t for t in peers_cpu.targets(row_of(name), us, best, LIMITS) if t.text == text]
    check(len(found) <= 1, name, text)
    return found[0].holds if found else None


def test_targets():
    """Each line of the targets, a little on either side of it."""
    peer, grouped = "of the best peer", "of the best peer, grouped"
    flops = 4 * 128 * 8 * sum(range(1, 4097))
    for name, bound in (("f32 chunk q128 kv1024 h8/8 d64", 0.85),  # 1 s: the peak is far away
                        ("f32 decode q1 kv32768 h8/8 d128", 1.05),
                        ("bf16 decode q1 kv32768 h8/8 d64", 0.85)):  # 64 MiB: not beyond twice
        for factor, want in ((0.999, True), (1.001, False)):
            found = holds(name, peer, ours=1e6 * bound * factor, best=1e6)
            check(found is want, name, factor, found)
    for dtype, share in (("f32", 0.7), ("bf16", 2 * 0.6 * 0.7)):
        for factor, want in ((0.999, True), (1.001, False)):  # a peer above that share
            found = holds(f"{dtype} prefill q4096 kv4096 h8/8 d128", peer,
                          ours=1e6 * flops / 200e9 / share * factor, best=1.0)
            check(found is want, dtype, factor, found)
    pairs = 128 * 1024 - sum(range(128))
    for factor, want in ((0.999, True), (1.001, False)):
        name = "f32 decode q1 kv32768 h8/8 d128"
        read = 1e6 * 2 * 8 * 32768 * 128 * 4 / 25e9
        check(holds(name, "read rate", ours=read / 0.9 * factor) is want, name, factor)
        name = "f32 chunk q128 kv1024 h8/2 d64"
        ours = 1e6 * 4 * 64 * 8 * pairs / 200e9 / 0.62 * factor
        check(holds(name, peer, ours=ours, best=1.0) is want, name, factor)
        for name in ("f32 decode q1 kv1024 h8/2 d64", "bf16 spec q4 kv8192 h8/2 d128"):
            check(holds(name, grouped, ours=45e4 * factor, best=1e6) is want, name, factor)
        name = "f32 prefill q4096 kv4096 h8/2 d128"
        ours = 1e6 * flops / 200e9 / 0.72 * factor
        check(holds(name, "of the FMA peak", ours=ours) is want, name, factor)
        name = "bf16 prefill q1024 kv1024 h8/2 d128"
        check(holds(name, "of float32's time", ours=65 * factor, ours_f32=100) is want, factor)
        check(holds(name, "times one thread", ours=100 * factor, ours_1_thread=185) is want, factor)
    for name in ("f32 decode q1 kv1024 h8/8 d64", "f32 chunk q128 kv8192 h8/2 d64"):
        check(holds(name, grouped, ours=1, best=1) is None, name)
    check(holds("f32 decode q1 kv32768 h8/2 d128", "read rate", ours=1) is None, "grouped")
    check(holds("f32 prefill q4096 kv4096 h8/2 d64", "of the FMA peak", ours=1) is None, "D 64")
    check(peers_cpu.targets(row_of("f32 spec q4 kv8192 h8/2 d64"), {"ours": 1}, None, LIMITS) == [],
          "without a peer nothing is asked")


def naive(q, k, v, offset):
    """By plain sums; row r sees keys up to r + offset."""
    o = np.zeros(q.shape)
    for h in range(q.shape[1]):
        g = h * k.shape[1] // q.shape[1]
        for r in range(q.shape[2]):
            seen = range(min(k.shape[2], r + offset + 1))
            weights = [math.exp(math.fsum(q[0, h, r] * k[0, g, j]) / math.sqrt(q.shape[3]))
                       for j in seen]
            o[0, h, r] = sum(w * v[0, g, j] for w, j in zip(weights, seen)) / math.fsum(weights)
    return o


def test_error():
    random = np.random.default_rng(5)
    q, k, v = (random.standard_normal((1, heads, rows, 8)) for heads, rows in
               ((4, 40), (2, 60), (2, 60)))
    call = Call("f32", *(x.astype(np.float32) for x in (q, k, v)), 1)
    q, k, v = (x.astype(np.float64) for x in call[1:4])
    exact = naive(q, k, v, 20)
    error = peers_cpu.error_of(call, exact)
    check(error < 1e-13, error)
    check(peers_cpu.error_of(call, naive(q, k, v, 0)) > 0.1, "top-left")
    last = exact.copy()
    last[0, 3, 39] *= 1.01
    check(peers_cpu.error_of(call, last) > peers_cpu.OURS_ERROR["f32"], "the last row")
    check(not peers_cpu.error_of(call, np.full_like(exact, np.nan)) <= 1, "NaN")


def test_turns():
    """Two engines alternate; each timed call of a short one follows one that is not timed."""
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "ab"}
    samples = peers_cpu.time_in_turns(runs, 0)
    check([len(samples[name]) for name in "ab"] == [30, 30], samples)
    check("".join(order) == "ab" + ("a" * 11 + "b" * 11) * 3, order)
    check(math.isclose(peers_cpu.spread_of([1, 2, 3, 4, 5, 6, 7]), 1.0), "quartiles 2 and 6 of 4")


def test_limits():
    names = ("flops_per_second", "cache_bytes_per_second", "memory_bytes_per_second", "cache_bytes")
    made_up = [{f"ceiling_{n}": v for n, v in zip(names, values)} | {"disturbance": d}
               for values, d in (((1e9, 2e9, 9e9, 4), 1.5), ((3e9, 1e9, 8e9, 4), 1.1))]
    check(peers_cpu.limits_of(made_up, 1) == (3e9, 2e9, 9e9, 4, 1.1, 1), made_up)


def test_record(folder):
    rows = [row_of("f32 prefill q256 kv256 h8/8 d64"), row_of("bf16 decode q1 kv1024 h8/2 d64")]
    times = [{"ours": 50.0, "torch": 100.0, "ggml": 80.0, "ours_1_thread": 90.0}, {"ours": 7.0}]
    points = [{"row": row, "us": us, "best": best, "floor": 25.0, "spread": dict.fromkeys(us, 0.1),
               "targets": peers_cpu.targets(row, us, best and us[best], LIMITS)}
              for row, us, best in zip(rows, times, ("ggml", None))]
    path = folder / "peers_cpu_made_up.csv"
    peers_cpu.write_csv(path, ["a machine; f32", "two"], points, ["torch", "ggml"])
    record = report.load_peers(path)
    check(record["peers"] == ["torch", "ggml", "ours_f16", "ours_f32"], record["peers"])
    first, second = record["points"]
    check((first["ours_us"], first["best"], first["ours_over_best"], first["share_of_limit"])
          == (50.0, "ggml", 0.625, 0.5), first)
    check(first["verdict"] == "1.80 times one thread for 1.85", first["verdict"])
    check((second["torch_us"], second["best"], second["verdict"]) == ("", "", "no target"), second)
    check("ggml" in report.peer_section(record), "a page of it")
    lines = [peers_cpu.line_of(p) for p in points]
    check("ggml" in lines[0] and "0.625" in lines[0] and "50%" in lines[0], lines[0])
    check(lines[0].index("50.0") == lines[1].index(" 7.0"), "columns of a row without a peer")


def main():
    test_rows()
    test_rounding()
    test_mask()
    test_floor()
    test_targets()
    test_error()
    test_turns()
    test_limits()
    test_record(pathlib.Path(sys.argv[1]))
    print(f"{checks} facts hold")


if __name__ == "__main__":
    main()
