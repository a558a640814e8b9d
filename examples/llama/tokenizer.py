"""Byte-level BPE, the tokenizer that a GGUF file of this model describes (tokens and merges).

It changes only if another model with another splitting of the text into words is wanted.
"""
import re

CONTROL = 3  # tokenizer.ggml.token_type of <|im_start|> and its like

# GPT-2's words, with every digit a word of its own. [^\W\d_] is a letter.
_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+|\d| ?(?:(?![^\W_])\S)+|\s+(?!\S)|\s+")


def _byte_letters():
    """The letter that stands for each byte in the vocabulary: itself where it can be printed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + i) for i, byte in enumerate(others)}


class Tokenizer:
    def __init__(self, tokens, types, merges):
        self.tokens = tokens
        self.id_of = {token: i for i, token in enumerate(tokens)}
        self.rank_of = {tuple(pair.split(" ")): i for i, pair in enumerate(merges)}
        self.letter_of = _byte_letters()
        self.byte_of = {letter: byte for byte, letter in self.letter_of.items()}
        self.control = [token for token, kind in zip(tokens, types) if kind == CONTROL]
        self._split = re.compile("(" + "|".join(map(re.escape, self.control)) + ")")

    def _merge(self, word):
        """Joins the neighbours that were learned first, until no pair is known."""
        parts = [self.letter_of[byte] for byte in word.encode()]
        while len(parts) > 1:
            ranks = [self.rank_of.get(pair, len(self.rank_of)) for pair in zip(parts, parts[1:])]
            best = min(ranks)
            if best == len(self.rank_of):
                break
            i = ranks.index(best)
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        return parts

    def encode(self, text):
        ids = []
        for i, piece in enumerate(self._split.split(text)):
            parts = [piece] if i % 2 else [p for w in _WORD.findall(piece) for p in self._merge(w)]
            ids += [self.id_of[part] for part in parts]
        return ids

    def decode(self, ids):
        letters = "".join(self.tokens[i] for i in ids)
        return bytes(self.byte_of[letter] for letter in letters).decode(errors="replace")
