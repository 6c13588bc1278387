"""`pair`: media and captions joined by key, before anything is decoded.

Keys are matched once, when the pair is made: one dictionary entry per caption, and for folders and tar shards no file
is opened (their keys are their names). A pair is a source like any other: random access, a fingerprint of both sides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, UsageError
from penstock.core.hashing import content_id
from penstock.sources.arrays import Arrays
from penstock.sources.base import ClassSource, NamedSource, Source

Missing = Literal["error", "drop"]
_CHUNK = 4096


class Pairs:
    """Records of `media` with those of `captions` that have the same key.

    >>> media = Arrays({"key": ["a", "b", "c"], "bytes": [b"1", b"2", b"3"]})
    >>> pairs = Pairs.of(media, {"c": "a cat", "a": "an ape"}, missing="drop")
    >>> pairs.read(np.array([1]))["text"].tolist(), len(pairs)
    (['a cat'], 2)
    """

    def __init__(self, media: Source, captions: Source, left: NDArray[np.int64], right: NDArray[np.int64]) -> None:
        self.media, self.captions, self.left, self.right = media, captions, left, right

    @classmethod
    def of(
        cls,
        media: Source,
        captions: Source | Mapping[str, str],
        *,
        on: str = "key",
        key: Callable[[str], str] | None = None,
        missing: Missing = "error",
    ) -> Pairs:
        """Matches keys: of `media` by name (or its column `on`), of `captions` by dictionary key or column `on`.

        `key` makes a key out of a media file's path; without it that is the path without its extension, or just the
        file's name without it where the captions say so. Captions without media are left alone; media without
        a caption are an error, or dropped.
        """
        if missing not in ("error", "drop"):
            raise UsageError('missing="error" or "drop" in penstock.pair()', got=repr(missing))
        if isinstance(captions, Mapping):
            captions = Arrays({on: list(captions), "text": list(captions.values())})
        places = _places(captions, on)
        left: list[int] = []
        right: list[int] = []
        for number, name in enumerate(_names(media, on)):
            found = next((places[k] for k in _candidates(name, key) if k in places), None)
            if found is not None:
                left.append(number)
                right.append(found)
            elif missing == "error":
                raise UsageError(
                    "a caption for every file in penstock.pair()",
                    got=f"none for {name!r}",
                    where=f"{len(places):,} captions, for example {next(iter(places), None)!r}",
                    fix='missing="drop", or key=function of the path that returns the caption\'s key',
                )
        if not left:
            raise UsageError("media and captions with keys in common", got="none", fix="key=function of the path")
        return cls(media, captions, np.array(left, np.int64), np.array(right, np.int64))

    def __len__(self) -> int:
        return len(self.left)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """Columns of both; where both have a column of the same name, the media's."""
        errors = []
        parts: list[Columns] = []
        for source, places in ((self.captions, self.right), (self.media, self.left)):
            try:
                parts.append(source.read(places[indices]))
            except BadRecords as error:
                errors += error.errors
        if errors:
            raise BadRecords(sorted(errors, key=lambda error: error.row))
        return parts[0] | parts[1]

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """Those of both; where both have a column of the same name, the media's."""
        both = [part.class_names for part in (self.captions, self.media) if isinstance(part, ClassSource)]
        return {name: classes for part in both for name, classes in part.items()}

    def fingerprint(self) -> str:
        return content_id(["pairs", self.media.fingerprint(), self.captions.fingerprint(), self.left, self.right])

    def describe(self) -> dict[str, Any]:
        kinds = [str(source.describe().get("kind")) for source in (self.media, self.captions)]
        return {"kind": f"{kinds[0]} with {kinds[1]}", "records": len(self), "unpaired": len(self.media) - len(self)}

    def locate(self, index: int) -> dict[str, Any]:
        caption = self.captions.locate(int(self.right[index]))
        return self.media.locate(int(self.left[index])) | {"caption": caption}


def _candidates(name: str, key: Callable[[str], str] | None) -> Iterable[str]:
    if key is not None:
        return (key(name),)
    base = name.rpartition("/")[2]
    return (name, os.path.splitext(name)[0], base, os.path.splitext(base)[0])


def _names(source: Source, on: str) -> Iterable[str]:
    """The name of every record: of folders and tar shards without reading them."""
    return source.record_names() if isinstance(source, NamedSource) else _column(source, on)


def _column(source: Source, on: str) -> Iterable[str]:
    for start in range(0, len(source), _CHUNK):
        columns = source.read(np.arange(start, min(start + _CHUNK, len(source))))
        if on not in columns:
            raise UsageError(
                f"a column {on!r} of keys in penstock.pair()", got=f"columns {', '.join(columns)}", fix='on="..."'
            )
        yield from (str(value) for value in columns[on])


def _places(captions: Source, on: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for number, name in enumerate(_column(captions, on)):
        if places.setdefault(name, number) != number:
            raise UsageError(
                "one caption for each key in penstock.pair()",
                got=f"two for {name!r}: records {places[name]} and {number}",
                fix="join them first, or pair the other way round",
            )
    return places
