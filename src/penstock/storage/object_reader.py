"""Finds and reads objects of object stores: names, sizes, byte ranges, and an object as a file."""

from __future__ import annotations

import bisect
import fnmatch
import glob as globbing
import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock.core.errors import DataError, FileMissing, StorageError
from penstock.core.optional import need
from penstock.storage import metrics, object_client, retry
from penstock.storage.object_client import Options
from penstock.storage.object_requests import Check, Read, bare_tag, read_many
from penstock.storage.page_hashes import is_md5
from penstock.storage.positioned_file import PositionedFile
from penstock.storage.sizes import LARGEST
from penstock.storage.suffixes import ends_in

FIRST = 64 << 10  # bytes of the first request of `ObjectFile`
AHEAD = 4  # requests of LARGEST bytes that it makes at once when it is read in order
_KEPT_BEGINNINGS = 64
_READS = 3  # of an object whose bytes were not those of its ETag


class Found(NamedTuple):
    """An object of a listing: key, size and ETag, and when it was written (seconds since 1970)."""

    key: str
    size: int
    tag: str
    modified: float = 0.0


def head(url: str, options: Options = None) -> tuple[int, str]:
    """Returns size and ETag of an object."""
    obstore = need("obstore", extra="s3")
    bucket, key = object_client.find(url, options)
    try:
        facts = retry.call(lambda: obstore.head(bucket.client(), key), url, "read", bucket.policy)
    except FileMissing:
        _check_bucket(bucket, url, key)
        raise
    return int(facts["size"]), bare_tag(facts["e_tag"]) or str(facts["last_modified"])


def _check_bucket(bucket: object_client.Bucket, url: str, key: str) -> None:
    """Raises if there is no such bucket, which the answer to a head does not say. One request for each bucket."""
    if bucket.known:
        return
    try:
        next(iter(need("obstore", extra="s3").list(bucket.client("list"), key)), None)
    except Exception as error:
        made = retry.failure(url, error, "listed")
        if isinstance(made, FileMissing):
            raise made from retry.cause(error)
        return  # listing may be forbidden where reading is allowed
    bucket.known = True


def is_tag(tag: str) -> bool:
    """Whether a tag is an ETag, not the time that stands for one where there is none."""
    return bool(tag) and not re.match(r"\d{4}-\d\d-\d\d ", tag)


def read_ranges(
    url: str, ranges: Sequence[tuple[int, int]], options: Options = None, *, tag: str = "", check: Check | None = None
) -> list[bytes]:
    """Reads byte ranges [start, stop) of an object, concurrently, each complete or an error."""
    tag = tag if is_tag(tag) else ""
    wanted = [n for n, (start, stop) in enumerate(ranges) if start < stop]
    out = [b""] * len(ranges)
    found = read_many([Read(url, *ranges[n], tag) for n in wanted], options, check=check)
    for n, data in zip(wanted, found, strict=True):
        out[n] = data
    return out


def listing(url: str, options: Options = None) -> list[Found]:
    """The objects below a URL, sorted by key. Entries that only mark a folder are left out."""
    obstore = need("obstore", extra="s3")
    bucket, key = object_client.find(url, options, folder=True)

    def pages() -> list[Found]:
        found: dict[str, Found] = {}
        for chunk in obstore.list(bucket.client("list"), key.strip("/") or None, chunk_size=100):
            for one in chunk:
                tag = bare_tag(one["e_tag"]) or str(one["last_modified"])
                if one["path"] in found:  # a listing whose pages begin again would have no end
                    raise DataError(
                        "a listing with each object once", got=f"{one['path']!r} twice", where=url,
                        fix="check what answers for this storage; nothing may write to it meanwhile",
                    )  # fmt: skip
                found[one["path"]] = Found(one["path"], int(one["size"]), tag, one["last_modified"].timestamp())
        return list(found.values())

    found = sorted(retry.call(pages, url, "listed", bucket.policy))
    metrics.add(bucket.kind, metrics.Counters(requests=max(0, len(found) - 1) // 1000))
    return [one for n, one in enumerate(found) if one.size or not (one.key == key.strip("/") or _has_below(found, n))]


def _has_below(found: list[Found], n: int) -> bool:
    folder = found[n].key + "/"
    at = bisect.bisect_left(found, Found(folder, 0, ""))
    return at < len(found) and found[at].key.startswith(folder)


def expand(url: str, options: Options, suffixes: Sequence[str]) -> list[tuple[str, int, str]]:
    """URL, size and tag of the object itself, of the objects that match a glob, or of those below a URL."""
    _, key = object_client.find(url, options, folder=True)
    root = url[: len(url) - len(key)] if key else url.rstrip("/") + "/"
    ends = tuple(suffixes)
    if key and not key.endswith("/"):
        try:  # first: a key may contain the characters of a glob
            return [(url, *head(url, options))]
        except FileNotFoundError:
            pass
    # So may the name of a folder.
    if globbing.has_magic(key) and not (key.endswith("/") and listing(url, options)):
        fixed = re.split(r"[*?\[]", key, maxsplit=1)[0].rpartition("/")[0]
        matches = re.compile(_glob(key)).fullmatch
        found = [one for one in listing(root + fixed, options) if matches(one.key)]
    else:
        hidden = len(key.rstrip("/"))
        found = [
            one
            for one in listing(url, options)
            if ends_in(one.key, ends) and "/." not in "/" + one.key[hidden:].lstrip("/")
        ]
    return [(root + one.key, one.size, one.tag) for one in found]


def _glob(pattern: str) -> str:
    """The regular expression of a glob: * does not cross folders, ** does."""
    out = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern):
        known = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part)
        out.append(known if known is not None else fnmatch.translate(part)[4:-3] if "[" in part else re.escape(part))
    return "".join(out)


