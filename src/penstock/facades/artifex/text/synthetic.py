"""Synthetic texts: random sentences, repeated phrases, number sequences, palindromes.

Text i is a function of (seed, split, pattern, i), the same in every process. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.arguments import explained_call, explained_class
from penstock.core.randomness import U64
from penstock.facades.artifex.datasets.generated import GeneratedDataset, in_order, one_of
from penstock.facades.artifex.text.dataset import SimpleTextDataset, TextDataset

_WHO = "the child,a sailor,my neighbour,the engineer,an old dog,our teacher,the river,a painter,the machine,her brother"
_DOES = "finds,watches,carries,remembers,follows,repairs,draws,moves,counts,forgets"
_WHAT = "the lamp,a stone,two letters,the bridge,an apple,some bread,the map,a quiet song,the window,seven boats"
_HOW = "slowly,today,by the sea,with care,at night,again,in winter,without a word,every day,very well"
_PHRASES = ("open the gate", "water runs down", "count to three", "the wheel turns", "one more time", "light the fire")
_MIRRORS = ["level", "radar", "noon", "civic", "kayak", "rotor", "refer", "madam", "deed", "stats", "tenet", "peep"]
_PARTS = [part.split(",") for part in (_WHO, _DOES, _WHAT, _HOW)]


def _sentences(keys: U64) -> list[str]:
    choices = [_pick(part, keys, draw) for draw, part in enumerate(_PARTS)]
    return [" ".join(words) for words in zip(*choices, strict=True)]


def _phrases(keys: U64) -> list[str]:
    times = 2 + randomness.integers(keys, 1, 4)
    chosen = _pick(_PHRASES, keys, 0)
    return [" ".join([phrase] * n) for phrase, n in zip(chosen, times.tolist(), strict=True)]


def _sequences(keys: U64) -> list[str]:
    starts, steps, lengths = (randomness.integers(keys, draw, bound).tolist() for draw, bound in enumerate((100, 9, 6)))
    return [
        " ".join(str(start + (step + 1) * i) for i in range(length + 4))
        for start, step, length in zip(starts, steps, lengths, strict=True)
    ]


def _palindromes(keys: U64) -> list[str]:
    """Palindromic words in a palindromic order, so that both letters and tokens are palindromes."""
    first, second, middle = (_pick(_MIRRORS, keys, draw) for draw in range(3))
    return [f"{a} {b} {c} {b} {a}" for a, b, c in zip(first, second, middle, strict=True)]


def _pick(words: Sequence[str], keys: U64, draw: int) -> list[str]:
    return [words[i] for i in randomness.integers(keys, draw, len(words)).tolist()]


PATTERNS: dict[str, Callable[[U64], list[str]]] = {
    "random_sentences": _sentences,
    "repeated_phrases": _phrases,
    "sequences": _sequences,
    "palindromes": _palindromes,
}


@explained_class
class SyntheticTextDataset(TextDataset, GeneratedDataset):
    """Texts by pattern: "random_sentences", "repeated_phrases", "sequences" or "palindromes".

    >>> dataset = SyntheticTextDataset(dataset_size=100, pattern_type="palindromes")
    >>> text = dataset.get_sample_text(3)
    >>> text == text[::-1]
    True
    """

    def __init__(
        self,
        config: Any = None,
        dataset_size: int = 1000,
        pattern_type: str = "random_sentences",
        split: str = "train",
        *,
        rngs: Any = None,
    ) -> None:
        super().__init__(config, split, rngs)
        self.set_size(dataset_size)
        self.dataset_size = self._size
        self.pattern_type = one_of("pattern_type", pattern_type, PATTERNS)

    def texts_at(self, indices: NDArray[np.int64]) -> list[str]:
        return PATTERNS[self.pattern_type](self.record_keys(indices, f"text {self.pattern_type}"))

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "config": repr(self.params), "pattern": self.pattern_type}


TYPES = {"synthetic": SyntheticTextDataset, "simple": SimpleTextDataset}


@explained_call
def create_text_dataset(
    config: Any = None, dataset_type: str = "synthetic", split: str = "train", *, rngs: Any = None, **options: Any
) -> TextDataset:
    """Creates a dataset by name: "synthetic" or "simple" (needs `texts=`). Further arguments go to its class.

    The first two arguments may come in either order.

    >>> len(create_text_dataset(dataset_size=12))
    12
    """
    dataset_type, config = in_order(dataset_type, config)
    kind: Any = TYPES[one_of("dataset_type", dataset_type, TYPES)]
    made: TextDataset = kind(config, split=split, rngs=rngs, **options)
    return made
