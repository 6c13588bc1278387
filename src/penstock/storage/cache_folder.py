"""Which folder the page cache uses, and how large it may become. A folder that is not a page cache is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

from penstock.core.errors import UsageError
from penstock.core.os_errors import storage_errors
from penstock.core.signals import surface
from penstock.core.sizes import size_in_environment
from penstock.storage.filesystem import local_only

MARKER = "penstock-page-cache.json"
_FORMAT = {"format": "penstock-page-cache", "version": 1}


def page_folder(cache_dir: str | os.PathLike[str] | None = None) -> str:
    """The folder `pages` in: the argument, else `PENSTOCK_CACHE`, else the user's cache folder."""
    if cache_dir is not None:
        return os.path.join(local_only(cache_dir, "cache_dir"), "pages")
    return os.path.join(_user_folder(), "pages")


def rows_folder() -> str:
    """The folder of stored rows: `rows` in `PENSTOCK_CACHE`, else in the user's cache folder."""
    return os.path.join(_user_folder(), "rows")


def _user_folder() -> str:
    if named := os.environ.get("PENSTOCK_CACHE"):
        return local_only(named, "PENSTOCK_CACHE")
    return str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock")


def page_limit(cache_bytes: int | None = None) -> int | None:
    """The bound in bytes: the argument, else `PENSTOCK_PAGE_CACHE_LIMIT` ("50GB"); None for the default."""
    if cache_bytes is not None:
        if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int) or cache_bytes < 1:
            raise UsageError("a number of bytes above 0 for cache_bytes=", got=repr(cache_bytes)[:80])
        return cache_bytes
    said = size_in_environment("PENSTOCK_PAGE_CACHE_LIMIT")
    return None if said is None else max(1, said)


def make_folder(folder: str) -> None:
    """Makes the folder of a page cache; raises if it is a folder with something else in it."""
    marker = os.path.join(folder, MARKER)
    with storage_errors(folder, "written"):
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise _not_ours(folder, "a file")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not os.path.exists(marker):
            # Two processes may begin together: both find the folder empty but for the other's marker.
            others = [name for name in os.listdir(folder) if not name.startswith(MARKER)]
            if others and not os.path.exists(marker):
                raise _not_ours(folder, f"a folder with {others[0]!r} in it")
            temporary = f"{marker}.{os.getpid()}"
            Path(temporary).write_text(json.dumps(_FORMAT))
            os.replace(temporary, marker)
    try:
        found = json.loads(Path(marker).read_text())
    except (OSError, ValueError) as error:
        surface(error)
        found = None
    if found != _FORMAT:
        raise _not_ours(folder, f"another {MARKER}")


def _not_ours(folder: str, got: str) -> UsageError:
    return UsageError(
        "a page cache, or a folder that does not exist yet", got=got, where=folder,
        fix="pass another cache_dir=: Penstock deletes files only in folders that it made",
    )  # fmt: skip
