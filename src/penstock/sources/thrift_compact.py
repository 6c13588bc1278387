"""Thrift's compact protocol, as far as Parquet metadata needs it: numbers, strings, and values that are skipped.

Damage ends in IndexError or ValueError, never in a loop: every item takes at least a byte, and a position only grows.
A footer has some 50 values per column chunk, so `skip_struct` is one loop: 0.1 us per value.
"""

from __future__ import annotations

from collections.abc import Iterator

_DEPTH = 32
_STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def number(data: bytes, at: int) -> tuple[int, int]:
    """A signed number, and where it ends."""
    value, at = varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def binary(data: bytes, at: int) -> tuple[bytes, int]:
    """A string, and where it ends."""
    length, at = varint(data, at)
    return data[at : at + length], within(data, at + length)


def items(data: bytes, at: int) -> tuple[int, int, int]:
    """Count and type of the items of a list, and where they begin."""
    head = data[at]
    if head >> 4 < 15:
        return head >> 4, head & 0x0F, at + 1
    count, at = varint(data, at + 1)
    return count, head & 0x0F, at


def within(data: bytes, at: int) -> int:
    """The position `at`, which may be the end of the data."""
    if at > len(data):
        raise IndexError("a value that ends after the footer")
    return at


def skip_struct(data: bytes, at: int, depth: int = 0) -> int:
    """Where the struct that begins at `at` ends."""
    while True:
        head = data[at]
        at += 1
        if not head:
            return at
        if head < 16:  # the field's number follows; else it is in the head
            while data[at] >= 0x80:
                at += 1
            at += 1
        kind = head & 0x0F
        if I16 <= kind <= I64:
            while data[at] >= 0x80:
                at += 1
            at += 1
        elif kind > FALSE:
            at = skip(data, at, kind, depth)


def skip(data: bytes, at: int, kind: int, depth: int = 0) -> int:
    """Where the value of a field ends; a bool is in the field's head."""
    return at if kind in (TRUE, FALSE) else _skip_item(data, at, kind, depth)


def _skip_item(data: bytes, at: int, kind: int, depth: int) -> int:
    if I16 <= kind <= I64:
        while data[at] >= 0x80:
            at += 1
        return at + 1
    if kind == BINARY:
        length, at = varint(data, at)
        return within(data, at + length)
    if kind in (TRUE, FALSE, BYTE):  # in a collection a bool has a byte of its own
        return within(data, at + 1)
    if kind == DOUBLE:
        return within(data, at + 8)
    if depth == _DEPTH:
        raise ValueError("structures nested too deep")
    if kind == STRUCT:
        return skip_struct(data, at, depth + 1)
    if kind in (LIST, SET):
        count, item, at = items(data, at)
        for _ in range(count):
            at = _skip_item(data, at, item, depth + 1)
        return at
    if kind == MAP:
        count, at = varint(data, at)
        types = data[at] if count else 0
        at += bool(count)
        for _ in range(count):
            at = _skip_item(data, at, types >> 4, depth + 1)
            at = _skip_item(data, at, types & 0x0F, depth + 1)
        return at
    raise ValueError(f"a field of the unknown type {kind}")


class Compact:
    """A position in data that moves over what is read."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def varint(self) -> int:
        value, self.at = varint(self.data, self.at)
        return value

    def number(self) -> int:
        value, self.at = number(self.data, self.at)
        return value

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field of a struct; the caller reads or skips its value before it goes on."""
        field = 0
        while True:
            head = self.data[self.at]
            self.at += 1
            if head == _STOP:
                return
            field = field + (head >> 4) if head >> 4 else self.number()
            yield field, head & 0x0F

    def skip(self, kind: int) -> None:
        self.at = skip(self.data, self.at, kind)
