"""tf.train.Example and SequenceExample: features by name from their protocol buffers, without TensorFlow.

Only this one message is known, and only the features asked for are unpacked: 10 to 30 us a record.
A SequenceExample begins as an Example does, so the same code reads both: its context, and its lists of features. What
memory a record may use is bounded by its bytes: lengths are checked before anything is made of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["bytes", "float", "int", ""]
_KINDS: tuple[Kind, ...] = ("", "bytes", "float", "int")  # by the number of the field of a Feature
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FEW = 24  # bytes of packed integers up to which a loop is faster than NumPy
_MOST_PARTS = 1 << 21


class NotExample(ValueError):
    """Why bytes are no Example."""


@dataclass(slots=True)
class Values:
    """The values of one feature: a list of bytes, or an array of float32 or int64; of no kind where nothing says."""

    kind: Kind = ""
    items: Any = ()

    def __len__(self) -> int:
        return len(self.items)


Example = dict[str, Values | list[Values]]


class _Parts:
    """How many more objects one record may become: what is one byte in it may be 60 in memory."""

    def __init__(self) -> None:
        self.left = _MOST_PARTS

    def take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise NotExample(f"more than {_MOST_PARTS:,} features, steps and byte strings")


def parse(data: bytes, wanted: Collection[bytes] | None = None) -> Example:
    """The features of an Example or SequenceExample: `Values`, or a list of them, one for each step of a sequence.

    `wanted` are names; None reads all.

    >>> data = bytes.fromhex("0a10 0a0e 0a05 6c6162656c 1205 1a03 0a01 07")  # {"label": int64_list [7]}
    >>> parse(data)["label"].items.tolist()
    [7]
    """
    found: Example = {}
    parts = _Parts()
    for number, wire, start, stop in _fields(data, 0, len(data)):
        if wire == _LENGTH and number in (1, 2):
            for a, b in _messages(data, start, stop):
                _entry(data, a, b, wanted, found, parts, sequence=number == 2)
    return found


def _entry(
    data: bytes, start: int, stop: int, wanted: Collection[bytes] | None, found: Example, parts: _Parts, *,
    sequence: bool,
) -> None:  # fmt: skip
    """One name and its feature, or list of features. Of two with one name the last counts, as in any map."""
    name, value = b"", (stop, stop)
    for number, wire, a, b in _fields(data, start, stop):
        if wire == _LENGTH and number == 1:
            name = data[a:b]
        elif wire == _LENGTH and number == 2:
            value = (a, b)
    if wanted is not None and name not in wanted:
        return
    parts.take()
    try:
        text = name.decode()
    except UnicodeDecodeError as error:
        raise NotExample(f"the name of a feature that is not UTF-8: {name[:40]!r}") from error
    if isinstance(found.get(text), Values if sequence else list):
        raise NotExample(f"a feature {text!r} in the context and another in the feature lists")
    if sequence:
        found[text] = [_feature(data, a, b, parts) for a, b in _messages(data, *value)]
    else:
        found[text] = _feature(data, *value, parts)


def _feature(data: bytes, start: int, stop: int, parts: _Parts) -> Values:
    parts.take()
    out = Values()
    for number, wire, a, b in _fields(data, start, stop):
        if wire == _LENGTH and 1 <= number <= 3:
            kind = _KINDS[number]
            items = _byte_strings(data, a, b, parts) if kind == "bytes" else _numbers(data, kind, a, b)
            if out.kind != kind:  # of lists of different types the last counts; those of one type are one list
                out = Values(kind, items)
            else:
                parts.take()
                out.items = out.items + items if kind == "bytes" else np.concatenate([out.items, items])
    return out


def _byte_strings(data: bytes, start: int, stop: int, parts: _Parts) -> list[bytes]:
    found = []
    for a, b in _messages(data, start, stop):
        parts.take()
        found.append(data[a:b])
    return found


def _numbers(data: bytes, kind: Kind, start: int, stop: int) -> NDArray[Any]:
    """The numbers of a list: packed, or one field for each, whose bytes one after another are the packed form."""
    raw, single = data, _FIXED32 if kind == "float" else _VARINT
    span, joined = (start, start), bytearray()
    for number, wire, a, b in _fields(data, start, stop):
        if number != 1:
            continue
        if wire not in (_LENGTH, single):
            raise NotExample(f"a list of {kind}s with a value of wire type {wire}")
        if (b - a) % 4 if kind == "float" else b > a and data[b - 1] >= 128:
            raise NotExample(f"a list of {kind}s that is cut")
        if span[0] == span[1] and not joined:
            span = (a, b)
        else:
            joined = joined or bytearray(data[slice(*span)])
            joined += data[a:b]
    if joined:
        raw, span = bytes(joined), (0, len(joined))
    if kind == "float":
        return np.frombuffer(raw, "<f4", (span[1] - span[0]) // 4, span[0]).astype(np.float32, copy=False)
    return _integers(raw, *span)


def _integers(data: bytes, start: int, stop: int) -> NDArray[np.int64]:
    """The packed integers of a range, each of 1 to 10 bytes."""
    if stop - start > _FEW:
        return _many_integers(np.frombuffer(data, np.uint8, stop - start, start))
    values, at = [], start
    while at < stop:
        value, at = _varint(data, at, stop)
        values.append(value - (1 << 64) if value >> 63 else value)
    return np.array(values, np.int64)


def _many_integers(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    last = np.flatnonzero(raw < 128)
    if not len(last) or last[-1] != len(raw) - 1:
        raise NotExample("a list of integers that is cut")
    first = np.concatenate([[0], last[:-1] + 1])
    sizes = last - first + 1
    longest = int(sizes.max())
    if longest > 10:
        raise NotExample("an integer of more than 10 bytes")
    values = (raw[first] & 127).astype(np.uint64)
    for k in range(1, longest):
        more = np.flatnonzero(sizes > k)
        values[more] |= (raw[first[more] + k] & np.uint8(127)).astype(np.uint64) << np.uint64(7 * k)
    found: NDArray[np.int64] = values.view(np.int64)
    return found


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """An unsigned integer of up to 64 bits, and where it ends."""
    value = shift = 0
    while at < stop and shift < 70:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise NotExample("an integer that is cut" if at >= stop else "an integer of more than 10 bytes")


def _messages(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Where each message or byte string of field 1 begins and ends."""
    for number, wire, a, b in _fields(data, start, stop):
        if number == 1:
            if wire != _LENGTH:
                raise NotExample(f"a message of wire type {wire}")
            yield a, b


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, first byte and end of each field of a message."""
    while at < stop:
        key = data[at]
        at += 1
        if key >= 128:
            key, at = _varint(data, at - 1, stop)
        wire = key & 7
        if wire == _LENGTH:
            size = data[at] if at < stop else 128
            at += 1
            if size >= 128:
                size, at = _varint(data, at - 1, stop)
            end = at + size
        elif wire == _VARINT:
            end = _varint(data, at, stop)[1]
        elif wire in (_FIXED64, _FIXED32):
            end = at + (8 if wire == _FIXED64 else 4)
        else:
            raise NotExample(f"a field of wire type {wire}")
        if end > stop:
            raise NotExample("a field that ends after its message")
        if key < 8:
            raise NotExample("a field with the number 0")
        yield key >> 3, wire, at, end
        at = end
