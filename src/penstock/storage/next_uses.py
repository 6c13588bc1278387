"""When pages will be read next, as far as the plans of the processes of a machine say.

Each process has two lists. `horizon`: the pages of the steps that are fetched ahead, which stay. `later`: the pages of
more steps after them, each with the number of steps until its next use, so that the one that is needed last leaves
first. The lists of other processes are in files of the cache folder, `horizon-N` and `later-N`; a process that uses the
cache alone writes only the first. The bytes of `later-N` are reserved in the budget of the cache; without room for it
others do not know this process's later pages.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.os_errors import storage_errors
from penstock.storage.cache_budget import CacheBudget
from penstock.storage.cached_object import round_up

U64 = NDArray[np.uint64]
U32 = NDArray[np.uint32]

NEVER = 0xFFFF_FFFF  # no use of the page is known
_RECORD = np.dtype([("page", "<u8"), ("use", "<u4")])


class Uses(NamedTuple):
    """Pages in increasing order, and how many steps from now each is read next."""

    pages: U64
    uses: U32

    @classmethod
    def of(cls, pages: U64, uses: U32) -> Uses:
        """Of uses in any order; of several of one page the first counts.

        >>> Uses.of(np.array([7, 3, 7], np.uint64), np.array([5, 1, 2], np.uint32)).uses.tolist()
        [1, 2]
        """
        order = np.lexsort((uses, pages))
        pages, uses = pages[order], uses[order]
        first = np.append(True, pages[1:] != pages[:-1])[: len(pages)]
        return cls(pages[first], uses[first])

    def at(self, pages: U64) -> U32:
        """The next use of each of these pages, or NEVER."""
        if not len(self.pages):
            return np.full(len(pages), NEVER, np.uint32)
        place = np.minimum(np.searchsorted(self.pages, pages), len(self.pages) - 1)
        return np.where(self.pages[place] == pages, self.uses[place], np.uint32(NEVER))


NO_USES = Uses(np.empty(0, np.uint64), np.empty(0, np.uint32))


class NextUses:
    """The lists of the processes that use one cache folder."""

    def __init__(self, folder: str, budget: CacheBudget) -> None:
        self._folder, self._budget = folder, budget
        self._writing = threading.Lock()
        self._horizons: dict[object, U64] = {}
        self._later: dict[object, Uses] = {}
        self._own = NO_USES
        self._reserved = 0

    def _path(self, name: str, slot: int | None = None) -> str:
        return os.path.join(self._folder, f"{name}-{self._budget.slot if slot is None else slot}")

    def set_horizon(self, owner: object, pages: U64 | None) -> None:
        """The pages that `owner` will read soon; None: it reads no more."""
        with self._writing:
            if pages is None:
                self._horizons.pop(owner, None)
                self._set_later(owner, None, 0)
            else:
                self._horizons[owner] = pages
            found = list(self._horizons.values())
            self._write("horizon", np.unique(np.concatenate(found)).tobytes() if found else b"")

    def set_later(self, owner: object, uses: Uses | None, limit: int) -> None:
        """The next uses that `owner` knows, in a cache of `limit` bytes."""
        with self._writing:
            self._set_later(owner, uses, limit)

    def _set_later(self, owner: object, uses: Uses | None, limit: int) -> None:
        if uses is None and self._later.pop(owner, None) is None:
            return
        if uses is not None:
            self._later[owner] = uses
        every = list(self._later.values())
        self._own = every[0] if len(every) == 1 else NO_USES
        if len(every) > 1:
            self._own = Uses.of(*(np.concatenate(each) for each in zip(*every, strict=True)))
        records = np.empty(len(self._own.pages) if self._budget.users > 1 else 0, _RECORD)
        if len(records):
            records["page"], records["use"] = self._own
            wanted = 2 * round_up(records.nbytes)  # the old file and the new one
            if wanted > self._reserved:
                if not self._budget.reserve(wanted - self._reserved, limit):
                    return
                self._reserved = wanted
        self._write("later", records.tobytes())
        if not len(records):
            self._budget.unused(self._reserved)
            self._reserved = 0

    def _write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with storage_errors(path, "written"):
            if data:
                Path(f"{path}.new").write_bytes(data)
                os.replace(f"{path}.new", path)
            elif os.path.exists(path):
                os.unlink(path)

    def horizon(self) -> U64:
        """The pages that all living processes will read soon, sorted."""
        found = self._read("horizon", lambda data: np.frombuffer(data[: len(data) // 8 * 8], np.uint64))
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)

    def later(self) -> Uses:
        """The next uses that all living processes know."""
        own = self._own
        if self._budget.users < 2:
            return own
        size = _RECORD.itemsize
        found = self._read("later", lambda data: np.frombuffer(data[: len(data) // size * size], _RECORD), others=True)
        if not found:
            return own
        every = [own, *(Uses(each["page"], each["use"]) for each in found)]
        return Uses.of(*(np.concatenate(each) for each in zip(*every, strict=True)))

    def _read(self, name: str, parse: Callable[[bytes], NDArray[Any]], others: bool = False) -> list[NDArray[Any]]:
        found = []
        for slot in self._budget.living():
            if not (others and slot == self._budget.slot):
                with suppress(OSError):
                    found.append(parse(Path(self._path(name, slot)).read_bytes()))
        return found

    def close(self) -> None:
        """This process reads no more."""
        for name in ("horizon", "later"):
            with suppress(OSError):
                os.unlink(self._path(name))
        self._budget.unused(self._reserved)
        self._reserved = 0
