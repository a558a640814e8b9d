"""peers_cpu_engines.py - this library and its peers on a CPU: one function each, which gets a Call
and returns (run, read). run() makes the call and nothing else; read(what it returned) is float32 of
(batch, head, seq, dim), outside the clock. It changes when a peer comes or changes its interface.

Each peer gets the form of the call that it is fastest in: its own causal mask where that is the
bottom-right one, no mask for one row, else a mask made before the clock; K and V of grouped heads
repeated beforehand for a peer without groups; outputs bound beforehand where its interface can. All
worker threads sleep between calls, since a spinning one would be in the next engine's way.
"""

import collections
import ctypes
import functools
import importlib.util
import math
import os
import pathlib

# Read when an OpenMP runtime is loaded: torch's, and that of this library.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np  # noqa: E402

BINDING = pathlib.Path(__file__).resolve().parents[1] / "examples" / "llama" / "fa.py"
# q, k, v are (batch, head, seq, dim) arrays of dtype; bf16 travels as uint16.
Call = collections.namedtuple("Call", "dtype q k v threads")


class Unsupported(Exception):
    """The peer has no such call; the text says why."""


# ---- numbers -------------------------------------------------------------------------------------


def rounded(x, dtype):
    """float32 to dtype, to nearest, ties to even; finite numbers only."""
    if dtype == "bf16":
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return x.astype({"f32": np.float32, "f16": np.float16}[dtype])


def widened(x):
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


def mask_of(q_len, kv_len):
    return np.arange(kv_len)[None] <= np.arange(q_len)[:, None] + kv_len - q_len


def bias_of(call):
    """The mask as something to add, or None where every row sees every key."""
    q_len, kv_len = call.q.shape[2], call.k.shape[2]
    return None if q_len == 1 else np.where(mask_of(q_len, kv_len), np.float32(0),
                                            np.float32(-np.inf))


# ---- engines -------------------------------------------------------------------------------------


@functools.lru_cache
def binding():
    spec = importlib.util.spec_from_file_location("fa", BINDING)
    fa = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fa)
    return fa


def ours(call):
    fa = binding()
    o = np.empty_like(call.q)
    o.view(np.uint8).fill(0xFF)  # NaN in every dtype
    arguments, alive = fa.arguments(call.q, call.k, call.v, o, threads=call.threads)
    library, pointer = fa._library, fa.ctypes.byref(arguments)

    def run():
        if library.fa_fwd_causal(pointer, None):
            raise fa.Error(library.fa_last_error().decode())
        return o
    run.alive = (call, arguments, alive)  # the struct holds bare addresses
    return run, widened


def torch_sdpa(call):
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    torch.set_num_threads(call.threads)

    def tensor(x):
        return torch.from_numpy(x).view(torch.bfloat16) if call.dtype == "bf16" else \
            torch.from_numpy(x)
    q, k, v = (tensor(x) for x in call[1:4])
    options = {"enable_gqa": q.shape[1] != k.shape[1]}
    # is_causal is top-left: the form for a square call.
    if q.shape[2] == k.shape[2]:
        options["is_causal"] = True
    elif q.shape[2] > 1:
        options["attn_mask"] = torch.from_numpy(bias_of(call)).to(q.dtype)

    def run():
        with torch.inference_mode():
            return sdpa(q, k, v, **options)
    return run, lambda o: o.float().numpy()


def onnx_run(call, node, feeds, outputs, opsets):
    """A session of one node, everything bound: feeds by name; outputs: arrays, the first is read.
    An output may be the array of a feed, which it then writes in place."""
    import onnx
    import onnxruntime
    from onnx import helper

    def value(name, x):
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype),
                                             x.shape)
    graph = helper.make_graph([node], "one", [value(*item) for item in feeds.items()],
                              [value(*item) for item in outputs.items()])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = call.threads
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings,
                                           ["CPUExecutionProvider"])
    bound = session.io_binding()
    values = {id(x): onnxruntime.OrtValue.ortvalue_from_numpy(x)
              for x in (*feeds.values(), *outputs.values())}
    for name, x in feeds.items():
        bound.bind_ortvalue_input(name, values[id(x)])
    for name, x in outputs.items():
        bound.bind_ortvalue_output(name, values[id(x)])
    result = values[id(next(iter(outputs.values())))]

    def run():
        session.run_with_iobinding(bound)
        return result
    run.alive = (feeds, outputs)
    return run


