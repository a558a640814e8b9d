"""engines.py - peers behind one face: forward(call, q, k, v) -> (o, lse), as bytes.

q, k, v and o are (b, s, h, d) in the call's dtype, lse is (b, q, h) in float32. `dialect` holds the
letters of the known differences (conform.h). A peer that is not installed raises ImportError when
it is made. A new peer is a class here and a name in ENGINES.
"""

import collections
import math
import os
import sys

import numpy

F16, F32, BF16 = 2 * 256 + 16, 2 * 256 + 32, 4 * 256 + 16
CPU, CUDA = 1, 2

Call = collections.namedtuple(
    "Call", "device dtype batch heads_q heads_kv head_dim q_len kv_len given offset scale")


class Unsupported(Exception):
    """The peer has no such call; the text says what."""


def offset_of(call, top_left):
    if call.given:
        return call.offset
    return 0 if top_left else call.kv_len - call.q_len


# ---- numpy -------------------------------------------------------------------------------------


def to_float(data, call, rows, heads):
    shape = (call.batch, rows, heads, call.head_dim)
    if call.dtype == BF16:
        wide = numpy.frombuffer(data, numpy.uint16).astype(numpy.uint32) << 16
        return wide.view(numpy.float32).reshape(shape)
    kind = numpy.float16 if call.dtype == F16 else numpy.float32
    return numpy.frombuffer(data, kind).astype(numpy.float32).reshape(shape)


def from_float(values, dtype):
    if dtype == F32:
        return values.astype(numpy.float32).tobytes()
    if dtype == F16:
        with numpy.errstate(over="ignore"):
            return values.astype(numpy.float16).tobytes()
    bits = values.astype(numpy.float32).view(numpy.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return numpy.where(numpy.isnan(values), 0x7FC0, rounded).astype(numpy.uint16).tobytes()


class Numpy:
    """Plain float64 attention, a block of rows at a time."""

    dialect = "u"
    top_left = False
    base_2 = False
    empty_lse = -math.inf
    rows = 256

    def forward(self, call, q, k, v):
        q = to_float(q, call, call.q_len, call.heads_q)
        k = to_float(k, call, call.kv_len, call.heads_kv)
        v = to_float(v, call, call.kv_len, call.heads_kv)
        o = numpy.zeros(q.shape)
        lse = numpy.full(q.shape[:3], self.empty_lse)
        group = call.heads_q // call.heads_kv
        offset = offset_of(call, self.top_left)
        for b in range(call.batch):
            for head in range(call.heads_q):
                for row in range(0, call.q_len, self.rows):
                    at = (b, slice(row, min(row + self.rows, call.q_len)), head)
                    other = (b, slice(None), head // group)
                    o[at], lse[at] = self.attend(q[at], k[other], v[other], row + offset,
                                                 call.scale)
        return from_float(o, call.dtype), lse.astype(numpy.float32).tobytes()

    def attend(self, q, k, v, first, scale):
        """Rows of one head; row r sees keys up to first + r."""
        count = len(q)
        seen = min(max(first + count, 0), len(k))  # keys that any row sees
        o, lse = numpy.zeros(q.shape), numpy.full(count, self.empty_lse)
        if seen == 0:
            return o, lse
        with numpy.errstate(invalid="ignore", over="ignore", divide="ignore"):
            logits = scale * (q.astype(float) @ k[:seen].astype(float).T)
            hidden = numpy.arange(seen) > first + numpy.arange(count)[:, None]
            logits[hidden] = -math.inf
            most = logits.max(axis=1, keepdims=True)
            weights = numpy.exp(logits - most)
            weights[hidden] = 0
            total = weights.sum(axis=1, keepdims=True)
            result = weights @ v[:seen].astype(float) / total
            logarithm = (most + numpy.log(total))[:, 0]
        some = ~hidden.all(axis=1)
        o[some] = result[some]
        lse[some] = logarithm[some] / (math.log(2) if self.base_2 else 1)
        return o, lse


class NumpyDialect(Numpy):
    """The same in a dialect that several peers speak: the tests of the dialect table use it."""

    dialect = "utbp"
    top_left = True
    base_2 = True
    empty_lse = math.inf


class NumpyDies(Numpy):
    """Ends its process in every call of one query."""

    def forward(self, call, q, k, v):
        if call.q_len == 1:
            os._exit(1)
        return super().forward(call, q, k, v)


# ---- torch -------------------------------------------------------------------------------------


class Torch:
    """The flash kernels of scaled_dot_product_attention on a CPU, with is_causal: top-left."""

    dialect = "utc"
    repeats_heads = True
    MOST_MASK = 1 << 28  # elements; beyond it a mask is refused instead of exhausting memory

    def __init__(self):
        import torch

        self.torch = torch
        self.dtypes = {F16: torch.float16, F32: torch.float32, BF16: torch.bfloat16}

    def tensor(self, data, call, rows, heads):
        shape = (call.batch, rows, heads, call.head_dim)
        kind = self.dtypes[call.dtype]
        flat = self.torch.frombuffer(data, dtype=kind) if data else self.torch.empty(0, dtype=kind)
        return flat.reshape(shape).to("cuda" if call.device == CUDA else "cpu")

    def give(self, o, lse):
        o = o.contiguous().cpu().view(self.torch.uint8).numpy().tobytes()
        return o, lse.float().contiguous().cpu().numpy().tobytes()

    def mask(self, call, offset, device):
        if call.q_len * call.kv_len > self.MOST_MASK:
            raise Unsupported(f"a mask of {call.q_len} x {call.kv_len}")
        rows = self.torch.arange(call.q_len, device=device)[:, None] + offset
        return self.torch.arange(call.kv_len, device=device)[None] <= rows

    def forward(self, call, q, k, v):
        q = self.tensor(q, call, call.q_len, call.heads_q).transpose(1, 2)
        k = self.tensor(k, call, call.kv_len, call.heads_kv).transpose(1, 2)
        v = self.tensor(v, call, call.kv_len, call.heads_kv).transpose(1, 2)
        if call.heads_q != call.heads_kv and self.repeats_heads:
            k = k.repeat_interleave(call.heads_q // call.heads_kv, 1)
            v = v.repeat_interleave(call.heads_q // call.heads_kv, 1)
        o, lse = self.attend(call, q, k, v)
        return self.give(o.transpose(1, 2), lse.transpose(1, 2))

    def attend(self, call, q, k, v):
        if call.device != CPU:
            raise Unsupported("device: on a GPU torch is torch_sdpa, torch_flash2, torch_cudnn")
        self.must_be_plain(call)
        return self.torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, True, scale=call.scale)[:2]

    @staticmethod
    def must_be_plain(call):
        if call.given:
            raise Unsupported("causal_offset: the peer has no offset")
        if call.kv_len == 0:
            raise Unsupported("kv_len = 0")


class TorchMask(Torch):
    """The same kernels with a bottom-right mask as a tensor, on the CPU."""

    dialect = "ulec"

    def attend(self, call, q, k, v):
        if call.device != CPU:
            raise Unsupported("device: the flash kernel of a GPU takes no mask")
        if call.kv_len == 0:
            raise Unsupported("kv_len = 0")
        mask = self.mask(call, offset_of(call, False), q.device)
        bias = self.torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, -math.inf)
        return self.torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, False, attn_mask=bias, scale=call.scale)[:2]


class OnGpu(Torch):
    """A peer on the GPU. What it refuses before a kernel is launched is unsupported; an error of
    CUDA is a failure, and one that the context does not survive ends this process."""

    def forward(self, call, q, k, v):
        if call.device != CUDA:
            raise Unsupported("device: the peer is on the GPU")
        self.must_be_plain(call)
        try:
            return super().forward(call, q, k, v)
        except (RuntimeError, ValueError, TypeError, AssertionError) as why:
            said = str(why).strip().split("\n")[0]
            try:
                self.torch.cuda.synchronize()
            except RuntimeError:
                print(said, file=sys.stderr, flush=True)
                os._exit(1)
            if "CUDA error" in said or "out of memory" in said:
                raise
            raise Unsupported(f"{type(why).__name__}: {said}") from why


class TorchSdpa(OnGpu):
    """scaled_dot_product_attention with is_causal, whichever kernel it picks: top-left, o alone."""

    dialect = "utn"

    def attend(self, call, q, k, v):
        o = self.torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=call.scale)
        return o, self.torch.zeros(q.shape[:3])


