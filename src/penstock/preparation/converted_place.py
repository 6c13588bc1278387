"""Where a conversion puts its result: a folder that appears by a rename, or keys of an object store, the last one last.

In an object store every file is created once, as `prepare` does it; files are made in a temporary folder and sent when
they are complete, so that the temporary disk holds about one of them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol

from penstock.core.errors import UsageError
from penstock.core.local_files import sync_folder
from penstock.preparation.output import Output


class Place(Protocol):
    """Takes the files of a result: made in `partial`, under names that begin with a dot until they are complete."""

    @property
    def partial(self) -> Path: ...

    def send(self) -> None:
        """Takes complete files out of `partial`, if that helps."""
        ...

    def finish(self, last: str) -> int:
        """Shows the result, the file `last` after all others; returns its size in bytes."""
        ...

    def remove(self) -> None:
        """Removes everything that was made."""
        ...


class LocalPlace:
    """A folder that appears complete: made beside its place, then renamed."""

    def __init__(self, out: Path) -> None:
        self.out, self.old = out, out.with_name(f".{out.name}.old")
        self.partial = out.with_name(f".{out.name}.partial")
        shutil.rmtree(self.partial, ignore_errors=True)  # of a run that was killed; the caller holds the lock
        self.partial.mkdir(parents=True)

    def send(self) -> None:
        """Nothing: the files are where they stay."""

    def finish(self, last: str) -> int:
        size = sum(path.stat().st_size for path in self.partial.iterdir())
        sync_folder(str(self.partial))
        if self.out.is_dir():  # empty, or to be replaced: `convert` has checked it
            shutil.rmtree(self.old, ignore_errors=True)
            os.replace(self.out, self.old)
        os.replace(self.partial, self.out)
        sync_folder(str(self.out.parent))
        shutil.rmtree(self.old, ignore_errors=True)
        return size

    def remove(self) -> None:
        shutil.rmtree(self.partial, ignore_errors=True)


class RemotePlace:
    """Keys below a URL; `prefix` begins the names of all of them. The caller removes the temporary folder."""

    def __init__(self, output: Output, partial: Path) -> None:
        self.output, self.partial = output, partial
        self._size, self._sent = 0, list[str]()

    def send(self) -> None:
        for path in sorted(self.partial.iterdir()):
            if not path.name.startswith("."):
                self._put(path)

    def _put(self, path: Path) -> None:
        size = path.stat().st_size
        if not self.output.put(path.name, path):
            raise UsageError(
                "a place where nothing is yet", got=f"{path.name}, which another process wrote meanwhile",
                where=self.output.path(path.name), fix="choose another name",
            )  # fmt: skip
        self._sent.append(path.name)
        self._size += size
        path.unlink()

    def finish(self, last: str) -> int:
        held = self.partial / f".{last}"
        os.replace(self.partial / last, held)
        self.send()
        os.replace(held, self.partial / last)
        self.send()
        return self._size

    def remove(self) -> None:
        self.output.delete(self._sent)
