"""The `index.json` of a MosaicML MDS dataset: which shards it has, and what they hold.

An index is data like any other. Every field is checked before it is used, and a shard's name cannot lead out of the
folder of the index. Reading one costs its bytes; it says nothing about where samples are inside a shard.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import orjson

from penstock.core.errors import DataError, FileMissing, LimitError, StoreError, UsageError
from penstock.core.limits import Limits
from penstock.sources.compressed import read_up_to
from penstock.sources.mds_packed import KINDS
from penstock.storage import filesystem, objects

NAME = "index.json"
MOST_BYTES = (1 << 32) - 1  # of a shard: offsets are 32 bits
_HEAD = 1 << 16
_LOOKED_AT = 1000
_FORMAT = re.compile(rb'"format"\s*:\s*"mds"')
_EMPTY = re.compile(rb'\s*\{\s*"shards"\s*:\s*\[\s*\]\s*,\s*"version"\s*:\s*2\s*\}')
_UNSAFE = re.compile(r"[\x00-\x1f\\:]")
_NAMED_SPLITS = re.compile(r"(train|training|val|valid|validation|dev|test|testing|eval)([-_.].*)?", re.IGNORECASE)


@dataclass(frozen=True)
class MDSFile:
    """A file of a shard: its path or URL, size and hashes."""

    path: str
    size: int
    hashes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class MDSShard:
    """One shard: its columns, samples and files. `packed` is the compressed file (see `mds_packed`)."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]
    samples: int
    raw: MDSFile
    packed: MDSFile | None
    compression: str


def is_mds(path: str, storage_options: filesystem.Options = None) -> bool:
    """Whether a path is an MDS dataset: a folder with an `index.json` of that format, or of splits of it."""
    if filesystem.scheme(path):
        own = path if path.endswith("/" + NAME) else objects.join(path, NAME)
        return objects.exists(own, storage_options) and _looks_like(own, storage_options)
    if os.path.isfile(path):
        return os.path.basename(path) == NAME and _looks_like(path)
    if not os.path.isdir(path):
        return False
    own = os.path.join(path, NAME)
    if os.path.isfile(own):
        return _looks_like(own)
    with os.scandir(path) as entries:  # of a folder with a million images only the beginning is looked at
        folders = sorted(entry.path for entry in itertools.islice(entries, _LOOKED_AT) if entry.is_dir())
    below = (os.path.join(folder, NAME) for folder in folders)
    first = next((name for name in below if os.path.isfile(name)), None)
    return first is not None and _looks_like(first)


def _looks_like(path: str, storage_options: filesystem.Options = None) -> bool:
    with filesystem.open_read(path, storage_options) as file:
        head = read_up_to(file, _HEAD)
    return bool(_FORMAT.search(head) or _EMPTY.match(head))


def find_indexes(paths: filesystem.Paths, split: str | None, options: filesystem.Options = None) -> list[str]:
    """The index of each dataset, in order; a folder without one stands for the datasets in its subfolders.

    Subfolders that are named like splits (train/, val/) are never joined: `split` says which.
    """
    items = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not items:
        raise UsageError("at least one MDS dataset", got="an empty list", fix="name a folder or URL")
    return [found for item in items for found in _indexes_of(os.fspath(item), split, options)]


def _indexes_of(item: str, split: str | None, options: filesystem.Options) -> list[str]:
    item = item if filesystem.scheme(item) else os.path.expanduser(filesystem.local(item))
    if item.rstrip("/").endswith("/" + NAME) or os.path.basename(item) == NAME:
        return [item]
    folder = item.rstrip("/") or "/"
    for candidate in [f"{folder}/{split}/{NAME}"] * (split is not None) + [f"{folder}/{NAME}"]:
        if _exists(candidate, options):
            return [candidate]
    try:
        every = filesystem.expand(folder, options, (NAME,))
    except FileMissing:
        every = []
    found = [path for path in every if path.rpartition("/")[2] == NAME]
    inner = sorted({path[len(folder) :].strip("/").partition("/")[0] for path in found if path.startswith(folder)})
    if not found:
        raise FileMissing(
            f"an {NAME} in {folder!r}", got="none, also in its subfolders", where=folder,
            fix="name the folder that MDSWriter wrote; a URL that cannot be listed must be the dataset itself",
        )  # fmt: skip
    if split is not None:
        raise UsageError(
            f"a subfolder {split!r} with an {NAME}", got=f"subfolders {', '.join(inner[:8])}", where=folder,
            fix=f"split={inner[0]!r}",
        )  # fmt: skip
    if any(_NAMED_SPLITS.fullmatch(name) for name in inner):
        raise UsageError(
            "one split of the dataset", got=f"subfolders {', '.join(inner[:8])}", where=folder,
            fix=f"split={inner[0]!r}, or a list of the folders to read one after another",
        )  # fmt: skip
    return found


