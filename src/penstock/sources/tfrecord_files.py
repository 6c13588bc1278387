"""TFRecord files of tf.train.Example or SequenceExample as a source: features by name, without TensorFlow.

A feature's type is that of the first records: one value in each is a number or bytes, anything else a list. `types`
says it where they do not show it. Every record is held to it, so that a column has one dtype in every batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core.columns import Column, Columns, Ragged, strings
from penstock.core.errors import DataError, RecordError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.sources import splits
from penstock.sources.cutting import Piece
from penstock.sources.formats import FORMATS, Options
from penstock.sources.json_fields import check_types
from penstock.sources.line_errors import bare, place_of
from penstock.sources.line_source import LineSource
from penstock.sources.lines import Chunk
from penstock.sources.ranges import Cursor, Range
from penstock.sources.tf_example import Example, Kind, NotExample, Values, parse
from penstock.sources.tfrecord_frames import FrameFiles, payload
from penstock.storage import filesystem

TYPES = ("int", "float", "bytes", "str", "ints", "floats", "bytes_list", "str_list")
_SUFFIXES = FORMATS["tfrecord"].suffixes
_SAMPLED, _SAMPLED_BYTES = 100, 8 << 20


class FeatureType(NamedTuple):
    """What a column holds: one value of a kind, a list, or an array of this shape, in each record or in each step."""

    kind: Kind
    many: bool
    text: bool = False
    shape: tuple[int, ...] | None = None
    steps: bool = False  # a list of features, of a SequenceExample

    @property
    def title(self) -> str:
        if self.shape is not None:
            return f"{int(np.prod(self.shape))} {self.kind}s" + (" in each step" if self.steps else "")
        return f"a list of {self.kind}s" if self.many else f"one {self.kind}" if self.kind != "bytes" else "one value"


def open_path(paths: filesystem.Paths, options: Options) -> TFRecordFiles:
    """The opener of the registry."""
    field, opened = options.field, options.storage_options
    if options.every_field:
        return TFRecordFiles(paths, text=field, storage_options=opened)
    return TFRecordFiles(paths, [field], types={field: "str"}, text=field, storage_options=opened)


class TFRecordFiles(LineSource):
    """TFRecord files with the same features. `text` is the feature that `iterate` reads as UTF-8."""

    files: FrameFiles

    def __init__(
        self, paths: filesystem.Paths, features: Sequence[str] | None = None, *,
        types: Mapping[str, str] | None = None, shapes: Mapping[str, Sequence[int]] | None = None,
        defaults: Mapping[str, Any] | None = None, parse_examples: bool = True, text: str = "text",
        limits: Limits = LIMITS, storage_options: filesystem.Options = None,
    ) -> None:  # fmt: skip
        self.text, self.parsed = text, parse_examples
        self.defaults = dict(defaults or {})
        self.files = FrameFiles(paths, limits=limits, storage_options=storage_options, suffixes=_SUFFIXES)
        splits.refuse_several(paths, self.paths)
        self.features: dict[str, FeatureType] = {}
        if parse_examples:
            self._choose(_names(features), dict(types or {}), _shapes(shapes or {}))
        elif features or types or shapes or defaults:
            raise UsageError(
                "no features where records are not parsed", got="features=, types=, shapes= or defaults=",
                where=self.paths[0], fix="leave them out, or leave out parse=False",
            )  # fmt: skip

    # Which features there are, and of which type.

    def _choose(self, wanted: list[str] | None, types: dict[str, str], shapes: dict[str, tuple[int, ...]]) -> None:
        check_types(types, TYPES)
        seen = self._sample()
        names = sorted(seen) if wanted is None else wanted
        names += [name for name in types if wanted is None and name not in seen]
        for said in (types, shapes, self.defaults):
            if unknown := [name for name in said if name not in names]:
                raise self._unknown(unknown[0], names)
        for name in names:
            if name not in seen and name not in types:
                raise self._unknown(name, sorted(seen))
            found = _type_of(name, seen.get(name, []), types.get(name), self.paths[0])
            self.features[name] = _shaped(name, found, shapes.get(name))
        if not names:
            raise DataError("records with at least one feature", got="none", where=self.paths[0], fix=_RAW)
        self._wanted = frozenset(name.encode() for name in names)
        self.defaults = {name: _default(name, value, self.features[name]) for name, value in self.defaults.items()}

    def _unknown(self, name: str, known: Sequence[str]) -> DataError:
        return DataError(
            f"a feature {name!r}", got=", ".join(map(repr, known[:20])) or "no features", where=self.paths[0],
            fix=f"name one of these; types={{{name!r}: 'ints'}} reads one that the first records do not have",
        )  # fmt: skip

    def _sample(self) -> dict[str, list[Values | list[Values] | None]]:
        """The values of each feature in the first records that can be read; None where a record has none."""
        examples: list[Example] = []
        held, failed = 0, None
        for chunk in self.files.chunks(_raw, size=1 << 16):
            for record in chunk.texts:
                try:
                    examples.append(self._example(_frame_bytes(record), self.paths[0], None))
                except RecordError as error:
                    failed = error
                    continue
                held += len(record)
            if len(examples) >= _SAMPLED or held >= _SAMPLED_BYTES:
                break
        if not examples:
            raise failed or DataError(
                "at least one record", got="none", where=self.paths[0], fix="pass files with records"
            )
        names = dict.fromkeys(name for example in examples for name in example)
        return {name: [example.get(name) for example in examples[:_SAMPLED]] for name in names}

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.features) if self.parsed else ["bytes"]

    @property
    def text_column(self) -> str | None:
        """The feature that `iterate` reads."""
        found = self.features.get(self.text)
        return self.text if found is not None and found.kind == "bytes" and not found.many else None

    # Records.

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """One column per feature; `bytes` where records are not parsed."""
        rows = self._parsed(indices, self._values)
        if not self.parsed:
            return {"bytes": strings([row[0] for row in rows])}
        return {name: _column([row[i] for row in rows], kind) for i, (name, kind) in enumerate(self.features.items())}

    def _values(self, frame: bytes, where: str) -> list[Any]:
        if not self.parsed:
            return [payload(frame, where)]
        example = self._example(frame, where, self._wanted)
        return [_held(name, kind, example.get(name), self.defaults) for name, kind in self.features.items()]

    def _example(self, frame: bytes, where: str, wanted: frozenset[bytes] | None) -> Example:
        data = payload(frame, where)
        try:
            return parse(data, wanted)
        except NotExample as error:
            raise RecordError("a tf.train.Example or SequenceExample", got=str(error), where=where, fix=_RAW) from error

    # Texts in one pass.

    def iterate(self, start: Cursor | None = None, part: Range | None = None) -> Iterator[Chunk]:
        """The texts of the feature `text` in file order; `start` is the cursor of an earlier chunk."""
        if self.text_column is None:
            raise UsageError(
                f"a feature {self.text!r} of one text in each record", got=", ".join(self.columns[:20]),
                where=self.paths[0], fix="name it: text=..., or field=... in tokenize() and prepare()",
            )  # fmt: skip
        return self.files.chunks(self._parse_texts, start, part=part)

    def _parse_texts(self, piece: Piece, path: str) -> tuple[list[str], list[tuple[int, RecordError]]]:
        texts: list[str] = []
        bad: list[tuple[int, RecordError]] = []
        kind, wanted = self.features[self.text]._replace(text=True), frozenset([self.text.encode()])
        for i, (start, end) in enumerate(zip(piece.starts.tolist(), piece.ends.tolist(), strict=True)):
            where = place_of({"file": path, "record": int(piece.lines[i]) - 1, "offset": piece.offset + start})
            try:
                example = self._example(piece.data[start:end], where, wanted)
                texts.append(_held(self.text, kind, example.get(self.text), self.defaults))
            except RecordError as error:
                error.where = where
                bad.append((i, bare(error)))
        return texts, bad

    def settings(self) -> tuple[Any, ...]:
        how = [[name, *kind] for name, kind in self.features.items()]
        defaults = [[name, *_plain(value)] for name, value in sorted(self.defaults.items())]
        return "tfrecord", orjson.dumps([self.parsed, how, defaults])

    def describe(self) -> dict[str, Any]:
        return {**self.files.describe("TFRecord"), "columns": self.columns}

    def __repr__(self) -> str:
        return f"TFRecordFiles({len(self.paths)} files: {', '.join(self.columns)})"


_RAW = "parse=False reads records of another kind as bytes, for .map() to parse"


def _raw(piece: Piece, _path: str) -> tuple[list[str], list[tuple[int, RecordError]]]:
    pairs = zip(piece.starts.tolist(), piece.ends.tolist(), strict=True)
    return [piece.data[start:end].decode("latin-1") for start, end in pairs], []


def _frame_bytes(record: str) -> bytes:
    return record.encode("latin-1")


def _names(features: Sequence[str] | None) -> list[str] | None:
    if features is None:
        return None
    listed = [features] if isinstance(features, str) else list(features)
    if not listed or len(set(listed)) != len(listed) or not all(isinstance(name, str) for name in listed):
        raise UsageError("features= as different names", got=repr(listed)[:200], fix='features=["image", "label"]')
    return listed


def _shapes(shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else (shape,)
        if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes):
            raise UsageError("shapes= of whole numbers above 0", got=f"{name}={shape!r}", fix="shapes={'x': (28, 28)}")
        found[name] = sizes
    return found


def _type_of(name: str, seen: Sequence[Values | list[Values] | None], said: str | None, where: str) -> FeatureType:
    """The type of a feature by its first records, or as `types` says."""
    steps = any(isinstance(value, list) for value in seen)
    if said is not None:
        kind: Any = {"int": "int", "flo": "float", "byt": "bytes", "str": "bytes"}[said[:3]]
        return FeatureType(kind, said in TYPES[4:], said.startswith("str"), None, steps)
    flat = [one for value in seen for one in (value if isinstance(value, list) else [value]) if one is not None]
    kinds = {one.kind for one in flat if len(one)} or {one.kind for one in flat if one.kind}  # an empty one says less
    if len(kinds) != 1:
        raise DataError(
            f"one type of feature {name!r} in the first {len(seen)} records",
            got=" and ".join(sorted(kinds)) or "no value in any", where=where,
            fix=f"say it: types={{{name!r}: 'ints'}}, or read others: features=[...]",
        )  # fmt: skip
    one_each = all(value is not None and not isinstance(value, list) and len(value) == 1 for value in seen)
    return FeatureType(kinds.pop(), not one_each, steps=steps)


def _shaped(name: str, found: FeatureType, shape: tuple[int, ...] | None) -> FeatureType:
    if shape is None:
        return found
    if found.kind == "bytes":
        raise UsageError("shapes= of features with numbers", got=f"{name!r}, of bytes", fix="decode it in .map()")
    return found._replace(shape=shape, many=True)


def _default(name: str, value: Any, kind: FeatureType) -> Any:
    """A default as the column holds it."""
    good = kind.steps is False and (not kind.many or kind.shape is not None)
    if good and kind.kind == "bytes":
        good = isinstance(value, str if kind.text else bytes)
    elif good:
        array = np.asarray(value)
        fits = array.dtype.kind in "iu" or (kind.kind == "float" and array.dtype.kind == "f")
        good = fits and array.shape in ((), kind.shape or ())
        value = np.full(kind.shape or (), array, _DTYPES[kind.kind]) if good else value
    if not good:
        raise UsageError(
            f"defaults= for features of one value or of a shape, of their type: {kind.title} in {name!r}",
            got=repr(value)[:80], fix="a list that a record does not have is empty without it",
        )  # fmt: skip
    return value


def _plain(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.tolist()]
    return ["bytes", value.hex()] if isinstance(value, bytes) else ["str", value]


_DTYPES: dict[Kind, type[np.generic]] = {"int": np.int64, "float": np.float32}


def _held(name: str, kind: FeatureType, found: Values | list[Values] | None, defaults: Mapping[str, Any]) -> Any:
    """The value of one record as its column holds it."""
    if kind.steps:
        steps = found if isinstance(found, list) else [] if found is None else [found]
        return _stepped(name, kind, steps)
    if isinstance(found, list):
        raise RecordError(f"feature {name!r} in the context, as in the first records", got="a list of features")
    if found is None or not len(found):
        if name in defaults:
            return defaults[name]
        if not kind.many:
            raise RecordError(
                f"{kind.title} in feature {name!r}", got="none" if found is None else "an empty list",
                fix=f"repair the record, or name what stands for it: defaults={{{name!r}: ...}}",
            )  # fmt: skip
        items: Any = [] if kind.kind == "bytes" else np.empty(0, _DTYPES[kind.kind])
    elif found.kind != kind.kind:
        raise RecordError(
            f"feature {name!r} of type {kind.kind}", got=f"{found.kind}s",
            fix=f"say which type it has, where it has one: types={{{name!r}: {_plural(found.kind, kind.text)!r}}}",
        )  # fmt: skip
    else:
        items = found.items
    if kind.shape is not None:
        return _reshaped(name, kind, items, kind.shape)
    if not kind.many and len(items) != 1:
        raise RecordError(
            f"{kind.title} in feature {name!r}", got=f"{len(items)} values",
            fix=f"read it as lists: types={{{name!r}: {_plural(kind.kind, kind.text)!r}}}",
        )  # fmt: skip
    if kind.kind == "bytes" and kind.text:
        items = [_text(name, item) for item in items]
    return items if kind.many else items[0]


def _plural(kind: Kind, text: bool) -> str:
    """The name in `types` of lists of a kind."""
    return f"{kind}s" if kind != "bytes" else "str_list" if text else "bytes_list"


def _stepped(name: str, kind: FeatureType, steps: Sequence[Values]) -> Any:
    """The values of all steps: one of each, or an array of each where a shape is said."""
    if wrong := [step.kind for step in steps if len(step) and step.kind != kind.kind]:
        raise RecordError(f"steps of feature {name!r} of type {kind.kind}", got=f"{wrong[0]}s")
    each = int(np.prod(kind.shape)) if kind.shape is not None else 1
    if uneven := [len(step) for step in steps if len(step) != each]:
        raise RecordError(
            f"{each} value{'s' * (each > 1)} in each step of feature {name!r}", got=f"{uneven[0]}",
            fix=f"say how many there are: shapes={{{name!r}: ({uneven[0] or 1},)}}",
        )  # fmt: skip
    if kind.kind == "bytes":
        return [_text(name, step.items[0]) if kind.text else step.items[0] for step in steps]
    values = [step.items for step in steps]
    array = np.concatenate(values) if values else np.empty(0, _DTYPES[kind.kind])
    return array if kind.shape is None else array.reshape(len(steps), *kind.shape)


def _reshaped(name: str, kind: FeatureType, items: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if len(items) != np.prod(shape):
        raise RecordError(
            f"{kind.title} in feature {name!r}, for the shape {shape}", got=f"{len(items)}",
            fix="repair the record, or leave the feature out of shapes=",
        )  # fmt: skip
    return items.reshape(shape)


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RecordError(
            f"text in UTF-8 in feature {name!r}", got=f"byte 0x{data[error.start]:02x} at {error.start}",
            fix=f"read it as it is: types={{{name!r}: 'bytes'}}",
        ) from error  # fmt: skip


def _column(values: list[Any], kind: FeatureType) -> Column:
    if kind.kind == "bytes":
        return strings(values)
    dtype = _DTYPES[kind.kind]
    if kind.shape is None:
        return Ragged.of(values, dtype) if kind.many else np.array(values, dtype)
    if kind.steps:  # arrays of as many rows as a record has steps
        return strings(values)
    return np.stack(values) if values else np.empty((0, *kind.shape), dtype)
