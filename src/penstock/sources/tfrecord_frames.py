"""The frames of TFRecord files: a length, its checksum, the record, its checksum; plain, gzip, zlib or Zstandard.

A plain local file is indexed by its frames' heads, about 1 us a record; a remote or compressed one is read once. Frames
must fill a file exactly, and every CRC32C sum must hold: of lengths when a file is indexed, of data at every read.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any

import numpy as np

from penstock.core.errors import DataError, RecordError
from penstock.core.limits import LIMITS, Limits
from penstock.core.optional import need
from penstock.sources import compressed
from penstock.sources.cutting import PIECE_BYTES, Cutter, Ints, Piece
from penstock.sources.line_errors import place_of
from penstock.sources.line_index import Index
from penstock.sources.lines import Chunk, LineFiles, Parse
from penstock.sources.record_spans import RecordTable
from penstock.sources.tfrecord_head import HEAD, begins_frame
from penstock.storage import filesystem

TAIL = 4  # the data's sum
_LENGTH = struct.Struct("<Q")
_BLOCK = 1 << 18
_GZIP, _ZSTD = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"


def masked(data: bytes) -> int:
    """The sum that TFRecord files hold: CRC32C, turned and shifted so that sums of sums stay useful."""
    crc = need("google_crc32c", extra="tfrecord", purpose="to check TFRecord files").value(data)
    return int(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def payload(frame: bytes, where: str) -> bytes:
    """The record of a frame, whose sums are checked."""
    data, length = frame[HEAD:-TAIL], int.from_bytes(frame[:8], "little")
    if len(data) != length or masked(frame[:8]) != int.from_bytes(frame[8:HEAD], "little"):
        raise damaged("the checksum of the record's length differs", where)
    if masked(data) != int.from_bytes(frame[-TAIL:], "little"):
        raise damaged("the checksum of its data differs", where)
    return data


def damaged(got: str, where: str) -> RecordError:
    """The error for a record whose bytes are not those that were written."""
    return RecordError("a TFRecord whose checksums hold", got=got, where=where, fix="copy or build the file again")


class FrameFiles(LineFiles):
    """The frames of TFRecord files, as bytes: `payload` checks and unpacks one. Safe for many threads."""

    cuttable = False  # nothing but the frame before it says where a frame begins
    what = "TFRecord"

    def __init__(
        self, paths: filesystem.Paths, *, limits: Limits = LIMITS, storage_options: filesystem.Options = None,
        suffixes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(paths, paragraphs=True, limits=limits, storage_options=storage_options, suffixes=suffixes)
        self.paragraphs = False  # it said only that a record may have `limits.record_bytes`
        self.limit += HEAD + TAIL

    def kind(self, file: int) -> str:
        """How a file is compressed. The length of a first record may look like the beginning of gzip, never its sum."""
        if file not in self._kinds:
            with filesystem.open_read(self.paths[file], self.options, expected=self.stamps[file]) as opened:
                head = compressed.read_up_to(opened, HEAD)
            self._kinds[file] = self._kind_of(head, self.paths[file])
        return self._kinds[file]

    def _kind_of(self, head: bytes, path: str) -> str:
        if begins_frame(head):
            return "plain"
        if head.startswith((_GZIP, _ZSTD)):
            return "gzip" if head.startswith(_GZIP) else "zstd"
        # two bytes may be chance, but what is expanded must begin a frame too
        if len(head) > 1 and head[0] & 15 == 8 and head[0] >> 4 < 8 and int.from_bytes(head[:2], "big") % 31 == 0:
            return "zlib"
        raise DataError(
            "a TFRecord file, plain or compressed with gzip, zlib or Zstandard",
            got=f"a file that begins with {head!r}: {_SUM.format(0)}" if len(head) == HEAD else _CUT.format(0),
            where=path, fix="name only TFRecord files; a file of another format has its own reader",
        )  # fmt: skip

    def _cut(self, stream: compressed.Stream, offset: int = 0, line: int = 0) -> Cutter:
        return FrameCutter(stream, limit=self.limit, offset=offset, line=line)

    def _record(self, data: bytes) -> bytes:
        return data

    def locate(self, index: int) -> dict[str, Any]:
        found = super().locate(index)
        return {"file": found["file"], "record": found["line"] - 1, "offset": found["offset"]}

    def _too_long(self, number: int, at: int) -> RecordError:
        return RecordError(
            f"a record of at most {self.limits.record_bytes} bytes", got="a longer one",
            where=place_of(self.locate(number)), fix="split it, or raise limits.record_bytes", row=at,
        )  # fmt: skip

    def _indexed(self) -> RecordTable:
        if self._built is None:
            for path, found in zip(self.paths, super()._indexed().indexes, strict=True):
                if found.damage:
                    self._built = None
                    raise _broken(found.damage, path)
        return super()._indexed()

    def _parse(self, piece: Piece, file: int, parse: Parse, chunk: Chunk) -> None:
        if piece.damage:
            raise _broken(piece.damage.got, self.paths[file])
        super()._parse(piece, file, parse, chunk)

    def _quick_index(self, stream: compressed.Stream, file: int) -> Index | None:
        """Hops from head to head, reading a block where records are small and a head alone where they are not."""
        size, path = self.stamps[file].size, self.paths[file]
        starts, at, first, block, want = array("q"), 0, 0, b"", _BLOCK
        while at < size:
            if at + HEAD > first + len(block):
                compressed.skip(stream, at, path)
                first, block = at, compressed.read_up_to(stream, want)
                if len(block) < HEAD:
                    return _index(starts, at, at)
            head = block[at - first : at - first + HEAD]
            if masked(head[:8]) != int.from_bytes(head[8:], "little"):
                return _index(starts, at, None)
            length = HEAD + _LENGTH.unpack_from(head)[0] + TAIL
            if at + length > size:
                return _index(starts, at, at)
            starts.append(at)
            at += length
            want = HEAD if length > _BLOCK else _BLOCK
        return _index(starts, at, -1)


def _index(starts: array[int], end: int, broken: int | None) -> Index:
    """The index up to `end`; `broken` is -1 for a sound file, None for a bad sum, else where a cut frame begins."""
    damage = "" if broken == -1 else _CUT.format(broken) if broken is not None else _SUM.format(end)
    return Index(np.frombuffer(starts, np.int64) if starts else np.empty(0, np.int64), None, end, damage)


_CUT = "a frame that begins at byte {} and ends after the file"
_SUM = "the checksum of the length at byte {} differs"


def _broken(got: str, path: str) -> DataError:
    return DataError(
        "complete TFRecord frames to the end of the file", got=got, where=path, fix="copy or build the file again"
    )


class FrameCutter(Cutter):
    """Takes pieces of complete frames from a stream; `line` counts the records before `offset`."""

    def __init__(self, stream: compressed.Stream, *, limit: int, offset: int = 0, line: int = 0) -> None:
        super().__init__(stream, paragraphs=False, limit=limit, offset=offset, line=line)

    def next(self, want: int = PIECE_BYTES) -> Piece | None:
        """The next piece of about `want` bytes, at least one frame; None when the file is done."""
        if self.finished:
            return None
        starts, at, broken = list[int](), 0, ""
        while not starts or at < want:
            self._fill_to(at + HEAD)
            if at == len(self._data):
                break
            head = self._data[at : at + HEAD]
            if len(head) < HEAD:
                broken = _CUT.format(self.offset + at)
                break
            if masked(head[:8]) != int.from_bytes(head[8:], "little"):
                broken = _SUM.format(self.offset + at)
                break
            length = HEAD + _LENGTH.unpack_from(head)[0] + TAIL
            if length > self._limit:
                if starts:
                    break
                return self._pass_over_frame(length)
            self._fill_to(at + length)
            if len(self._data) < at + length:
                broken = _CUT.format(self.offset + at)
                break
            starts.append(at)
            at += length
        damage = self._damage or (DataError("complete frames", got=broken) if broken else None)
        self.finished = damage is not None or (self._ended and at == len(self._data))
        if not starts and damage is None:
            return None
        return self._frames(np.array(starts, np.int64), at, damage if self.finished else None)

    def _fill_to(self, n: int) -> None:
        if len(self._data) < n:
            self._fill(max(n, min(PIECE_BYTES, 2 * n)))

    def _frames(self, starts: Ints, size: int, damage: DataError | None) -> Piece:
        data, self._data = self._data[:size], self._data[size:]
        offset, line = self.offset, self.line
        self.offset, self.line = offset + size, line + len(starts)
        lines = np.arange(line + 1, line + 1 + len(starts))
        ends = np.append(starts[1:], size) if len(starts) else starts
        return Piece(data, offset, starts, ends, lines, line + 1, self.offset, self.line, damage=damage)

    def _pass_over_frame(self, length: int) -> Piece:
        """Drops a frame beyond the limit, holding one block at a time."""
        offset, left = self.offset, length
        while left:
            self._fill(min(left, PIECE_BYTES))
            if not self._data:
                self.finished = True
                return self._frames(
                    np.empty(0, np.int64), 0, self._damage or DataError("complete frames", got=_CUT.format(offset))
                )
            taken = min(left, len(self._data))
            self._data, left = self._data[taken:], left - taken
        self.offset, self.line = offset + length, self.line + 1
        nothing = np.empty(0, np.int64)
        return Piece(
            b"", offset, nothing, nothing, nothing, self.line, self.offset, self.line, too_long=(self.line, offset)
        )
