"""The side-car of a tar archive: where every member is and the hash of its bytes.

Written once, after the first walk, as `<archive>.penstock-index.json` beside the archive or in a folder you name: a
hash, a line of JSON, and binary columns. It makes the next opening one read (0.1 us a member), and lets
every later read be checked. It is data like any other: its own hash and every offset are checked before it is believed,
and a damaged one is built again. A good one that does not fit its archive means that the archive changed, which is an
error: only you know whether on purpose. Side-cars of version 1, which are JSON, are still read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core import local_files
from penstock.core.errors import DataError, StorageError
from penstock.core.hashing import content_id
from penstock.core.limits import Limits
from penstock.core.signals import surface
from penstock.sources.names import Names
from penstock.sources.tar_records import TarRecords, group
from penstock.sources.tar_walk import Member, walk
from penstock.storage import filesystem
from penstock.storage.object_reader import forget_beginning
from penstock.storage.page_hashes import PageHashes

SUFFIX = ".penstock-index.json"
_FORMAT = "penstock-tar-index-2"
_TEXT = b'{"format":"penstock-tar-index-1"'
_PACKED = re.compile(rb"\x1f\x8b|\x28\xb5\x2f\xfd|\xfd7zXZ\0|\x04\x22\x4d\x18|BZh.1AY&SY", re.DOTALL)
_WALKS = 8  # remote archives that are walked at once
_COLUMNS = {"starts": np.int64, "offsets": np.int64, "sizes": np.int64, "head_hashes": np.uint64, "hashes": np.uint64}


class TarIndex:
    """Members of one archive in columns, and the records that they make."""

    __slots__ = ("hashes", "head_hashes", "offsets", "records", "sizes", "starts", "total")

    starts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    head_hashes: NDArray[np.uint64]
    hashes: NDArray[np.uint64]

    def __init__(self, columns: Mapping[str, NDArray[Any]], records: TarRecords, total: int) -> None:
        for name in _COLUMNS:
            setattr(self, name, columns[name])
        self.records, self.total = records, total

    @classmethod
    def of(cls, members: list[Member], total: int, path: str) -> TarIndex:
        """The index of a walk."""
        names, *columns = zip(*members, strict=True) if members else ([],) * 6
        arrays = {n: np.array(c, dtype) for (n, dtype), c in zip(_COLUMNS.items(), columns, strict=True)}
        return cls(arrays, group(names, path), total)


def indexes_of(
    paths: Sequence[str], stamps: Sequence[filesystem.Stamp], where: str | None, limits: Limits,
    options: filesystem.Options = None,
) -> Iterator[tuple[TarIndex, bool]]:  # fmt: skip
    """The indexes of archives, as `index_of` makes them; several remote ones are walked at once."""
    if not any(map(filesystem.scheme, paths)):
        yield from (index_of(path, stamp, where, limits) for path, stamp in zip(paths, stamps, strict=True))
        return
    with ThreadPoolExecutor(_WALKS, "penstock-index") as pool:
        yield from pool.map(lambda path, stamp: index_of(path, stamp, where, limits, options), paths, stamps)


def index_of(
    path: str, stamp: filesystem.Stamp, where: str | None, limits: Limits, options: filesystem.Options = None
) -> tuple[TarIndex, bool]:
    """The index of an archive and whether a side-car holds it. `where`: "beside", a folder, or None for no file."""
    total = stamp.size
    side = _side_path(path, where)
    held = _load(side, limits, path) if side is not None and os.path.isfile(side) else None
    if held is not None and held.total == total:
        return held, True
    made = _walk_verified(path, stamp, limits, options)
    if held is not None:
        raise DataError(
            f"the archive of {held.total:,} bytes that was indexed", got=f"one of {total:,} bytes", where=path,
            fix=f"fetch it again; if you rewrote it on purpose, delete {side}",
        )  # fmt: skip
    return made, side is not None and _save(side, made)


def _walk_verified(path: str, stamp: filesystem.Stamp, limits: Limits, options: filesystem.Options) -> TarIndex:
    """Walks an archive. A remote one is walked again if its bytes do not agree with its ETag, until two walks agree."""
    seen: set[str] = set()
    for walks_left in reversed(range(4)):
        pages = PageHashes() if filesystem.is_object(path) else None
        try:
            made = _walk(path, stamp, limits, options, pages)
        except DataError:
            if pages is None or not walks_left:
                raise
            forget_beginning(path)
            continue  # a wrong byte in a header, perhaps only of this transfer
        if pages is None or pages.agrees(stamp.tag) or pages.id in seen:
            return made
        seen.add(pages.id)
        forget_beginning(path)
    raise StorageError(
        "the same bytes each time that the archive is read", got="reads that all differ", where=path,
        fix="check what is between here and the storage",
    )  # fmt: skip


def _walk(
    path: str, stamp: filesystem.Stamp, limits: Limits, options: filesystem.Options, pages: PageHashes | None
) -> TarIndex:
    with filesystem.open_read(path, options, expected=stamp, verify=pages is None) as file:
        if _PACKED.match(file.read(10)):
            raise DataError(
                "an uncompressed tar archive", got="a compressed one", where=path,
                fix="decompress it: media do not shrink again, and only a plain archive has random access",
            )  # fmt: skip
        file.seek(0)
        read = file if pages is None else cast(BinaryIO, _Hashed(file, pages))
        made = TarIndex.of(list(walk(read, path, stamp.size, limits)), stamp.size, path)
    if pages is not None:
        pages.end()
    return made


class _Hashed:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, file: BinaryIO, pages: PageHashes) -> None:
        self._file, self._pages = file, pages

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._pages.update(data)
        return data


def _side_path(path: str, where: str | None) -> str | None:
    if where is None or (where == "beside" and filesystem.scheme(path)):
        return None
    if where == "beside":
        return filesystem.local(path) + SUFFIX
    # two archives of one name in different folders must not share a side-car
    return os.path.join(where, f"{os.path.basename(path)}.{content_id([os.path.abspath(path)])[:12]}{SUFFIX}")


def _save(side: str, index: TarIndex) -> bool:
    records = index.records
    head = {
        "format": _FORMAT,
        "total": index.total,
        "members": len(index.starts),
        "records": len(records.keys),
        "parts": [os.fsencode(name).decode("latin-1") for name in records.part_names],
        "key_bytes": len(records.keys.blob),
    }
    columns = [getattr(index, column) for column in _COLUMNS]
    arrays = [*columns, records.keys.offsets, records.record, records.part]
    body = b"".join([orjson.dumps(head), b"\n", *(a.astype(a.dtype.newbyteorder("<")).tobytes() for a in arrays)])
    body += records.keys.blob
    try:
        local_files.atomic_write(side, content_id([body]).encode() + b"\n" + body)
    except OSError:  # a read-only place: the index lives in memory, and `describe` says so
        return False
    return True


def _load(side: str, limits: Limits, path: str) -> TarIndex | None:
    """The side-car's index, or None if it is damaged or not one at all."""
    if os.path.getsize(side) > limits.manifest_bytes:
        return None
    with open(side, "rb") as file:
        data = file.read()
    stamp, _, _ = data[:64].partition(b"\n")
    body = memoryview(data)[len(stamp) + 1 :]
    if stamp != content_id([bytes(body)]).encode():
        return None
    try:
        first = data.find(b"\n", len(stamp) + 1)
        if first < 0 or data.startswith(_TEXT, len(stamp) + 1):
            index = _load_text(bytes(body), path)
        else:
            index = _load_binary(data, len(stamp) + 1, first)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        surface(error)
        return None
    return index if index is not None and _sound(index, limits) else None


