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
from penstock.core.os_errors import storage_error, storage_errors
from penstock.sources.formats import AUDIO_SUFFIXES, IMAGE_SUFFIXES
from penstock.sources.names import Names
from penstock.storage.filesystem import local_only
from penstock.storage.small_files import Arena, read_whole

Labels = str | Callable[[str], str | int] | None

_SAMPLED_FILES = 256
_SAMPLED_BYTES = 4096


class MediaFolder:
    """Files below `root` that end in one of `suffixes`, sorted by relative path.

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
        self, root: str | os.PathLike[str], labels: Labels = "folder", *, suffixes: Sequence[str] | None = None,
        identity: str = "sampled", limits: Limits = LIMITS,
    ) -> None:  # fmt: skip
        suffixes = self.suffixes if suffixes is None else suffixes
        if identity not in ("sampled", "full"):
            raise UsageError('identity="sampled" or "full"', got=repr(identity))
        self.root = os.path.abspath(local_only(root, "the folder"))
        self.identity, self.limits = identity, limits
        found = sorted(_list(self.root, tuple(s.lower() for s in suffixes)))
        if not found:
            raise UsageError(
                f"files ending in {' '.join(suffixes)}", got="none", where=self.root, fix="check the folder's path"
            )
        self.names = Names(found)
        self.classes, self.labels = _label(found, labels, self.root)
        self._fingerprint = ""

    def __len__(self) -> int:
        return len(self.names)

    def record_names(self) -> Names:
        """The relative path of every file."""
        return self.names

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """The encoded bytes of these files; `BadRecords` names each one that cannot be read."""
        return self.borrow(indices, None)

    def borrow(self, indices: NDArray[np.int64], arena: Arena | None) -> Columns:
        """The same with bytes that lie in an arena, for a reader that is done with them before it clears it."""
        paths = [self.names[i] for i in indices.tolist()]
        datas: list[bytes | memoryview] = []
        errors: list[RecordError] = []
        for row, path in enumerate(paths):
            try:
                datas.append(self._bytes(path, arena))
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

    def _bytes(self, path: str, arena: Arena | None) -> bytes | memoryview:
        full = f"{self.root}{os.sep}{path}"
        data = read_whole(full, self.limits, where=full, arena=arena)
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
        sizes = np.array([os.stat(os.path.join(self.root, name)).st_size for name in self.names], np.int64)
        n = len(self)
        full = self.identity == "full"
        picked = range(n) if full else np.unique(np.linspace(0, n - 1, min(n, _SAMPLED_FILES)).astype(np.int64))
        contents: list[Any] = []
        for index in picked:
            with open(os.path.join(self.root, self.names[int(index)]), "rb") as file:
                if full:
                    contents.append(content_id([file.read()]))
                else:
                    contents.append(file.read(_SAMPLED_BYTES))
                    file.seek(max(0, int(sizes[index]) - _SAMPLED_BYTES))
                    contents.append(file.read(_SAMPLED_BYTES))
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
        place: dict[str, Any] = {"file": os.path.join(self.root, self.names[index])}
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


def _list(root: str, suffixes: tuple[str, ...]) -> list[str]:
    """Relative paths of regular files. Links to files count, links to folders do not; hidden names are skipped."""
    found: list[str] = []
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            with os.scandir(os.path.join(root, below)) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.name.lower().endswith(suffixes) and entry.is_file():
                        found.append(below + entry.name)
                    elif entry.is_dir(follow_symlinks=False):
                        pending.append(f"{below}{entry.name}/")
        except OSError as error:
            raise storage_error(error, os.path.join(root, below), "listed") from error
    return found


def _label(names: list[str], labels: Labels, root: str) -> tuple[tuple[str, ...], NDArray[np.int64] | None]:
    if labels is None:
        return (), None
    if labels == "folder":
        flat = next((name for name in names if "/" not in name), None)
        if flat is not None:
            raise UsageError(
                "every file in a folder named after its class", got=f"{flat!r} directly in the root", where=root,
                fix='move it into a class folder, or pass labels="name", a function, or None',
            )  # fmt: skip
        given: list[Any] = [name.partition("/")[0] for name in names]
    elif labels == "name":
        given = [_prefix(name.rpartition("/")[2]) for name in names]
    elif callable(labels):
        given = [labels(name) for name in names]
    else:
        raise UsageError('labels="folder", "name", a function or None', got=repr(labels))
    if all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in given):
        return (), np.array(given, np.int64)
    wrong = next((i for i, value in enumerate(given) if not isinstance(value, str)), None)
    if wrong is not None:
        raise UsageError("labels that are all str or all int", got=repr(given[wrong]), where=names[wrong])
    classes = tuple(sorted(set(given)))
    number = {name: i for i, name in enumerate(classes)}
    return classes, np.array([number[name] for name in given], np.int64)


def _prefix(name: str) -> str:
    ends = [at for at in (name.find(mark) for mark in "_-.") if at > 0]
    return name[: min(ends)] if ends else name


class FilePath(str):
    """The place of a file that a source has listed itself: the only text that is opened."""

    __slots__ = ()


class AudioPaths(AudioFolder):
    """Audio files as places: the file itself is opened where it is decoded, which knows the seconds wanted."""

    def read(self, indices: NDArray[np.int64]) -> Columns:
        root = os.path.join(self.root, "")
        paths = [self.names[int(i)] for i in indices]
        return self._columns({"audio": strings([FilePath(f"{root}{path}") for path in paths])}, paths, indices)
