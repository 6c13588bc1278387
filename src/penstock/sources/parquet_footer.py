"""Sizes of column chunks, from the footer of a Parquet file.

pyarrow knows them too, but its accessors for column metadata let C++ exceptions escape: an encrypted or damaged file
ends the process (SIGABRT). So this reads the few fields it needs from the Thrift structures (compact protocol) itself,
at about 20 us per column chunk. Everything else is left to pyarrow, which catches its exceptions there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.core.errors import DataError, LimitError
from penstock.core.limits import Limits
from penstock.storage import filesystem

_MAGIC = b"PAR1"
_TAIL = 8  # length of the footer, and the magic
_DEPTH = 32
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
# Field numbers of parquet.thrift.
_ROW_GROUPS, _COLUMNS, _META, _CRYPTO = 4, 1, 3, (8, 9)
_TYPE, _PATH, _CODEC, _VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA, _DICTIONARY = 1, 3, 4, 5, 6, 7, 9, 11

Sizes = dict[str, tuple[int, int]]
"""Stored and decoded bytes of each top-level column of a row group."""


def column_sizes(path: str, size: int, limits: Limits, options: filesystem.Options = None) -> list[Sizes]:
    """The sizes of every row group of a file of `size` bytes. A column chunk whose metadata is encrypted has none."""
    return sizes_of(read_footer(path, size, limits, options), path)


def sizes_of(footer: bytes, path: str) -> list[Sizes]:
    """The sizes of every row group, from the footer's bytes."""
    return [_sizes(chunks) for chunks in chunks_of(footer, path)]


def column_spans(footer: bytes, path: str) -> list[dict[str, list[tuple[int, int]]]]:
    """The byte ranges of the chunks of each top-level column, for every row group."""
    return [_spans(chunks) for chunks in chunks_of(footer, path)]


def check_expansion(groups: Sequence[Sizes], names: set[str], limits: Limits, path: str) -> None:
    """Refuses row groups whose columns `names` are many times larger when they are decoded."""
    for number, sizes in enumerate(groups):
        read = [size for name, size in sizes.items() if name in names]
        packed, full = sum(stored for stored, _ in read), sum(decoded for _, decoded in read)
        if not limits.expansion_allowed(packed, full):
            raise LimitError(
                f"at most {limits.expansion} bytes per stored byte",
                got=f"{full} bytes from {packed}",
                where=f"{path}, row group {number}",
                fix="this looks like a decompression bomb; if it is honest, raise limits.expansion",
            )


def chunks_of(footer: bytes, path: str) -> list[list[Chunk]]:
    """The column chunks of every row group, in the order of the schema's columns."""
    try:
        groups = _structs(Compact(footer), _ROW_GROUPS)
        return [
            [_column(Compact(footer, column)) for column in _structs(Compact(footer, at), _COLUMNS)] for at in groups
        ]
    except (IndexError, ValueError) as error:
        raise DataError(
            "a Parquet footer", got=f"{error}, in its {len(footer)} bytes", where=path, fix="fetch the file again"
        ) from error


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


class Compact:
    """A reader of Thrift's compact protocol. Damage ends in IndexError or ValueError, never in a loop."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def number(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        length = self.varint()
        self._move(length)
        return self.data[self.at - length : self.at]

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field of a struct; the caller reads or skips its value before it goes on."""
        number = 0
        while True:
            head = self.data[self.at]
            self.at += 1
            if head == _STOP:
                return
            number = number + (head >> 4) if head >> 4 else self.number()
            yield number, head & 0x0F

    def items(self) -> tuple[int, int]:
        """Count and type of the items of a list."""
        head = self.data[self.at]
        self.at += 1
        count = head >> 4
        return (self.varint() if count == 15 else count), head & 0x0F

    def skip(self, kind: int, depth: int = 0) -> None:
        if depth > _DEPTH:
            raise ValueError("structures nested too deep")
        if kind in (_TRUE, _FALSE):
            return
        if kind in (_I16, _I32, _I64):
            self.varint()
        elif kind in (_BYTE, _DOUBLE):
            self._move(1 if kind == _BYTE else 8)
        elif kind == _BINARY:
            self._move(self.varint())
        elif kind in (_LIST, _SET):
            count, item = self.items()
            for _ in range(count):
                self._skip_item(item, depth)
        elif kind == _STRUCT:
            for _, field in self.fields():
                self.skip(field, depth + 1)
        elif kind == _MAP:
            count = self.varint()
            types = self.data[self.at] if count else 0
            self.at += bool(count)
            for _ in range(count):
                self._skip_item(types >> 4, depth)
                self._skip_item(types & 0x0F, depth)
        else:
            raise ValueError(f"a field of the unknown type {kind}")

    def _skip_item(self, kind: int, depth: int) -> None:
        if kind in (_TRUE, _FALSE):
            self._move(1)  # in a collection a bool has a byte of its own
        else:
            self.skip(kind, depth + 1)

    def _move(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise IndexError("a value that ends after the footer")


def _structs(reader: Compact, wanted: int) -> Iterator[int]:
    """Where each struct of the list in field `wanted` begins."""
    for number, kind in reader.fields():
        if number != wanted or kind != _LIST:
            reader.skip(kind)
            continue
        count, item = reader.items()
        if item != _STRUCT and count:
            raise ValueError(f"a list of type {item} where structures are expected")
        for _ in range(count):
            yield reader.at
            reader.skip(item)


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


def _sizes(chunks: list[Chunk]) -> Sizes:
    sizes: Sizes = {}
    for chunk in chunks:
        before = sizes.get(chunk.name, (0, 0))
        sizes[chunk.name] = before[0] + chunk.stored, before[1] + chunk.decoded
    return sizes


def _spans(chunks: list[Chunk]) -> dict[str, list[tuple[int, int]]]:
    spans: dict[str, list[tuple[int, int]]] = {}
    for chunk in chunks:
        spans.setdefault(chunk.name, []).append((chunk.start, chunk.start + chunk.stored))
    return spans


def _column(chunk: Compact) -> Chunk:
    name, stored, decoded, data, dictionary, kind_of_values, codec, values = "", 0, 0, 0, 0, 0, 0, 0
    encrypted = False
    for number, kind in chunk.fields():
        if number != _META or kind != _STRUCT:
            encrypted = encrypted or number in _CRYPTO
            chunk.skip(kind)
            continue
        for field, inner in chunk.fields():
            if field == _PATH and inner == _LIST:
                count, item = chunk.items()
                if item != _BINARY and count:
                    raise ValueError(f"a path of type {item}")
                name = next(iter([chunk.binary() for _ in range(count)]), b"").decode("utf-8", "replace")
            elif field == _UNCOMPRESSED and inner == _I64:
                decoded = chunk.number()
            elif field == _COMPRESSED and inner == _I64:
                stored = chunk.number()
            elif field == _TYPE and inner == _I32:
                kind_of_values = chunk.number()
            elif field == _CODEC and inner == _I32:
                codec = chunk.number()
            elif field == _VALUES and inner == _I64:
                values = chunk.number()
            elif field == _DATA and inner == _I64:
                data = chunk.number()
            elif field == _DICTIONARY and inner == _I64:
                dictionary = chunk.number()
            else:
                chunk.skip(inner)
    start = min(data, dictionary) if dictionary > 0 else data
    return Chunk(name, stored, decoded, start, kind_of_values, codec, values, encrypted)
