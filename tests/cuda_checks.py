"""cuda_checks.py - what the C tests cannot reach on a GPU: graphs, streams, and sizes that need a
float32 reference on the GPU itself.

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
