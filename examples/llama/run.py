"""A real model whose attention is fa_fwd_causal(): text to read, and the facts that make it right.

    FA_LIBRARY=libfa_fwd_causal_shared.so python run.py

Each fact prints how far it is from failing. test_llama.py is the same facts as a test.
"""
import functools
import os
import sys
import tempfile
import time

# A decode step of a model this small is over before a team of threads has met, and two teams that
# spin, BLAS's and the library's, slow each other down. Both read this when they are loaded.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np

import activations
import fa
import model as llama
import ways
from formats import BF16, F16, F32

TEXT = (
    "The keeper of the lighthouse wrote down the weather four times a day. In 1911 a storm took "
    "the bridge, and for 19 days nobody came; he kept writing, because the log had a line for each "
    "watch, and when the boat arrived at last its captain read")
CHUNKS = (31, 1, 17)  # and what is left: four uneven pieces
SHORT = ("Water boils at a temperature of", "def add(a, b):\n    return a + b\n\nprint(add(2,")
QUESTIONS = ("Why is the sky blue?", "What is the capital of France?",
             "Write one sentence about the sea.")
LAYERS = (0, 7, 14, 21, 29)

top_left = functools.partial(fa.causal, align=fa.ALIGN_OFFSET, causal_offset=0)


def generate(model, tokenizer, questions, attention=fa.causal, steps=40):
    """Greedy answers to a left-padded batch, one token for all at a time."""
    prompts = [tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
               for question in questions]
    longest = max(map(len, prompts))
    left = [longest - len(ids) for ids in prompts]
    tokens = np.array([[0] * pad + ids for pad, ids in zip(left, prompts)])
    cache = llama.Cache(model, len(prompts), longest + steps)
    answers = np.empty((len(prompts), 0), int)
    for step in range(steps):
        logits = model.forward(tokens, cache, attention, leftpad=left if step == 0 else None)
        tokens = logits[:, -1:].argmax(axis=2)
        answers = np.concatenate((answers, tokens), axis=1)
    end = tokenizer.id_of["<|im_end|>"]
    cut = lambda ids: ids[:ids.index(end)] if end in ids else ids
    return [tokenizer.decode(cut(ids)) for ids in answers.tolist()]


class Example:
    """The loaded model, a judge of its logits, and one method a section of the report."""

    def __init__(self):
        self.model, exact, self.tokenizer = llama.load()
        self.texts = [self.tokenizer.encode(text) for text in (TEXT, *SHORT)]
        self.judge = ways.Judge(self.model, exact, self.texts)
        self.chunks = (*CHUNKS, len(self.texts[0]) - sum(CHUNKS))

    def chunked(self):
        """(name, verdict) of each way to feed the first text."""
        ids = self.texts[0]
        for name, sizes, layout, format in (
                ("one shot", [len(ids)], "bshd", F32), ("4 chunks", self.chunks, "bshd", F32),
                ("4 chunks", self.chunks, "bhsd", F32), ("4 chunks", self.chunks, "bshd", F16),
                ("4 chunks", self.chunks, "bhsd", BF16),
                ("token by token", [1] * len(ids), "bhsd", F32)):
            logits = ways.chunked(self.model, ids, sizes, fa.causal, layout, format)
            yield f"{name}, {layout}, {format.name}", self.judge.verdict(0, logits, format)

    def padded(self):
        """(name, verdict) of each text in a batch of all, padded on one side."""
        for side, layout, format in (("left", "bshd", F32), ("right", "bhsd", F32),
                                     ("left", "bhsd", BF16), ("right", "bshd", F16)):
            batch = ways.padded(self.model, self.texts, side, fa.causal, layout, format)
            for text, logits in enumerate(batch):
                yield (f"padded {side}, prompt {text}, {layout}, {format.name}",
                       self.judge.verdict(text, logits, format))

    def top_left(self):
        """The verdict on four chunks whose mask is aligned top-left: it must not be ok."""
        return self.judge.verdict(0, ways.chunked(self.model, self.texts[0], self.chunks, top_left))

    def activations(self):
        """(name, picture, verdict) of the real q, k and v of some layers."""
        kept = activations.record(self.model, self.texts[0], LAYERS)
        with tempfile.TemporaryDirectory() as folder:
            oracle = activations.Oracle(folder)
            for layer, qkv in kept.items():
                for format in (F32, F16, BF16):
                    yield (f"layer {layer}, {format.name}", activations.picture(*qkv[:2]),
                           activations.judge(qkv, format, oracle))


def main():
    began = time.monotonic()
    example = Example()
    wrong = 0

    print("== Text, greedy, one left-padded batch")
    for question, answer in zip(QUESTIONS, generate(example.model, example.tokenizer, QUESTIONS)):
        print(f"> {question}\n{answer}\n")

    print(f"== One prompt of {len(example.texts[0])} tokens, one shot or over a growing cache; "
          f"4 chunks are {example.chunks}")
    for name, verdict in example.chunked():
        print(f"{name:32} {verdict}")
        wrong += not verdict.ok

    print(f"\n== A batch of prompts of {[len(ids) for ids in example.texts]} tokens, "
          f"the last {ways.CONTINUED} of each decoded one by one")
    for name, verdict in example.padded():
        print(f"{name:32} {verdict}")
        wrong += not verdict.ok

    print("\n== The same four chunks with a top-left mask, which must come out wrong")
    verdict = example.top_left()
    print(f"{'4 chunks, top-left':32} {verdict}")
    print(f"next token another one at {verdict.changed} of {verdict.tokens} positions")
    answers = generate(example.model, example.tokenizer, QUESTIONS[:1], top_left, steps=24)
    print(f"> {QUESTIONS[0]}\n{answers[0]}\n")
    wrong += verdict.ok

    print("== Attention alone on the model's own q, k and v; errors as multiples of the tolerance")
    for name, (most, mean, head), verdict in example.activations():
        print(f"{name:16} |logit| to {most:6.1f}, first token's weight {mean:.2f}, "
              f"at most {head:.2f}; {verdict}")
        wrong += not verdict.ok

    print(f"\n{wrong} wrong, in {time.monotonic() - began:.0f} s")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
