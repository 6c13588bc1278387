"""Text datasets with `text_tokens`, the text and its index: the base class, and one over a list of strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.arguments import explained_class
from penstock.core.columns import Columns, strings
from penstock.core.errors import UsageError
from penstock.facades.artifex.datasets.base import CHUNK, BaseDataset
from penstock.facades.artifex.text.config import TextParams
from penstock.facades.artifex.text.hash_words import HashWords


class TextDataset(BaseDataset):
    """Samples `text_tokens` (L,) int32, `text`, `index`; batches `text_tokens` (B, L), `texts`, `indices`."""

    def __init__(self, config: Any, split: str, rngs: Any) -> None:
        super().__init__(config, split, rngs=rngs)
        self.params = TextParams.of(config)
        self._words = HashWords(self.params)

    def texts_at(self, indices: NDArray[np.int64]) -> list[str]:
        """Returns the texts of these records."""
        raise self._missing("texts_at")

    def read(self, indices: NDArray[np.int64]) -> Columns:
        chosen = self.check_indices(indices)
        texts = self.texts_at(chosen)
        tokens = self._words.encode(texts)
        return {"text_tokens": tokens, "text": strings(texts), "index": chosen.astype(np.int32)}

    def get_sample_text(self, index: int) -> str:
        """Returns the text of one record."""
        return self.texts_at(np.array([self._place(index)]))[0]

    def get_vocab_stats(self) -> dict[str, Any]:
        """Returns how much of the vocabulary the dataset uses, without padding. Reads every text once.

        >>> SimpleTextDataset(texts=["a b", "b"]).get_vocab_stats()
        {'unique_tokens': 4, 'vocab_coverage': 0.0004, 'total_sequences': 2, 'max_length': 512}
        """
        seen = np.zeros(self.params.vocab_size, bool)
        for start in range(0, len(self), CHUNK):
            indices = np.arange(start, min(start + CHUNK, len(self)))
            seen[self._words.encode(self.texts_at(indices)).ravel()] = True
        seen[self.params.pad_token_id] = False
        unique = int(seen.sum())
        return {
            "unique_tokens": unique,
            "vocab_coverage": unique / self.params.vocab_size,
            "total_sequences": len(self),
            "max_length": self.params.max_length,
        }


@explained_class
class SimpleTextDataset(TextDataset):
    """A dataset of your own strings.

    >>> dataset = SimpleTextDataset(texts=["one two", "three"])
    >>> batch = dataset.get_batch(indices=[1, 0])
    >>> batch["texts"], batch["text_tokens"].shape
    (['three', 'one two'], (2, 512))
    """

    def __init__(
        self, config: Any = None, texts: Sequence[str] | None = None, split: str = "train", *, rngs: Any = None
    ) -> None:
        super().__init__(config, split, rngs)
        if texts is None or isinstance(texts, str) or not len(texts):
            raise UsageError(
                "texts: a list of at least one string",
                got="one str" if isinstance(texts, str) else "none",
                where=type(self).__name__,
                fix='texts=["first text", "second text"]',
            )
        self.texts = list(texts)
        for place, text in enumerate(self.texts):
            if not isinstance(text, str):
                raise UsageError(
                    "texts as str", got=type(text).__name__, where=f"text {place}", fix="decode or remove it"
                )

    def __len__(self) -> int:
        return len(self.texts)

    def texts_at(self, indices: NDArray[np.int64]) -> list[str]:
        return [self.texts[i] for i in indices.tolist()]

    def fingerprint(self) -> str:
        return hashing.content_id(["simple text", repr(self.params), *self.texts])
