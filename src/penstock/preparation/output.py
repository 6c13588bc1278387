"""Where a store is written: a local folder, or a prefix of an object store.

In an object store nothing is renamed or overwritten: a file is put once, complete, under its final name. A second
writer of the same name must bring the same bytes. In a folder a file is written under a temporary name and renamed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.core import local_files
from penstock.core.errors import StoreError, UsageError
from penstock.storage import filesystem, objects
from penstock.storage.schemes import OBJECTS

SCRATCH = ".scratch"
_BLOCK = 4 << 20
_TRIES = 10
_LARGEST = 1 << 28  # of a file that is read completely: a manifest


def checked_place(out: str | os.PathLike[str]) -> str:
    """The folder or URL as text; raises if it is a URL that cannot be written to."""
    text = os.fspath(out)
    if isinstance(text, str) and filesystem.scheme(text) in OBJECTS:
        return text
    if isinstance(text, str) and (found := filesystem.scheme(text)):
        raise UsageError(
            "out: a URL of s3, gs or az, or a local path",
            got=repr(text),
            fix=f"use a local path and copy with your storage's own tool, or mount {found}:// as a folder",
        )
    path = filesystem.local_only(out, "out")
    if os.path.isfile(filesystem.local(path)):
        raise UsageError("out: a folder, or a path at which there is nothing yet", got="a file", where=path)
    return path


class Output:
    """A folder or URL. Can be pickled; many processes write to one at the same time."""

    def __init__(self, place: str, options: Mapping[str, Any] | None = None) -> None:
        self.remote = bool(filesystem.scheme(place))
        self.place = place.rstrip("/") if self.remote else filesystem.local(place).rstrip("/") or "/"
        self.options = dict(options or {})
        self.conditional = True
        """Whether the storage itself refuses a second file of a name; if not, there is one writer, which asks first."""

    def path(self, *names: str) -> str:
        """The path or URL of a file."""
        return objects.join(self.place, *names)

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None if it does not exist."""
        try:
            return objects.read_all(self.path(name), self.options, limit=_LARGEST)
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        return objects.exists(self.path(name), self.options)

    def files(self, folder: str = "") -> dict[str, objects.Listed]:
        """The files below a folder, by their names from the top of the output."""
        start = len(self.place) + 1
        listed = objects.list_files(self.path(folder) if folder else self.place, self.options)
        return {file.url[start:].replace(os.sep, "/"): file for file in listed}

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Names, from the top of the output, and sizes of the files below a folder."""
        return {name: file.size for name, file in self.files(folder).items()}

    def put(self, name: str, data: bytes | Path, *, synced: bool = True) -> bool:
        """Creates a file; returns False if there is one of this name. In a folder it is replaced.

        Without `synced` a power cut may leave an empty file in a folder, or none.
        """
        if not self.remote:
            return self._replace(name, data, synced)
        if not self.conditional and self.exists(name):
            return False
        return objects.put_new(self.path(name), data, self.options)

    def _replace(self, name: str, data: bytes | Path, synced: bool) -> bool:
        path = self.path(name)
        with local_files.writing(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if isinstance(data, bytes):
                local_files.atomic_write(path, data, synced=synced)
            else:  # written in the scratch folder of this output, and synced there
                os.replace(data, path)
                local_files.sync_folder(os.path.dirname(path))
        return True

    def put_same(self, name: str, data: bytes | Path) -> None:
        """Creates a file, or checks that the one of this name has the same bytes."""
        for _ in range(_TRIES):
            if self.put(name, data):
                return
            with suppress(FileNotFoundError):  # another run of the job has finished meanwhile, and swept its records
                if self._same(name, data):
                    return
                break
        raise StoreError(
            "the same bytes from every run of a job",
            got="other bytes in a file that an earlier or concurrent run wrote",
            where=self.path(name),
            fix="functions and tokenizers must return the same for the same input, and all machines must have the "
            "same versions; then prepare into another place, or pass restart=True (--restart)",
        )

    def _same(self, name: str, data: bytes | Path) -> bool:
        mine = len(data) if isinstance(data, bytes) else data.stat().st_size
        if filesystem.size(self.path(name), self.options) != mine:
            return False
        if isinstance(data, bytes):
            found = self.read(name)
            if found is None:  # it was swept after its size was asked for
                raise FileNotFoundError(self.path(name))
            return found == data
        with filesystem.open_read(self.path(name), self.options) as there, open(data, "rb") as here:
            while block := there.read(_BLOCK):
                if here.read(len(block)) != block:
                    return False
            return not here.read(1)

    def delete(self, names: Sequence[str]) -> None:
        objects.delete([self.path(name) for name in names], self.options)

    def remove_folder(self, name: str) -> None:
        """Deletes a folder with everything in it."""
        if self.remote:
            self.delete(list(self.sizes(name)))
        else:
            shutil.rmtree(self.path(name), ignore_errors=True)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A new local folder for a file that has no final name yet; deleted at the end."""
        parent = None if self.remote else self.path(SCRATCH)
        with local_files.writing(parent or tempfile.gettempdir()):
            if parent is not None:
                os.makedirs(parent, exist_ok=True)
            folder = tempfile.mkdtemp(prefix="penstock-prepare-" if self.remote else "", dir=parent)
        try:
            yield Path(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
