"""Maps words to token ids by a stable hash: no vocabulary to build, the same ids in every process and machine.

Different words may share an id, more often in a smaller vocabulary. Words never get a special id. Every word has an
id, so UNK is used only for masking.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.facades.artifex.text.config import TextParams

MAX_CACHED_WORDS = 100_000


class HashWords:
    """Lower-cases (unless case-sensitive), splits at white space, adds BOS and EOS, and pads rows with PAD.

    >>> HashWords(TextParams(max_length=6)).encode(["Hello hello world"]).tolist()
    [[2, 6351, 6351, 9736, 3, 0]]
    """

    def __init__(self, params: TextParams) -> None:
        self.params = params
        self._special = sorted(params.special)
        self._cache: dict[str, int] = {}

    def word_id(self, word: str) -> int:
        """Returns the id of one word."""
        found = self._cache.get(word)
        if found is None:
            found = randomness.key("word", word) % (self.params.vocab_size - len(self._special))
            for taken in self._special:
                found += found >= taken
            if len(self._cache) < MAX_CACHED_WORDS:
                self._cache[word] = found
        return found

    def encode(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Encodes texts to (texts, max_length); a text that is too long loses words, never its EOS."""
        p = self.params
        out = np.full((len(texts), p.max_length), p.pad_token_id, np.int32)
        for row, text in enumerate(texts):
            words = (text if p.case_sensitive else text.lower()).split()[: p.max_length - 2]
            ids = [p.bos_token_id, *(self.word_id(word) for word in words), p.eos_token_id]
            out[row, : len(ids)] = ids
        return out
