"""Where pipelines of media begin: folders of images or audio, tar shards. Nothing is decoded here, only listed.

`exclude=` leaves records out: paths, keys, record numbers, or what another run put into its ledger. The rest is
numbered anew, so it is another dataset with another order; holes that keep the order are `.skip_errors()`'s.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._errors import UsageError
from penstock._hash import content_id
from penstock._ledger import Entry, Ledger
from penstock.columns import Columns, strings
from penstock.pipeline import Pipeline
from penstock.read import OnError, Paths, _guarded
from penstock.sources.base import Source
from penstock.sources.folders import AudioFolder, ImageFolder, Labels, MediaFolder
from penstock.sources.names import Names
from penstock.sources.recordings import Recordings
from penstock.sources.tar import TarShards
from penstock.steps.media import FilePath
from penstock.steps.pairs import Missing, Pairs

Exclude = Ledger | Iterable[int | str | os.PathLike[str] | Entry | Mapping[str, Any]] | None


def read_images(
    root: str | os.PathLike[str],
    labels: Labels = "folder",
    *,
    exclude: Exclude = None,
    on_error: OnError = "raise",
    budget: int | float | None = None,
    **options: Any,
) -> Pipeline:
    """The image files below a folder: `bytes`, `path` and, unless `labels=None`, a `label`.

    `labels` says where the class comes from: "folder", "name", a function of the path, or None. `exclude` takes paths,
    record numbers, or the ledger of another run. `options` are those of `sources.folders.ImageFolder`.
    """
    return _opened(ImageFolder(root, labels, **options), exclude, on_error, budget)


def read_audio(
    root: str | os.PathLike[str],
    labels: Labels = "folder",
    *,
    sample_rate: int | None = None,
    exclude: Exclude = None,
    on_error: OnError = "raise",
    budget: int | float | None = None,
    **options: Any,
) -> Pipeline:
    """The audio files below a folder: `audio` (where the file is, for `.decode_audio()` to seek in), `path`, `label`.

    With `sample_rate` files are decoded whole as they are read: `audio` is ragged, `.bucket()` and `.batch_tokens()`
    (in samples) plan batches by duration. Other arguments are those of `read_images`.
    """
    if sample_rate is not None:
        return _opened(Recordings(root, labels, sample_rate=sample_rate, **options), exclude, on_error, budget)
    return _opened(AudioPaths(root, labels, **options), exclude, on_error, budget)


def read_tar(
    paths: Paths,
    *,
    decode: bool = True,
    exclude: Exclude = None,
    on_error: OnError = "raise",
    budget: int | float | None = None,
    **options: Any,
) -> Pipeline:
    """Tar shards in the WebDataset layout: `key`, and a column for each part, named by its extension.

    Parts of text, JSON and whole numbers (`.txt`, `.json`, `.cls`...) come decoded, see `steps.decode_parts`; all
    others, and with `decode=False` these too, as bytes: `.decode_images(224, column="jpg")`. `exclude` takes keys,
    record numbers, or the ledger of another run. `options` are those of `sources.tar.TarShards`.
    """
    shards = TarShards(paths, **options)
    pipeline = Pipeline(_excluded(shards, exclude))
    if decode:
        pipeline = pipeline.decode_parts()
    return _maybe_skipping(pipeline, on_error, budget)


def _opened(source: MediaFolder, exclude: Exclude, on_error: OnError, budget: int | float | None) -> Pipeline:
    return _guarded(_excluded(source, exclude), on_error, budget)


class AudioPaths(AudioFolder):
    """Audio files as places: the file itself is opened where it is decoded, which knows the seconds wanted."""

    def read(self, indices: NDArray[np.int64]) -> Columns:
        root = os.path.join(self.root, "")
        paths = [self.names[int(i)] for i in indices]
        columns: Columns = {"audio": strings([FilePath(f"{root}{path}") for path in paths]), "path": strings(paths)}
        if self.labels is not None:
            columns["label"] = self.labels[indices]
        return columns


class Without:
    """A source without some of its records.

    >>> from penstock.sources.arrays import Texts
    >>> source = Without(Texts(["a", "b", "c"]), np.array([1]))
    >>> len(source), source.read(np.array([1]))["text"].tolist(), source.locate(1)
    (2, ['c'], {'row': 2})
    """

    def __init__(self, source: Source, excluded: NDArray[np.int64]) -> None:
        self.source, self.excluded = source, excluded
        self.kept = _left(len(source), excluded)

    def __len__(self) -> int:
        return len(self.kept)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        return self.source.read(self.kept[indices])

    def fingerprint(self) -> str:
        return content_id(["without", self.source.fingerprint(), self.excluded])

    def describe(self) -> dict[str, Any]:
        return self.source.describe() | {"records": len(self), "excluded": len(self.excluded)}

    def locate(self, index: int) -> dict[str, Any]:
        """`row` is the number in the whole source, so that a ledger's numbers stay good for `exclude=`."""
        number = int(self.kept[index])
        return self.source.locate(number) | {"row": number}


