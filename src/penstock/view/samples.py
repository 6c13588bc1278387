"""Samples of a target by number, as plain data: documents with tokens, records, images, recordings.

`open_samples` chooses one of three classes by what the source is. They read through the project's own sources and
never scan: a sample costs one read. Files of lines above `FRONT_BYTES`, and large compressed ones, would have to be
scanned to be counted, so only their first records are looked at, and `note` says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from penstock.core.columns import row
from penstock.core.errors import BadRecords, PenstockError, RecordError, UserCodeError
from penstock.core.sizes import size
from penstock.markup.visible import number_of
from penstock.pipeline import Pipeline
from penstock.plan.definition import Definition
from penstock.sources import json_fields, splits
from penstock.sources.base import ClassSource, Source, TokenSource
from penstock.sources.folders import MediaFolder
from penstock.sources.formats import DATASETS, Options
from penstock.sources.jsonl import JsonlFiles
from penstock.view import front
from penstock.view.documents import beginning, decoded, place
from penstock.view.media import as_text, media_kind
from penstock.view.session import Session
from penstock.view.targets import MEDIA, open_media

FRONT_BYTES, FRONT_RECORDS = 128 << 20, 5000
PACKED_BYTES = 16 << 20
TOKENS = 400  # of a document that are shown
CHARACTERS = 2000


@dataclass
class Sample:
    """One record: where it is, and either its values or why it is bad."""

    number: int
    where: str
    values: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    reason: str = ""  # the error without what is particular to this record
    brief: str = ""  # the error in a few words, for a caption
    length: float = 0
    ids: list[int] = field(default_factory=list)  # the first ids of a document
    content: bytes = b""  # what decides whether two samples are the same


class Samples(Protocol):
    """Samples by number."""

    kind: str  # "tokens", "records", "images" or "audio"
    unit: str  # of lengths
    what: str  # the plural of a sample
    note: str  # what part of the target this is, if not all of it
    source: Any  # the `Source` behind it, or None

    def __len__(self) -> int: ...

    def read(self, numbers: Sequence[int]) -> list[Sample]: ...

    def texts(self, one: Sample) -> list[str]:
        """The strings in a sample, to be searched."""
        ...

    def facts(self) -> dict[str, Any]: ...


class TokenSamples:
    """Documents of a token source; with a tokenizer their texts, token by token."""

    kind, unit, what, note = "tokens", "tokens", "documents", ""

    def __init__(self, source: TokenSource, tokenizer: Any) -> None:
        self.source: Any = source
        self.tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self.source)

    def read(self, numbers: Sequence[int]) -> list[Sample]:
        return [self._one(int(number)) for number in numbers]

    def _one(self, number: int) -> Sample:
        length, ids = beginning(self.source, number, TOKENS)
        found = Sample(number, place(self.source, number), length=length, ids=ids)
        found.content = length.to_bytes(8, "little") + np.asarray(ids, np.int64).tobytes()
        return found

    def texts(self, one: Sample) -> list[str]:
        text = decoded(self.tokenizer, one.ids)
        return [] if text is None else [text]

    def tokens(self, one: Sample) -> list[tuple[int, str]] | None:
        """The first ids, each with its text; None without a tokenizer for them."""
        return None if decoded(self.tokenizer, one.ids) is None else pieces(self.tokenizer, one.ids)

    def facts(self) -> dict[str, Any]:
        described: dict[str, Any] = self.source.describe()
        return described


class RecordSamples:
    """Records of any source, or a list of the first records of a file."""

    kind, what = "records", "records"

    def __init__(
        self, source: Source | None, first: list[dict[str, Any]] | None = None, note: str = "", tokenizer: Any = None
    ) -> None:
        self.source, self._first, self.note, self.tokenizer = source, first or [], note, tokenizer
        self.text_field: str | None = None
        self.unit = "characters"

    def __len__(self) -> int:
        return len(self._first) if self.source is None else len(self.source)

    def read(self, numbers: Sequence[int]) -> list[Sample]:
        found = self._listed(numbers) if self.source is None else self._read(self.source, numbers)
        for one in found:
            one.length = self.length(one.values)
            one.content = repr(_hashable(one.values)).encode("utf-8", "surrogatepass")
        return found

    def texts(self, one: Sample) -> list[str]:
        return _strings(one.values)

    def tokens(self, name: str, text: str) -> list[tuple[int, str]] | None:
        """The ids of a text, each with its own text; None for another field than the chosen one, or no tokenizer."""
        from penstock.tokenizers.pieces import pieces as of_ids

        if self.tokenizer is None or self.text_field not in (None, name):
            return None
        try:
            ids = self.tokenizer.encode(text).tolist()
        except PenstockError:  # a text that it cannot encode is shown as it is
            return None
        found = of_ids(self.tokenizer, ids)
        return None if found is None else list(zip(ids, found, strict=True))

    def length(self, values: dict[str, Any]) -> int:
        """Characters of the text field, or of all strings."""
        chosen = values.get(self.text_field) if self.text_field else values
        return sum(map(len, _strings(chosen)))

    def _listed(self, numbers: Sequence[int]) -> list[Sample]:
        found = []
        for number in numbers:
            entry = self._first[number]
            values = entry.get("record", {})
            values = values if isinstance(values, dict) else {"value": values}
            found.append(Sample(number, entry["where"], values, *_explained(entry.get("error", ""))))
        return found

    def _read(self, source: Source, numbers: Sequence[int]) -> list[Sample]:
        wanted = [int(n) for n in numbers]
        bad: dict[int, PenstockError] = {}
        columns: Any = {}
        good = wanted
        while good:
            try:
                columns = source.read(np.array(good, np.int64))
                break
            except BadRecords as error:
                for one in error.errors:
                    bad[good[one.row or 0]] = one
                good = [n for n in good if n not in bad]
            except (RecordError, UserCodeError) as error:
                if len(good) > 1:  # which one is not said: one by one
                    return [sample for n in wanted for sample in self._read(source, [n])]
                bad[good[0]] = error
                good = []
        rows = {number: row(columns, at) for at, number in enumerate(good)}
        if isinstance(source, JsonlFiles):  # columns are those of the first record: show each with its own fields
            rows |= _own_fields(source, wanted)
        return [
            Sample(n, _where(source, n), rows.get(n, {}), *(_explained(bad[n]) if n in bad else ("", "")))
            for n in wanted
        ]

    def facts(self) -> dict[str, Any]:
        return {} if self.source is None else self.source.describe()


class MediaSamples:
    """Images or recordings of a folder: `values` are what their headers say."""

    note = ""

    def __init__(self, source: MediaFolder) -> None:
        self.source: Any = source
        self.kind = "images" if source.kind.startswith("image") else "audio"
        self.what = "images" if self.kind == "images" else "recordings"
        self.unit = "pixels of the longer side" if self.kind == "images" else "seconds"

    def __len__(self) -> int:
        return len(self.source)

    def read(self, numbers: Sequence[int]) -> list[Sample]:
        return [self._one(int(number)) for number in numbers]

    def texts(self, one: Sample) -> list[str]:
        return [one.where]

    def _one(self, number: int) -> Sample:
        found = Sample(number, str(self.source.names[number]))
        try:
            found.content = bytes(self.source.read(np.array([number]))["bytes"][0])
            found.values, found.length = header(self.kind, found.content, found.where)
        except (BadRecords, RecordError) as error:
            found.error, found.reason = _explained(error)
            first = error.errors[0] if isinstance(error, BadRecords) else error
            found.brief = f"expected {first.expected}" + (f", got {first.got}" if first.got else "")
        if self.source.labels is not None:
            label = int(self.source.labels[number])
            found.values["class"] = self.source.classes[label] if self.source.classes else label
        return found

    def facts(self) -> dict[str, Any]:
        described: dict[str, Any] = self.source.describe()
        return described


def header(kind: str, data: bytes, where: str) -> tuple[dict[str, Any], float]:
    """What the header of an image or a recording says, and its length: the longer side, or seconds."""
    from penstock.codecs.audio.probe import probe as probe_audio
    from penstock.codecs.image.probe import probe as probe_image

    if kind == "images":
        image = probe_image(data, where=where)
        values = {"format": image.format, "width": image.width, "height": image.height}
        return values | {"size": size(len(data))}, max(image.width, image.height)
    sound = probe_audio(data, where=where)
    seconds = round(max(0.0, sound.seconds), 3)
    values = {"format": sound.format, "sample rate": sound.sample_rate, "channels": sound.channels}
    return values | {"seconds": seconds, "size": size(len(data))}, seconds


def open_samples(session: Session) -> Samples:
    """The samples of a session."""
    return session.keep("samples", lambda: _open(session))


def _open(session: Session) -> Samples:
    from penstock.tokenizers import as_tokenizer

    name = session.choices.tokenizer
    if session.pipeline is not None:
        return _of_source(_rows(session.pipeline), as_tokenizer(name) if name else None, session)
    found, path, choices = session.format, session.path or "", session.choices
    assert found is not None
    paths = [path]
    if choices.split and found not in DATASETS and found.name not in MEDIA:
        paths = splits.split_files(path, choices.split, suffixes=found.suffixes)
    if found.name in MEDIA:
        return _of_source(
            open_media(paths, found, choices.storage_options), as_tokenizer(name) if name else None, session
        )
    if found.name in ("jsonl", "text") and (first := _front(paths, session)) is not None:
        return first
    many = os.path.isdir(path) or len(paths) > 1
    options = Options(
        field=choices.field or "text", every_field=True, by=choices.by or ("file" if many else "line"),
        split=choices.split or "train", dtype=choices.dtype, eos_id=choices.split_id,
        storage_options=choices.storage_options,
    )  # fmt: skip
    source = found.open(paths[0] if found in DATASETS else paths, options)
    return _of_source(source, as_tokenizer(name) if name else _own_tokenizer(source), session)


def _front(paths: list[str], session: Session) -> RecordSamples | None:
    """The first records, if the files are too large to be counted at once."""
    assert session.format is not None
    if any("://" in path for path in paths):
        return None
    files = splits.data_files(paths, session.format.suffixes)
    total = sum(os.path.getsize(file) for file in files)
    packed = sum(os.path.getsize(file) for file in files if file.endswith((".gz", ".zst")))
    if total <= FRONT_BYTES and packed <= PACKED_BYTES:
        return None
    by = session.choices.by or ("file" if len(files) > 1 else "line")
    if session.format.name == "jsonl":
        found = front.first_json_lines(files, FRONT_RECORDS)
    else:
        found = front.first_texts(files, by, FRONT_RECORDS)
    note = f"the first {number_of(len(found), 'record')} of {size(total)}: larger files are not scanned"
    from penstock.tokenizers import as_tokenizer

    name = session.choices.tokenizer
    return _with_field(RecordSamples(None, found, note, as_tokenizer(name) if name else None), session)


def _of_source(source: Any, tokenizer: Any, session: Session) -> Samples:
    if isinstance(source, TokenSource):
        return TokenSamples(source, tokenizer)
    if isinstance(source, MediaFolder):
        return MediaSamples(source)
    return _with_field(RecordSamples(source, tokenizer=tokenizer), session)


def _with_field(samples: RecordSamples, session: Session) -> RecordSamples:
    samples.text_field = session.choices.field
    samples.unit = f"characters of {samples.text_field!r}" if samples.text_field else "characters"
    return samples


def _rows(pipeline: Pipeline) -> Any:
    """What a pipeline begins with; of several that were combined their rows, of an endless mixture the first ones."""
    definition = pipeline.definition
    if isinstance(definition.origin, Source):
        return definition.origin
    combined = Pipeline(Definition(definition.origin))
    rows = combined.rows()
    return combined.take(FRONT_RECORDS).rows() if rows.size is None else rows


def _own_tokenizer(source: Any) -> Any:
    """The tokenizer of a store of bytes, which needs no file."""
    from penstock.tokenizers import as_tokenizer

    known = source.describe().get("tokenizer") if isinstance(source, TokenSource) else None
    return as_tokenizer("bytes") if known and known.get("kind") == "bytes" else None


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[tuple[int, str]]:
    """Each id with its own text. Characters that span tokens are shown at the token that completes them."""
    found: list[tuple[int, str]] = []
    open_ids: list[int] = []
    for number in ids:
        open_ids.append(int(number))
        text = str(tokenizer.decode(open_ids))
        if text.endswith("\ufffd") and len(open_ids) < 4:
            found.append((int(number), ""))
            continue
        found.append((int(number), text))
        open_ids = []
    if open_ids and found:
        found[-1] = (found[-1][0], str(tokenizer.decode(open_ids)))
    return found


def class_names(samples: Samples) -> dict[str, tuple[str, ...]]:
    """The names of classes by the column that holds their numbers."""
    source = samples.source
    return dict(source.class_names) if isinstance(source, ClassSource) else {}


def _explained(error: Any) -> tuple[str, str]:
    """An error as text, and the part that is common to records that are bad in the same way."""
    if not error:
        return "", ""
    if isinstance(error, str):
        return error, error.split("\n", maxsplit=1)[0].partition(", got")[0][:200]
    return str(error), f"expected {error.expected}"


def _where(source: Source, number: int) -> str:
    if isinstance(source, TokenSource):
        return place(source, number)
    try:
        facts = source.locate(number)
    except (RecordError, BadRecords, UserCodeError):
        return f"record {number:,}"
    kind = next((name for name in ("row", "line", "key", "record") if name in facts), None)
    known = [str(facts["file"])] if "file" in facts else []
    return ", ".join([*known, f"{kind} {facts[kind]}"] if kind else [*known, f"record {number:,}"])


def _own_fields(source: JsonlFiles, numbers: list[int]) -> dict[int, dict[str, Any]]:
    """The fields that each line itself has, of the lines that are JSON objects."""
    found: dict[int, dict[str, Any]] = {}
    data, bad = source.files.fetch(np.array(numbers, np.int64))
    failed = {error.row for error in bad}
    for at, (number, line) in enumerate(zip(numbers, data, strict=True)):
        if at not in failed:
            with suppress(RecordError):  # the source says what is wrong with it
                found[number] = json_fields.load(bytes(line), "")
    return found


def _strings(value: Any) -> list[str]:
    """All strings in a value, in lists and dicts too; bytes that are text count, as in tar shards."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, bytes):
        text = None if media_kind(value) else as_text(value)
        return [] if text is None else [text]
    if isinstance(value, dict):
        return [text for part in value.values() for text in _strings(part)]
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        return [text for part in value for text in _strings(part)]
    return []


def _hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.shape, value.dtype.str, value.tobytes() if value.dtype != object else repr(value.tolist()))
    if isinstance(value, dict):
        return {name: _hashable(part) for name, part in value.items()}
    return value
