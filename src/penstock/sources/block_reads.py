"""What a process fetches of records that are stored in blocks, computed without reading: for `penstock plan`.

Row groups of Parquet files and shards of MDS datasets are fetched as a whole, and kept by the process that fetched
them. A `Fetcher` follows that process: it is asked for the blocks of one read after another, and answers which are
fetched. It uses the code that keeps them and decides what is stored, not a copy of their rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


class Fetcher(Protocol):
    """A process that reads blocks."""

    exact: bool  # whether it is known what the process keeps; else it is an estimate

    def fetch(self, blocks: list[int], rows: int) -> list[list[int]]:
        """The blocks that a read of `rows` rows in `blocks` fetches; those in one list with one set of requests."""
        ...

    def beside(self) -> Self:
        """Another process on the same host."""
        ...


@dataclass(frozen=True)
class BlockFacts:
    """Blocks as `penstock plan` sees them."""

    sizes: I64  # bytes of each file
    spans: I64  # a row (block, file, start, stop) for each range that is requested for a block, by block
    apart: int  # requests for each block beside those
    fetcher: Callable[[], Fetcher]  # with nothing kept
    stored: str  # "", or where rows that are read in random order are stored after a quarter: "process", "host"


@runtime_checkable
class BlockReads(Protocol):
    """Records in blocks that a process fetches as a whole, and keeps; see `BlockSource` for the records of each."""

    def block_sizes(self) -> I64: ...

    def block_facts(self) -> BlockFacts | None:
        """None if not all records are read that way."""
        ...


class ShardFetcher:
    """A process that keeps every shard that it fetched, up to `room` bytes; then it starts over."""

    def __init__(self, sizes: I64, room: int) -> None:
        self._sizes, self._room, self._left = sizes, room, room
        self._kept: set[int] = set()
        self.exact = int(sizes.sum()) <= room

    def beside(self) -> ShardFetcher:
        return ShardFetcher(self._sizes, self._room)

    def fetch(self, blocks: list[int], rows: int) -> list[list[int]]:
        made = []
        for block in blocks:
            if block in self._kept:
                continue
            made.append([block])
            if self._sizes[block] > self._left:
                self._kept, self._left = set(), self._room
            self._kept.add(block)
            self._left -= int(self._sizes[block])
        return made