def _exists(path: str, options: filesystem.Options) -> bool:
    if not filesystem.scheme(path):
        return os.path.isfile(path)
    try:
        filesystem.size(path, options)
    except FileMissing:
        return False
    return True


def read_index(path: str, limits: Limits, options: filesystem.Options = None) -> list[MDSShard]:
    """The shards of an index; every field is checked."""
    with filesystem.open_read(path, options) as file:
        data = read_up_to(file, limits.manifest_bytes + 1)
    if len(data) > limits.manifest_bytes:
        raise LimitError(
            f"an index of at most {limits.manifest_bytes} bytes", got="more", where=path,
            fix="pass limits=Limits(manifest_bytes=...)",
        )  # fmt: skip
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _bad("an index in JSON", str(error), path) from error
    if not isinstance(found, dict) or found.get("version") != 2 or not isinstance(found.get("shards"), list):
        version = found.get("version") if isinstance(found, dict) else None
        raise _bad("an index of version 2 with a list of shards", f"version {version!r}"[:80], path)
    folder = path.rpartition("/")[0] if "/" in path else "."
    return [_shard(entry, folder, f"{path}, shard {number}") for number, entry in enumerate(found["shards"])]


def _shard(entry: Any, folder: str, where: str) -> MDSShard:
    if not isinstance(entry, Mapping):
        raise _bad("an object for each shard", type(entry).__name__, where)
    if entry.get("format") != "mds":
        raise UsageError(
            "shards in the MDS format", got=f"format {entry.get('format')!r}"[:80], where=where,
            fix="write the dataset with MDSWriter; its JSON shards are read by penstock.read_jsonl",
        )  # fmt: skip
    if entry.get("version") != 2:
        raise _bad("shards of version 2", f"version {entry.get('version')!r}"[:80], where)
    names, encodings = _texts(entry, "column_names", where), _texts(entry, "column_encodings", where)
    sizes = entry.get("column_sizes")
    if not isinstance(sizes, list) or not all(size is None or _count(size, MOST_BYTES) for size in sizes):
        raise _bad("column_sizes: a list of sizes in bytes or null", repr(sizes)[:80], where)
    if not len(names) == len(encodings) == len(sizes) or len(set(names)) != len(names) or not names:
        raise _bad("a name, an encoding and a size for each column, every name once", repr(names)[:80], where)
    samples = entry.get("samples")
    if not _count(samples, MOST_BYTES):
        raise _bad("the number of samples", repr(samples)[:80], where)
    raw = _file(entry.get("raw_data"), folder, where)
    packed = None if entry.get("zip_data") is None else _file(entry.get("zip_data"), folder, where)
    compression = _compression(entry.get("compression"), where) if packed is not None else ""
    return MDSShard(tuple(names), tuple(encodings), tuple(sizes), samples, raw, packed, compression)


def _compression(name: Any, where: str) -> str:
    kind = name.partition(":")[0] if isinstance(name, str) else ""
    if kind not in KINDS:
        raise UsageError(
            f"shards without compression, or with {', '.join(KINDS)}", got=f"compression {name!r}"[:80], where=where,
            fix="decompress the shards, or write the dataset again with compression='zstd'",
        )  # fmt: skip
    return KINDS[kind]


def _file(entry: Any, folder: str, where: str) -> MDSFile:
    if not isinstance(entry, Mapping):
        raise _bad("basename, bytes and hashes of a file", repr(entry)[:80], where)
    name, size, hashes = entry.get("basename"), entry.get("bytes"), entry.get("hashes") or {}
    if not isinstance(name, str) or not _inside(name):
        raise DataError(
            "a file name below the folder of the index", got=repr(name)[:120], where=where,
            fix="do not trust this index: write the dataset again",
        )  # fmt: skip
    if not _count(size, 1 << 62):
        raise _bad("the size of the file in bytes", repr(size)[:80], where)
    if not isinstance(hashes, Mapping) or not all(isinstance(v, str) for v in hashes.values()):
        raise _bad("hashes as hexadecimal text by name", repr(hashes)[:80], where)
    return MDSFile(f"{folder}/{name}", size, tuple(sorted(hashes.items())))


def _inside(name: str) -> bool:
    parts = name.split("/")
    return not any(part in ("", ".", "..") for part in parts) and not _UNSAFE.search(name)


def _texts(entry: Mapping[str, Any], key: str, where: str) -> Sequence[str]:
    value = entry.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _bad(f"{key}: a list of names", repr(value)[:80], where)
    return value


def _count(value: Any, most: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= most


def _bad(expected: str, got: str, where: str) -> StoreError:
    return StoreError(expected, got=got[:200], where=where, fix="copy the index again, or write the dataset again")
