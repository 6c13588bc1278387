"""A small result that is made once and kept below the cache folder, or below a URL.

In a folder one process makes it and the others wait. An object store has no locks: there several may make it at once,
and as it is a function of its name they make the same. A damaged one is made again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.core import local_files
from penstock.core.errors import UsageError
from penstock.preparation.cache import WAIT_SECONDS, cache_folder
from penstock.preparation.output import checked_place
from penstock.storage import objects
from penstock.storage.filesystem import scheme

T = TypeVar("T")
_LARGEST = 1 << 36


def kept_once(
    cache_dir: str | os.PathLike[str] | None, name: tuple[str, str], purpose: str, make: Callable[[], T],
    pack: Callable[[T], bytes], unpack: Callable[[bytes], T | None],
) -> T:  # fmt: skip
    """What `make` returns, or what an earlier run kept as the file `name` (folder and name).

    `unpack` returns None for bytes that `pack` did not write.
    """
    if cache_dir is not None and scheme(os.fspath(cache_dir)):
        url = objects.join(checked_place(cache_dir), *name)
        found = _load(url, unpack)
        if found is None:
            found = make()
            objects.delete([url])  # if it is damaged
            objects.put_new(url, pack(found))
        return found
    path = cache_folder(cache_dir).joinpath(*name)
    found = _load(str(path), unpack)
    while found is None:
        with local_files.writing(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with local_files.lock(f"{path}.lock", purpose):
                found = _load(str(path), unpack)
                if found is None:
                    found = make()
                    local_files.atomic_write(str(path), pack(found))
        except UsageError as error:
            if purpose not in str(error):
                raise
            time.sleep(WAIT_SECONDS)  # another process does the same
            found = _load(str(path), unpack)
    return found


def _load(path: str, unpack: Callable[[bytes], T | None]) -> T | None:
    try:
        return unpack(objects.read_all(path, limit=_LARGEST))
    except FileNotFoundError:
        return None
