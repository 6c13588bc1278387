"""`decode_parts`: decodes small parts of tar records (text, JSON, numbers) from bytes.

The part's last extension decides how. No code from the data is run: pickles and torch files stay bytes.

    ==========================================  ========================================
    txt text caption transcript md              str, UTF-8
    cls cls2 index inx id count                 int64
    json                                        dict, list, ... at most 64 levels deep
    npy                                         an array of numbers, size checked first
    anything else                               bytes, as they are
    ==========================================  ========================================

A part that does not match its extension is a bad record; the error names the key.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from penstock.codecs.npy import read_npy
from penstock.core.columns import Column, stack, strings
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.limits import LIMITS
from penstock.core.signals import surface
from penstock.sources.json_fields import exact, shallow
from penstock.steps.base import Context, Step
from penstock.steps.media import located
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import Picks
from penstock.steps.replacement import rows_asked

TEXT = frozenset(["txt", "text", "caption", "transcript", "md"])
WHOLE = frozenset(["cls", "cls2", "index", "inx", "id", "count"])


@dataclass(frozen=True)
class DecodeParts(Step):
    """Decodes the columns named in `parts`, or all with a known extension."""

    parts: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return "decode_parts"

    def __post_init__(self) -> None:
        unknown = [part for part in self.parts or () if decoder_of(part) is None]
        if unknown:
            known = ", ".join(sorted(TEXT | WHOLE | {"json", "npy"}))
            raise UsageError(f"parts ending in one of {known}", got=repr(unknown[0]), fix="use .map() for others")

    def build(self, child: Node, context: Context) -> Node:
        return _Decoded(child, self)


class _Decoded(ContentNode):
    def __init__(self, child: Node, step: DecodeParts) -> None:
        super().__init__(child)
        self.step = step

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = self.child.fetch(picks)
        if not len(used):
            return Fetched({}, used)
        wanted = self.step.parts if self.step.parts is not None else tuple(n for n in columns if decoder_of(n))
        out = dict(columns)
        errors: list[RecordError] = []
        for name in wanted:
            if name not in columns:
                raise UsageError(f"a part {name!r} in .decode_parts()", got=f"columns {', '.join(columns)}")
            out[name] = _decode(columns[name], name, errors)
        if errors:
            with rows_asked(picks, used), located(self.child, used):
                raise BadRecords(sorted(errors, key=lambda error: error.row))
        return Fetched(out, used)


def _decode(column: Column, name: str, errors: list[RecordError]) -> Column:
    decode = decoder_of(name)
    values: list[Any] = []
    for row, data in enumerate(column):
        try:
            values.append(decode(data) if decode is not None and isinstance(data, bytes) else data)
        except (ValueError, UnicodeDecodeError) as error:
            surface(error)
            got = f"{str(error)[:120]}: {bytes(data[:40])!r}"
            fix = "repair the shard, or leave the part as bytes: decode=False"
            errors.append(RecordError(f"a part {name!r} that matches its extension", got=got, fix=fix, row=row))
    if not values:
        return column
    ending = _ending(name)
    if ending in WHOLE:
        return np.array(values, np.int64)
    return stack(values) if ending == "npy" else strings(values)


def decoder_of(part: str) -> Callable[[bytes], Any] | None:
    """How a part is decoded, by its last extension; None for one that stays bytes.

    >>> decoder_of("cls")(b" 7"), decoder_of("en.txt")("é".encode()), decoder_of("pkl"), decoder_of("jpg")
    (7, 'é', None, None)
    """
    ending = _ending(part)
    if ending in TEXT:
        return lambda data: data.decode("utf-8")
    if ending in WHOLE:
        return _whole
    return {"json": _json, "npy": _npy}.get(ending)


def _ending(part: str) -> str:
    return part.rpartition(".")[2]


def _whole(data: bytes) -> int:
    if len(data) > 32:
        raise ValueError("more than a number")
    number = int(data)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError("a number past 64 bits")
    return number


def _json(data: bytes) -> Any:
    value = orjson.loads(data)
    if not shallow(value, LIMITS.json_depth):
        raise ValueError(f"JSON more than {LIMITS.json_depth} levels deep")
    try:
        return exact(value, data, "")
    except RecordError as error:
        raise ValueError(error.got) from error


def _npy(data: bytes) -> Any:
    array = read_npy(io.BytesIO(data))
    if array.dtype.kind not in "biufc":
        raise ValueError(f"an .npy file of {array.dtype}, not of numbers")
    return array
