"""`TokenStream`: what all streams of tokens share, a token store as well as arrays and files of other tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.store import gather
from penstock.store.arrays import ArrayTable, Part
from penstock.store.doctable import check_range
from penstock.store.part_search import PartSearch


class TokenStream(ABC):
    """A stream of tokens in one or more parts, cut into documents; satisfies `gather.Parts`."""

    def __init__(self, bounds: NDArray[np.int64], dtype: np.dtype[Any], vocab_size: int | None) -> None:
        self._bounds, self._dtype, self._vocab_size = bounds, dtype, vocab_size
        self._search = PartSearch(bounds)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def ready(self, part: Part, starts: NDArray[np.int64], lengths: NDArray[np.int64] | int, /) -> ArrayTable:
        """Opens these parts and verifies these ranges of tokens; returns the table of open parts."""

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

    def lengths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._spans(check_range(indices, len(self), "documents"))[1]

    def gather(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        return gather.gather(self, starts, length)

    def reader(self, starts: NDArray[np.int64], length: int) -> Callable[[int, int], NDArray[Any]]:
        """Returns `read(a, b)`, equal to `gather(starts[a:b], length)`, for many slices of the same starts."""
        return gather.reader(self, starts, length)
