"""peers.py - this library against what a user would pick instead, on one GPU.

    FA_LIBRARY=libfa_fwd_causal_shared.so python3 bench/peers.py OUT.csv [--grids A,A2,B,C,D]

Peers, each where installed: FlashAttention-2 and cuDNN in torch, FlashAttention-3 (PyPI fa3-fwd).
All get the same bf16 tensors (batch, seq, heads, dim) and calls alternate, one of each again and
again, each after an L2 flush by reading. Outputs are compared with float32 rows before anything is
timed. The whole grid is measured twice, minutes apart; ratios within a round count. The CSV is a
record for report.py. It changes when a peer or a grid does.
"""

import argparse
import ctypes
import importlib.util
import pathlib
import random
import statistics
import subprocess
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
PEERS = ("fa2", "fa3", "cudnn")

# grid, batch, heads_q, heads_kv, head_dim, q_len, kv_len
EQUAL = ((32, 512), (8, 2048), (2, 8192), (1, 16384))
GRIDS = [("A", b, hq, hkv, d, s, s) for d, hq, hkv in ((64, 32, 32), (128, 16, 16), (256, 8, 8),
                                                      (128, 32, 8)) for b, s in EQUAL]
GRIDS += [("A2", 2, 21, 21, 96, 8192, 8192), ("A2", 2, 10, 10, 192, 8192, 8192),
          ("A2", 1, 32, 8, 128, 32768, 32768)]
GRIDS += [("B", b, 32, 8, 128, q, kv) for b, q, kv in (
    (1, 64, 4096), (1, 128, 8192), (1, 256, 8192), (1, 512, 4096), (1, 512, 32768),
    (1, 2048, 32768), (1, 4096, 131072), (1, 128, 131072), (1, 1024, 131072), (8, 256, 8192))]
GRIDS += [("B", 1, 16, 16, 64, 512, 16384), ("B", 1, 8, 2, 256, 512, 16384)]
GRIDS += [("C", b, 32, 8, 128, q, kv) for q in (2, 4, 8, 16)
          for b, kv in ((1, 4096), (1, 32768), (8, 8192))] + [("C", 1, 32, 8, 128, 8, 131072)]
GRIDS += [("D", b, hq, hkv, d, 1, kv) for b, hq, hkv, d, kv in (
    (1, 32, 8, 128, 1024), (1, 32, 8, 128, 4096), (1, 32, 8, 128, 32768), (1, 32, 8, 128, 131072),
    (8, 32, 8, 128, 8192), (64, 32, 8, 128, 2048), (64, 32, 8, 128, 8192), (256, 32, 8, 128, 1024),
    (1, 32, 32, 128, 4096), (8, 32, 32, 128, 8192), (1, 64, 8, 128, 8192), (32, 64, 8, 128, 8192),
    (8, 32, 4, 64, 8192), (8, 16, 2, 256, 8192))]


def binding():
    path = ROOT / "examples" / "llama" / "fa.py"
    spec = importlib.util.spec_from_file_location("fa", path)
    fa = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fa)
    return fa


def ours(fa, q, k, v, o):
    """A call of the library, and the kernel that it names for it."""
    def view(x):
        return fa.View(x.data_ptr(), x.stride(0), x.stride(2), x.stride(1))

    call = fa.Args(struct_size=ctypes.sizeof(fa.Args), version=fa.VERSION, device=2,
                   dtype=4 * 256 + 16, batch=q.shape[0], heads_q=q.shape[2], heads_kv=k.shape[2],
                   head_dim=q.shape[3], q_len=q.shape[1], kv_len=k.shape[1], q=view(q), k=view(k),
                   v=view(v), o=view(o))
    library, at, size = fa._library, ctypes.byref(call), ctypes.c_size_t()
    fa._must(library.fa_fwd_causal_workspace(at, ctypes.byref(size)))
    workspace = torch.zeros(max(size.value, 1), dtype=torch.uint8, device="cuda")
    call.workspace, call.workspace_size = workspace.data_ptr(), size.value
    text = ctypes.create_string_buffer(1024)
    fa._must(library.fa_explain(at, text, ctypes.c_size_t(1024)))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def run():
        fa._must(library.fa_fwd_causal(at, stream))
        return o
    run.alive = (call, workspace)
    return run, dict(line.split("=", 1) for line in text.value.decode().splitlines())["kernel"]


