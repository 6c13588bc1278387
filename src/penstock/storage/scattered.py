"""Reads byte ranges that are scattered over many files, merged into few requests that are made at once.

For the records of a batch: near ones share a request (`coalesce`), and the requests of all objects run together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.storage import filesystem
from penstock.storage.coalesce import coalesce
from penstock.storage.object_reader import is_tag
from penstock.storage.object_requests import Read, read_many
from penstock.storage.page_hashes import PageHashes, is_md5
from penstock.storage.ranges_ahead import RangesAhead
from penstock.storage.sizes import PAGE

I64 = NDArray[np.int64]


def read_scattered(
    paths: Sequence[str], stamps: Sequence[filesystem.Stamp], files: I64, starts: I64, stops: I64,
    options: filesystem.Options = None, hashes: Sequence[PageHashes | None] | None = None,
    ahead: RangesAhead | None = None, compared: bool = False,
) -> list[bytes]:  # fmt: skip
    """Returns bytes [starts[i], stops[i]) of file `files[i]` for each i.

    Where a file has `hashes`, full pages are read and compared with them; bytes that differ are read again, and are a
    StorageError if they stay so. What is in `ahead` is taken from there. `compared`: the caller has hashes of its own.
    """
    if ahead is not None:
        taken = ahead.take(np.column_stack((files, starts, stops)))
        left = np.flatnonzero([data is None for data in taken])
        if len(left) < len(files):
            rest = iter(
                read_scattered(
                    paths, stamps, files[left], starts[left], stops[left], options, hashes, compared=compared
                )
            )
            return [next(rest) if data is None else data for data in taken]
    out = [b""] * len(files)
    order = np.lexsort((starts, files))
    reads: list[Read] = []
    members: list[I64] = []  # the ranges that lie in each read
    known: list[PageHashes | None] = []
    cuts = np.flatnonzero(np.diff(files[order])) + 1
    for ranges in np.split(order, cuts) if len(order) else []:
        file = int(files[ranges[0]])
        pages = None if hashes is None else hashes[file]
        first, last = starts[ranges], stops[ranges]
        if pages is not None:
            first = first // PAGE * PAGE
            last = np.minimum(-(-last // PAGE) * PAGE, stamps[file].size)
        made = coalesce(first, np.maximum(first, last))
        tag = stamps[file].tag if filesystem.is_object(paths[file]) and is_tag(stamps[file].tag) else ""
        edges = np.searchsorted(made.index, np.arange(1, len(made)))
        for start, stop, inside in zip(made.starts.tolist(), made.stops.tolist(), np.split(ranges, edges), strict=True):
            if start < stop:
                reads.append(Read(paths[file], start, stop, tag))
                members.append(inside)
                known.append(pages)

    def take(came: Sequence[tuple[int, memoryview]]) -> None:
        for number, data in came:
            begin = reads[number].start
            mine = members[number]
            spans = (starts[mine] - begin).tolist(), (stops[mine] - begin).tolist()
            for i, start, stop in zip(mine.tolist(), *spans, strict=True):
                out[i] = bytes(data[start:stop])

    def check(number: int, data: memoryview) -> str | None:
        pages = known[number]
        return ("" if compared else None) if pages is None else pages.wrong(reads[number].start, data)

    read_many(reads, options, check=check, take=take)
    return out


def read_objects(
    urls: Sequence[str], stamps: Sequence[filesystem.Stamp], options: filesystem.Options = None
) -> list[bytes]:
    """Returns the bytes of objects, read all at once.

    Bytes that do not agree with an ETag that is an MD5 are read again. An ETag that looks like an MD5 need not be one:
    then two reads that agree decide.
    """
    seen: dict[int, memoryview] = {}

    def check(number: int, data: memoryview) -> str | None:
        if len(data) != stamps[number].size:
            return f"{len(data)} of {stamps[number].size} bytes"
        tag = tags[number]
        if not is_md5(tag):
            return None
        if seen.get(number) == data:
            return ""
        seen[number] = data
        agrees = hashlib.md5(data, usedforsecurity=False).hexdigest() == tag
        return "" if agrees else "other bytes than those of its ETag"

    tags = [
        stamp.tag if filesystem.is_object(url) and is_tag(stamp.tag) else ""
        for url, stamp in zip(urls, stamps, strict=True)
    ]
    return read_many([Read(url, tag=tag) for url, tag in zip(urls, tags, strict=True)], options, check=check)
