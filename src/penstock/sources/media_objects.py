"""Images and recordings behind URLs: listed once, read all of a batch at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.errors import FileMissing, RecordError
from penstock.core.hashing import content_id
from penstock.core.limits import Limits
from penstock.storage import filesystem, fsspec_files
from penstock.storage.object_requests import Read, read_many
from penstock.storage.scattered import read_objects

Stamps = Mapping[str, filesystem.Stamp]
_AT_ONCE = 256 << 20  # bytes of files that are read together when all are read


def listed(root: str, suffixes: tuple[str, ...], options: filesystem.Options) -> dict[str, filesystem.Stamp]:
    """The stamps of the files below a URL, by relative name, sorted by name."""
    try:
        found = filesystem.expand_stamped(root + "/", options, suffixes)
    except FileMissing:
        return {}
    known = filesystem.stamps(found, options)
    above = len(root if filesystem.is_object(root) else fsspec_files.full_url(root, options)) + 1
    return dict(sorted((url[above:], stamp) for url, stamp in zip(found, known, strict=True)))


def check_size(size: int, limits: Limits, where: str) -> None:
    """Raises RecordError for a file that is too large to read."""
    if size > limits.record_bytes:
        raise RecordError(
            f"a file of at most {limits.record_bytes:,} bytes", got=f"{size:,} bytes", where=where,
            fix="leave it out, or pass limits=Limits(record_bytes=...)",
        )  # fmt: skip


def read(
    root: str, names: Sequence[str], stamps: Stamps, limits: Limits, options: filesystem.Options
) -> dict[str, bytes]:
    """The bytes of files, by name, without those that are too large."""
    wanted = [name for name in dict.fromkeys(names) if stamps[name].size <= limits.record_bytes]
    return dict(zip(wanted, _objects(root, wanted, stamps, options), strict=True))


def _objects(root: str, names: Sequence[str], stamps: Stamps, options: filesystem.Options) -> list[bytes]:
    return read_objects([f"{root}/{name}" for name in names], [stamps[name] for name in names], options)


def groups(names: Sequence[str], stamps: Stamps) -> list[list[str]]:
    """The names in groups that fit into memory."""
    out: list[list[str]] = [[]]
    held = 0
    for name in names:
        if out[-1] and held + stamps[name].size > _AT_ONCE:
            out.append([])
            held = 0
        out[-1].append(name)
        held += stamps[name].size
    return out


def contents(root: str, names: Sequence[str], stamps: Stamps, options: filesystem.Options, ends: int) -> list[Any]:
    """What a fingerprint sees of files: their first and last `ends` bytes, or with 0 the id of all bytes."""
    if not ends:
        return [
            content_id([data])
            for group in groups(names, stamps)
            for data in (_objects(root, group, stamps, options) if group else [])
        ]
    spans = [
        (name, start, stop)
        for name in names
        for start, stop in ((0, min(ends, stamps[name].size)), (max(0, stamps[name].size - ends), stamps[name].size))
    ]
    reads = [Read(f"{root}/{name}", start, stop) for name, start, stop in dict.fromkeys(spans) if start < stop]
    found = dict(zip(reads, read_many(reads, options), strict=True))
    return [found.get(Read(f"{root}/{name}", start, stop), b"") for name, start, stop in spans]
