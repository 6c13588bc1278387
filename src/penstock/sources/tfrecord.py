"""TFRecord files by number: an index of where each record lies, made in one pass over the frames, and plain reads.

Opening costs one seek a record (about 1 us in the page cache) and 8 bytes of memory for each. The frames are checked
to fill the file exactly, and so are the CRC32C sums: of lengths when a file is opened, of data at every read (10 GB/s).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.core.errors import DataError, StoreError
from penstock.core.mapped import map_file
from penstock.core.optional import need
from penstock.storage import filesystem

_LENGTH = struct.Struct("<Q")
_HEAD, _TAIL = 12, 4  # length and its sum; the data's sum


class RecordFile:
    """The records of one file. Threads may read at once; pickling keeps the path and indexes again."""

    def __init__(self, path: str) -> None:
        self.path = path
        with filesystem.open_read(path) as file:
            self._file = map_file(path, file.fileno())
        self._starts = self._index()

    def _index(self) -> Any:
        data, at, end = self._file.array, 0, len(self._file.array)
        starts = []
        while at < end:
            if at + _HEAD > end:
                raise self._cut(at)
            head = data[at : at + _HEAD].tobytes()
            (length,) = _LENGTH.unpack(head[:8])
            if _masked(head[:8]) != int.from_bytes(head[8:], "little"):
                raise self._damaged(f"the checksum of the length at byte {at} differs")
            starts.append(at + _HEAD)
            at += _HEAD + length + _TAIL
            if at > end:
                raise self._cut(starts[-1] - _HEAD)
        return np.array([*starts, end + _HEAD], np.int64)

    def _cut(self, at: int) -> DataError:
        return DataError(
            "complete TFRecord frames to the end of the file",
            got=f"a frame that begins at byte {at} and ends after the file",
            where=self.path,
            fix="copy or build the file again; compressed TFRecord files are not read",
        )

    def _damaged(self, got: str) -> DataError:
        return DataError(
            "TFRecord data whose checksums hold", got=got, where=self.path, fix="copy or build the file again"
        )

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> bytes:
        start, end = int(self._starts[index]), int(self._starts[index + 1]) - _HEAD
        self._file.check()
        data: bytes = self._file.array[start:end].tobytes()
        if _masked(data[:-_TAIL]) != int.from_bytes(data[-_TAIL:], "little"):
            raise self._damaged(f"the checksum of record {index}, at byte {start}, differs")
        return data[:-_TAIL]

    def __getstate__(self) -> str:
        return self.path

    def __setstate__(self, path: str) -> None:
        self.__init__(path)  # type: ignore[misc]


class RecordFiles:
    """Records of several files one after another; `spans` are (path, skip, take)."""

    def __init__(self, spans: Sequence[tuple[str, int, int]]) -> None:
        self._files = [RecordFile(path) for path, _, _ in spans]
        for file, (path, skip, take) in zip(self._files, spans, strict=True):
            if skip + take > len(file):
                raise DataError(f"at least {skip + take} records", got=f"{len(file)}", where=path)
        self._skips = [skip for _, skip, _ in spans]
        self._ends = np.cumsum([take for _, _, take in spans])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitems__(self, indices: Sequence[int]) -> list[bytes | DataError]:
        """The data of each record, or the error that stands in its place."""
        places = np.searchsorted(self._ends, indices, side="right")
        begins = np.concatenate([[0], self._ends])
        found: list[bytes | DataError] = []
        for file, index in zip(places, indices, strict=True):
            try:
                found.append(self._files[file][self._skips[file] + int(index - begins[file])])
            except StoreError:  # the file was cut: no record's fault
                raise
            except DataError as error:
                found.append(error)
        return found


def _masked(data: bytes) -> int:
    """The sum that TFRecord files hold: CRC32C, turned and shifted so that sums of sums stay useful."""
    crc = need("google_crc32c", extra="tfds", purpose="to check TFRecord files").value(data)
    return int(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
