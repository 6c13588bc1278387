"""Hashes of the pages of a file, taken while it is read once, to notice wrong bytes in later reads of it.

Object stores answer for the length of what they send, not for its bytes. 8 bytes are kept for each page of 64 KiB.
"""

from __future__ import annotations

import hashlib
import re
from array import array

import xxhash

from penstock.storage.sizes import PAGE

_MD5 = re.compile(r"[0-9a-f]{32}")


def is_md5(tag: str) -> bool:
    """Whether an ETag may be the MD5 of an object's bytes."""
    return _MD5.fullmatch(tag) is not None


class PageHashes:
    """The hashes of a file's pages, its id as `filesystem.file_id` has it, and its MD5, which many ETags are.

    >>> hashes = PageHashes()
    >>> for part in (b"a" * PAGE, b"bc"): hashes.update(part)
    >>> hashes.end()
    >>> hashes.wrong(PAGE, b"bc"), hashes.wrong(PAGE, b"xx") > "", hashes.wrong(0, b"a" * PAGE + b"bc")
    ('', True, '')
    """

    def __init__(self) -> None:
        self.hashes = array("Q")
        self._rest = b""
        self._full, self._md5 = xxhash.xxh3_128(), hashlib.md5(usedforsecurity=False)
        self.id = ""

    def update(self, data: bytes) -> None:
        """The next bytes of the file."""
        self._full.update(data)
        self._md5.update(data)
        data = self._rest + data
        complete = len(data) // PAGE * PAGE
        view = memoryview(data)
        for at in range(0, complete, PAGE):
            self.hashes.append(xxhash.xxh3_64_intdigest(view[at : at + PAGE]))
        self._rest = data[complete:]

    def end(self) -> None:
        """All bytes of the file have been seen."""
        if self._rest:
            self.hashes.append(xxhash.xxh3_64_intdigest(self._rest))
        self._rest, self.id = b"", self._full.hexdigest()

    def agrees(self, tag: str) -> bool:
        """Whether an ETag is the MD5 of the bytes that were seen. Where it is none, it tells nothing: True."""
        return not is_md5(tag) or self._md5.hexdigest() == tag

    def wrong(self, start: int, data: bytes | memoryview) -> str:
        """What is wrong with bytes that were read from page boundary `start` on; "" if nothing."""
        view, first = memoryview(data), start // PAGE
        for at in range(0, len(view), PAGE):
            if xxhash.xxh3_64_intdigest(view[at : at + PAGE]) != self.hashes[first + at // PAGE]:
                return f"other bytes than when the file was first read, at {start + at}"
        return ""

    def __getstate__(self) -> dict[str, object]:
        return {"hashes": self.hashes, "id": self.id}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__()  # type: ignore[misc]
        self.__dict__.update(state)
