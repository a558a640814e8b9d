"""The real q, k and v of some layers, and how near to the exact answer the library comes."""
import ctypes
import dataclasses
import math
import pathlib
import subprocess

import numpy as np

import fa
import plain
from model import Cache

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def record(model, ids, layers, attention=fa.causal):
    """{layer: (q, k, v)} of one forward pass, (batch, head, seq, dim) in float32."""
    kept, calls = {}, iter(range(model.layers))

    def recorder(q, k, v, o, **ragged):
        layer = next(calls)
        if layer in layers:
            kept[layer] = tuple(x.copy() for x in (q, k, v))
        attention(q, k, v, o, **ragged)

    model.forward([ids], Cache(model, 1, len(ids)), recorder)
    return kept


class Oracle:
    """The C reference, built here as a shared library."""

    def __init__(self, folder):
        path = pathlib.Path(folder) / "liboracle.so"
        subprocess.run(["cc", "-O2", "-std=c99", "-shared", "-fPIC", f"-I{REPOSITORY}/include",
                        REPOSITORY / "reference" / "fa_reference.c", "-o", path, "-lm"], check=True)
        self._library = ctypes.CDLL(str(path))

    def __call__(self, q, k, v):
        """The oracle's o and lse, float64."""
        a, alive = fa.arguments(q, k, v, np.empty_like(q))
        o, lse = np.empty(q.shape), np.empty(q.shape[:3])
        self._library.fa_reference_forward(ctypes.byref(a), *(
            ctypes.c_void_p(x.ctypes.data) for x in (o, lse)), None)
        del alive
        return o, lse


@dataclasses.dataclass
class Verdict:
    largest: float   # |o - exact|
    rms: float
    lse: float
    oracle: float    # |the C oracle - exact|, o and lse
    allowed: tuple   # the four tolerances, in that order

    @property
    def ratios(self):
        return [value / limit for value, limit in
                zip((self.largest, self.rms, self.lse, self.oracle), self.allowed)]

    @property
    def ok(self):
        return all(ratio <= 1 for ratio in self.ratios)  # false for NaN

    def __str__(self):
        text = "  ".join(f"{name} {ratio:.2f}" for name, ratio in
                         zip(("largest", "rms", "lse", "oracle"), self.ratios))
        return text + ("" if self.ok else "  WRONG")


def judge(qkv, format, oracle, attention=fa.causal):
    """Errors of one layer against float64, q, k and v cast to the format beforehand.

    o: the largest error at most twice, the RMS at most 1.5 times that of a plain attention that
    rounds what every kernel must (plain.py), plus one unit in the last place of the largest o.
    lse: its own rounding and that of a float32 logit, 8 * 2^-24 of the larger one.
    The two float64 answers: 1e-12 of the largest logit.
    """
    q, k, v = (format.store(x) for x in qkv)
    exact = plain.exact(q, k, v)
    logits, weights = plain.softmax(q, k)
    exact_lse = logits.max(axis=3) + np.log(weights.sum(axis=3))
    most = np.abs(logits[np.isfinite(logits)]).max()

    o, lse = format.nan(q.shape), np.full(q.shape[:3], np.nan, np.float32)
    attention(q, k, v, o, lse=lse)
    error = format.load(o, np.float64) - exact
    base = format.load(plain.attention(q, k, v, np.empty_like(q)), np.float64) - exact
    oracle_o, oracle_lse = oracle(q, k, v)
    rms = lambda x: math.sqrt(np.mean(x * x))
    return Verdict(
        np.abs(error).max(), rms(error), np.abs(lse - exact_lse).max(),
        max(np.abs(oracle_o - exact).max(), np.abs(oracle_lse - exact_lse).max()),
        (2 * np.abs(base).max() + format.ulp(np.abs(exact).max()), 1.5 * rms(base),
         8 * 2.0**-24 * max(1, most, np.abs(exact_lse).max()), 1e-12 * max(1, most)))


def picture(q, k):
    """The largest |logit|, and the weight that queries give to the first token: the mean over all
    queries and heads, and that of the head that gives most. Query 0 can see nothing else."""
    logits, weights = plain.softmax(q, k)
    first = (weights[..., 0] / weights.sum(axis=3))[0, :, 1:].mean(axis=1)
    return np.abs(logits[np.isfinite(logits)]).max(), first.mean(), first.max()
