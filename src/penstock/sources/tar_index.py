"""The side-car of a tar archive: where every member is and the hash of its bytes.

Written once, after the first walk, as `<archive>.penstock-index.json` beside the archive or in a folder you name. It
makes the next opening one small read, allows random access, and lets every later read be checked. It is data like any
other: its own hash and every offset are checked before it is believed, and a damaged one is built again. A good one
that does not fit its archive means that the archive changed, which is an error: only you know whether on purpose.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core import local_files
from penstock.core.errors import DataError
from penstock.core.hashing import content_id
from penstock.core.limits import Limits
from penstock.sources.tar_walk import Member, walk
from penstock.storage import filesystem

SUFFIX = ".penstock-index.json"
_FORMAT = "penstock-tar-index-1"
_COLUMNS = {"starts": np.int64, "offsets": np.int64, "sizes": np.int64, "head_hashes": np.uint64, "hashes": np.uint64}


class TarIndex:
    """Members of one archive in columns."""

    __slots__ = ("hashes", "head_hashes", "names", "offsets", "sizes", "starts", "total")

    def __init__(self, members: list[Member], total: int) -> None:
        self.names = [m.name for m in members]
        self.starts = np.array([m.start for m in members], np.int64)
        self.offsets = np.array([m.offset for m in members], np.int64)
        self.sizes = np.array([m.size for m in members], np.int64)
        self.head_hashes = np.array([m.head_hash for m in members], np.uint64)
        self.hashes = np.array([m.hash for m in members], np.uint64)
        self.total = total


def index_of(path: str, where: str | None, limits: Limits, options: filesystem.Options = None) -> tuple[TarIndex, bool]:
    """The index of an archive and whether a side-car holds it. `where`: "beside", a folder, or None for no file."""
    total = filesystem.size(path, options)
    side = _side_path(path, where)
    held = _load(side, limits) if side is not None and os.path.isfile(side) else None
    if held is not None and held.total == total:
        return held, True
    with filesystem.open_read(path, options) as file:
        head = file.read(6)
        if head[:2] == b"\x1f\x8b" or head[:4] == b"\x28\xb5\x2f\xfd" or head[:6] == b"\xfd7zXZ\0":
            raise DataError(
                "an uncompressed tar archive", got="a compressed one", where=path,
                fix="decompress it: media do not shrink again, and only a plain archive has random access",
            )  # fmt: skip
        file.seek(0)
        made = TarIndex(list(walk(file, path, total, limits)), total)
    if held is not None:
        raise DataError(
            f"the archive of {held.total:,} bytes that was indexed", got=f"one of {total:,} bytes", where=path,
            fix=f"fetch it again; if you rewrote it on purpose, delete {side}",
        )  # fmt: skip
    return made, side is not None and _save(side, made)


def _side_path(path: str, where: str | None) -> str | None:
    if where is None or (where == "beside" and filesystem.scheme(path)):
        return None
    if where == "beside":
        return filesystem.local(path) + SUFFIX
    # two archives of one name in different folders must not share a side-car
    return os.path.join(where, f"{os.path.basename(path)}.{content_id([os.path.abspath(path)])[:12]}{SUFFIX}")


def _save(side: str, index: TarIndex) -> bool:
    body = orjson.dumps(
        {
            "format": _FORMAT,
            "total": index.total,
            "names": [os.fsencode(name).decode("latin-1") for name in index.names],
            **{column: getattr(index, column).tolist() for column in _COLUMNS},
        }
    )
    try:
        local_files.atomic_write(side, content_id([body]).encode() + b"\n" + body)
    except OSError:  # a read-only place: the index lives in memory, and `describe` says so
        return False
    return True


def _load(side: str, limits: Limits) -> TarIndex | None:
    """The side-car's index, or None if it is damaged or not one at all."""
    if os.path.getsize(side) > limits.manifest_bytes:
        return None
    with open(side, "rb") as file:
        stamp, _, body = file.read().partition(b"\n")
    if stamp != content_id([body]).encode():
        return None
    try:
        stated: dict[str, Any] = orjson.loads(body)
        if stated["format"] != _FORMAT or not isinstance(stated["total"], int):
            return None
        index = TarIndex([], stated["total"])
        index.names = [os.fsdecode(name.encode("latin-1")) for name in stated["names"]]
        for column, dtype in _COLUMNS.items():
            setattr(index, column, np.array(stated[column], dtype))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    return index if _sound(index, limits) else None


def _sound(index: TarIndex, limits: Limits) -> bool:
    columns: list[NDArray[Any]] = [getattr(index, column) for column in _COLUMNS]
    if any(column.shape != (len(index.names),) for column in columns):
        return False
    starts, offsets, sizes = columns[:3]
    inside = (starts >= 0) & (starts < offsets) & (sizes >= 0) & (sizes <= limits.record_bytes)
    inside &= (offsets <= index.total - sizes) & (offsets - starts <= 4 * limits.tar_header_bytes)
    return bool(inside.all()) and bool((starts[1:] >= (offsets + sizes)[:-1]).all())
