"""cuda_speed.py - speeds on a GPU that users of other libraries missed, held against the same run's
read rate or against one another. Ids are those of CASES.md.

    python3 tests/cuda_speed.py LIB.so WORK_DIR

Needs torch, nvcc for the read kernel, and a GPU that does nothing else. Times are medians of cold
calls in turns, as bench/peers.py takes them. Exits with 0 when every fact holds but for those
marked as not reached yet.
"""

import os
import statistics
import sys

import torch

from cuda_checks import fact, facts, normal, paged_fields, peers, pool_of

SECONDS = 0.3  # of timing, each comparison


def times(clock, runs):
    return {n: statistics.median(s) for n, s in clock.samples(runs, SECONDS).items()}


def decode_run(lib, shape, page_size=0):
    """A decode call and the bytes of its K and V."""
    batch, heads_q, heads_kv, dim, q_len, kv_len = shape
    q = normal("cuda", batch, q_len, heads_q, dim)
    if page_size == 0:
        k, v = (normal("cuda", batch, kv_len, heads_kv, dim) for _ in range(2))
        fields = {}
    else:
        pages = batch * kv_len // page_size
        table = torch.randperm(pages, device="cuda").to(torch.int32).view(batch, -1)
        k, v = (pool_of("cuda", table, page_size, heads_kv, dim)[0] for _ in range(2))
        fields = paged_fields(table, pages, page_size)
    run = lib.prepare(torch, q, k, v, **fields)
    run.table = fields and table  # the call has its address only
    return run, 4 * batch * heads_kv * kv_len * dim


def check_rate(lib, clock, rate, name, shape, least, page_size=0):
    run, size = decode_run(lib, shape, page_size)
    us = times(clock, {"ours": run})["ours"]
    fact(size / us >= least * rate, name, shape, f"{us:.1f} us, {size / us / rate:.2f} of the read "
         f"rate, at least {least}", run.plan["kernel"])


def check_packed(lib, clock):
    """One sequence as a packed batch against the same as a dense one."""
    rows, heads = 81_633, 28
    q, k, v = (normal("cuda", 1, rows, heads, 128) for _ in range(3))
    ends = torch.tensor([0, rows], dtype=torch.int32, device="cuda")
    dense = lib.prepare(torch, q, k, v)
    packed = lib.prepare(torch, q, k, v, cu_seqlens_q=ends.data_ptr(), total_q=rows, total_k=rows,
                         cu_seqlens_k=ends.data_ptr())
    us = times(clock, {"dense": dense, "packed": packed})
    fact(us["packed"] * 0.95 <= us["dense"], "B126", rows, "rows,", heads, "heads: packed "
         f"{us['packed']:.0f} us, dense {us['dense']:.0f}")


def check_few_rows(lib, clock):
    """A few rows against a long cache cost little more than one. Not reached yet by tiles of 16
    rows that read the keys again (bench/records/h200-peers.csv: q 8 and 16 of 32/8 heads)."""
    for heads in ((64, 8), (8, 1)):
        runs = {q_len: decode_run(lib, (1, *heads, 128, q_len, 32768))[0]
                for q_len in (1, 2, 4, 7, 8, 16)}
        us = times(clock, runs)
        for q_len in list(runs)[1:]:
            ratio, rows = us[q_len] / us[1], q_len * heads[0] // heads[1]
            words = ("B131", heads, "q", q_len, f"{us[q_len]:.1f} us, {ratio:.2f} of q 1, at most "
                     "1.3,", runs[q_len].plan["kernel"])
            if ratio > 1.3 and rows > 16:
                print("OPEN ", *words)
            else:
                fact(ratio <= 1.3, *words)


def main():
    path, folder = sys.argv[1:]
    os.environ["FA_LIBRARY"] = path
    import fa

    torch.set_grad_enabled(False)
    lib, read = peers.Library(path, fa), peers.reader(folder)
    clock = peers.Clock(torch, read, 1 << 30)
    rate = peers.measure_ceilings(torch, clock, read)["bytes_per_second"] / 1e6  # a us
    print(f"reads {rate / 1e6:.2f} TB/s")
    check_rate(lib, clock, rate, "B126", (64, 16, 2, 128, 1, 8191), 0.8)
    for batch in (16, 32, 48, 64, 96, 128):
        check_rate(lib, clock, rate, "B128", (batch, 8, 1, 128, 1, 32768), 0.85, page_size=64)
    check_packed(lib, clock)
    check_few_rows(lib, clock)
    print(f"{facts['hold']} facts hold, {facts['fail']} do not")
    return 1 if facts["fail"] else 0


if __name__ == "__main__":
    sys.exit(main())
