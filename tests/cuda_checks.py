"""cuda_checks.py - what the C tests cannot reach on a GPU: graphs, streams, sizes that need a
float32 reference on the GPU itself, and arrays with wild values. Ids are those of CASES.md.

    python3 tests/cuda_checks.py LIB.so [KERNEL ...] [--cpu]

Needs torch. Each check runs with the library's own choice of kernel and with each KERNEL forced
(a build with test hooks). --cpu runs all but the graph on the CPU, in small, to test this file.
Exits with 0 when every fact holds.
"""

import math
import os
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "examples" / "llama")]

import peers  # noqa: E402

FROBENIUS, LSE = 0.0026, 16 * 2.0 ** -24  # as bench/peers.py

facts = {"hold": 0, "fail": 0}


def fact(holds, *what):
    facts["hold" if holds else "fail"] += 1
    print("ok  " if holds else "FALSE", *what, flush=True)


def normal(device, *shape):
    return torch.randn(*shape, device=device).to(torch.bfloat16)


def call(device, lib, shape, **fields):
    """(run, q, k, v) of one call: batch, heads_q, heads_kv, head_dim, q_len, kv_len."""
    b, hq, hkv, d, q_len, kv_len = shape
    q, k, v = (normal(device, b, q_len, hq, d), normal(device, b, kv_len, hkv, d),
               normal(device, b, kv_len, hkv, d))
    return lib.prepare(torch, q, k, v, **fields), q, k, v


def poison(found):
    for x in found:
        x.fill_(math.nan)


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def compare(found, q, k, v):
    """(relative Frobenius error of o, worst relative error of lse) against float32."""
    o, lse = peers.reference(torch, q, k, v)
    return (float((found[0].float() - o).norm() / o.norm()),
            float(((found[1] - lse).abs() / lse.abs().clamp(min=8)).max()))


def check_against_reference(device, lib, shape, what):
    run, q, k, v = call(device, lib, shape)
    error = compare(run(), q, k, v)
    fact(error[0] <= FROBENIUS and error[1] <= LSE, what, shape, run.plan["kernel"],
         "errors %.2e %.2e" % error)


def check_sizes(device, lib, small):
    """K and V of more than 2^31 elements each, and 100,000 (sequence, head) pairs."""
    kv_len = 4000 if small else 2_200_000
    check_against_reference(device, lib, (1, 8, 8, 128, 2, kv_len), "large cache")
    batch = 50 if small else 50_000
    for q_len, kv in ((1, 20), (3, 33)):
        check_against_reference(device, lib, (batch, 2, 2, 64, q_len, kv), "many heads")


