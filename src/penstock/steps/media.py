"""Shared by the media steps: the encoded bytes of a column, errors that name the file, short descriptions.

A column holds bytes, structs `{"bytes": ..., "path": ...}` as Parquet files of images and audio have them, or the
`FilePath` that a source of ours made. Other text is never used as a file name: the data is not trusted. Images may also
be arrays of pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.columns import Columns, rows_of
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.sources.folders import FilePath
from penstock.steps.base import Context, Extent, Step
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import Picks, row_keys
from penstock.steps.replacement import locate, rows_asked

ENCODED = (bytes, bytearray, memoryview, FilePath)
Media = bytes | bytearray | memoryview | FilePath


@dataclass(frozen=True)
class MediaStep(Step):
    """A step that decodes `column` to `out`; `limits` bounds the size of one decoded file.

    `ignore`: columns that are not cut like this one on purpose. It changes no row, and so no fingerprint.
    """

    axes: ClassVar[frozenset[str]] = frozenset()
    limits: Limits = field(default=LIMITS, kw_only=True)
    ignore: str | Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        ignore: Any = self.ignore
        names = (ignore,) if isinstance(ignore, str) else tuple(ignore) if isinstance(ignore, list) else ignore
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise UsageError(f"names of columns for ignore= in .{self.name}()", got=repr(ignore), fix='ignore="x"')
        object.__setattr__(self, "ignore", names)

    @property
    def drawn(self) -> frozenset[str]:
        """The axes in which it cuts at random."""
        return self.axes if self.draws else frozenset()

    def _extent(self, column: str, *made: str) -> Extent:
        if wrong := [name for name in (column, *made) if not isinstance(name, str)]:
            raise UsageError(f"names of columns for column= and out= in .{self.name}()", got=repr(wrong[0]))
        call = f".{self.name}(column={column!r})"
        return Extent(call, self.axes, self.drawn, column, frozenset(made), frozenset(self.ignore))

    def spec(self) -> dict[str, Any]:
        plain = {name: value for name, value in super().spec().items() if name not in ("limits", "ignore")}
        return plain | {"limits": [self.limits.pixels, self.limits.audio_seconds]}

    def __str__(self) -> str:
        values = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]
        return ", ".join(f"{name}={value!r}" for name, value, usual in values if value != usual)


class Decoder(Protocol):
    """A step whose `apply` decodes the files of `column`."""

    @property
    def name(self) -> str: ...

    @property
    def column(self) -> str: ...

    def apply(self, medias: list[Media], keys: randomness.U64, columns: Columns, /) -> Columns:
        """Columns of these files; `BadRecords` names each bad one."""
        ...


D = TypeVar("D", bound=Decoder)


class DecodedMedia(ContentNode, Generic[D]):
    """Rows with the files of a column decoded; `call` is how the user names another column, with {} for it."""

    def __init__(self, child: Node, step: D, context: Context, call: str) -> None:
        super().__init__(child)
        self.step, self.call = step, call
        self.base = randomness.key(context.seed, step.name, context.place)

    def medias(self, columns: Columns) -> list[Media]:
        return payloads(columns, self.step.column, self.step.name, self.call)

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = self.child.fetch(picks)
        if not len(used):
            return Fetched({}, used)
        with rows_asked(picks, used), located(self.child, used):
            made = self.step.apply(self.medias(columns), row_keys(self.base, used), columns)
        return Fetched(made | {name: c for name, c in columns.items() if name != self.step.column}, used)


def pictures(columns: Columns, name: str, call: str) -> list[Media | NDArray[Any]]:
    """The encoded images of a column, or arrays of pixels; `BadRecords` lists rows that hold neither."""
    return _values(columns, name, "decode_images", call, (*ENCODED, np.ndarray))


def payloads(columns: Columns, name: str, verb: str, call: str) -> list[Media]:
    """The encoded files of a column; `BadRecords` lists rows that hold none.

    `call` is how the user names another column, with {} for it.

    >>> from penstock.core.columns import strings
    >>> payloads({"image": strings([b"1", {"bytes": b"2", "path": None}])}, "image", "decode_images", "")
    [b'1', b'2']
    """
    return _values(columns, name, verb, call, ENCODED)


def _values(columns: Columns, name: str, verb: str, call: str, kinds: tuple[type, ...]) -> list[Any]:
    """The values of a column, or their `bytes`; `BadRecords` lists those of other kinds."""
    found: list[Any] = []
    errors: list[RecordError] = []
    for row, value in enumerate(_column(columns, name, verb, call)):
        data = value.get("bytes") if isinstance(value, dict) else value
        if isinstance(data, kinds):
            found.append(data)
        else:
            errors.append(_not_bytes(name, value, row))
    if errors:
        raise BadRecords(errors)
    return found


def _column(columns: Columns, name: str, verb: str, call: str) -> Iterable[Any]:
    column = columns.get(name)
    if column is None and rows_of(columns):
        names = ", ".join(map(repr, columns))
        near = file_column(columns)
        fix = "name the column that holds the files" if near is None else "name it"
        raise UsageError(
            f"a column {name!r} of files in .{verb}()",
            got=f"columns {names}",
            fix=f"{fix}: {call.format('...' if near is None else repr(near))}",
        )
    return column if column is not None else ()


def file_column(columns: Columns) -> str | None:
    """The first column that holds files: bytes, or structs of bytes or a path.

    >>> from penstock.core.columns import strings
    >>> file_column({"label": np.zeros(1), "photo": strings([{"bytes": None, "path": "a.jpg"}])})
    'photo'
    """
    for name, column in columns.items():
        first = next(iter(column), None)
        if isinstance(first, ENCODED) or (isinstance(first, dict) and {"bytes", "path"} & first.keys()):
            return name
    return None


def _not_bytes(name: str, value: Any, row: int) -> RecordError:
    path = value.get("path") if isinstance(value, dict) else value
    if isinstance(path, str):
        got = f"a path: {path[:80]!r}"
        at = f"row[{name!r}]" + ("['path']" if isinstance(value, dict) else "")
        fix = (
            "a path inside data is never opened unless you name the folder that it must be in: media_root=...; or, if "
            f"you trust the data: .map(lambda row: {{**row, {name!r}: pathlib.Path({at}).read_bytes()}})"
        )
    elif isinstance(value, dict):
        got = f"a struct without bytes: {', '.join(map(str, list(value)[:5]))}"
        fix = "write the files' bytes into its field 'bytes'"
    elif isinstance(value, np.ndarray):
        got = f"a decoded array, {value.dtype} of shape {value.shape}"
        fix = "leave the step out: .map() can resample or crop decoded arrays"
    else:
        got, fix = type(value).__name__, "name the column that holds bytes with column="
    return RecordError(f"encoded bytes in column {name!r}", got=got, fix=fix, row=row)


@contextmanager
def located(node: Node, picks: Picks) -> Iterator[None]:
    """Inside, errors of bad records get their location from `node`: file, class, key, row."""
    try:
        yield
    except BadRecords as error:
        for one in error.errors:
            locate(one, node, picks)
        raise BadRecords(error.errors) from error
