"""Reading gzip and Zstandard as a plain stream, with a guard against bombs.

The kind is recognised by the first bytes, not by the name. `open_stream(...).read(n)` returns up to `n`
decompressed bytes and holds little more than that in memory, whatever the file claims. Data that ends too early
or is damaged raises `DataError`; more expansion than the limits allow raises `LimitError`.
Cost on one core: about 240 MB/s of output for gzip, 550 MB/s for Zstandard.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from typing import Any, BinaryIO, Protocol, cast

from penstock.core.errors import DataError, LimitError
from penstock.core.limits import Limits
from penstock.core.optional import need
from penstock.storage import filesystem
from penstock.storage.object_reader import forget_beginning
from penstock.storage.page_hashes import is_md5

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_NAMES = {".gz": "gzip", ".zst": "Zstandard"}
# Compressions and archives that are not read, by their first bytes: never text, whatever the file is called.
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x04\x22\x4d\x18": "LZ4", b"PK\x03\x04": "zip",
           b"7z\xbc\xaf\x27\x1c": "7-Zip", b"Rar!\x1a\x07": "RAR", b"\x1f\x9d": "compress (.Z)"}  # fmt: skip
_BZIP2_BLOCK = b"\x31\x41\x59\x26\x53\x59"  # a text may begin with "BZh"
_HEAD = 10
_READ = 1 << 16
# One Zstandard block of 4 bytes may expand to 128 KB: this much input makes at most 64 MB before the ratio is checked.
_ZSTD_FEED = 2048
_ZSTD_WINDOW = 1 << 27


class Stream(Protocol):
    """Bytes in order. `raw_position` is how far the file itself has been read."""

    def read(self, n: int, /) -> bytes: ...

    def close(self) -> None: ...

    @property
    def raw_position(self) -> int: ...


def kind_of(
    path: str,
    options: filesystem.Options = None,
    *,
    expected: filesystem.Stamp | None = None,
    full: bytes | None = None,
) -> str:
    """ "gzip", "zstd" or "plain", by the first bytes; a name that promises compression is held to it.

    `full`: the file's bytes, if they are here.

    >>> import gzip, os, tempfile
    >>> from penstock.core import local_files
    >>> path = os.path.join(tempfile.mkdtemp(), "a.gz")
    >>> local_files.atomic_write(path, gzip.compress(b"x")); kind_of(path)
    'gzip'
    """
    if full is None:
        with filesystem.open_read(path, options, expected=expected) as file:
            full = read_up_to(file, _HEAD)
    full = full[:_HEAD]
    head = full[:4]
    if head.startswith(_GZIP):
        return "gzip"
    if head == _ZSTD or (len(head) == 4 and head[1:] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F):
        return "zstd"
    if suffix := promised(path):
        raise DataError(
            f"{_NAMES[suffix]} data in a file named {suffix}",
            got=f"a file that begins with {head!r}" if head else "an empty file",
            where=path,
            fix="was the download cut off, or the file never compressed? rename or fetch it again",
        )
    for magic, name in _OTHERS.items():
        if full.startswith(magic) and (name != "bzip2" or full[4:] == _BZIP2_BLOCK):
            raise DataError(
                "a plain, gzip or Zstandard file", got=f"{name} data", where=path, fix="decompress the file first"
            )
    return "plain"


def promised(path: str) -> str:
    """The suffix by which a name promises compressed data; empty if it does not."""
    return next((suffix for suffix in _NAMES if path.lower().endswith(suffix)), "")


def read_up_to(file: BinaryIO | Stream, n: int) -> bytes:
    """Exactly `n` bytes unless the data ends first: files and servers may return fewer at a time."""
    data = file.read(n)
    if len(data) == n or not data:
        return data
    parts, have = [data], len(data)
    while have < n and (more := file.read(n - have)):
        parts.append(more)
        have += len(more)
    return b"".join(parts)


def open_stream(
    path: str,
    kind: str,
    limits: Limits,
    options: filesystem.Options = None,
    *,
    expected: filesystem.Stamp | None = None,
    checked: set[str] | None = None,
    verify: bool = True,
) -> Stream:
    """Opens a file as decompressed bytes from its start.

    With `checked`, the MD5s of reads before, its end is a DataError if neither they nor the ETag agree with its bytes.
    """
    file = filesystem.open_read(path, options, expected=expected, verify=verify and checked is None)
    if checked is not None and kind != "plain" and expected is not None and is_md5(expected.tag):
        file = cast(BinaryIO, _Checked(file, path, expected, checked))
    return expanding(file, kind, path, limits)


class _Checked(io.RawIOBase):
    """A file read from its beginning to its end. Bytes that are not those of its ETag are an error the first time.

    An ETag that looks like an MD5 need not be one: then two reads that agree decide.
    """

    def __init__(self, file: BinaryIO, path: str, expected: filesystem.Stamp, seen: set[str]) -> None:
        self._file, self._path, self._expected, self._seen = file, path, expected, seen
        self._md5, self._left = hashlib.md5(usedforsecurity=False), expected.size

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._md5.update(data)
        self._left -= len(data)
        if data and not self._left:
            self._agree(self._md5.hexdigest())
        return data

    def _agree(self, found: str) -> None:
        if found == self._expected.tag or found in self._seen:
            return
        self._seen.add(found)
        forget_beginning(self._path)
        raise DataError("the bytes of the object's ETag", got="other bytes", where=self._path, fix="read it again")

    def close(self) -> None:
        self._file.close()
        super().close()


def expanding(file: BinaryIO, kind: str, path: str, limits: Limits) -> Stream:
    """The decompressed bytes of an open file, which it closes; `path` is for messages."""
    if kind in ("gzip", "zlib"):
        return _Expanding(file, _Gzip() if kind == "gzip" else _Zlib(), path, limits)
    if kind == "zstd":
        try:
            return _Expanding(file, _Zstd(), path, limits)
        except ImportError:
            file.close()
            raise
    return _Plain(file)


def skip(stream: Stream, n: int, path: str) -> None:
    """Moves `n` bytes on: a seek in a plain file, decompressing and dropping otherwise."""
    if isinstance(stream, _Plain):
        stream.seek(n)
        return
    while n > 0:
        data = stream.read(min(n, 4 << 20))
        if not data:
            raise DataError("more data", got=f"{n} bytes fewer than the saved place", where=path, fix="start again")
        n -= len(data)


class _Plain:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.raw_position = 0

    def read(self, n: int, /) -> bytes:
        data = self._file.read(n)
        self.raw_position += len(data)
        return data

    def seek(self, position: int) -> None:
        self._file.seek(position)
        self.raw_position = position

    def close(self) -> None:
        self._file.close()


class _Codec(Protocol):
    name: str
    complete: bool

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Some output, and the input that is left. Output is bounded for any input."""
        ...


