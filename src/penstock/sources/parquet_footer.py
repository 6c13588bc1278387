"""Sizes of column chunks, from the footer of a Parquet file.

pyarrow knows them too, but its accessors for column metadata let C++ exceptions escape: an encrypted or damaged file
ends the process (SIGABRT). So this reads the few fields it needs from the Thrift structures (compact protocol) itself,
at about 8 us per column chunk. Everything else is left to pyarrow, which catches its exceptions there.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import DataError, LimitError
from penstock.core.limits import Limits
from penstock.sources.thrift_compact import BINARY, I32, LIST, STRUCT, Compact, binary, items, number, skip
from penstock.sources.thrift_compact import I64 as INT64
from penstock.storage import filesystem

I64 = NDArray[np.int64]

_MAGIC = b"PAR1"
_TAIL = 8  # length of the footer, and the magic
_MOST = 1 << 62  # what a number is at most, so that sums of two fit into 64 bits
# Field numbers of parquet.thrift.
_ROW_GROUPS, _COLUMNS, _META, _PATH, _CRYPTO = 4, 1, 3, 3, (8, 9)
_TYPE, _CODEC, _VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA, _DICTIONARY = 1, 4, 5, 6, 7, 9, 11
_NUMBERS = {_TYPE: I32, _CODEC: I32} | dict.fromkeys((_VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA, _DICTIONARY), INT64)

Sizes = dict[str, tuple[int, int]]
"""Stored and decoded bytes of each top-level column of a row group."""


class Chunk(NamedTuple):
    """A column chunk: its top-level column, stored and decoded bytes, where it begins, and what its pages hold."""

    name: str
    stored: int
    decoded: int
    start: int
    kind: int  # the physical type
    codec: int
    values: int
    encrypted: bool = False


@dataclass(frozen=True, eq=False)
class Chunks:
    """The column chunks of all row groups of a file: some 64 bytes each."""

    names: list[str]
    table: I64  # a row for each chunk, the fields of `Chunk`; the name is a place in `names`
    edges: I64  # the rows [edges[g], edges[g + 1]) are those of row group g

    def __len__(self) -> int:
        return len(self.edges) - 1

    def of(self, group: int) -> list[Chunk]:
        """Those of a row group, in the order of the schema's columns."""
        rows = self.table[self.edges[group] : self.edges[group + 1]].tolist()
        return [Chunk(self.names[name], a, b, c, d, e, f, bool(last)) for name, a, b, c, d, e, f, last in rows]

    def sizes(self) -> list[Sizes]:
        """The sizes of every row group. A column chunk whose metadata is encrypted has none."""
        found: list[Sizes] = []
        for group in range(len(self)):
            sizes: Sizes = {}
            for chunk in self.of(group):
                before = sizes.get(chunk.name, (0, 0))
                sizes[chunk.name] = before[0] + chunk.stored, before[1] + chunk.decoded
            found.append(sizes)
        return found

    def spans(self, names: Sequence[str], group: int | None = None) -> I64:
        """A row (row group, start, stop, decoded bytes) for each chunk of these columns, by row group."""
        first, last = (0, len(self)) if group is None else (group, group + 1)
        edges = self.edges[first : last + 1]
        table, groups = self.table[edges[0] : edges[-1]], np.repeat(np.arange(first, last), np.diff(edges))
        wanted = np.array([name in names for name in self.names], bool)[table[:, 0]]
        table, groups = table[wanted], groups[wanted]
        return np.stack([groups, table[:, 3], table[:, 3] + table[:, 1], table[:, 2]], axis=1)


def column_sizes(path: str, size: int, limits: Limits, options: filesystem.Options = None) -> list[Sizes]:
    """The sizes of every row group of a file of `size` bytes. A column chunk whose metadata is encrypted has none."""
    return chunks_of(read_footer(path, size, limits, options), path).sizes()


def check_expansion(groups: Sequence[Sizes], names: set[str], limits: Limits, path: str) -> None:
    """Refuses row groups whose columns `names` are many times larger when they are decoded."""
    for group, sizes in enumerate(groups):
        read = [size for name, size in sizes.items() if name in names]
        packed, full = sum(stored for stored, _ in read), sum(decoded for _, decoded in read)
        if not limits.expansion_allowed(packed, full):
            raise LimitError(
                f"at most {limits.expansion} bytes per stored byte",
                got=f"{full} bytes from {packed}",
                where=f"{path}, row group {group}",
                fix="this looks like a decompression bomb; if it is honest, raise limits.expansion",
            )


