"""Sizes of column chunks, from the footer of a Parquet file.

pyarrow knows them too, but its accessors for column metadata let C++ exceptions escape: an encrypted or damaged file
ends the process (SIGABRT). So this reads the few fields it needs from the Thrift structures (compact protocol) itself,
at about 20 us per column chunk. Everything else is left to pyarrow, which catches its exceptions there.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.errors import DataError, LimitError
from penstock.core.limits import Limits
from penstock.storage import filesystem

_MAGIC = b"PAR1"
_TAIL = 8  # length of the footer, and the magic
_DEPTH = 32
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
# Field numbers of parquet.thrift.
_ROW_GROUPS, _COLUMNS, _META, _PATH, _UNCOMPRESSED, _COMPRESSED = 4, 1, 3, 3, 6, 7

Sizes = dict[str, tuple[int, int]]
"""Stored and decoded bytes of each top-level column of a row group."""


def column_sizes(path: str, size: int, limits: Limits, options: filesystem.Options = None) -> list[Sizes]:
    """The sizes of every row group of a file of `size` bytes. A column chunk whose metadata is encrypted has none."""
    footer = read_footer(path, size, limits, options)
    try:
        return [_row_group(_Compact(footer, at)) for at in _structs(_Compact(footer), _ROW_GROUPS)]
    except (IndexError, ValueError) as error:
        raise DataError(
            "a Parquet footer", got=f"{error}, in its {len(footer)} bytes", where=path, fix="fetch the file again"
        ) from error


def read_footer(path: str, size: int, limits: Limits, options: filesystem.Options = None) -> bytes:
    """The footer's bytes."""
    (tail,) = filesystem.read_ranges(path, [(max(0, size - _TAIL), size)], options)
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
    return filesystem.read_ranges(path, [(size - _TAIL - length, size - _TAIL)], options)[0]


class _Compact:
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


def _structs(reader: _Compact, wanted: int) -> Iterator[int]:
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


def _row_group(reader: _Compact) -> Sizes:
    sizes: Sizes = {}
    for at in _structs(reader, _COLUMNS):
        name, stored, decoded = _column(_Compact(reader.data, at))
        before = sizes.get(name, (0, 0))
        sizes[name] = before[0] + stored, before[1] + decoded
    return sizes


def _column(chunk: _Compact) -> tuple[str, int, int]:
    name, stored, decoded = "", 0, 0
    for number, kind in chunk.fields():
        if number != _META or kind != _STRUCT:
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
            else:
                chunk.skip(inner)
    return name, stored, decoded
