"""The list of shards of a large store: groups of 1,024 shards in one index file, each read when it is first needed.

The manifest has the size, hash and totals of each group, so that opening a store of 10^6 shards reads 200 KB. A group
is some 60 KB: it is read, compared with its hash, and its counts are compared with the totals of the manifest before
one of its entries is used. Memory: 16 bytes for each shard, and 60 for each shard of the groups that were read.

A group of n shards, little-endian, without padding:

    tokens      n u64
    documents   n u64
    bytes       n u64
    lines       n u64: the lines of its file before those that `_line` counts from
    roots       n times 16 bytes
    name ends   n u32, in bytes of the names
    names       UTF-8, one after another
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.errors import UsageError
from penstock.store import layout
from penstock.store.layout import ColumnSpec, count
from penstock.store.shard_list import I64, ShardList
from penstock.store.writer import ShardInfo

GROUP_SHARDS = 1024
INDEX_PREFIX = "shards-"
MAX_SHARDS = 1 << 26  # 4 PB in shards of 64 MiB, 1 GiB of memory; a manifest that lists more is refused
_MAX_GROUP_SHARDS = 1 << 16
_ENTRY_BYTES = 52  # of a shard, without its name
_AT_ONCE = 64  # groups read in one call

Kind = tuple[str, int | None, tuple[ColumnSpec, ...], int]  # dtype, vocabulary, columns and page size of every shard
ReadRanges = Callable[[str, Sequence[tuple[int, int]]], Sequence[bytes]]
"""Returns the bytes [start, stop) of a file of the store, for each range. Fewer if the file ends before."""


@dataclass(frozen=True)
class Group:
    """What the manifest says about a group: its bytes in the index, their hash, and the sums over its shards."""

    size: int
    hash: str
    tokens: int
    documents: int
    bytes: int


@dataclass(frozen=True)
class Index:
    """What the manifest says about the index file."""

    name: str
    shards: int
    group_shards: int
    groups: tuple[Group, ...]

    @property
    def size(self) -> int:
        return sum(group.size for group in self.groups)

    def plain(self) -> dict[str, Any]:
        """The JSON of the manifest."""
        groups = [asdict(group) for group in self.groups]
        return {"group_shards": self.group_shards, "groups": groups, "name": self.name, "shards": self.shards}


def parse_index(plain: Any) -> Index:
    """Parses the JSON of the manifest, or raises ValueError, KeyError or TypeError."""
    groups = tuple(
        Group(count(g["size"]), hash_text(g["hash"]), count(g["tokens"]), count(g["documents"]), count(g["bytes"]))
        for g in plain["groups"]
    )
    index = Index(plain["name"], count(plain["shards"]), count(plain["group_shards"]), groups)
    if not isinstance(index.name, str) or not layout.plain_name(index.name):
        raise ValueError(f"name of the index {str(index.name)[:80]!r}")
    if not 0 < index.shards <= MAX_SHARDS or not 0 < index.group_shards <= _MAX_GROUP_SHARDS:
        raise ValueError(f"{index.shards} shards in groups of {index.group_shards}")
    if len(groups) != -(-index.shards // index.group_shards):
        raise ValueError(f"{len(groups)} groups of {index.group_shards} for {index.shards} shards")
    for number, group in enumerate(groups):
        shards = min(index.group_shards, index.shards - number * index.group_shards)
        if not shards * _ENTRY_BYTES < group.size < 1 << 31:
            raise ValueError(f"a group of {shards} shards in {group.size} bytes")
    if max(sum(g.tokens for g in groups), sum(g.documents for g in groups), sum(g.bytes for g in groups)) >= 1 << 62:
        raise ValueError("sums below 2**62")
    return index


def is_index(name: str) -> bool:
    """Whether a file has the name of an index.

    >>> is_index("shards-acd8721138a2a12dad66394c64e6791a.index"), is_index("shards-mine.index")
    (True, False)
    """
    return re.fullmatch(INDEX_PREFIX + r"[0-9a-f]{32}\.index", name) is not None


def hash_text(text: Any) -> str:
    """Returns `text` if it is 32 hexadecimal digits, or raises ValueError."""
    if not isinstance(text, str) or len(text) != 32 or bytes.fromhex(text).hex() != text:
        raise ValueError(f"hash {str(text)[:80]!r}")
    return text


def encode_groups(
    shards: Sequence[ShardInfo], group_shards: int = GROUP_SHARDS, lines: I64 | None = None
) -> tuple[Index, bytes]:
    """Encodes a list of shards: returns what goes into the manifest, and the content of the index file.

    `lines` are the lines of its file before those that each shard's `_line` counts from; none by default. The name of
    the file contains a hash of its content, so that a list of other shards has another name.

    >>> entry = ShardInfo("a.tokens", 4096, 2, 5, "00" * 16, "<u2", 10)
    >>> index, data = encode_groups([entry] * 3, 2)
    >>> [group.tokens for group in index.groups], len(data), index.name
    ([10, 5], 180, 'shards-ba33d6529b315c09ec9a91ceb998c989.index')
    """
    if len(shards) > MAX_SHARDS:
        raise UsageError(f"at most {MAX_SHARDS} shards", got=str(len(shards)), fix="use fewer, larger shards")
    before = np.zeros(len(shards), np.int64) if lines is None else lines
    blocks, groups = [], []
    for first in range(0, len(shards), group_shards):
        part = shards[first : first + group_shards]
        block = _encode_group(part, before[first : first + group_shards])
        blocks.append(block)
        tokens, documents, size = (
            sum(s.tokens for s in part),
            sum(s.documents for s in part),
            sum(s.bytes for s in part),
        )
        groups.append(Group(len(block), xxhash.xxh3_128_hexdigest(block), tokens, documents, size))
    data = b"".join(blocks)
    name = f"{INDEX_PREFIX}{xxhash.xxh3_128_hexdigest(data)}.index"
    return Index(name, len(shards), group_shards, tuple(groups)), data


def _encode_group(part: Sequence[ShardInfo], lines: I64) -> bytes:
    names = [s.name.encode("utf-8", "surrogatepass") for s in part]
    counts = np.array([[s.tokens for s in part], [s.documents for s in part], [s.bytes for s in part], lines], "<u8")
    try:
        roots = [bytes.fromhex(s.root) for s in part]
        if any(len(root) != 16 for root in roots):
            raise ValueError("a root of another length")
    except ValueError as error:
        raise UsageError("root hashes of 32 hexadecimal digits", got=str(error), where=part[0].name) from error
    ends = np.cumsum([len(name) for name in names]).astype("<u4")
    return b"".join([counts.tobytes(), *roots, ends.tobytes(), *names])


class _Entries:
    """The entries of one group, over its bytes; nothing is decoded before it is needed."""

    def __init__(self, block: bytes, shards: int) -> None:
        counts = np.frombuffer(block, "<u8", 4 * shards).reshape(4, shards)
        self.tokens, self.documents, self.bytes, self.lines = counts
        self._roots = 32 * shards
        self._ends = np.frombuffer(block, "<u4", shards, 48 * shards)
        self._names = _ENTRY_BYTES * shards
        self._block = block
        if int(self._ends[-1]) != len(block) - self._names or bool((self._ends[1:] < self._ends[:-1]).any()):
            raise ValueError("names that do not fit the group")

    def name(self, place: int) -> str:
        """Returns the name of a shard, or raises ValueError."""
        first = int(self._ends[place - 1]) if place else 0
        raw = self._block[self._names + first : self._names + int(self._ends[place])]
        name = raw.decode("utf-8", "surrogatepass")
        if not layout.plain_name(name):
            raise ValueError(f"shard name {name[:80]!r}")
        return name

    def root(self, place: int) -> str:
        return self._block[self._roots + 16 * place : self._roots + 16 * place + 16].hex()


class GroupedShards(ShardList):
    """Shards whose entries are in an index file, read group by group. Many threads may use it.

    Edges inside a group that was not read are those of its end: they are in order, and a search finds the group.
    """

    def __init__(self, index: Index, kind: Kind, read: ReadRanges, where: str) -> None:
        self._index, self._kind, self._read, self._where = index, kind, read, where
        self.page_bytes = kind[3]
        groups = index.groups
        self._starts = _edges(g.size for g in groups)
        self._group_tokens, self._group_documents = (
            _edges(g.tokens for g in groups),
            _edges(g.documents for g in groups),
        )
        self.total_bytes = sum(g.bytes for g in groups)
        self.files = {index.name: index.size}
        super().__init__(self._spread(self._group_tokens), self._spread(self._group_documents))
        self._entries: dict[int, _Entries] = {}
        self._loaded = np.zeros(len(groups), bool)
        self._complete = False
        self._lock = threading.Lock()

    def of_token(self, positions: I64) -> I64:
        if self._complete:
            return super().of_token(positions)
        self._need(np.searchsorted(self._group_tokens, positions, "right") - 1)
        return np.searchsorted(self.token_edges, positions, "right") - 1

    def of_document(self, numbers: I64) -> I64:
        if self._complete:
            return super().of_document(numbers)
        self._need(np.searchsorted(self._group_documents, numbers, "right") - 1)
        return np.searchsorted(self.document_edges, numbers, "right") - 1

    def read_all(self) -> None:
        if not self._complete:
            self._need(np.arange(len(self._loaded)))

    def entry(self, number: int) -> ShardInfo:
        group, place = divmod(number, self._index.group_shards)
        found = self._group(group)
        try:
            name = found.name(place)
        except ValueError as error:
            raise layout.damaged("the plain name of a shard", str(error), self._place(group)) from error
        return ShardInfo(
            name, int(found.bytes[place]), int(found.documents[place]), int(found.tokens[place]), found.root(place),
            *self._kind,
        )  # fmt: skip

    def lines_before(self, number: int) -> int:
        group, place = divmod(number, self._index.group_shards)
        return int(self._group(group).lines[place])

    def _group(self, group: int) -> _Entries:
        if not self._loaded[group]:
            self._need(np.array([group]))
        return self._entries[group]

    def _spread(self, edges: I64) -> I64:
        out = np.empty(self._index.shards + 1, np.int64)
        out[0] = 0
        out[1:] = np.repeat(edges[1:], self._index.group_shards)[: self._index.shards]
        return out

    def _need(self, groups: I64) -> None:
        """Reads the groups that were not read yet. Searches by other threads are right at every moment in between."""
        if self._loaded[groups].all():
            return
        with self._lock:
            missing = sorted(set(groups[~self._loaded[groups]].tolist()))
            for at in range(0, len(missing), _AT_ONCE):
                wanted = missing[at : at + _AT_ONCE]
                ranges = [(int(self._starts[g]), int(self._starts[g + 1])) for g in wanted]
                blocks = self._read(self._index.name, ranges)
                for group, span, block in zip(wanted, ranges, blocks, strict=True):
                    # A network may return wrong bytes once; a damaged file returns them again.
                    self._add(group, block if self._intact(group, block) else self._read(self._index.name, [span])[0])
            self._complete = bool(self._loaded.all())

    def _intact(self, group: int, block: bytes) -> bool:
        said = self._index.groups[group]
        return len(block) == said.size and xxhash.xxh3_128_hexdigest(block) == said.hash

    def _add(self, group: int, block: bytes) -> None:
        said = self._index.groups[group]
        if not self._intact(group, block):
            raise layout.damaged(
                f"{said.size} bytes with hash {said.hash}",
                f"{len(block)} bytes with hash {xxhash.xxh3_128_hexdigest(block)}",
                self._place(group),
            )
        first = group * self._index.group_shards
        stop = min(first + self._index.group_shards, self._index.shards)
        try:
            entries = _Entries(block, stop - first)
            tokens = _within(entries.tokens, self._group_tokens, group)
            documents = _within(entries.documents, self._group_documents, group)
            _within(entries.bytes, np.array([0, said.bytes]), 0)
        except ValueError as error:
            raise layout.damaged("a group that agrees with the manifest", str(error), self._place(group)) from error
        self.token_edges[first + 1 : stop + 1] = tokens
        self.document_edges[first + 1 : stop + 1] = documents
        self._entries[group] = entries
        self._loaded[group] = True  # last: it is read without the lock

    def _place(self, group: int) -> str:
        start, stop = int(self._starts[group]), int(self._starts[group + 1])
        return f"{self._where}, group {group} of {len(self._loaded)} (bytes {start} to {stop})"


def _edges(counts: Iterable[int]) -> I64:
    return np.cumsum([0, *counts], dtype=np.int64)


def _within(counts: NDArray[np.uint64], edges: I64, group: int) -> I64:
    """Returns the end of each shard, or raises ValueError unless the counts add up to the sum of the group."""
    total = int(edges[group + 1] - edges[group])
    if int(counts.max()) > total:
        raise ValueError(f"a shard of {int(counts.max())} in a group of {total}")
    ends = np.cumsum(counts, dtype=np.uint64)  # no count is above 2**62, so that a sum that overflows decreases
    if int(ends[-1]) != total or bool((ends[1:] < ends[:-1]).any()):
        raise ValueError(f"counts that add up to {int(ends[-1])} instead of {total}")
    found: I64 = ends.astype(np.int64) + edges[group]
    return found