def onnx_attention(call):
    """Attention of opset 23; its own mask is top-left."""
    from onnx import helper

    feeds = {"q": call.q, "k": call.k, "v": call.v}
    square = call.q.shape[2] == call.k.shape[2]
    if not square and call.q.shape[2] > 1:
        feeds["mask"] = bias_of(call).astype(call.q.dtype)
    node = helper.make_node("Attention", list(feeds), ["o"], is_causal=int(square))
    run = onnx_run(call, node, feeds, {"o": np.empty_like(call.q)}, [helper.make_opsetid("", 23)])
    return run, lambda o: widened(o.numpy())


def onnx_gqa(call):
    """GroupQueryAttention of com.microsoft: the call's own keys are the newest q_len, the cache of
    the others is bound as past and present at once, so that nothing is copied but the new rows."""
    from onnx import helper

    batch, heads_q, q_len, head_dim = call.q.shape
    heads_kv, kv_len = call.k.shape[1:3]

    def rows_of(x):
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(batch, q_len, -1)
    cache_k, cache_v = call.k.copy(), call.v.copy()
    feeds = {"q": rows_of(call.q), "k": rows_of(call.k[:, :, kv_len - q_len:]),
             "v": rows_of(call.v[:, :, kv_len - q_len:]), "past_k": cache_k, "past_v": cache_v,
             "last": np.full(batch, kv_len - 1, np.int32), "total": np.array(kv_len, np.int32)}
    outputs = {"o": np.empty_like(feeds["q"]), "all_k": cache_k, "all_v": cache_v}
    node = helper.make_node("GroupQueryAttention", list(feeds), list(outputs), num_heads=heads_q,
                            kv_num_heads=heads_kv, domain="com.microsoft")
    run = onnx_run(call, node, feeds, outputs,
                   [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)])

    def read(o):
        return widened(o.numpy()).reshape(batch, q_len, heads_q, head_dim).transpose(0, 2, 1, 3)
    return run, read


def openvino_sdpa(call):
    import openvino
    from openvino import opset13

    group = call.q.shape[1] // call.k.shape[1]
    kind = {"f32": openvino.Type.f32, "f16": openvino.Type.f16, "bf16": openvino.Type.bf16}
    arrays = [call.q, np.repeat(call.k, group, 1), np.repeat(call.v, group, 1)]
    nodes = [opset13.parameter(x.shape, kind[call.dtype]) for x in arrays]
    square = call.q.shape[2] == call.k.shape[2]
    mask = []
    if not square and call.q.shape[2] > 1:
        bias = opset13.constant(bias_of(call)[None, None])
        mask = [opset13.convert(bias, kind[call.dtype])]
    result = opset13.scaled_dot_product_attention(*nodes, *mask, causal=square)
    core = openvino.Core()
    if call.dtype == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise Unsupported("openvino has no bfloat16 on this CPU")
    compiled = core.compile_model(
        openvino.Model([opset13.convert(result, openvino.Type.f32)], nodes), "CPU",
        {"INFERENCE_NUM_THREADS": call.threads, "INFERENCE_PRECISION_HINT": call.dtype})
    request = compiled.create_infer_request()
    for i, x in enumerate(arrays):
        request.set_input_tensor(i, openvino.Tensor(x, x.shape, kind[call.dtype]))

    def run():
        request.infer()
        return request
    run.alive = arrays
    return run, lambda request: request.get_output_tensor(0).data.copy()


# ---- ggml, through the libraries of the wheel libggml-python -------------------------------------


class InitParams(ctypes.Structure):  # ggml_init_params
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p),
                ("no_alloc", ctypes.c_bool)]


class PoolParams(ctypes.Structure):  # ggml_threadpool_params
    _fields_ = [("cpumask", ctypes.c_bool * 512), ("n_threads", ctypes.c_int),
                ("prio", ctypes.c_int), ("poll", ctypes.c_uint32), ("strict_cpu", ctypes.c_bool),
                ("paused", ctypes.c_bool)]


