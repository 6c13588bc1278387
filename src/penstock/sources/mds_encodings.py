"""Columns of an MDS dataset from their stored bytes.

| encoding | column |
|---|---|
| `str` | str |
| `bytes`, `jpeg`, `png` | bytes, as stored, for `.decode_images()` |
| `pil` (grey or RGB) | bytes: the pixels with the header of a PGM or PPM file, for `.decode_images()` |
| `int`, `int8` to `uint64`, `float16` to `float64` | an array of that type; `int` is int64 |
| `ndarray`, `ndarray:dtype`, `ndarray:dtype:shape` | arrays; ragged where they have one dimension and no fixed shape |
| `json` | any JSON value |
| `str_int`, `str_float`, `str_decimal` | int64, float64, and the decimal as it is written |
| `list[jpeg]`, `list[png]`, `list[pil]`, `jpeg_array` | a list of bytes |
| `pkl` | refused: unpickling runs code |
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core.columns import Column, Ragged, strings
from penstock.core.errors import PenstockError, UsageError
from penstock.core.limits import Limits
from penstock.core.signals import surface
from penstock.sources.json_fields import exact, shallow

_SCALARS = {name: name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                                    "float16", "float32", "float64")} | {"int": "int64"}  # fmt: skip
ARRAY_TYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32",
                34: "float32", 64: "uint64", 65: "int64", 66: "float64"}  # fmt: skip
_LISTS = {"list[jpeg]": "jpeg", "list[png]": "png", "list[pil]": "pil", "jpeg_array": "jpeg", "jpegarray": "jpeg"}
_OTHERS = ("str", "bytes", "jpeg", "png", "pil", "json", "str_int", "str_float", "str_decimal", "ndarray")
_PNM = {b"L": (b"P5", 1), b"RGB": (b"P6", 3)}
_INTEGER, _DECIMAL = re.compile(r"[+-]?[0-9]{1,4000}"), re.compile(r"[+-]?[0-9.]{1,4000}([eE][+-]?[0-9]{1,9})?")
_FLOAT = re.compile(r"[+-]?([0-9.]{1,400}([eE][+-]?[0-9]{1,9})?|inf|nan)")

Fail = Callable[[int, str, str], None]  # (row of the call, expected, got)


@dataclass(frozen=True)
class Encoding:
    """How a column is stored. `dtype` and `shape` are of arrays and numbers, where every record has the same."""

    name: str
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None

    @property
    def size(self) -> int | None:
        """Bytes of every value; None where they differ."""
        if self.dtype is None or self.shape is None:
            return None
        return prod(self.shape) * self.dtype.itemsize

    @property
    def needs_example(self) -> bool:
        """Whether type and number of dimensions are those of record 0."""
        return self.name == "ndarray" and self.shape is None

    def decode(self, values: Sequence[bytes], fail: Fail, limits: Limits, like: NDArray[Any] | None) -> Column:
        """The column of these values; `like` is the array of record 0, where the encoding needs an example."""
        if self.shape is not None and self.dtype is not None:
            return np.frombuffer(b"".join(values), self.dtype).reshape(len(values), *self.shape)
        if self.name == "ndarray":
            return self._arrays(values, fail, like)
        if self.name in ("bytes", "jpeg", "png"):
            return strings(values)
        found = [_each(self.name, value, limits, row, fail) for row, value in enumerate(values)]
        if self.name in ("str_int", "str_float"):
            return np.array(found, np.int64 if self.name == "str_int" else np.float64)
        return strings(found)

    def _arrays(self, values: Sequence[bytes], fail: Fail, like: NDArray[Any] | None) -> Column:
        rows = []
        for row, value in enumerate(values):
            try:
                array = self.array(value)
                if like is not None and (array.dtype, array.ndim) != (like.dtype, like.ndim):
                    raise ValueError(f"{array.ndim} dimensions of {array.dtype}, unlike record 0")
                rows.append(array)
            except ValueError as error:
                surface(error)
                kind = "an array" if like is None else f"an array of {like.dtype} with {like.ndim} dimensions"
                fail(row, kind, str(error))
                rows.append(np.empty((0,) * (1 if like is None else like.ndim), "u1" if like is None else like.dtype))
        dims = 1 if like is None else like.ndim
        if dims == 1 and self.shape is None:
            return Ragged.of(rows, None if like is None else like.dtype)
        return np.stack(rows) if rows and len({row.shape for row in rows}) == 1 else strings(rows)

    def array(self, value: bytes) -> NDArray[Any]:
        """One array; a ValueError says what is wrong with the bytes."""
        at, dtype, shape = 0, self.dtype, self.shape
        if dtype is None:
            if not value or value[0] not in ARRAY_TYPES:
                raise ValueError(f"type code {value[0] if value else 'missing'}")
            dtype, at = np.dtype(ARRAY_TYPES[value[0]]).newbyteorder("<"), 1
        if shape is None:
            shape, at = self.shape_at(value, at)
        if len(value) - at != prod(shape) * dtype.itemsize:
            raise ValueError(f"{len(value) - at} bytes for an array of {dtype} of shape {shape}")
        return np.frombuffer(value, dtype, offset=at).reshape(shape)

    def shape_at(self, value: bytes, at: int) -> tuple[tuple[int, ...], int]:
        """The shape that is stored at a byte, and where the items begin."""
        if len(value) <= at:
            raise ValueError("no shape")
        dims, width = value[at] >> 2, 1 << (value[at] & 3)
        stop = at + 1 + dims * width
        if not 1 <= dims <= 32 or len(value) < stop:
            raise ValueError(f"{dims} dimensions in {len(value)} bytes")
        return tuple(int(n) for n in np.frombuffer(value[at + 1 : stop], f"<u{width}")), stop


def encoding_of(text: str, column: str, where: str) -> Encoding:
    """The encoding that an index names; refuses pickles and unknown ones."""
    name, _, rest = text.partition(":")
    if text in _SCALARS:
        return Encoding(text, np.dtype(_SCALARS[text]).newbyteorder("<"), ())
    if name == "ndarray":
        kind, _, dims = rest.partition(":")
        if not rest:
            return Encoding("ndarray")
        if kind in ARRAY_TYPES.values() and (
            not dims or re.fullmatch(r"[1-9][0-9]{0,9}(,[1-9][0-9]{0,9}){0,31}", dims)
        ):
            shape = tuple(map(int, dims.split(","))) if dims else None
            return Encoding("ndarray", np.dtype(kind).newbyteorder("<"), shape)
    elif text in _OTHERS or text in _LISTS:
        return Encoding(text)
    if name == "pkl":
        expected, fix = "columns without pickles, which run code when they are loaded", "write the column as json"
    else:
        expected, fix = f"an encoding of MDS: {', '.join((*_OTHERS, *_SCALARS, *_LISTS))}", "write the dataset again"
    raise UsageError(
        expected, got=f"column {column!r} in the encoding {text!r}"[:200], where=where,
        fix=f"name the columns to read without it: columns=[...]; or {fix}",
    )  # fmt: skip


def _each(name: str, value: bytes, limits: Limits, row: int, fail: Fail) -> Any:
    try:
        return _list(name, value) if name in _LISTS else _value(name, value, limits)
    except (ValueError, OverflowError, struct.error) as error:
        surface(error)
        fail(row, f"a value in the encoding {name}", str(error)[:200])
    except PenstockError as error:
        fail(row, error.expected, error.got)
    return 0


def _value(name: str, value: bytes, limits: Limits) -> Any:
    if name == "str":
        return value.decode("utf-8")
    if name == "pil":
        return _pnm(value)
    if name == "json":
        found = exact(orjson.loads(value), value, "")
        if not shallow(found, limits.json_depth):
            raise ValueError(f"JSON more than {limits.json_depth} levels deep")
        return found
    text = value.decode("ascii")
    pattern = {"str_int": _INTEGER, "str_float": _FLOAT, "str_decimal": _DECIMAL}[name]
    if not pattern.fullmatch(text):
        raise ValueError(repr(text[:80]))
    if name == "str_int":
        number = int(text)
        if not -(1 << 63) <= number < 1 << 63:
            raise ValueError(f"{text[:80]}, beyond 64-bit integers")
        return number
    return float(text) if name == "str_float" else text


def _list(name: str, value: bytes) -> list[bytes]:
    at = 4 if name.startswith("list") else 0
    (count,) = struct.unpack_from("<I", value, at)
    at += 4
    if count > len(value) // 4:
        raise ValueError(f"{count} items in {len(value)} bytes")
    ends = np.cumsum(np.frombuffer(value, "<u4", count, at).astype(np.int64)) + at + 4 * count
    if (int(ends[-1]) if count else at) != len(value):
        raise ValueError(f"items that end at byte {int(ends[-1]) if count else at} of {len(value)}")
    starts = [at + 4 * count, *ends[:-1].tolist()]
    items = [value[start:end] for start, end in zip(starts, ends.tolist(), strict=False)]
    return [_pnm(item) for item in items] if name == "list[pil]" else items


def _pnm(value: bytes) -> bytes:
    """The pixels of a PIL image as a PGM or PPM file: a header instead of MDS's own."""
    width, height, named = struct.unpack_from("<III", value)
    mode = value[12 : 12 + named]
    if mode not in _PNM:
        raise ValueError(f"an image of mode {mode[:16]!r}, not L or RGB")
    magic, channels = _PNM[mode]
    pixels = value[12 + named :]
    if not width or not height or len(pixels) != width * height * channels:
        raise ValueError(f"{len(pixels)} bytes of pixels for {height} x {width} of mode {mode.decode()}")
    return b"%s %d %d 255\n" % (magic, width, height) + pixels
