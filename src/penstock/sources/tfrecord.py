"""The records of TFRecord files by number, for splits of TFDS, which are parts of files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.core.errors import DataError, StoreError
from penstock.sources.line_errors import bare, place_of
from penstock.sources.tfrecord_frames import FrameFiles, payload


class RecordFiles:
    """Records of several local files one after another; `spans` are (path, skip, take)."""

    def __init__(self, spans: Sequence[tuple[str, int, int]]) -> None:
        if not spans:
            raise DataError("a split with at least one record", got="an empty one", fix="name another split")
        self._files = FrameFiles(list(dict.fromkeys(path for path, _, _ in spans)))
        number = {path: file for file, path in enumerate(self._files.paths)}
        held = [len(index.starts) for index in self._files.index]
        first = np.cumsum([0, *held])
        for path, skip, take in spans:
            if skip + take > held[number[path]]:
                raise DataError(f"at least {skip + take} records", got=f"{held[number[path]]}", where=path)
        self._begins = np.array([first[number[path]] + skip for path, skip, _ in spans], np.int64)
        self._ends = np.cumsum([take for _, _, take in spans])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitems__(self, indices: Sequence[int]) -> list[bytes | DataError]:
        """The data of each record, or the error that stands in its place."""
        asked = np.asarray(indices, np.int64)
        spans = np.searchsorted(self._ends, asked, side="right")
        numbers = self._begins[spans] + asked - np.concatenate([[0], self._ends])[spans]
        try:
            frames, bad = self._files.fetch(numbers)
        except DataError as error:  # a file changed or was cut: no record's fault
            raise StoreError(error.expected, got=error.got, where=error.where, fix=error.fix) from error
        found: list[bytes | DataError] = [*frames]
        for one in bad:
            found[one.row] = one
        for row, frame in enumerate(frames):
            if not isinstance(found[row], DataError):
                try:
                    found[row] = payload(frame, place_of(self._files.locate(int(numbers[row]))))
                except DataError as error:
                    found[row] = bare(error)
        return found