class TorchFlash2(OnGpu):
    """FlashAttention-2 as torch has it, called directly: bottom-right."""

    dialect = "up"
    repeats_heads = False

    def attend(self, call, q, k, v):
        return self.torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, True, False, scale=call.scale)[:2]


class TorchCudnn(OnGpu):
    """cuDNN's attention as torch calls it: top-left, heads repeated."""

    dialect = "utc"

    def attend(self, call, q, k, v):
        o, lse = self.torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, True, False, scale=call.scale)[:2]
        return o, lse.reshape(call.batch, call.heads_q, call.q_len)


# ---- FlashAttention-2, -3, -4 ------------------------------------------------------------------


class Flash(OnGpu):
    """flash_attn_func of a module: bottom-right, (b, s, h, d), grouped heads as they are."""

    repeats_heads = False

    def __init__(self, module, dialect, function="flash_attn_func", **options):
        super().__init__()
        self.dialect = dialect
        self.call_peer = getattr(__import__(module, fromlist=[function]), function)
        self.options = options

    def attend(self, call, q, k, v):
        found = self.call_peer(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale=call.scale,
                               causal=True, **self.options)
        if not isinstance(found, tuple):
            raise Unsupported("lse: this version returns o alone")
        return found[0].transpose(1, 2), found[1]


def flash3():
    """From its sources the module is flash_attn_interface; the package fa3-fwd has its own name."""
    try:
        return Flash("flash_attn_interface", "u", return_attn_probs=True)
    except ImportError:
        return Flash("fa3_fwd_interface", "u", return_attn_probs=True)


ENGINES = {
    "numpy": Numpy,
    "numpy_dialect": NumpyDialect,
    "numpy_dies": NumpyDies,
    "torch": Torch,
    "torch_mask": TorchMask,
    "torch_sdpa": TorchSdpa,
    "torch_flash2": TorchFlash2,
    "torch_cudnn": TorchCudnn,
    "flash2": lambda: Flash("flash_attn", "up", return_attn_probs=True),
    "flash3": flash3,
    "flash4": lambda: Flash("flash_attn.cute", "u", return_lse=True),
}


def make(name):
    if name not in ENGINES:
        raise ImportError(f"no such engine; there are {', '.join(ENGINES)}")
    return ENGINES[name]()