class _Gzip:
    name, bits = "gzip", 31

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=self.bits)
        self.complete = False

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        if self.complete:
            data = data.lstrip(b"\0")  # padding between members is allowed
            if not data:
                return b"", b""
            self._inflate, self.complete = zlib.decompressobj(wbits=self.bits), False
        out = self._inflate.decompress(data, 1 << 20)
        if self._inflate.eof:
            self.complete = True
            return out, self._inflate.unused_data
        return out, self._inflate.unconsumed_tail


class _Zlib(_Gzip):
    """Of TFRecord files only: its first two bytes are too few to recognise it by."""

    name, bits = "zlib", 15


class _Zstd:
    name = "Zstandard"

    def __init__(self) -> None:
        package = need("zstandard", extra="zstd", purpose="to read .zst files")
        self._context: Any = package.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._frame: Any = self._context.decompressobj()
        self.errors: tuple[type[Exception], ...] = (package.ZstdError,)
        self.complete = False

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        if self.complete:
            self._frame, self.complete = self._context.decompressobj(), False
        piece, rest = data[:_ZSTD_FEED], data[_ZSTD_FEED:]
        try:
            out: bytes = self._frame.decompress(piece)
        except self.errors as error:
            raise zlib.error(str(error)) from error
        if self._frame.eof:
            self.complete = True
            rest = self._frame.unused_data + rest
        return out, rest


class _Expanding:
    """A decompressed stream with the ratio watched."""

    def __init__(self, file: BinaryIO, codec: _Codec, path: str, limits: Limits) -> None:
        self._file, self._codec, self._path, self._limits = file, codec, path, limits
        self._input = b""
        self._ready: list[bytes] = []
        self._have = 0
        self._failed: DataError | None = None
        self.expanded = 0
        self.raw_position = 0

    def read(self, n: int, /) -> bytes:
        # What was decompressed before the damage is returned first; the next read raises.
        while self._have < n and self._failed is None:
            try:
                if not self._more():
                    break
            except DataError as error:
                self._failed = error
        if not self._have and self._failed is not None:
            raise self._failed
        data = self._ready[0] if len(self._ready) == 1 else b"".join(self._ready)
        self._ready = [data[n:]] if len(data) > n else []
        self._have = max(0, len(data) - n)
        return data[:n]

    def _more(self) -> bool:
        """Decompresses a little more; False at the true end of the data."""
        if not self._input:
            self._input = self._file.read(_READ)
            self.raw_position += len(self._input)
            if not self._input:
                if self._codec.complete:
                    return False
                raise DataError(
                    f"complete {self._codec.name} data",
                    got=f"the file ends in the middle of it, after {self.expanded} decompressed bytes",
                    where=self._path,
                    fix="fetch or compress the file again",
                )
        try:
            out, self._input = self._codec.feed(self._input)
        except zlib.error as error:
            raise DataError(
                f"valid {self._codec.name} data",
                got=f"{error}, after {self.expanded} decompressed bytes",
                where=self._path,
                fix="fetch or compress the file again",
            ) from error
        self.expanded += len(out)
        used = self.raw_position - len(self._input)
        if not self._limits.expansion_allowed(used, self.expanded):
            raise LimitError(
                f"at most {self._limits.expansion} decompressed bytes per compressed byte",
                got=f"{self.expanded} bytes from {used}",
                where=self._path,
                fix="this looks like a decompression bomb; if it is honest, decompress it or raise limits.expansion",
            )
        if out:
            self._ready.append(out)
            self._have += len(out)
        return True

    def close(self) -> None:
        self._file.close()