def chunks_of(footer: bytes, path: str, most: int | None = None) -> Chunks:
    """The column chunks of every row group, or of the first `most`."""
    names: dict[str, int] = {}
    table, edges = array("q"), array("q", [0])
    try:
        reader = Compact(footer)
        for field, kind in reader.fields():
            if field != _ROW_GROUPS or kind != LIST:
                reader.skip(kind)
                continue
            count, item, reader.at = items(footer, reader.at)
            _structs_only(count, item)
            for _ in range(count if most is None else min(most, count)):
                _group(reader, names, table)
                edges.append(len(table) // len(Chunk._fields))
            if most is not None:
                break
    except (IndexError, ValueError) as error:
        raise DataError(
            "a Parquet footer", got=f"{error}, in its {len(footer)} bytes", where=path, fix="fetch the file again"
        ) from error
    rows = np.frombuffer(table, np.int64) if table else np.empty(0, np.int64)
    return Chunks(list(names), rows.reshape(-1, len(Chunk._fields)), np.frombuffer(edges, np.int64))


def _structs_only(count: int, item: int) -> None:
    if item != STRUCT and count:
        raise ValueError(f"a list of type {item} where structures are expected")


def _group(reader: Compact, names: dict[str, int], table: array[int]) -> None:
    """Reads a row group."""
    for field, kind in reader.fields():
        if field != _COLUMNS or kind != LIST:
            reader.skip(kind)
            continue
        count, item, reader.at = items(reader.data, reader.at)
        _structs_only(count, item)
        for _ in range(count):
            _chunk(reader, names, table)


def _chunk(reader: Compact, names: dict[str, int], table: array[int]) -> None:
    """Reads a column chunk."""
    name, encrypted, found = "", False, [0] * (_DICTIONARY + 1)
    for field, kind in reader.fields():
        if field == _META and kind == STRUCT:
            name, reader.at = _metadata(reader.data, reader.at, found)
        else:
            encrypted = encrypted or field in _CRYPTO
            reader.skip(kind)
    if max(found) >= _MOST or min(found) <= -_MOST:
        raise ValueError(f"a number of {max(map(abs, found))}")
    start = min(found[_DATA], found[_DICTIONARY]) if found[_DICTIONARY] > 0 else found[_DATA]
    table.extend((
        names.setdefault(name, len(names)), found[_COMPRESSED], found[_UNCOMPRESSED], start, found[_TYPE],
        found[_CODEC], found[_VALUES], encrypted,
    ))  # fmt: skip


def _metadata(data: bytes, at: int, found: list[int]) -> tuple[str, int]:
    """Reads the metadata of a column chunk into `found`; returns its top-level column, and where it ends."""
    name, field = "", 0
    while head := data[at]:
        at, kind = at + 1, head & 0x0F
        if head >> 4:
            field += head >> 4
        else:
            field, at = number(data, at)
        if _NUMBERS.get(field) == kind:
            found[field], at = number(data, at)
        elif field == _PATH and kind == LIST:
            count, item, at = items(data, at)
            if item != BINARY and count:
                raise ValueError(f"a path of type {item}")
            for part in range(count):
                text, at = binary(data, at)
                name = name if part else text.decode("utf-8", "replace")
        else:
            at = skip(data, at, kind)
    return name, at + 1


def read_footer(path: str, size: int, limits: Limits, options: filesystem.Options = None) -> bytes:
    """The footer's bytes."""
    (tail,) = filesystem.read_ranges(path, [(max(0, size - _TAIL), size)], options)
    length = footer_length(tail, path, size, limits)
    return filesystem.read_ranges(path, [(size - _TAIL - length, size - _TAIL)], options)[0]


def footer_length(tail: bytes, path: str, size: int, limits: Limits) -> int:
    """The length of the footer of a file of `size` bytes that ends with the 8 bytes `tail`."""
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > size - _TAIL:
        raise DataError("a Parquet file", got=f"a file that ends with {tail!r}", where=path, fix="fetch the file again")
    if length > limits.manifest_bytes:
        raise LimitError(
            f"a footer of at most {limits.manifest_bytes} bytes",
            got=f"{length} bytes",
            where=path,
            fix="raise limits.manifest_bytes",
        )
    return length
