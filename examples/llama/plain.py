"""The attention in plain numpy, for dense calls: what the library's answers are measured by.

In float64 it is the exact answer. In a 16-bit format it rounds what any tiled kernel must round and
nothing more: the weights relative to the row's largest, and o; the rest is float32. How far that is
from the exact answer is what the format itself costs.
"""
import numpy as np

from formats import BY_DTYPE


def softmax(q, k, work=np.float64):
    """Logits (batch, head, query, key), -inf where unseen, and exp(logit - the row's largest)."""
    format = BY_DTYPE[q.dtype]
    q, k = format.load(q, work), format.load(k, work)
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    q_len, kv_len = q.shape[2], k.shape[2]
    logits = q @ k.swapaxes(2, 3) * work(np.float32(1 / np.sqrt(q.shape[3])))
    visible = np.arange(kv_len) <= np.arange(q_len)[:, None] + kv_len - q_len
    logits = np.where(visible, logits, work(-np.inf))
    return logits, np.exp(logits - logits.max(axis=3, keepdims=True))


def attention(q, k, v, o):
    """Writes o, in the format that all four share."""
    format = BY_DTYPE[q.dtype]
    _, weights = softmax(q, k, format.work)
    total = weights.sum(axis=3, keepdims=True)
    weights = format.load(format.store(weights), format.work)
    v = np.repeat(format.load(v, format.work), q.shape[1] // v.shape[1], axis=1)
    o[...] = format.store(weights @ v / total)
    return o


def exact(q, k, v):
    """The float64 answer to the stored numbers."""
    q, k, v = (BY_DTYPE[x.dtype].load(x, np.float64) for x in (q, k, v))
    return attention(q, k, v, np.empty(q.shape))
