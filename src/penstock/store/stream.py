"""What all streams of tokens share: a token store, arrays, and files of other tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.store import gather
from penstock.store.arrays import ArrayTable, Part
from penstock.store.doctable import DocTable, check_range
from penstock.store.part_search import PartSearch


class TokenSequence(ABC):
    """Tokens in one or more parts, cut into documents. `bounds` are the positions of the parts, and the end."""

    def __init__(self, bounds: NDArray[np.int64], dtype: np.dtype[Any], vocab_size: int | None) -> None:
        self._bounds, self._dtype, self._vocab_size = bounds, dtype, vocab_size

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _spans(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the stream position and length of each document."""

    @property
    def n_tokens(self) -> int:
        return int(self._bounds[-1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def vocab_size(self) -> int | None:
        return self._vocab_size

    def lengths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._spans(check_range(indices, len(self), "documents"))[1]


class TabledTokens(TokenSequence):
    """Tokens with nothing but one table of documents."""

    def __init__(
        self, bounds: NDArray[np.int64], dtype: np.dtype[Any], table: DocTable, vocab_size: int | None
    ) -> None:
        super().__init__(bounds, dtype, vocab_size)
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def starts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._table.starts(check_range(indices, len(self) + 1, "documents"))

    def documents_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._table.find(check_range(positions, self.n_tokens, "positions"))

    def locate(self, index: int) -> dict[str, Any]:
        number = check_range([index], len(self), "documents")
        start, length = self._spans(number)
        return {"document": int(number[0]), "start": int(start[0]), "tokens": int(length[0])}

    def _spans(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts = self._table.starts(indices)
        return starts, self._table.starts(indices + 1) - starts

    def _facts(self, kind: str, size: int, files: int, boundaries: str) -> dict[str, Any]:
        return {
            "kind": kind, "records": len(self), "tokens": self.n_tokens, "bytes": size, "files": files,
            "dtype": self._dtype.name, "vocab_size": self._vocab_size, "boundaries": boundaries,
        }  # fmt: skip


class TokenStream(TokenSequence):
    """Tokens that are gathered out of arrays; satisfies `gather.Parts`."""

    def __init__(self, bounds: NDArray[np.int64], dtype: np.dtype[Any], vocab_size: int | None) -> None:
        super().__init__(bounds, dtype, vocab_size)
        self._search = PartSearch(bounds)

    @abstractmethod
    def ready(self, part: Part, starts: NDArray[np.int64], lengths: NDArray[np.int64] | int, /) -> ArrayTable:
        """Opens these parts and verifies these ranges of tokens; returns the table of open parts."""

    @property
    def bounds(self) -> NDArray[np.int64]:
        """Stream position of the start of each part, and of the end."""
        return self._bounds

    @property
    def n_parts(self) -> int:
        return len(self._bounds) - 1

    def part_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the part of each position; the bounds of these parts are exact from then on."""
        return self._search(positions)

    def places(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns the part of each position, the place in it, and the number of tokens from there to its end."""
        part, bounds = self.part_of(positions), self._bounds
        return part, positions - bounds[part], bounds[part + 1] - positions

    @property
    def sound(self) -> bool:
        """Whether every token is verified, or need not be."""
        return True

    def gather(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        return gather.gather(self, starts, length)

    def reader(self, starts: NDArray[np.int64], length: int) -> Callable[[int, int], NDArray[Any]]:
        """Returns `read(a, b)`, equal to `gather(starts[a:b], length)`, for many slices of the same starts."""
        return gather.reader(self, starts, length)
