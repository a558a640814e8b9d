"""The facts of run.py as a test, and that its judge can say no.

    FA_LIBRARY=libfa_fwd_causal_shared.so python test_llama.py

Nothing is skipped: without the library, gguf or the model it fails and says what is missing.
"""
import functools
import sys
import unittest

import run  # first: it says how many threads numpy may have

import numpy as np

import fa
import ways

passed = 0


def setUpModule():
    global example
    example = run.Example()


class Facts(unittest.TestCase):
    def hold(self, facts):
        """Prints every fact before any failure, so that all of them can be read."""
        facts = [(fact[0], fact[-1]) for fact in facts]
        for name, verdict in facts:
            print(f"\n  {name:34} {verdict}", end="", flush=True)
        self.assertEqual([name for name, verdict in facts if not verdict.ok], [])
        global passed
        passed += len(facts)

    def test_chunks_and_single_tokens_equal_one_shot(self):
        self.hold(example.chunked())

    def test_a_padded_batch_equals_each_prompt_alone(self):
        self.hold(example.padded())

    def test_real_activations_agree_with_float64_and_the_oracle(self):
        self.hold(example.activations())

    def test_it_writes_text(self):
        answers = run.generate(example.model, example.tokenizer, run.QUESTIONS)
        print("\n  " + "\n  ".join(answers), end="", flush=True)
        self.assertIn("Paris", answers[1])


def shifted(by, q, k, v, o):
    """A diagonal that is off by some keys."""
    offset = k.shape[2] - q.shape[2] + by
    return fa.causal(q, k, v, o, align=fa.ALIGN_OFFSET, causal_offset=offset)


def modulo_heads(q, k, v, o):
    """Query head h reads kv head h % heads_kv."""
    group = q.shape[1] // k.shape[1]
    order = np.arange(q.shape[1]).reshape(group, -1).T.ravel()
    turned = np.empty_like(o)
    fa.causal(q[:, order], k, v, turned)
    o[:, order] = turned


def last_row_unwritten(q, k, v, o):
    """The last row keeps what it held, NaN."""
    return fa.causal(q[:, :, :-1], k[:, :, :-1], v[:, :, :-1], o[:, :, :-1])


class Wrong(unittest.TestCase):
    def rejected(self, attention):
        logits = ways.chunked(example.model, example.texts[0], example.chunks, attention)
        verdict = example.judge.verdict(0, logits)
        print(f"\n  {verdict}", end="", flush=True)
        self.assertFalse(verdict.ok)
        # Less would be too near to what rounding does for this text to see the fault.
        self.assertFalse(verdict.largest < 10 * verdict.tolerance)

    def test_a_top_left_mask_is_rejected(self):
        self.rejected(run.top_left)

    def test_a_diagonal_one_key_short_is_rejected(self):
        self.rejected(functools.partial(shifted, -1))

    def test_a_diagonal_one_key_long_is_rejected(self):
        self.rejected(functools.partial(shifted, 1))

    def test_heads_by_modulo_are_rejected(self):
        self.rejected(modulo_heads)

    def test_an_unwritten_row_is_rejected(self):
        self.rejected(last_row_unwritten)


class Binding(unittest.TestCase):
    def test_a_refused_call_raises_the_librarys_sentence_and_writes_nothing(self):
        q, k = np.ones((1, 4, 2, 8), np.float32), np.ones((1, 3, 5, 8), np.float32)
        o = np.full_like(q, 7)
        with self.assertRaisesRegex(fa.Error, "FA_ERR_HEADS: .*heads_q"):
            fa.causal(q, k, k, o)
        self.assertTrue((o == 7).all())

    def test_views_are_not_copied(self):
        fused = np.random.default_rng(1).standard_normal((2, 5, 3, 4, 8), np.float32)
        q, k, v = (x.transpose(0, 2, 1, 3) for x in np.moveaxis(fused, 2, 0))
        o, plain_o = np.empty((2, 5, 4, 8), np.float32), np.empty((2, 4, 5, 8), np.float32)
        fa.causal(q, k, v, o.transpose(0, 2, 1, 3))
        fa.causal(*(x.copy() for x in (q, k, v)), plain_o)
        np.testing.assert_array_equal(o.transpose(0, 2, 1, 3), plain_o)
        self.assertEqual(fa.arguments(q, k, v, q)[0].k.data, fused.ctypes.data + 4 * 4 * 8)


class Tokens(unittest.TestCase):
    def test_text_survives_the_tokenizer(self):
        for text in (run.TEXT, *run.SHORT, "na\u00efve \u6f22\u5b57\n\n\tx_1 = 2024  <|im_end|>"):
            self.assertEqual(example.tokenizer.decode(example.tokenizer.encode(text)), text)

    def test_known_ids(self):
        self.assertEqual(example.tokenizer.encode("<|im_start|>user\nhi<|im_end|>"),
                         [1, 4093, 198, 6004, 2])


if __name__ == "__main__":
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=2)
    result = unittest.main(testRunner=runner, exit=False).result
    print(f"llama: {result.testsRun} tests, {passed} facts passed")
    sys.exit(not result.wasSuccessful())