def _load_binary(data: bytes, start: int, end: int) -> TarIndex | None:
    head: dict[str, Any] = orjson.loads(data[start:end])
    members, records, blob, at = head["members"], head["records"], head["key_bytes"], end + 1
    counts = (members, records, blob, head["total"])
    if head["format"] != _FORMAT or not all(isinstance(n, int) and 0 <= n < 1 << 62 for n in counts):
        return None
    kinds: list[tuple[Any, int]] = [(dtype, members) for dtype in _COLUMNS.values()]
    kinds += [(np.int64, records + 1), (np.int32, members), (np.int32, members)]
    if len(data) != at + blob + sum(np.dtype(dtype).itemsize * count for dtype, count in kinds):
        return None
    arrays: list[NDArray[Any]] = []
    for dtype, count in kinds:
        arrays.append(np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), count, at).astype(dtype, copy=False))
        at += arrays[-1].nbytes
    keys = Names(())
    keys.blob, keys.offsets = data[at:], arrays[5]
    parts = [os.fsdecode(name.encode("latin-1")) for name in head["parts"]]
    found = TarRecords(keys, parts, arrays[6], arrays[7])
    return TarIndex(dict(zip(_COLUMNS, arrays, strict=False)), found, head["total"]) if found.sound() else None


def _load_text(body: bytes, path: str) -> TarIndex | None:
    """A side-car of version 1, all JSON."""
    stated: dict[str, Any] = orjson.loads(body)
    if stated["format"] != "penstock-tar-index-1" or not isinstance(stated["total"], int):
        return None
    names = [os.fsdecode(name.encode("latin-1")) for name in stated["names"]]
    columns = {column: np.array(stated[column], dtype) for column, dtype in _COLUMNS.items()}
    return TarIndex(columns, group(names, path), stated["total"])


def _sound(index: TarIndex, limits: Limits) -> bool:
    columns: list[NDArray[Any]] = [getattr(index, column) for column in _COLUMNS]
    if any(column.shape != (len(index.records.record),) for column in columns):
        return False
    starts, offsets, sizes = columns[:3]
    inside = (starts >= 0) & (starts < offsets) & (sizes >= 0) & (sizes <= limits.record_bytes)
    inside &= (offsets <= index.total - sizes) & (offsets - starts <= 4 * limits.tar_header_bytes)
    return bool(inside.all()) and bool((starts[1:] >= (offsets + sizes)[:-1]).all())
