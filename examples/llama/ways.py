"""Ways to run a prompt that must all give the same logits, and how far off these may be.

The exact logits come from the same weights in float64, attention included, in one shot. The
tolerance comes from the number format: the float32 model is run with a plain numpy attention that
rounds to the format only what every implementation must round (plain.py). How far its logits are
from the exact ones is what the format costs this model, 30 layers of amplification included. One
way may be at most twice as far, since its roundings are others of the same size and number; two
ways may then differ by twice the tolerance, and they must agree on the next token wherever the
exact gap between the two best exceeds that.
"""
import dataclasses

import numpy as np

import plain
from formats import F32, F64
from model import Cache

CONTINUED = 4  # tokens that follow a padded prefill one by one


def chunked(model, ids, sizes, attention, layout="bshd", format=F32):
    """Logits (len(ids), vocabulary) of a prompt fed in pieces over a growing cache."""
    cache = Cache(model, 1, len(ids) + 13, layout, format)
    ends = np.cumsum(sizes)
    assert ends[-1] == len(ids)
    pieces = [ids[end - size:end] for end, size in zip(ends, sizes)]
    return np.concatenate([model.forward([p], cache, attention)[0] for p in pieces])


def one_shot(model, ids, attention, layout="bshd", format=F32):
    return chunked(model, ids, [len(ids)], attention, layout, format)


def padded(model, prompts, side, attention, layout="bshd", format=F32):
    """The logits of each prompt of a batch that is padded on one side to its longest.

    The last tokens of each follow one at a time, so that decoding over padding is seen too.
    """
    lengths = np.array([len(ids) for ids in prompts]) - CONTINUED
    longest = lengths.max()
    left = longest - lengths if side == "left" else np.zeros_like(lengths)
    tokens = np.zeros((len(prompts), longest), int)
    for row, ids, start, length in zip(tokens, prompts, left, lengths):
        row[start:start + length] = ids[:length]
    ragged = {"leftpad": left} if side == "left" else {"lengths": lengths}
    cache = Cache(model, len(prompts), longest + CONTINUED + 13, layout, format)
    first = model.forward(tokens, cache, attention, **ragged)
    rest = [model.forward([[ids[step - CONTINUED]] for ids in prompts], cache, attention)
            for step in range(CONTINUED)]
    return [np.concatenate([first[i, left[i]:left[i] + lengths[i]]] + [step[i] for step in rest])
            for i in range(len(prompts))]


@dataclasses.dataclass
class Verdict:
    """How far logits are from the exact ones, and whether that is near enough."""
    largest: float
    tolerance: float
    tokens: int     # positions
    decided: int    # of these, where the two best are far enough apart
    equal: int      # of these, where the next token is the exact one
    changed: int    # of all positions, where it is another

    @property
    def ok(self):
        return self.largest <= self.tolerance and self.equal == self.decided

    def __str__(self):
        return (f"off by {self.largest:.2e} = {self.largest / self.tolerance:8.2f} tolerances, "
                f"next token equal {self.equal}/{self.decided}" + ("" if self.ok else "  WRONG"))


class Judge:
    """The exact logits of some texts, and the tolerance of each format over all of them."""

    def __init__(self, model, exact_model, texts):
        self.model, self.texts = model, texts
        self.exact = [one_shot(exact_model, ids, plain.attention, format=F64) for ids in texts]
        self._tolerance = {}

    def tolerance(self, format):
        if format not in self._tolerance:
            self._tolerance[format] = 2 * max(
                np.abs(one_shot(self.model, ids, plain.attention, format=format) - exact).max()
                for ids, exact in zip(self.texts, self.exact))
        return self._tolerance[format]

    def verdict(self, text, logits, format=F32):
        """Of one text, by its place in texts."""
        exact, tolerance = self.exact[text], self.tolerance(format)
        second, best = np.partition(exact, -2, axis=1)[:, -2:].T
        decided = best - second > 2 * tolerance
        equal = exact.argmax(axis=1) == logits.argmax(axis=1)
        # A NaN must not pass: max keeps it, and no comparison with it holds.
        return Verdict(np.abs(logits - exact).max(), tolerance, len(exact), decided.sum(),
                       (equal & decided).sum(), (~equal).sum())