def _excluded(source: MediaFolder | TarShards, exclude: Exclude) -> Source:
    if exclude is None:
        return source
    if isinstance(exclude, str | os.PathLike):
        raise UsageError("exclude= as a list", got=repr(exclude), fix=f"exclude=[{exclude!r}]")
    items = exclude.entries if isinstance(exclude, Ledger) else list(exclude)
    if not items:
        return source
    numbers = _Numbers(source)
    excluded = np.unique(np.array([numbers.of(item) for item in items], np.int64))
    return Without(source, excluded) if isinstance(source, TarShards) else _fewer_files(source, excluded)


def _fewer_files(folder: MediaFolder, excluded: NDArray[np.int64]) -> MediaFolder:
    """The folder as if some files were not in it; the classes keep their numbers."""
    left = _left(len(folder), excluded)
    out = copy.copy(folder)
    out.names = Names(folder.names[int(i)] for i in left)
    out.labels = None if folder.labels is None else folder.labels[left]
    return out


def _left(records: int, excluded: NDArray[np.int64]) -> NDArray[np.int64]:
    left = np.delete(np.arange(records), excluded)
    if not len(left):
        raise UsageError("some records left", got=f"all {records} in exclude=", fix="exclude fewer")
    return left


class _Numbers:
    """Finds record numbers by whatever names a record."""

    def __init__(self, source: MediaFolder | TarShards) -> None:
        self.source = source
        self._by_name: dict[str, int] = {}

    def of(self, item: Any) -> int:
        if isinstance(item, Mapping):
            item = Entry(str(item.get("file", "")), item.get("record"), str(item.get("reason", "")))
        if isinstance(item, Entry):
            if isinstance(self.source, TarShards):
                return self._checked(item.record, item.file)
            return self._named(item.file)
        if isinstance(item, str | os.PathLike):
            return self._named(os.fspath(item))
        return self._checked(item, "")

    def _checked(self, number: Any, file: str) -> int:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < len(self.source):
            raise UsageError(f"record numbers from 0 to {len(self.source) - 1} in exclude=", got=repr(number))
        place = self.source.locate(int(number))["file"]
        if file and file != place:
            raise UsageError(
                f"record {number} in {file}, as the ledger says", got=place, fix="give the ledger's shards"
            )
        return int(number)

    def _named(self, name: str) -> int:
        source = self.source
        if not self._by_name:
            names = source.keys if isinstance(source, TarShards) else source.names
            self._by_name = {known: number for number, known in enumerate(names)}
        if not isinstance(source, TarShards) and os.path.isabs(name):
            name = os.path.relpath(name, source.root).replace(os.sep, "/")
        if name not in self._by_name:
            what = "key" if isinstance(source, TarShards) else "file of the folder"
            raise UsageError(f"exclude= to name a {what}", got=repr(name), fix="paths relative to the folder, or keys")
        return self._by_name[name]


def _maybe_skipping(pipeline: Pipeline, on_error: OnError, budget: int | float | None) -> Pipeline:
    if on_error not in ("raise", "skip"):
        raise UsageError('on_error="raise" or "skip"', got=repr(on_error), fix='on_error="skip", budget=100')
    return pipeline.skip_errors(budget) if on_error == "skip" else pipeline


def pair(
    media: Pipeline,
    captions: Pipeline | Mapping[str, str],
    *,
    on: str = "key",
    key: Callable[[str], str] | None = None,
    missing: Missing = "error",
) -> Pipeline:
    """Media with their captions, matched by key: `pair(read_images("photos", None), {"001": "a cat"})`.

    Captions are a dict, or a pipeline with a column `on`. A file's key is its path without the extension, or its bare
    name; `key` is a function of the path where that is not so. Steps come after the pair.
    """
    if media.definition.steps or not isinstance(media.definition.origin, Source):
        raise UsageError("a plain source of media in pair()", got="one with steps", fix="pair first, then decode")
    known = captions if isinstance(captions, Mapping) else captions.rows()
    return Pipeline(Pairs.of(media.definition.origin, known, on=on, key=key, missing=missing))
