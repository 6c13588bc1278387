"""`exclude=`: a source without some of its records, named by path, key, record number or another run's ledger.

The remaining records are renumbered: this is another dataset with another order. To keep the order of the others use
`.skip_errors()` instead.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.core.hashing import content_id
from penstock.core.ledger import Entry, Ledger
from penstock.sources.base import BlockSource, Source
from penstock.sources.folders import MediaFolder
from penstock.sources.names import Names
from penstock.sources.tar import TarShards

Exclude = Ledger | Iterable[int | str | os.PathLike[str] | Entry | Mapping[str, Any]] | None


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

    def block_sizes(self) -> NDArray[np.int64]:
        """Records that are left of each shard."""
        if not isinstance(self.source, BlockSource):
            return np.array([len(self)])
        ends = np.searchsorted(self.kept, np.cumsum(self.source.block_sizes()))
        return np.diff(ends, prepend=0)

    def fingerprint(self) -> str:
        return content_id(["without", self.source.fingerprint(), self.excluded])

    def describe(self) -> dict[str, Any]:
        return self.source.describe() | {"records": len(self), "excluded": len(self.excluded)}

    def locate(self, index: int) -> dict[str, Any]:
        """`row` is the number in the full source, so that the numbers of a ledger can be passed to `exclude=`."""
        number = int(self.kept[index])
        return self.source.locate(number) | {"row": number}


def exclude_records(source: MediaFolder | TarShards, exclude: Exclude) -> Source:
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
                f"record {number} in {file}, as the ledger says",
                got=place,
                fix="pass the shards that the ledger was made from",
            )
        return int(number)

    def _named(self, name: str) -> int:
        source = self.source
        if not self._by_name:
            self._by_name = {known: number for number, known in enumerate(source.record_names())}
        if not isinstance(source, TarShards) and source.objects:
            name = name.removeprefix(source.root + "/")
        elif not isinstance(source, TarShards) and os.path.isabs(name):
            name = os.path.relpath(name, source.root).replace(os.sep, "/")
        if name not in self._by_name:
            what = "key" if isinstance(source, TarShards) else "file of the folder"
            raise UsageError(f"exclude= to name a {what}", got=repr(name), fix="paths relative to the folder, or keys")
        return self._by_name[name]