_no_md5: set[tuple[str, str]] = set()  # buckets whose ETags turned out to be none, although they look like it
_beginnings: OrderedDict[tuple[str, str], bytes] = OrderedDict()
_lock = threading.Lock()


def forget_beginning(url: str) -> None:
    """The next reader of an object asks for its first bytes again: the answer of the last time may be wrong."""
    with _lock:
        for key in [key for key in _beginnings if key[0] == url]:
            del _beginnings[key]


class ObjectFile(PositionedFile):
    """An object as a file for reading. Reads in order become few large requests, several at once.

    The first request is small; it grows with each read that continues the last one. The first bytes of the last few
    objects are kept for the next one who reads them, since a file's kind is looked at before it is read. They are used
    once: an answer with wrong bytes must not be what every later reader sees.

    Bytes that are read from the first to the last are compared with the ETag where that is an MD5. What one call has
    read is then read again; what was passed on before is an error. With `verify=False` the caller compares them.
    """

    def __init__(
        self, url: str, options: Options = None, *, size: int | None = None, tag: str = "", verify: bool = True
    ) -> None:
        size, self._tag = head(url, options) if size is None else (size, tag)
        verify = verify and size > 0 and is_md5(self._tag) and object_client.split(url)[:2] not in _no_md5
        self._md5 = hashlib.md5(usedforsecurity=False) if verify else None
        self._hashed = 0  # bytes from the first on that are in it
        super().__init__(url, size)
        self._options = options
        self._begin, self._blocks = 0, [b""]
        self._ahead = FIRST

    def read(self, size: int | None = -1) -> bytes:
        stop = self._size if size is None or size < 0 else min(self._size, self._at + size)
        parts = []
        while self._at < stop:
            part = self._piece(stop)
            self._at += len(part)
            parts.append(part)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return data if self._md5 is None else self._compared(data, self._at - len(data))

    def _compared(self, data: bytes, start: int) -> bytes:
        """These bytes, or right ones; raises if others, which were passed on before, are wrong."""
        if start > self._hashed:
            self._md5 = None  # what lies between is not read
        elif self._md5 is not None and (new := memoryview(data)[self._hashed - start :]):
            self._md5.update(new)
            self._hashed += len(new)
            if self._hashed == self._size:
                found, self._md5 = self._md5.hexdigest(), None
                again = None if found == self._tag else self._read_again(found, keep=not start)
                return data if again is None else again
        return data

    def _read_again(self, first: str, *, keep: bool) -> bytes | None:
        """The bytes of the object, to `keep`; None if those that were read were right, and the ETag is no MD5.

        It may only look like one: two reads that agree decide.
        """
        forget_beginning(self.name)
        seen = {first}
        for _ in range(_READS):
            md5, parts = hashlib.md5(usedforsecurity=False), list[bytes]()
            for begin in range(0, self._size, AHEAD * LARGEST):
                cuts = [*range(begin, min(self._size, begin + AHEAD * LARGEST), LARGEST)]
                ranges = [(at, min(at + LARGEST, self._size)) for at in cuts]
                for block in read_ranges(self.name, ranges, self._options, tag=self._tag):
                    md5.update(block)
                    parts += [block] if keep else []
            found = md5.hexdigest()
            if found == first:
                _no_md5.add(object_client.split(self.name)[:2])
                return None
            if keep and (found == self._tag or found in seen):
                return b"".join(parts)
            if found == self._tag:
                break
            seen.add(found)
        raise StorageError(
            "the bytes of the object's ETag", got="other bytes, some of which were used already" * (not keep)
            or f"{_READS + 1} reads that all differ", where=self.name,
            fix="start again; something between here and the storage changes bytes",
        )  # fmt: skip

    def _piece(self, stop: int) -> bytes:
        """Bytes from the position on, at most to `stop`, as far as one block has them."""
        end = self._begin + sum(map(len, self._blocks))
        if not self._begin <= self._at < end:
            self._fetch(stop, continued=self._at == end)
        at = self._at - self._begin
        while at >= len(self._blocks[0]):  # what was read is not kept
            at -= len(self._blocks[0])
            self._begin += len(self._blocks.pop(0))
        return self._blocks[0][at : at + stop - self._at]

    def _fetch(self, stop: int, *, continued: bool) -> None:
        self._ahead = min(AHEAD * LARGEST, self._ahead * 16) if continued and self._at else FIRST
        begin, key = self._at, (self.name, self._tag)
        first = begin == 0 and stop <= FIRST and is_tag(self._tag)
        if first:
            with _lock:
                kept = _beginnings.pop(key, None)
            if kept is not None:
                self._begin, self._blocks = 0, [kept]
                return
        until = min(self._size, begin + max(self._ahead, min(stop - begin, AHEAD * LARGEST)))
        cuts = [*range(begin, until, LARGEST), until]
        self._blocks = read_ranges(self.name, list(pairwise(cuts)), self._options, tag=self._tag)
        self._begin = begin
        if first:
            with _lock:
                _beginnings[key] = self._blocks[0]
                while len(_beginnings) > _KEPT_BEGINNINGS:
                    _beginnings.popitem(last=False)
