"""Bounds the memory that a Parquet row group takes, from the headers of its pages, before pyarrow decodes it.

The sizes in a footer do not bound it: a footer can lie, and a few bytes of indices repeat one long dictionary entry
millions of times. Page headers are what pyarrow itself decodes by, so they cannot lie; reading them costs about 20 us
per page. Where the bound is large, the lengths that decide are looked at: the longest entry of a dictionary, or the
prefixes of a page of type DELTA_BYTE_ARRAY. A column of long values that repeat is then read as a dictionary, which
holds each value once; what remains too large is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import numpy as np

from penstock.core.errors import LimitError
from penstock.core.limits import Limits
from penstock.core.optional import need
from penstock.sources.parquet_footer import Chunk
from penstock.sources.thrift_compact import Compact

FREE_BYTES = 512 << 20  # what a row group may take at any ratio to its stored bytes
_HEADER_BYTES = (256, 16 << 10, 1 << 20, 16 << 20)
_BOOLEAN, _INT32, _INT64, _INT96, _FLOAT, _DOUBLE, _BYTES, _FIXED = range(8)
_WIDTHS = {_BOOLEAN: 1, _INT32: 4, _INT64: 8, _INT96: 12, _FLOAT: 4, _DOUBLE: 8}
_LEVELS = 4  # bytes of the levels of a value while it is decoded
_OFFSET = 8  # bytes of the place of a value of variable length
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3  # types of pages
_BY_DICTIONARY, _PREFIXES = (2, 8), 7  # encodings: PLAIN_DICTIONARY and RLE_DICTIONARY; DELTA_BYTE_ARRAY
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 5: "lz4", 6: "zstd", 7: "lz4_raw"}
_I32, _STRUCT = 5, 12
_MOST_BLOCK = 1 << 16

Again = Callable[[list[str]], AbstractContextManager[Any]]


class Page(NamedTuple):
    """What the header of a page says."""

    kind: int
    body: int  # where its content begins
    stored: int
    decoded: int
    values: int
    encoding: int
    levels: int  # bytes of uncompressed levels before the values, in a page of version 2
    packed: bool  # whether the values are compressed


@dataclass
class Demand:
    """Bytes that a column chunk takes when it is decoded."""

    fixed: int = 0
    """What is certain: values of fixed width, values that are stored one by one, offsets."""
    dictionary: int = 0
    """Bytes of the dictionary page: no value that refers to it is longer."""
    referring: int = 0
    """Values that refer to the dictionary."""
    prefixed: list[Page] = field(default_factory=list)
    """Pages whose values share prefixes."""

    @property
    def bound(self) -> int:
        shared = sum(page.values * page.decoded for page in self.prefixed)
        return self.fixed + self.referring * self.dictionary + shared


def pages(file: IO[bytes], chunk: Chunk) -> Iterator[Page]:
    """The headers of the pages of a column chunk, as far as pyarrow would read them."""
    at, end, values = chunk.start, chunk.start + chunk.stored, 0
    while at < end and values < chunk.values:
        page = _page(file, at, end)
        yield page
        values += page.values if page.kind in (_DATA, _DATA_2) else 0
        at = page.body + page.stored


def demand(file: IO[bytes], chunk: Chunk, width: int, as_dictionary: bool) -> Demand:
    """What a column chunk takes; `width` is that of a value of fixed length, `as_dictionary` if it stays one."""
    found = Demand()
    for page in pages(file, chunk):
        if page.kind == _DICTIONARY:
            found.dictionary = max(found.dictionary, page.decoded)
            found.fixed += page.decoded
        elif page.kind in (_DATA, _DATA_2):
            found.fixed += page.values * (_LEVELS + (width or _OFFSET))
            if chunk.kind != _BYTES:
                found.fixed += 0 if width else page.decoded
            elif page.encoding in _BY_DICTIONARY:
                found.referring += 0 if as_dictionary else page.values
            else:
                found.fixed += page.decoded
                found.prefixed += [page] if page.encoding == _PREFIXES else []
    return found


def repeated_columns(
    file: IO[bytes], reader: Any, again: Again, chunks: Sequence[Chunk], names: Sequence[str], group: int,
    limits: Limits, where: str,
) -> dict[str, int]:  # fmt: skip
    """Checks the memory that these columns of a row group take; damage of a page is any exception.

    Returns the columns that must be read as dictionaries, each with the bytes of its longest entry.

    Args:
        file: the bytes of the file.
        reader: pyarrow's reader of the file; `again` opens one that reads columns as dictionaries.

    Raises:
        LimitError: they would take too much.
    """
    columns = [n for n, chunk in enumerate(chunks) if chunk.name in names and chunk.stored and not chunk.encrypted]
    stored = sum(chunks[n].stored for n in columns)
    most = max(FREE_BYTES, limits.expansion * stored)
    demands = {n: demand(file, chunks[n], *_shape(reader, n, chunks[n])) for n in columns}
    sizes = {n: takes.bound for n, takes in demands.items()}
    repeated: dict[str, int] = {}
    if sum(sizes.values()) > most >= sum(takes.fixed for takes in demands.values()):
        longest = {}
        for n, takes in demands.items():
            leaf = reader.schema.column(n)
            longest[n] = _longest_entry(again, group, leaf.path) if takes.referring else 0
            shared = sum(_prefix_bytes(file, chunks[n], page, leaf) for page in takes.prefixed)
            sizes[n] = takes.fixed + takes.referring * longest[n] + shared
        for n in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if sum(sizes.values()) <= most or not demands[n].referring:
                continue
            leaf = reader.schema.column(n)
            if leaf.path == chunks[n].name:
                repeated[leaf.path] = longest[n]
                sizes[n] -= demands[n].referring * longest[n]
            else:
                sizes[n] += _repeated_bytes(again, group, leaf.path) - demands[n].referring * longest[n]
    if sum(sizes.values()) > most:
        largest = max(sizes, key=sizes.__getitem__)
        raise LimitError(
            f"at most {most} bytes in a row group of {stored} stored bytes",
            got=f"{sum(sizes.values())} bytes, of which column {reader.schema.column(largest).path!r} takes "
            f"{sizes[largest]}",
            where=where,
            fix="this looks like a decompression bomb; if it is honest, raise limits.expansion, or read other "
            "columns with columns=[...]",
        )
    return repeated


def _shape(reader: Any, number: int, chunk: Chunk) -> tuple[int, bool]:
    """The width of a value, 0 if it varies; and whether the column is a dictionary for pyarrow already."""
    fixed = max(16, int(reader.schema.column(number).length or 0)) if chunk.kind == _FIXED else 0
    return _WIDTHS.get(chunk.kind, fixed), hasattr(reader.schema_arrow.field(chunk.name).type, "index_type")


def _page(file: IO[bytes], at: int, end: int) -> Page:
    for size in _HEADER_BYTES:
        file.seek(at)
        data = file.read(min(size, end - at))
        try:
            return _header(Compact(data), at)
        except IndexError:
            if len(data) < size:
                break
    raise ValueError(f"a page header at byte {at} that does not end")


def _header(reader: Compact, start: int) -> Page:
    numbers: dict[int, int] = {}
    inner: dict[int, int] = {}
    packed = True
    for number, kind in reader.fields():
        if kind == _I32:
            numbers[number] = reader.number()
        elif kind == _STRUCT and number in (5, 7, 8):
            for one, what in reader.fields():
                if what == _I32:
                    inner[one] = reader.number()
                elif one == 7 and number == 8 and what in (1, 2):
                    packed = what == 1
                else:
                    reader.skip(what)
        else:
            reader.skip(kind)
    kind, second = numbers.get(1, -1), numbers.get(1) == _DATA_2
    levels = inner.get(5, 0) + inner.get(6, 0) if second else 0
    found = Page(
        kind, start + reader.at, numbers.get(3, -1), numbers.get(2, -1), inner.get(1, 0),
        inner.get(4 if second else 2, 0), levels, packed,
    )  # fmt: skip
    if min(found.stored, found.decoded, found.values, found.levels) < 0:
        raise ValueError(f"a page header at byte {start} with a size below 0")
    return found


def _longest_entry(again: Again, group: int, path: str) -> int:
    """The bytes of the longest entry of a dictionary; only its page and the first one of data are decoded."""
    compute = need("pyarrow.compute", extra="parquet")
    with again([path]) as reader:
        batch = next(reader.iter_batches(1, row_groups=[group], columns=[path], use_threads=False))
    return int(compute.max(compute.binary_length(_leaf(batch.column(0)).dictionary)).as_py() or 0)


def _repeated_bytes(again: Again, group: int, path: str) -> int:
    """The bytes of all values of a nested column, which is read as a dictionary."""
    compute = need("pyarrow.compute", extra="parquet")
    with again([path]) as reader:
        column = reader.read_row_group(group, columns=[path], use_threads=False).column(0)
    leaves = [_leaf(chunk) for chunk in column.chunks]
    return sum(
        int(compute.sum(compute.binary_length(leaf.dictionary).take(leaf.indices)).as_py() or 0) for leaf in leaves
    )


def _leaf(column: Any) -> Any:
    """The dictionary at the end of a column of lists, maps and structs of one field."""
    types = need("pyarrow", extra="parquet").types
    while not types.is_dictionary(column.type):
        if types.is_map(column.type):
            column = column.items if types.is_dictionary(column.type.item_type) else column.keys
        else:
            column = column.field(0) if types.is_struct(column.type) else column.values
    return column


def _prefix_bytes(file: IO[bytes], chunk: Chunk, page: Page, leaf: Any) -> int:
    """The sum of the prefix lengths of a page of type DELTA_BYTE_ARRAY."""
    pa = need("pyarrow", extra="parquet")
    file.seek(page.body)
    data = file.read(page.stored)
    content = data[page.levels :]
    if chunk.codec and page.packed:
        size = page.decoded - page.levels
        content = pa.Codec(_CODECS[chunk.codec]).decompress(content, decompressed_size=size, asbytes=True)
    if page.kind == _DATA:  # version 1: the levels are before the values, each with its length
        for level in (leaf.max_repetition_level, leaf.max_definition_level):
            content = content[4 + int.from_bytes(content[:4], "little") :] if level else content
    return _sum_of_deltas(content, page.values)


def _sum_of_deltas(data: bytes, most: int) -> int:
    """The sum of the numbers at the beginning of `data`, of which there are at most `most`: DELTA_BINARY_PACKED."""
    reader = Compact(data)
    block, parts, count, first = reader.varint(), reader.varint(), reader.varint(), reader.number()
    if count > most or not 0 < parts <= block <= _MOST_BLOCK or block % (8 * parts):
        raise ValueError(f"{count} lengths in blocks of {block} in {parts} parts, in a page of {most} values")
    each, total, left, value = block // parts, first if count else 0, count - 1, first
    while left > 0:
        least = reader.number()
        widths = data[reader.at : reader.at + parts]
        reader.at += parts
        for width in widths:
            if left <= 0:
                break
            used = min(each, left)
            size = each * width // 8
            raw = np.frombuffer(data, np.uint8, size, reader.at)
            reader.at += size
            bits = np.unpackbits(raw, bitorder="little").reshape(each, width).astype(np.float64)
            # Sums of floats: lengths are below 2^31, and anything beyond is refused all the same.
            values = value + np.cumsum((bits @ np.exp2(np.arange(width)) + least)[:used])
            total += int(values.sum())
            value, left = float(values[-1]), left - used  # type: ignore[assignment]
    return max(0, total)
