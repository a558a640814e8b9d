"""peers_cpu.py - this library against what a user would pick instead, on a CPU.

    FA_LIBRARY=libfa_fwd_causal_shared.so python3 bench/peers_cpu.py OUT.csv [--quick] [--threads N]

Peers, each where installed: torch's SDPA, onnxruntime's Attention (opset 23), openvino's SDPA.
All get the same float32 tensors in the layout that they like best, and calls alternate: one of
each, again and again, so that a busy moment meets them all. The figure is the minimum; ratios within this
run count, absolute times do not. Every result is compared with this library's before it is timed.
The CSV is a record for report.py.
"""

import argparse
import importlib.util
import os
import pathlib
import platform
import sys
import time

# Idle threads of one runtime must not spin while the next one's call is timed; read when an OpenMP
# runtime is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np  # noqa: E402

BINDING = pathlib.Path(__file__).resolve().parents[1] / "examples" / "llama" / "fa.py"
# grid, batch, heads_q, heads_kv, head_dim, q_len, kv_len
SHAPES = [(f"{name}", 1, 8, heads_kv, 128, q, kv)
          for name, q, kv in (("prefill", 256, 256), ("prefill", 1024, 1024), ("chunk", 128, 1024),
                              ("chunk", 128, 8192), ("spec", 4, 8192), ("decode", 1, 1024),
                              ("decode", 1, 8192), ("decode", 1, 32768))
          for heads_kv in (8, 2)]
QUICK = [("chunk", 1, 4, 2, 64, 32, 96), ("decode", 1, 4, 2, 64, 1, 200)]


def ours(q, k, v, threads):
    spec = importlib.util.spec_from_file_location("fa", BINDING)
    fa = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fa)
    o = np.full_like(q, np.nan)
    call, alive = fa.arguments(q, k, v, o, threads=threads)
    library, pointer = fa._library, fa.ctypes.byref(call)

    def run():
        if library.fa_fwd_causal(pointer, None):
            raise fa.Error(library.fa_last_error().decode())
        return o
    run.alive = (call, alive)
    return run


def mask_of(q_len, kv_len):
    return np.arange(kv_len)[None] <= np.arange(q_len)[:, None] + kv_len - q_len


def torch_sdpa(q, k, v, threads):
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    torch.set_num_threads(threads)
    q_len, kv_len = q.shape[2], k.shape[2]
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    # is_causal is top-left: the form for a square call; one row sees all keys; else a mask.
    options = {"is_causal": True} if q_len == kv_len else {}
    if 1 < q_len != kv_len:
        bias = torch.zeros(q_len, kv_len)
        options["attn_mask"] = bias.masked_fill(~torch.from_numpy(mask_of(q_len, kv_len)), -np.inf)
    grouped = q.shape[1] != k.shape[1]
    with torch.inference_mode():
        def run():
            return sdpa(*tensors, enable_gqa=grouped, **options).numpy()
        run()
    return run


def onnxruntime_attention(q, k, v, threads):
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    def tensor(name, x):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape)

    # A past cache makes the operator's own causal mask bottom-right.
    q_len, past = q.shape[2], k.shape[2] - q.shape[2]
    feeds = {"q": q, "k": k, "v": v}
    if past:
        feeds = {"q": q, "k": k[:, :, past:], "v": v[:, :, past:], "past_k": k[:, :, :past],
                 "past_v": v[:, :, :past]}
    feeds = {name: np.ascontiguousarray(x) for name, x in feeds.items()}
    inputs = ["q", "k", "v"] + (["", "past_k", "past_v"] if past else [])
    outputs = ["o"] + (["all_k", "all_v"] if past else [])
    made = [tensor("o", q)] + ([tensor("all_k", k), tensor("all_v", v)] if past else [])
    node = helper.make_node("Attention", inputs, outputs, is_causal=1)
    graph = helper.make_graph([node], "one", [tensor(n, x) for n, x in feeds.items()], made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.checker.check_model(model)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings,
                                           ["CPUExecutionProvider"])
    return lambda: session.run(["o"], feeds)[0]


