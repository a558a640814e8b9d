"""ctypes binding of include/fa_fwd_causal.h: one call over numpy arrays, without a copy.

An array is a view of (batch, head, seq, dim) whatever its memory order: hand over a (b, s, h, d)
array as `x.transpose(0, 2, 1, 3)`, and a cache longer than its used part as `cache[:, :, :used]`.
Only the strides change. numpy has no bfloat16, so its bits travel in uint16 arrays.

This file changes when the header's struct does; the assertion below then fails first.
"""
import ctypes
import os
import pathlib

import numpy as np

VERSION = 0 * 1000000 + 1 * 1000 + 0  # FA_VERSION of the header that Args was written from
DEVICE_CPU = 1
ALIGN_OFFSET = 1
DTYPES = {  # fa_dtype
    np.dtype(np.float16): 2 * 256 + 16,
    np.dtype(np.float32): 2 * 256 + 32,
    np.dtype(np.uint16): 4 * 256 + 16,
}
RAGGED = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_q", "leftpad_k")

_int32s = lambda names: [(name, ctypes.c_int32) for name in names.split()]
_pointers = lambda names: [(name, ctypes.c_void_p) for name in names]


class View(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p)] + [
        (f"stride_{axis}", ctypes.c_int64) for axis in ("batch", "head", "seq")
    ]


class Args(ctypes.Structure):
    _fields_ = (
        _int32s("struct_size version device dtype batch heads_q heads_kv head_dim q_len kv_len")
        + [("scale", ctypes.c_float), ("align", ctypes.c_int32)]
        + [(name, View) for name in ("q", "k", "v", "o", "lse")]
        + _pointers(RAGGED)
        + _int32s("total_q total_k page_size num_pages block_table_cols causal_offset")
        + [("block_table_stride", ctypes.c_int64)]
        + _pointers(("block_table", "causal_offsets"))
        + _int32s("num_splits split_keys")
        + [("workspace", ctypes.c_void_p), ("workspace_size", ctypes.c_size_t)]
        + _int32s("threads task_index task_count reserved")
    )


assert ctypes.sizeof(View) == 32 and ctypes.sizeof(Args) == 344


class Error(RuntimeError):
    """A call that the library refused; the text is fa_last_error's sentence."""


def _load():
    repository = pathlib.Path(__file__).resolve().parents[2]
    default = repository / "build" / "release" / "libfa_fwd_causal_shared.so"
    path = os.environ.get("FA_LIBRARY", default)
    if not os.path.exists(path):
        raise Error(f"no shared library at {path}: build it, or name it in FA_LIBRARY")
    library = ctypes.CDLL(str(path))
    for name in ("fa_status_string", "fa_last_error"):
        getattr(library, name).restype = ctypes.c_char_p
    return library


_library = _load()


def _view(x):
    """The view of a (batch, head, seq, dim) array; for lse of a (batch, head, seq) one."""
    if x.ndim == 4 and x.shape[3] > 1 and x.strides[3] != x.itemsize:
        raise ValueError("the elements of the last axis must be contiguous")
    return View(x.ctypes.data, *(stride // x.itemsize for stride in x.strides[:3]))


def arguments(q, k, v, o, lse=None, **fields):
    """The struct for one call, and the arrays it points to, which must outlive the call."""
    batch, heads_q, q_len, head_dim = q.shape
    heads_kv, kv_len = k.shape[1:3]
    if v.shape != k.shape or o.shape != q.shape or k.shape[0] != batch or k.shape[3] != head_dim:
        raise ValueError(f"shapes do not fit: q {q.shape}, k {k.shape}, v {v.shape}, o {o.shape}")
    if {x.dtype for x in (q, k, v, o)} != {q.dtype} or q.dtype not in DTYPES:
        raise TypeError(f"q, k, v and o must share one dtype of {[str(d) for d in DTYPES]}")
    arrays = {name: np.ascontiguousarray(fields.pop(name), np.int32)
              for name in RAGGED if fields.get(name) is not None}
    a = Args(struct_size=ctypes.sizeof(Args), version=VERSION, device=DEVICE_CPU,
             dtype=DTYPES[q.dtype], batch=batch, heads_q=heads_q, heads_kv=heads_kv,
             head_dim=head_dim, q_len=q_len, kv_len=kv_len, q=_view(q), k=_view(k), v=_view(v),
             o=_view(o), **{name: array.ctypes.data for name, array in arrays.items()},
             **{name: value for name, value in fields.items() if value is not None})
    if lse is not None:
        a.lse = _view(lse)
    return a, arrays


def _must(status):
    if status:
        name = _library.fa_status_string(status).decode()
        raise Error(f"{name}: {_library.fa_last_error().decode()}")


def causal(q, k, v, o, lse=None, **fields):
    """Writes o, and lse where given. fields are fa_args' own: arrays for seqused_q and the like."""
    a, alive = arguments(q, k, v, o, lse, **fields)
    status = _library.fa_fwd_causal(ctypes.byref(a), None)
    del alive  # the struct holds bare addresses: this name kept the arrays until here
    _must(status)
    return o


def explain(q, k, v, o, **fields):
    """What the library would do with this call, as lines of key=value."""
    a, alive = arguments(q, k, v, o, **fields)
    text = ctypes.create_string_buffer(1024)
    _must(_library.fa_explain(ctypes.byref(a), text, ctypes.c_size_t(len(text))))
    del alive
    return text.value.decode()
