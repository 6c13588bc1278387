"""Decompressed bytes in temporary files, for random access to compressed ones."""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import Protocol

from penstock.core.errors import LimitError
from penstock.core.limits import Limits
from penstock.sources import compressed


class SpoolOwner(Protocol):
    """Whose compressed files are spooled: `limits` bounds the temporary bytes of all of them together."""

    limits: Limits
    paths: list[str]

    def spooled(self) -> int: ...


class Spool:
    """A temporary file without a name: the system frees it when its descriptor goes, however the process ends."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile(prefix="penstock-", buffering=0) as file:
            self.handle = os.dup(file.fileno())
        self.size = 0
        self._finalizer = weakref.finalize(self, os.close, self.handle)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self.handle, view)
            self.size += written
            view = view[written:]

    def close(self) -> None:
        self._finalizer()


class Tee:
    """Copies what is read into a spool, up to the limit."""

    def __init__(self, stream: compressed.Stream, spool: Spool, owner: SpoolOwner) -> None:
        self._stream, self._spool, self._owner = stream, spool, owner

    def read(self, n: int, /) -> bytes:
        data = self._stream.read(n)
        limit = self._owner.limits.spool_bytes
        if self._owner.spooled() + len(data) > limit:
            raise LimitError(
                f"at most {limit} bytes of temporary disk for random access to compressed files",
                got="more",
                where=self._owner.paths[0],
                fix="decompress the files, prepare a store in one pass, or raise limits.spool_bytes",
            )
        self._spool.write(data)
        return data

    @property
    def raw_position(self) -> int:
        return self._stream.raw_position

    def close(self) -> None:
        self._stream.close()