def openvino_sdpa(q, k, v, threads):
    import openvino
    from openvino import opset13

    q_len, kv_len, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    inputs = [np.ascontiguousarray(x) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1))]
    nodes = [opset13.parameter(x.shape, np.float32) for x in inputs]
    mask = [] if q_len in (1, kv_len) else [opset13.constant(
        np.where(mask_of(q_len, kv_len), 0, -np.inf).astype(np.float32)[None, None])]
    result = opset13.scaled_dot_product_attention(*nodes, *mask, causal=q_len == kv_len)
    compiled = openvino.Core().compile_model(
        openvino.Model([result], nodes), "CPU",
        {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()

    def run():
        return request.infer(inputs, share_inputs=True, share_outputs=True)[0]
    return run


PEERS = {"torch": ("torch", torch_sdpa), "onnxruntime": ("onnxruntime", onnxruntime_attention),
         "openvino": ("openvino", openvino_sdpa)}


def versions():
    """Installed peers and their versions."""
    found = {}
    for name, (module, _) in PEERS.items():
        try:
            found[name] = __import__(module).__version__
        except ImportError:
            print(f"{name}: not installed", file=sys.stderr)
    return found


def tensors(shape):
    _, batch, heads_q, heads_kv, head_dim, q_len, kv_len = shape
    random = np.random.default_rng(1)
    q = random.standard_normal((batch, heads_q, q_len, head_dim), np.float32)
    k, v = (random.standard_normal((batch, heads_kv, kv_len, head_dim), np.float32)
            for _ in range(2))
    return q, k, v


def measure(shape, names, threads, seconds):
    """us of ours and of every peer that can do the call, the same result proven first."""
    q, k, v = tensors(shape)
    runs = {"ours": ours(q, k, v, threads)}
    want = runs["ours"]().copy()
    for name in names:
        try:
            run = PEERS[name][1](q, k, v, threads)
            got = run()
        except Exception as why:  # a peer that cannot is a gap in the table, with its reason
            print(f"{name}, {shape}: {type(why).__name__}: {str(why)[:200]}", file=sys.stderr)
            continue
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        if not error < 1e-5:
            raise SystemExit(f"{name} disagrees at {shape}: relative error {error}")
        runs[name] = run
    best, until, rounds = dict.fromkeys(runs, float("inf")), time.monotonic() + seconds, 0
    while rounds < 3 or time.monotonic() < until and rounds < 500:
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            best[name] = min(best[name], 1e6 * (time.perf_counter() - began))
        rounds += 1
    return best, rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--quick", action="store_true", help="two small shapes, to try the program")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each shape")
    options = parser.parse_args()
    found = versions()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
                if line.startswith("model name")), platform.processor())
    with open(options.out, "w", encoding="utf-8") as out:
        print(f"# {cpu}, {options.threads} threads, {time.strftime('%Y-%m-%d')}; f32, (b,h,s,d), "
              "bottom-right", file=out)
        print("# peers: " + ", ".join(f"{n} {v}" for n, v in found.items()), file=out)
        print("# us: minimum of calls in turns, warm; results compared with ours first, relative "
              "error below 1e-5", file=out)
        print("grid,batch,heads_q,heads_kv,head_dim,q_len,kv_len,ours_us,"
              + ",".join(f"{n}_us" for n in found), file=out)
        for shape in QUICK if options.quick else SHAPES:
            best, rounds = measure(shape, found, options.threads,
                                   0.1 if options.quick else options.seconds)
            cells = [f"{best[n]:.1f}" if n in best else "" for n in ("ours", *found)]
            print(",".join(map(str, [*shape, *cells])), file=out, flush=True)
            print(f"{shape}: {rounds} rounds, "
                  + ", ".join(f"{n} {us:.0f} us" for n, us in best.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