def check_graph(lib, shape):
    """Captured while every sequence has q_len keys, replayed at other lengths."""
    used = torch.full((shape[0],), shape[4], dtype=torch.int32, device="cuda")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        run, q, k, v = call("cuda", lib, shape, seqused_k=used.data_ptr())
        found = run()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            run()
    most = shape[5]
    for length in (shape[4], most, 0, shape[4] + 17, most - 1, most // 2, most):
        used.fill_(length)
        poison(found)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        if length == 0:
            fact(bool((found[0] == 0).all()) and bool((found[1] == -math.inf).all()),
                 "graph, no keys", shape, run.plan["kernel"])
            continue
        error = compare(found, q, k[:, :length], v[:, :length])
        fact(error[0] <= FROBENIUS and error[1] <= LSE, "graph", shape, "length", length,
             run.plan["kernel"], "errors %.2e %.2e" % error)


def same(found, wanted):
    return all(torch.equal(x, y) for x, y in zip(found, wanted))


def check_streams(device, lib, shape, repeats):
    """One call again and again on several streams at once has the same bits."""
    streams = [torch.cuda.Stream() for _ in range(4)] if device == "cuda" else [None]
    _, q, k, v = call(device, lib, shape)
    runs = []
    for _ in streams:
        runs.append(lib.prepare(torch, q, k, v))
        wait(device)
    wanted = [x.clone() for x in runs[0]()]
    wait(device)
    different = 0
    for repeat in range(repeats // len(streams)):
        for stream, run in zip(streams, runs):
            with torch.cuda.stream(stream):
                found = run()
        if repeat % 10 == 9:
            wait(device)
            different += sum(not same(run.found, wanted) for run in runs)
            for run in runs:
                poison(run.found)
            wait(device)
    fact(different == 0 and found is not None, f"{repeats} calls, {len(streams)} streams", shape,
         runs[0].plan["kernel"], "different bits", different)


def check_workspace(device, lib, shapes):
    """Calls of several shapes that share one workspace in turns keep their bits."""
    runs = [call(device, lib, shape)[0] for shape in shapes]
    wanted = [[x.clone() for x in run()] for run in runs]
    size = max(run.alive[0].workspace_size for run in runs)
    shared = torch.zeros(max(size, 16), dtype=torch.uint8, device=device)
    for run in runs:
        run.alive[0].workspace, run.alive[0].workspace_size = shared.data_ptr(), size
    different = 0
    for turn in range(5):
        for at in range(len(runs))[::1 if turn % 2 else -1]:
            poison(runs[at].found)
            different += not same(runs[at](), wanted[at])
    fact(different == 0, f"{len(shapes)} shapes share a workspace; different bits", different)


def check_batch(device, lib, shape):
    """With num_splits 1 or split_keys a sequence's bits do not depend on the others."""
    for fields in ({"num_splits": 1}, {"split_keys": 512}):
        run, q, k, v = call(device, lib, shape, **fields)
        found, equal = run(), True
        for b in range(shape[0]):
            alone = lib.prepare(torch, q[b:b + 1], k[b:b + 1], v[b:b + 1], **fields)()
            equal &= same([x[0] for x in alone], [x[b] for x in found])
        fact(equal, "a sequence alone and in its batch", shape, fields, run.plan["kernel"])


def pool_of(device, table, page_size, heads, dim):
    """Pages of k or v as prepare() takes them, and the dense rows that table leads to."""
    pages, kv_len = int(table.max()) + 1, table.shape[1] * page_size
    rows = normal(device, pages * page_size + kv_len, heads, dim)  # as_strided wants the room
    row = heads * dim
    view = rows.as_strided((pages, kv_len, heads, dim), (page_size * row, row, dim, 1))
    paged = rows[:pages * page_size].view(pages, page_size, heads, dim)
    return view, paged[table.long()].flatten(1, 2)


def paged_fields(table, pages, page_size):
    return {"page_size": page_size, "num_pages": pages, "block_table": table.data_ptr(),
            "block_table_cols": table.shape[1], "block_table_stride": table.shape[1]}


def check_split_workspace(device, lib, small):
    """B14: partial results of more than 2^31 floats; K and V are one sequence's, batch stride 0."""
    batch = 30 if small else 8300
    q, k, v = (normal(device, batch, 1, 16, 128), normal(device, 1, 8192, 1, 128),
               normal(device, 1, 8192, 1, 128))
    run = lib.prepare(torch, q, k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1),
                      num_splits=128)
    found, size = run(), run.alive[0].workspace_size
    for i in (0, batch // 2, batch - 1):
        alone = lib.prepare(torch, q[i:i + 1], k, v, num_splits=128)()
        fact(same([x[0] for x in alone], [x[i] for x in found]), "B14 entry", i, "of", batch,
             "and the call alone;", size, "bytes of workspace")
    fact(small or size > 1 << 33, "B14 the workspace has more than 2^33 bytes")


def check_wide_rows(device, lib, small):
    """B19: rows 21504 elements apart, 4.3 GB of them, in v, in k and in o."""
    heads, stride = (2, 1024) if small else (56, 21504)
    for kv_len in (300,) if small else (99864, 99968, 100100):
        wide = torch.empty(kv_len, stride, dtype=torch.bfloat16, device=device)
        view = wide[:, :heads * 128].unflatten(1, (heads, 128))[None]
        rows = normal(device, 1, kv_len, heads, 128)
        view.copy_(rows)
        other = normal(device, 1, kv_len, heads, 128)
        for q_len in (5, 64):
            q = normal(device, 1, q_len, heads, 128)
            shape = (kv_len, q_len)
            wanted = lib.prepare(torch, q, other, rows)()
            fact(same(lib.prepare(torch, q, other, view)(), wanted), "B19 v is wide", shape)
            run = lib.prepare(torch, q, other, rows)
            far = view[:, -q_len:]
            kept = far.clone()
            run.alive[0].o.data, run.alive[0].o.stride_seq = far.data_ptr(), stride
            lse = run()[1]
            fact(same((far, lse), wanted), "B19 o is wide", shape)
            far.copy_(kept)
            fact(same(lib.prepare(torch, q, view, other)(),
                      lib.prepare(torch, q, rows, other)()), "B19 k is wide", shape)


def check_many_pages(device, lib, small):
    """B23: 70,000 sequences of pages; every row is written."""
    batch = 70 if small else 70_000
    table = torch.randint(0, 1000, (batch, 2), device=device, dtype=torch.int32)
    (k, k_dense), (v, v_dense) = (pool_of(device, table, 32, 1, 64) for _ in range(2))
    q = normal(device, batch, 1, 64, 64)
    run = lib.prepare(torch, q, k, v, **paged_fields(table, k.shape[0], 32))
    error = compare(run(), q, k_dense, v_dense)
    fact(error[0] <= FROBENIUS and error[1] <= LSE, "B23", batch, "paged sequences",
         run.plan["kernel"], "errors %.2e %.2e" % error)


WILD = (-1, 1 << 30, 2 ** 31 - 1, -2 ** 31)


def outcome(lib, q, k, v, **fields):
    """o and lse, or none where the call is refused, as on the CPU."""
    try:
        return [x.clone() for x in lib.prepare(torch, q, k, v, **fields)()]
    except peers.Unsupported:
        return None


def judge_wild(device, found, wanted, *what):
    """On a GPU the bits of the call with clamped values, on the CPU a refusal."""
    if device == "cpu":
        return fact(found is None, *what, "is refused")
    return fact(found is not None and same(found, wanted), *what, "is clamped")


def check_wild_pages(device, lib):
    """B74: bad entries of one sequence, and of places that hold no key."""
    table = torch.arange(21, device=device, dtype=torch.int32).flip(0).reshape(3, 7)
    (k, _), (v, _) = (pool_of(device, table, 16, 2, 64) for _ in range(2))
    used = torch.tensor([112, 100, 40], dtype=torch.int32, device=device)
    for q_len in (1, 40):
        q = normal(device, 3, q_len, 8, 64)
        for entry in (*WILD, 21):
            wild, clamped = table.clone(), table.clone()
            wild[1, 2], clamped[1, 2] = entry, min(max(entry, 0), 20)
            fields = {"seqused_k": used.data_ptr()}
            judge_wild(device, outcome(lib, q, k, v, **fields, **paged_fields(wild, 21, 16)),
                       outcome(lib, q, k, v, **fields, **paged_fields(clamped, 21, 16)),
                       "B74 page", entry, "q", q_len)
            wild = table.clone()
            wild[2, 3:] = entry
            fact(same(outcome(lib, q, k, v, **fields, **paged_fields(wild, 21, 16)),
                      outcome(lib, q, k, v, **fields, **paged_fields(table, 21, 16))),
                 "B74 unused entries", entry, "q", q_len)


def check_wild_lengths(device, lib):
    """B75: lengths and paddings beyond any sense, and cu_seqlens that go back or leave the rows."""
    for q_len in (1, 40, 200):
        q, k, v = (normal(device, 3, rows, heads, 64)
                   for rows, heads in ((q_len, 8), (300, 2), (300, 2)))
        for name in ("seqused_k", "leftpad_k"):
            for value in (*WILD, 301):
                wild = torch.tensor([200, value, 7], dtype=torch.int32, device=device)
                clamped = wild.clamp(0, 300)
                judge_wild(device, outcome(lib, q, k, v, **{name: wild.data_ptr()}),
                           outcome(lib, q, k, v, **{name: clamped.data_ptr()}),
                           "B75", name, value, "q", q_len)
        whole = torch.arange(4, dtype=torch.int32, device=device)
        good = whole * 300
        # What each is to lead to: rows that begin within all rows and end at 300 more at most.
        for entries, same_as in (((0, 300, -5, 2 ** 31 - 1), (0, None, 0)),
                                 ((0, 600, 300, 900), (0, None, 1)),
                                 ((0, 300, 600, 5000), (0, 1, 2))):
            cu_q, cu_k = whole * q_len, torch.tensor(entries, dtype=torch.int32, device=device)
            fields = {"total_q": 3 * q_len, "total_k": 900, "cu_seqlens_q": cu_q.data_ptr()}
            found = outcome(lib, q, k, v, cu_seqlens_k=cu_k.data_ptr(), **fields)
            if device == "cpu":
                fact(found is None, "B75 cu_seqlens_k", entries, "is refused")
                continue
            for i, at in enumerate(same_as):
                if at is None:
                    continue
                k_at, v_at = k[at].expand_as(k).contiguous(), v[at].expand_as(v).contiguous()
                wanted = outcome(lib, q, k_at, v_at, cu_seqlens_k=good.data_ptr(), **fields)
                fact(found is not None and same([x[i] for x in found], [x[i] for x in wanted]),
                     "B75 cu_seqlens_k", entries, "sequence", i, "q", q_len)


def check_empty_among_full(device, lib, repeats):
    """B107: a packed batch of empty and full sequences, again and again: the same bits, and 0 and
    -inf for rows without keys."""
    q_lens, k_lens = (0, 130, 0, 300, 1, 200), (50, 0, 300, 300, 0, 700)
    q, k, v = (normal(device, 6, rows, heads, 128)
               for rows, heads in ((300, 8), (700, 2), (700, 2)))
    cu_q, cu_k = (torch.tensor([sum(lens[:i]) for i in range(7)], dtype=torch.int32, device=device)
                  for lens in (q_lens, k_lens))
    run = lib.prepare(torch, q, k, v, cu_seqlens_q=cu_q.data_ptr(), cu_seqlens_k=cu_k.data_ptr(),
                      total_q=6 * 300, total_k=6 * 700)
    rows = sum(q_lens)

    def owned():
        return [x.flatten(0, 1)[:rows] for x in run.found]
    run()
    wanted, different = [x.clone() for x in owned()], 0
    empty = torch.arange(rows, device=device)
    empty = (empty < 130) | (empty == 430)
    fact(bool((wanted[0][empty] == 0).all()) and bool((wanted[1][empty] == -math.inf).all())
         and bool((wanted[0][~empty] != 0).any()), "B107 rows without keys are 0 and -inf")
    for repeat in range(repeats):
        if repeat % 10 == 0:
            poison(run.found)
        run()
        if repeat % 10 == 9:
            different += not same(owned(), wanted)
    fact(different == 0, "B107", repeats, "runs,", run.plan["kernel"], "different bits", different)


def check_all(device, lib, small):
    torch.manual_seed(1)
    if device == "cuda":
        for shape in ((3, 8, 2, 128, 1, 5000), (2, 8, 2, 64, 40, 3000), (2, 4, 4, 256, 300, 900)):
            check_graph(lib, shape)
    check_sizes(device, lib, small)
    check_streams(device, lib, (4, 16, 4, 128, 1, 900 if small else 9000), 200)
    check_streams(device, lib, (2, 8, 2, 128, 70, 300 if small else 5000), 200)
    check_workspace(device, lib, [(1, 8, 2, 128, 1, 4000), (64, 8, 2, 128, 1, 300),
                                  (2, 8, 2, 64, 30, 2000), (3, 4, 4, 256, 2, 5000),
                                  (60, 16, 8, 64, 1, 700), (1, 32, 8, 128, 64, 4096)])
    check_split_workspace(device, lib, small)
    check_wide_rows(device, lib, small)
    check_many_pages(device, lib, small)
    check_wild_pages(device, lib)
    check_wild_lengths(device, lib)
    check_empty_among_full(device, lib, 50 if small else 500)
    for q_len in (1, 30, 200):
        check_batch(device, lib, (3, 16, 4, 128, q_len, 1500))


def main():
    words = [word for word in sys.argv[1:] if word != "--cpu"]
    small = "--cpu" in sys.argv
    os.environ["FA_LIBRARY"] = words[0]
    import fa

    torch.set_grad_enabled(False)
    for kernel in ["", *words[1:]]:
        check_all("cpu" if small else "cuda", peers.Library(f"{words[0]}:{kernel}", fa), small)
    print(f"{facts['hold']} facts hold, {facts['fail']} do not")
    return 1 if facts["fail"] else 0


if __name__ == "__main__":
    sys.exit(main())
