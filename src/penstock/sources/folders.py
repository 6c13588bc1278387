"""Folders of media files as a source: one file, one record, in the order of their names.

Opening lists names and nothing else: 100,000 files take a fraction of a second and about their names' length in memory.
Reading returns the encoded bytes; a later step decodes them, once the crop or the slice is known. Only regular files
are read, each checked against `limits.record_bytes` before it is. A file that was deleted after the listing, or that
the system cannot read, raises `StorageError` in any error policy: the batch would otherwise depend on the moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, strings
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.hashing import content_id
from penstock.core.limits import LIMITS, Limits
from penstock.core.os_errors import storage_errors
from penstock.core.read_budget import spend
from penstock.sources import media_objects, media_paths, splits
from penstock.sources.file_listing import FileSizes, Run, list_files
from penstock.sources.formats import AUDIO_SUFFIXES, IMAGE_SUFFIXES, VIDEO_SUFFIXES
from penstock.sources.names import Names
from penstock.storage import filesystem
from penstock.storage.small_files import Arena, read_whole

Labels = str | Callable[[str], str | int] | None
Paths = media_paths.Paths

_SAMPLED_FILES = 256
_SAMPLED_BYTES = 4096


class MediaFolder:
    """Files below `root` that end in one of `suffixes`, sorted by relative path; or the files of a list, in its order.

    `labels` says where a class comes from: "folder" (the first folder of the path), "name" (the file name up to the
    first "_", "-" or "."), a function of the relative path that returns a class name or a number, or None for no
    labels. Class names are numbered in sorted order.

    A record is `bytes`, `path` (relative, with "/") and, with labels, `label` (int64).

    `identity` says what `fingerprint` looks at. "sampled" (default): every name and size, and both ends of 256 files
    spread over the folder; it does not notice an edit inside a file that keeps the size. "full": every byte of
    every file, once per process. Modification times never count, since copying changes them.
    """

    kind: str
    suffixes: tuple[str, ...]
    """File extensions to read by default."""

    def __init__(
        self, root: Paths, labels: Labels = "folder", *, suffixes: Sequence[str] | None = None,
        identity: str = "sampled", limits: Limits = LIMITS, storage_options: filesystem.Options = None,
    ) -> None:  # fmt: skip
        suffixes = self.suffixes if suffixes is None else suffixes
        if identity not in ("sampled", "full"):
            raise UsageError('identity="sampled" or "full"', got=repr(identity))
        self.identity, self.limits, self.options = identity, limits, storage_options
        self.objects: dict[str, filesystem.Stamp] = {}  # the stamps of files behind URLs
        ends = tuple(s.lower() for s in suffixes)
        if not isinstance(root, str | os.PathLike) or media_paths.is_list(root):
            self.root, names, self.objects = media_paths.listed(root, ends, storage_options)
            found, top = [("", names)], self.root
            labels = (lambda name: media_paths.folder_of(top, name)) if labels == "folder" else labels
        elif filesystem.scheme(os.fspath(root)):
            self.root = os.fspath(root).rstrip("/")
            self.objects = media_objects.listed(self.root, ends, storage_options)
            found = [("", list(self.objects))] if self.objects else []
        else:
            self.root = os.path.abspath(filesystem.local(os.fspath(root)))
            if not os.path.lexists(self.root):
                raise filesystem.nothing_at(os.fspath(root))
            found = list_files(self.root, ends)
        if not found:
            raise UsageError(
                f"files ending in {' '.join(suffixes)}", got="none", where=self.root, fix="check the folder's path"
            )
        self.names = Names.of_runs(found)
        self.classes, self.labels = _label(found, labels, self.root)
        self._sizes = None if self.objects else FileSizes(self.root, self.names)
        self._fingerprint = ""

    def __len__(self) -> int:
        return len(self.names)

    def record_names(self) -> Names:
        """The relative path of every file."""
        return self.names

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """The names of the classes, in the order of their numbers, by the column that holds the numbers."""
        return {"label": self.classes} if self.classes else {}

    range_unit = 1  # each file is an object

    def file_sizes(self) -> NDArray[np.int64]:
        """Bytes of each file; those of a local folder are asked for."""
        if self.objects:
            return np.array([self.objects[name].size for name in self.names], np.int64)
        return (self._sizes or FileSizes(self.root, self.names)).all()

    def record_ranges(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """File, first byte and end of each of these records."""
        indices = np.asarray(indices, np.int64)
        return np.column_stack([indices, np.zeros_like(indices), self.file_sizes()[indices]])

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """The encoded bytes of these files; `BadRecords` names each one that cannot be read."""
        return self.borrow(indices, None)

    def borrow(self, indices: NDArray[np.int64], arena: Arena | None) -> Columns:
        """The same with bytes that lie in an arena, for a reader that is done with them before it clears it."""
        paths = [self.names[i] for i in indices.tolist()]
        datas: list[bytes | memoryview] = []
        errors: list[RecordError] = []
        ahead = self._ahead(paths)
        for row, path in enumerate(paths):
            try:
                datas.append(self._bytes(path, arena, ahead))
                spend(len(datas[-1]))
            except RecordError as error:
                error.row = row
                errors.append(error)
        if errors:
            raise BadRecords(errors)
        return self._columns({"bytes": strings(datas)}, paths, indices)

    def _columns(self, columns: Columns, paths: list[str], indices: NDArray[np.int64]) -> Columns:
        """The columns, with `path` and, if there are labels, `label`."""
        columns["path"] = strings(paths)
        if self.labels is not None:
            columns["label"] = self.labels[indices]
        return columns

    def place(self, path: str) -> str:
        """The full path or URL of a file."""
        return f"{self.root}/{path}" if self.objects else f"{self.root}{os.sep}{path}"

    def _ahead(self, paths: list[str]) -> dict[str, bytes]:
        """The bytes of files behind URLs, read all at once; nothing of a local folder."""
        return media_objects.read(self.root, paths, self.objects, self.limits, self.options) if self.objects else {}

    def _bytes(self, path: str, arena: Arena | None, ahead: dict[str, bytes]) -> bytes | memoryview:
        full = self.place(path)
        if self.objects:
            media_objects.check_size(self.objects[path].size, self.limits, full)
        data = ahead[path] if self.objects else read_whole(full, self.limits, where=full, arena=arena)
        if not data:
            raise RecordError("a file with content", got="0 bytes", where=full, fix="remove it or write it again")
        return data

    def fingerprint(self) -> str:
        """Identity of names, sizes, labels and contents, as far as `identity` looks; one `stat` per file, once."""
        if not self._fingerprint:
            self._fingerprint = self._identify()
        return self._fingerprint

    def _identify(self) -> str:
        with storage_errors(self.root):
            return self._identify_files()

    def _identify_files(self) -> str:
        n = len(self)
        full = self.identity == "full"
        picked = range(n) if full else np.unique(np.linspace(0, n - 1, min(n, _SAMPLED_FILES)).astype(np.int64))
        if self.objects:
            sizes = np.array([self.objects[name].size for name in self.names], np.int64)
            names = [self.names[int(index)] for index in picked]
            ends = 0 if full else _SAMPLED_BYTES
            return self._identity(sizes, media_objects.contents(self.root, names, self.objects, self.options, ends))
        sizes = (self._sizes or FileSizes(self.root, self.names)).all()
        contents: list[Any] = []
        for index in picked:
            with open(os.path.join(self.root, self.names[int(index)]), "rb") as file:
                if full:
                    contents.append(content_id([file.read()]))
                else:
                    contents.append(file.read(_SAMPLED_BYTES))
                    file.seek(max(0, int(sizes[index]) - _SAMPLED_BYTES))
                    contents.append(file.read(_SAMPLED_BYTES))
        return self._identity(sizes, contents)

    def _identity(self, sizes: NDArray[np.int64], contents: list[Any]) -> str:
        labels = np.empty(0, np.int64) if self.labels is None else self.labels
        parts = [
            self.kind,
            *self.limits.changed("record_bytes"),
            self.identity,
            self.names.blob,
            self.names.offsets,
            sizes,
            labels,
            *self.classes,
        ]
        return content_id([*parts, *contents])

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "records": len(self),
            "files": len(self),
            "root": self.root,
            "classes": list(self.classes),
        }

    def locate(self, index: int) -> dict[str, Any]:
        place: dict[str, Any] = {"file": self.place(self.names[index])}
        if self.labels is not None:
            label = int(self.labels[index])
            place |= {"label": label} | ({"class": self.classes[label]} if self.classes else {})
        return place

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r}, {len(self):,} files, {len(self.classes)} classes)"


class ImageFolder(MediaFolder):
    """Image files of a folder; see `MediaFolder`.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (root / name).mkdir()
    ...     _ = (root / name / "1.jpg").write_bytes(b"...")
    >>> folder = ImageFolder(root)
    >>> len(folder), folder.classes, folder.read(np.array([1]))["label"].tolist()
    (2, ('cat', 'dog'), [1])
    """

    kind = "image folder"
    suffixes = IMAGE_SUFFIXES


class AudioFolder(MediaFolder):
    """Audio files of a folder; see `MediaFolder`.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("0_anna_1.wav", "7_anna_1.wav"): _ = (root / name).write_bytes(b"...")
    >>> AudioFolder(root, labels="name").classes
    ('0', '7')
    """

    kind = "audio folder"
    suffixes = AUDIO_SUFFIXES


def _label(runs: list[Run], labels: Labels, root: str) -> tuple[tuple[str, ...], NDArray[np.int64] | None]:
    values: list[Any]
    if labels is None:
        return (), None
    if labels == "folder" and all(folder for folder, _ in runs):
        values = [folder.partition("/")[0] for folder, _ in runs]
        _check_no_splits(values, any(folder.strip("/").count("/") for folder, _ in runs), root)
        classes, numbers = _numbered(values)
        return classes, np.repeat(numbers, [len(files) for _, files in runs])
    names = [folder + name for folder, files in runs for name in files]
    if labels == "folder":
        flat = next((name for name in names if "/" not in name), None)
        if flat is not None:
            raise UsageError(
                "every file in a folder named after its class", got=f"{flat!r} directly in the root", where=root,
                fix='move it into a class folder, or pass labels="name", a function, or None',
            )  # fmt: skip
        values = [name.partition("/")[0] for name in names]
        _check_no_splits(values, any(name.count("/") > 1 for name in names), root)
    elif labels == "name":
        values = [_prefix(name.rpartition("/")[2]) for name in names]
    elif callable(labels):
        values = [labels(name) for name in names]
    else:
        raise UsageError('labels="folder", "name", a function or None', got=repr(labels))
    if all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values):
        return (), np.array(values, np.int64)
    wrong = next((i for i, value in enumerate(values) if not isinstance(value, str)), None)
    if wrong is not None:
        raise UsageError("labels that are all str or all int", got=repr(values[wrong]), where=names[wrong])
    return _numbered(values)


def _check_no_splits(folders: list[str], deeper: bool, root: str) -> None:
    """Raises if the folders that would be classes are splits, and the classes are the folders in them."""
    found = sorted(set(folders))
    if deeper and all(map(splits.is_split, found)):
        first = min(found, key=lambda name: name.lower() != "train")
        raise UsageError(
            "folders that are classes", got=f"splits: {', '.join(found)}", where=root,
            fix=f"name one of them: {os.path.join(root, first)!r}; labels=None, or a function of the path, reads all",
        )  # fmt: skip


def _numbered(values: list[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    classes = tuple(sorted(set(values)))
    number = {name: i for i, name in enumerate(classes)}
    return classes, np.array([number[name] for name in values], np.int64)


def _prefix(name: str) -> str:
    ends = [at for at in (name.find(mark) for mark in "_-.") if at > 0]
    return name[: min(ends)] if ends else name


class FilePath(str):
    """The place of a file that a source has listed itself: the only text that is opened."""

    __slots__ = ()


class MediaPaths(MediaFolder):
    """Files as places, in the column `column`: each is opened where it is decoded, which knows the seconds wanted.

    Files behind URLs are read here, all of a batch at once.
    """

    column: str

    def read(self, indices: NDArray[np.int64]) -> Columns:
        if self.objects:
            columns = super().read(indices)
            return {self.column: columns.pop("bytes"), **columns}
        root = os.path.join(self.root, "")
        paths = [self.names[int(i)] for i in indices]
        return self._columns({self.column: strings([FilePath(f"{root}{path}") for path in paths])}, paths, indices)


class AudioPaths(MediaPaths, AudioFolder):
    """Audio files as places."""

    column = "audio"


class VideoPaths(MediaPaths):
    """Video files as places.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (root / "run_1.mp4").write_bytes(b"...")
    >>> VideoPaths(root, labels="name").classes
    ('run',)
    """

    kind = "video folder"
    suffixes = VIDEO_SUFFIXES
    column = "video"
