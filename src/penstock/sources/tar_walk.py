"""Walks the headers of a tar archive, trusting none of them, and extracts nothing.

Knows v7, POSIX ustar, pax and GNU long names. Every header's checksum is checked, every size is held against the
file's, and the archive must end in two zero blocks with only zeros after them: so a cut anywhere, and any change to a
header, is noticed; what fills a member's last block does not matter. Members other than plain files and folders
(links, devices, sparse files) and names that are absolute or climb with ".." are refused by name. Costs one read of the
archive: payloads are hashed (xxh3) on the way.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import xxhash

from penstock.core.errors import DataError
from penstock.core.limits import Limits

BLOCK = 512
MAX_MEMBERS = 1_000_000
"""Members of one archive. An archive of more is split into shards before it is trained on."""

_READ = 1 << 20
_ZERO = bytes(BLOCK)
_KINDS = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a character device", b"4": "a block device",
          b"6": "a named pipe", b"S": "a sparse file"}  # fmt: skip


# Fields of a global header that say nothing about where members are: git and others write such comments.
_HARMLESS = {"comment", "mtime", "atime", "ctime", "uid", "gid", "uname", "gname", "charset", "hdrcharset", "SCHILY",
             "LIBARCHIVE", "VENDOR"}  # fmt: skip


class Member(NamedTuple):
    """One plain file of the archive. `start` is where its (first) header begins, `offset` where its payload does."""

    name: str
    start: int
    offset: int
    size: int
    head_hash: int
    hash: int


def walk(file: BinaryIO, path: str, total: int, limits: Limits) -> Iterator[Member]:
    """The plain files of an archive of `total` bytes, in order."""
    at, start, count = 0, 0, 0
    source = _Input(file, path, total)
    heads: list[bytes] = []  # the headers of the next member
    longer: dict[str, str] = {}
    awaited = False  # a member, of which the header before said something
    while True:
        block = source.take(BLOCK, at)
        if block == _ZERO:
            if awaited:
                got = "the end of the archive"
                raise _bad(path, at, "the member of an extended header", got, "write or fetch the archive again")
            _check_end(source, path, at)
            return
        count += 1
        if count > MAX_MEMBERS:
            raise _bad(path, at, f"at most {MAX_MEMBERS:,} members", "more", "split the archive into shards")
        name, size, kind = _parse(block, path, at)
        heads.append(block)
        awaited = kind in (b"x", b"L", b"K") or (awaited and kind == b"g")
        if awaited or kind == b"g":
            if size > limits.tar_header_bytes:
                raise _bad(
                    path, at, f"extended headers of at most {limits.tar_header_bytes:,} bytes", f"{size:,} bytes"
                )
            body = source.take(_padded(size), at + BLOCK)
            heads.append(body)
            _extend(longer, kind, body[:size], path, at)
            at += BLOCK + len(body)
            continue
        if longer:
            name = longer.get("path", name)
            size = _pax_size(longer["size"], path, at) if "size" in longer else size
            if any(field.startswith("GNU.sparse") for field in longer):
                kind = b"S"
            longer = {}
        if kind == b"\0" and name.endswith("/"):
            kind = b"5"  # how the oldest format marks a folder
        _check_member(name, kind, path, at)
        if kind == b"5" and size:
            raise _bad(path, at, "folders without content", f"{name!r} of {size:,} bytes", "write the archive again")
        if size > limits.record_bytes:
            raise _bad(path, at, f"members of at most {limits.record_bytes:,} bytes", f"{name!r} of {size:,} bytes")
        offset = at + BLOCK
        if offset + size > total:
            got = f"{total - offset:,} bytes: the archive ends inside it"
            raise _bad(path, at, f"{size:,} bytes of {name!r}", got, "fetch the archive again")
        payload = source.hash(size, offset)
        if kind != b"5":
            head = block if len(heads) == 1 else b"".join(heads)
            yield Member(name, start, offset, size, xxhash.xxh3_64_intdigest(head), payload)
        at = start = offset + _padded(size)
        heads.clear()


class _Input:
    """An archive that is read a megabyte at a time; a payload is hashed where it lies."""

    def __init__(self, file: BinaryIO, path: str, total: int) -> None:
        self._file, self._path, self._total = file, path, total
        self._data, self._used = b"", 0

    def take(self, count: int, at: int) -> bytes:
        """The next `count` bytes; `at` is where they are, for the error."""
        end = self._used + count
        if end <= len(self._data):
            piece = self._data[self._used : end]
            self._used = end
            return piece
        parts, left = [self._data[self._used :]], end - len(self._data)
        while left:
            self._more(at)
            parts.append(self._data[:left])
            self._used = len(parts[-1])
            left -= self._used
        return b"".join(parts)

    def hash(self, size: int, at: int) -> int:
        """The hash of the next `size` bytes, also passing over what fills their last block."""
        end = self._used + _padded(size)  # some writers leave old bytes in the filling
        if end <= len(self._data):
            found = xxhash.xxh3_64_intdigest(memoryview(self._data)[self._used : self._used + size])
            self._used = end
            return found
        state, left = xxhash.xxh3_64(), size
        while left:
            if self._used == len(self._data):
                self._more(at + size - left)
            piece = memoryview(self._data)[self._used : self._used + left]
            state.update(piece)
            self._used += len(piece)
            left -= len(piece)
        self.take(_padded(size) - size, at + size)
        return state.intdigest()

    def rest(self) -> Iterator[bytes]:
        """What is left, piece by piece."""
        yield self._data[self._used :]
        while piece := self._file.read(_READ):
            yield piece

    def _more(self, at: int) -> None:
        self._data, self._used = self._file.read(_READ), 0
        if not self._data:
            got = f"the end of the file after {self._total:,} bytes"
            fix = "the archive was cut short: fetch it again"
            expected = "a header, a payload or two zero blocks (the end of the archive)"
            raise _bad(self._path, at, expected, got, fix)


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _check_end(source: _Input, path: str, at: int) -> None:
    second = source.take(BLOCK, at + BLOCK)
    for piece in itertools.chain([second], source.rest()):
        if piece.strip(b"\0"):
            got = "a zero block with other bytes after it"
            raise _bad(path, at, "a header or the end of the archive", got, "a header was erased: fetch it again")


def _parse(block: bytes, path: str, at: int) -> tuple[str, int, bytes]:
    stated = _number(block[148:156])
    # The sum of bytes, with spaces for itself. Adler's first half is that of up to 256 bytes, plus 1: fast and exact.
    found = 8 * 32 - 3 + sum(zlib.adler32(part) & 0xFFFF for part in (block[:148], block[156:412], block[412:]))
    if stated != found and not _signed(stated, found, block):
        got = f"{block[:24]!r}, whose checksum is wrong"
        raise _bad(path, at, "a tar header", got, "not a tar archive, or damaged: fetch it again")
    size = _number(block[124:136])
    if size is None or size < 0:
        raise _bad(path, at, "a size in the header", repr(block[124:136]))
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and block[345:346] != b"\0":
        name = block[345:500].split(b"\0")[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape"), size, block[156:157]


def _signed(stated: int | None, found: int, block: bytes) -> bool:
    """Whether a checksum is that of bytes as signed numbers, as some old writers made it."""
    return stated is not None and stated == found - 256 * sum(byte > 127 for byte in block[:148] + block[156:])


def _number(field: bytes) -> int | None:
    if field[:1] in (b"\x80", b"\xff"):  # base-256, for sizes past 8 GB
        return int.from_bytes(field[1:], "big", signed=field[:1] == b"\xff")
    text = field.partition(b"\0")[0].strip(b" ")
    if not text:
        return 0
    return int(text, 8) if text.isdigit() and b"8" not in text and b"9" not in text else None


def _pax(body: bytes, path: str, at: int) -> dict[str, str]:
    """The records "length key=value" of a pax header."""
    out: dict[str, str] = {}
    while body.strip(b"\0"):
        digits, space, _ = body.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 9 else 0
        record = body[len(digits) + 1 : length - 1]
        if not space or length < 5 or length > len(body) or body[length - 1 : length] != b"\n" or b"=" not in record:
            raise _bad(path, at, "pax records of the form 'length key=value'", repr(body[:32]))
        field, _, value = record.partition(b"=")
        out[field.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        body = body[length:]
    return out


def _extend(longer: dict[str, str], kind: bytes, body: bytes, path: str, at: int) -> None:
    """Adds what an extended header says of the next member."""
    if kind == b"x":
        _once(longer, _pax(body, path, at), path, at)
    elif kind == b"L":
        _once(longer, {"path": body.rstrip(b"\0").decode("utf-8", "surrogateescape")}, path, at)
    elif kind == b"g" and not _HARMLESS.issuperset(field.partition(".")[0] for field in _pax(body, path, at)):
        raise _bad(path, at, "a global header without names or sizes", repr(body[:40]), "write the archive again")


def _once(longer: dict[str, str], more: dict[str, str], path: str, at: int) -> None:
    """Adds what another extended header says of the next member. Of two that disagree, programs take either."""
    for field in longer.keys() & more.keys() & {"path", "size"}:
        if longer[field] != more[field]:
            got = f"{longer[field][:60]!r} and {more[field][:60]!r}"
            raise _bad(path, at, f"one {field} of a member in its extended headers", got, "write the archive again")
    longer |= more


def _pax_size(text: str, path: str, at: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise _bad(path, at, "a pax size in digits", repr(text[:32]))
    return int(text)


def _check_member(name: str, kind: bytes, path: str, at: int) -> None:
    if kind not in (b"0", b"\0", b"5", b"7"):
        got = f"{name!r}, {_KINDS.get(kind, f'of unknown type {kind!r}')}"
        raise _bad(path, at, "plain files and folders only", got, "write the archive again with the files themselves")
    if name.startswith("/") or (".." in name and ".." in name.split("/")) or "\0" in name or not name:
        raise _bad(path, at, "relative member names without '..'", repr(name), "write the archive again")


def _bad(path: str, at: int, expected: str, got: str, fix: str = "leave the archive out") -> DataError:
    return DataError(expected, got=got, where=f"{path}, byte {at:,}", fix=fix)
