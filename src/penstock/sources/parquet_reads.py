"""What reads of Parquet rows fetch, computed without reading; see `block_reads`.

It uses the code that keeps row groups, and the rule by which rows are stored, not copies of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.limits import Limits
from penstock.sources.block_bytes import BlockBytes, SizedByBlocks, take_rows
from penstock.sources.block_reads import BlockFacts
from penstock.sources.kept_groups import KeptGroups
from penstock.sources.parquet_damage import damaged
from penstock.sources.parquet_remote import Footers, together
from penstock.sources.scattered_rows import MEMORY_BYTES, TOGETHER, stores_rows
from penstock.storage import filesystem

__all__ = ["DecodedFiles", "ParquetFetcher", "SizedGroups", "block_facts", "take_rows"]

I64 = NDArray[np.int64]
_MOST_DECODED = 1 << 40  # bytes of a column chunk; more is a lie of the footer


class SizedGroups(SizedByBlocks):
    """The sizes of rows of Parquet files, by their row groups: within one all rows count alike."""

    if TYPE_CHECKING:
        paths: list[str]
        kinds: dict[str, str]
        _footers: Footers
        _firsts: I64
        _decoded: I64  # bytes of each row group
        _every_column: bool

    def _measure(self) -> BlockBytes:
        share = 1.0 if self._every_column else self._share()
        return BlockBytes(self._firsts, share * np.clip(self._decoded, 0, _MOST_DECODED))

    def _share(self) -> float:
        """The part of the bytes that is in the columns to read, by the first row group; 0 where it is not known."""
        if filesystem.scheme(self.paths[0]) and not filesystem.is_object(self.paths[0]):
            return 0.0  # its footer would be requested again
        chunks = self._footers.chunks(0, 1)
        if not len(chunks):
            return 0.0
        mine = int(chunks.spans(list(self.kinds), 0)[:, 3].sum())
        return min(1.0, mine / max(1, int(chunks.spans(chunks.names, 0)[:, 3].sum())))


@dataclass(frozen=True)
class _Table:
    num_rows: int
    nbytes: int


class ParquetFetcher:
    """A process that reads rows of Parquet files: it keeps row groups, and in the end stores all rows."""

    def __init__(
        self, rows: I64, decoded: I64, storable: int, parts: Callable[[list[int]], Sequence[int]], host: list[bool]
    ) -> None:
        self._rows, self._decoded, self._parts, self._host = rows, decoded, parts, host
        self._kept, self._wanted, self._stored = KeptGroups(), 0, False
        self._limit, expected = storable, int(decoded.sum())
        self.exact = self._in_memory = expected <= MEMORY_BYTES
        self._storable = bool(storable) and (self._in_memory or expected <= storable)

    @property
    def stored(self) -> str:
        return "" if not self._storable else "process" if self._in_memory else "host"

    def beside(self) -> ParquetFetcher:
        return ParquetFetcher(self._rows, self._decoded, self._limit, self._parts, self._host)

    def fetch(self, blocks: list[int], rows: int) -> list[list[int]]:
        if self._stored:
            return []
        made: list[list[int]] = []
        if self._storable and stores_rows(self._kept.decoded, self._wanted, int(self._rows.sum())):
            if self._in_memory or not self._host[0]:
                every = range(len(self._rows))
                for first in every[::TOGETHER]:
                    made += self._load(list(every[first : first + TOGETHER]))
                self._host[0] = True
            self._stored = True
            self._kept.clear()
            return made
        made += self._load(blocks)
        self._wanted += rows
        return made

    def _load(self, blocks: list[int]) -> list[list[int]]:
        made, at = [], 0
        for count in self._parts(blocks):
            missing = [block for block in blocks[at : at + count] if self._kept.get(block) is None]
            for block in missing:
                self._kept.keep(block, _Table(int(self._rows[block]), int(self._decoded[block])))
            made += [missing] if missing else []
            at += count
        return made


class DecodedFiles(Protocol):
    """Files of which row groups are decoded."""

    paths: list[str]
    stamps: list[filesystem.Stamp]
    limits: Limits
    kinds: dict[str, str]  # by the name of each column

    def block_sizes(self) -> I64: ...


def block_facts(files: DecodedFiles, footers: Footers) -> BlockFacts:
    """The requests of row groups, see `sources.block_reads`. Reads the footers of local files again."""
    rows, storable = files.block_sizes(), files.limits.row_cache_bytes
    parts, groups = [np.empty((0, 5), np.int64)], 0
    for file in range(len(files.stamps)):
        chunks = footers.chunks(file)
        spans = chunks.spans(list(files.kinds))
        spans[:, 0] += groups
        parts.append(np.insert(spans, 1, file, axis=1))
        groups += len(chunks)
    if groups != len(rows):
        raise damaged(files.paths[0], ValueError(f"{groups} row groups in all footers, {len(rows)} when it was opened"))
    table = np.concatenate(parts)
    sizes = np.array([stamp.size for stamp in files.stamps], np.int64)
    table[:, 2:4] = np.clip(table[:, 2:4], 0, sizes[table[:, 1], None])
    decoded, stored = np.zeros((2, groups), np.int64)
    np.add.at(decoded, table[:, 0], np.clip(table[:, 4], 0, _MOST_DECODED))
    np.add.at(stored, table[:, 0], table[:, 3] - table[:, 2])

    def fetcher() -> ParquetFetcher:
        return ParquetFetcher(rows, decoded, storable, lambda mine: together(stored[mine].tolist()), [False])

    return BlockFacts(sizes, table[:, :4], 0, fetcher, fetcher().stored)