class Ggml:
    """Functions of ggml by name, without the prefix: pointers in, pointers out."""

    def __init__(self):
        import libggml
        folder = pathlib.Path(list(libggml.__path__)[0]) / "lib64"
        self.libraries = [ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
                          for name in ("libggml-base.so", "libggml-cpu.so")]

    def __getattr__(self, name):
        function = next(getattr(x, f"ggml_{name}") for x in self.libraries
                        if hasattr(x, f"ggml_{name}"))
        function.restype = ctypes.c_void_p
        return lambda *args: function(*(ctypes.c_void_p(a) if isinstance(a, int) else a
                                        for a in args))


class Memory:
    """A context of ggml with the tensors of one call; freed with it."""

    def __init__(self, ggml, size):
        self.ggml = ggml
        self.context = ggml.init(InitParams(size, None, False))

    def tensor(self, x, kind):
        shape = [ctypes.c_int64(n) for n in reversed((1,) * (4 - x.ndim) + x.shape)]
        made = self.ggml.new_tensor_4d(self.context, ctypes.c_int(kind), *shape)
        ctypes.memmove(self.ggml.get_data(made), x.ctypes.data, x.nbytes)
        return made

    def __del__(self):
        self.ggml.free(self.context)


@functools.lru_cache
def ggml_backend(threads):
    """Its pool's threads are made once and sleep between calls."""
    ggml, settings = Ggml(), PoolParams()
    ggml.threadpool_params_init(ctypes.byref(settings), ctypes.c_int(threads))
    settings.poll = 0
    backend = ggml.backend_cpu_init()
    ggml.backend_cpu_set_n_threads(backend, ctypes.c_int(threads))
    ggml.backend_cpu_set_threadpool(backend, ggml.threadpool_new(ctypes.byref(settings)))
    return ggml, backend


def ggml_attention(call):
    """flash_attn_ext: q, the mask's rows and o are float32, K and V of the dtype."""
    ggml, backend = ggml_backend(call.threads)
    kinds = {"f32": 0, "f16": 1}
    q, bias = call.q.astype(np.float32), bias_of(call)
    memory = Memory(ggml, 2 * q.nbytes + call.k.nbytes + call.v.nbytes + (1 << 22)
                    + (bias.nbytes if bias is not None else 0) + 128 * call.k.shape[2])
    tensors = [memory.tensor(q, 0), memory.tensor(call.k, kinds[call.dtype]),
               memory.tensor(call.v, kinds[call.dtype])]
    mask = None
    if bias is not None:  # rows in multiples of 64, as versions differ in what they ask for
        rows = np.full((-len(bias) // 64 * -64, bias.shape[1]), -np.inf, np.float16)
        rows[:len(bias)] = bias
        mask = memory.tensor(rows, kinds["f16"])
    scale = ctypes.c_float(1 / math.sqrt(q.shape[3]))
    o = ggml.flash_attn_ext(memory.context, *tensors, mask, scale, ctypes.c_float(0),
                            ctypes.c_float(0))
    graph = ggml.new_graph(memory.context)
    ggml.build_forward_expand(graph, o)
    batch, heads_q, q_len, head_dim = q.shape
    shape = (batch, q_len, heads_q, head_dim)
    found = np.ctypeslib.as_array((ctypes.c_float * q.size).from_address(ggml.get_data(o)))

    def run():
        if ggml.backend_graph_compute(backend, graph):
            raise RuntimeError("ggml_backend_graph_compute failed")
        return found
    run.alive = memory
    return run, lambda o: o.reshape(shape).transpose(0, 2, 1, 3).copy()


def ggml_version():
    import importlib.metadata
    return importlib.metadata.version("libggml-python")


def module_version(name):
    return lambda: __import__(name).__version__


# name: what says its version (or raises ImportError), the engine, its 16-bit types, the best first
ENGINES = {"torch": (module_version("torch"), torch_sdpa, ["bf16"]),
           "ort_attention": (module_version("onnxruntime"), onnx_attention, ["f16"]),
           "ort_gqa": (module_version("onnxruntime"), onnx_gqa, ["f16"]),
           "openvino": (module_version("openvino"), openvino_sdpa, ["bf16", "f16"]),
           "ggml": (ggml_version, ggml_attention, ["f16"])}