def fa2(q, k, v):
    """torch's own copy, whose causal mask is bottom-right; it wants as many kv heads as heads."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    try:
        flash(q, k, v, 0.0, True)
    except RuntimeError:
        k, v = (x.repeat_interleave(group, 1).transpose(1, 2).contiguous().transpose(1, 2)
                for x in (k, v))
    return lambda: flash(q, k, v, 0.0, True)[0].transpose(1, 2)


def fa3(q, k, v):
    import fa3_fwd_interface as module

    if q.shape[1] == k.shape[1]:
        return lambda: module.flash_attn_func(q, k, v, causal=True)
    return lambda: module.flash_attn_with_kvcache(q, k, v, causal=True)


def cudnn(q, k, v):
    """Its causal mask in torch is top-left: for equal lengths; one row sees every key."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    if 1 < q.shape[1] != k.shape[1]:
        raise NotImplementedError("no bottom-right mask")
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    causal, grouped = q.shape[2] > 1, q.shape[1] != k.shape[1]

    def run():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return sdpa(q, k, v, is_causal=causal, enable_gqa=grouped).transpose(1, 2)
    return run


def error_of(o, q, k, v, rows=64):
    """Relative error of some rows of one head against float32."""
    batch, q_len, heads, dim = q.shape
    i, h = random.randrange(batch), random.randrange(heads)
    at = torch.randint(q_len, (min(rows, q_len),), device=q.device)
    at[-1] = q_len - 1
    group = heads // k.shape[2]
    scores = q[i, at, h].float() @ k[i, :, h // group].float().T * dim**-0.5
    keys = torch.arange(k.shape[1], device=q.device)
    scores.masked_fill_(keys[None] > at[:, None] + k.shape[1] - q_len, float("-inf"))
    want = scores.softmax(-1) @ v[i, :, h // group].float()
    return ((o[i, at, h].float() - want).norm() / want.norm()).item()


FLUSH = torch.empty(1 << 28, dtype=torch.int32, device="cuda")


def timed(run):
    FLUSH.sum(dtype=torch.int32)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    return begin, end


def measure(fa, shape):
    """Times in us of every contestant, round by round, and our kernel's name."""
    _, batch, heads_q, heads_kv, dim, q_len, kv_len = shape
    q, k, v = (torch.randn(batch, n, h, dim, device="cuda", dtype=torch.bfloat16)
               for n, h in ((q_len, heads_q), (kv_len, heads_kv), (kv_len, heads_kv)))
    o = torch.full_like(q, float("nan"))
    run, kernel = ours(fa, q, k, v, o)
    runs = {"ours": run}
    for name in PEERS:
        try:
            runs[name] = globals()[name](q, k, v)
            runs[name]()
        except Exception as why:  # a peer that cannot is a gap in the table, with its reason
            runs.pop(name, None)
            print(f"# {name}, {shape}: {type(why).__name__}: {str(why).splitlines()[0][:120]}")
    for name, run in runs.items():
        error = error_of(run(), q, k, v)
        if not error < 6e-3:
            raise SystemExit(f"{name} is wrong at {shape}: relative error {error}")
    torch.cuda.synchronize()
    begin, end = timed(runs["ours"])
    torch.cuda.synchronize()
    us = begin.elapsed_time(end) * 1e3
    rounds = 25 if us < 50 else 15 if us < 5000 else 7
    events = [{name: timed(run) for name, run in runs.items()} for _ in range(rounds)]
    torch.cuda.synchronize()
    return {name: [1e3 * r[name][0].elapsed_time(r[name][1]) for r in events]
            for name in runs}, kernel


def interval(samples):
    """Median, and the order statistics that enclose it in 95 of 100 cases."""
    ordered, n = sorted(samples), len(samples)
    reach = int(0.98 * n**0.5 + 0.5)
    return statistics.median(ordered), ordered[max(0, n // 2 - reach)]


def tflops_of_matmul():
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.mm(a, b)
    times = [timed(lambda: torch.mm(a, b)) for _ in range(15)]
    torch.cuda.synchronize()
    return 2 * 8192**3 / statistics.median(x.elapsed_time(y) for x, y in times) / 1e9


def versions():
    found = [f"torch {torch.__version__} (FlashAttention-2, cuDNN {torch.backends.cudnn.version()})"]
    try:
        from importlib.metadata import version
        found.append(f"fa3-fwd {version('fa3-fwd')}")
    except ImportError:
        found.append("fa3-fwd not installed")
    return ", ".join(found)


def head(tflops):
    digest = subprocess.run(["git", "rev-parse", "HEAD:kernels"], cwd=ROOT, capture_output=True,
                            text=True, check=False).stdout.strip() or "unknown"
    return [f"# {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, "
            f"{time.strftime('%Y-%m-%d')}; bf16, (b,s,h,d), bottom-right; sources: git tree "
            f"{digest} of kernels/", f"# peers: {versions()}",
            "# us: medians of device-event times after an L2 flush by reading, in turns; the grid "
            "twice; outputs compared with float32 first",
            "# ratio: best peer / ours, median over rounds of the best peer; low: lower end of its "
            "95 % interval",
            f"# ceilings: flops_per_second={tflops:.0f}e12 bytes_per_second=4.58e12 empty_us=2.7 "
            "read_us=3.6 , flops of matmul 8192^3 in this run; reading as measured on an H200 in "
            "another (a kernel that only reads)"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--grids", default="A,A2,B,C,D")
    options = parser.parse_args()
    fa, shapes = binding(), [s for s in GRIDS if s[0] in options.grids.split(",")]
    results = [[], []]
    lines = head(tflops_of_matmul())
    print("\n".join(lines))
    for again in (0, 1):
        for shape in shapes:
            times, kernel = measure(fa, shape)
            us = {name: statistics.median(t) for name, t in times.items()}
            best = min((n for n in us if n != "ours"), key=us.get)
            ratio, low = interval([p / o for p, o in zip(times[best], times["ours"])])
            results[again].append((us, best, ratio, low, kernel))
            print(*shape, kernel, *(f"{n} {t:.1f}" for n, t in us.items()),
                  f"ratio {ratio:.3f} low {low:.3f}", flush=True)
    lines.append("grid,batch,heads_q,heads_kv,head_dim,q_len,kv_len,ours_us,"
                 + ",".join(f"{n}_us" for n in PEERS)
                 + ",best,ratio,low,kernel,ours_us_2,ratio_2,low_2")
    for shape, first, second in zip(shapes, *results):
        us, best, ratio, low, kernel = first
        cells = [f"{us[n]:.1f}" if n in us else "" for n in ("ours", *PEERS)]
        lines.append(",".join(map(str, [*shape, *cells, best, f"{ratio:.3f}", f"{low:.3f}", kernel,
                                        f"{second[0]['ours']:.1f}", f"{second[2]:.3f}",
                                        f"{second[3]:.3f}"])))
    pathlib.Path(options.out).write_text("\n".join(lines) + "\n", encoding="utf-8")
    for grid in options.grids.split(","):
        ratios = [r[2] for r, s in zip(results[0], shapes) if s[0] == grid]
        if ratios:
            print(f"grid {grid}: geometric mean of best peer / ours "
                  f"{statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
