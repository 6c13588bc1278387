"""Decompressed bytes in a temporary file, for random access to compressed ones."""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from typing import Protocol

from penstock.core.errors import LimitError
from penstock.core.limits import Limits
from penstock.core.os_errors import temporary_error
from penstock.sources import compressed


class SpoolOwner(Protocol):
    """Whose compressed files are spooled: `limits` bounds the temporary bytes of all of them together."""

    limits: Limits
    paths: list[str]

    def spooled(self) -> int: ...


class Spool:
    """One temporary file without a name for any number of compressed files, so that they need one descriptor.

    The system frees it when its descriptor goes, however the process ends. Regions are written one after another; the
    caller writes one at a time.
    """

    def __init__(self) -> None:
        try:
            with tempfile.TemporaryFile(prefix="penstock-", buffering=0) as file:
                self.handle = os.dup(file.fileno())
        except OSError as error:
            raise _no_room(error) from error
        self.size, self.process = 0, os.getpid()
        self._finalizer = weakref.finalize(self, os.close, self.handle)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                written = os.pwrite(self.handle, view, self.size) if hasattr(os, "pwrite") else self._append(view)
            except OSError as error:
                raise _no_room(error) from error
            self.size += written
            view = view[written:]

    def _append(self, view: memoryview) -> int:
        os.lseek(self.handle, self.size, os.SEEK_SET)
        return os.write(self.handle, view)

    def cut(self, size: int) -> None:
        """Frees everything from `size` on."""
        self.size = size
        os.ftruncate(self.handle, size)

    def close(self) -> None:
        self._finalizer()


def _no_room(error: OSError) -> LimitError:
    cause = temporary_error(error, "a decompressed copy")
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return LimitError(
        "room in the folder of temporary files for a decompressed copy",
        got=cause.got,
        where=cause.where,
        fix="free some space, set TMPDIR to a larger disk, decompress the files, or prepare a store in one pass"
        if full
        else cause.fix,
    )


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
