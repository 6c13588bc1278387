"""Audio files decoded in full at one rate, with lengths known from headers, for batches planned by duration.

`.bucket([2 * 16000, 8 * 16000], 32)` and `.batch_tokens(60 * 16000)` (a minute of sound a step, padding counted) need
every length before anything is decoded: one header a file is read, once, about 30 us each, 8 bytes kept (MP3 and Ogg
files are read completely, since only their frames and pages say how long they are). Samples count as tokens do in
text; there is no stream of samples across files, so `.windows()` and `.pack()` refuse it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.audio.decode import decode
from penstock.codecs.audio.probe import probe
from penstock.codecs.audio.resample import resampled_length
from penstock.core.columns import Columns, Ragged
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.read_budget import spend
from penstock.sources.folders import AudioFolder, Labels, Paths
from penstock.sources.media_objects import groups

I64 = NDArray[np.int64]


class Recordings(AudioFolder):
    """Ragged `audio` (float32, mono) at `sample_rate`, `lengths`, `path` and, with labels, `label`.

    >>> import tempfile, pathlib
    >>> from penstock.codecs.audio import wav
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> for n in (40, 20): _ = (root / f"{n}.wav").write_bytes(wav.encode(np.zeros(n), 8000))
    >>> Recordings(root, None, sample_rate=16000).lengths(np.array([0, 1])).tolist()
    [40, 80]
    """

    kind = "recordings"
    vocab_size = None

    def __init__(self, root: Paths, labels: Labels = "folder", *, sample_rate: int, **options: Any) -> None:
        if isinstance(sample_rate, bool) or not isinstance(sample_rate, int) or sample_rate < 1:
            raise UsageError("sample_rate= of at least 1", got=repr(sample_rate))
        super().__init__(root, labels, **options)
        self.sample_rate = sample_rate
        self.columns = ["audio", "lengths", "path"] + ["label"] * (self.labels is not None)
        self._lengths: I64 | None = None

    def read(self, indices: I64) -> Columns:
        paths = [self.names[int(i)] for i in indices]
        rows: list[NDArray[np.float32]] = []
        errors: list[RecordError] = []
        ahead = self._ahead(paths)
        for row, path in enumerate(paths):
            try:
                full = self.place(path)
                data = self._bytes(path, None, ahead) if self.objects else full
                rows.append(decode(data, sample_rate=self.sample_rate, where=full, limits=self.limits))
                spend(rows[-1].nbytes)
            except RecordError as error:
                error.row = row
                errors.append(error)
        if errors:
            raise BadRecords(errors)
        audio = Ragged.of(rows, np.float32)
        return self._columns({"audio": audio, "lengths": audio.lengths}, paths, indices)

    def lengths(self, indices: I64) -> I64:
        """Samples of each file at this rate, from its header."""
        if self._lengths is None:
            names = [list(self.names)] if not self.objects else groups(list(self.names), self.objects)
            self._lengths = np.array([n for group in names for n in self._measured(group)], np.int64)
        return self._lengths[indices]

    def _measured(self, names: list[str]) -> list[int]:
        ahead = self._ahead(names)
        return [self._length(name, ahead) for name in names]

    def _length(self, name: str, ahead: dict[str, bytes]) -> int:
        full = self.place(name)
        info = probe(self._bytes(name, None, ahead) if self.objects else full, where=full, limits=self.limits)
        if info.frames < 0:
            raise RecordError(
                "a file that states its length", got=f"a {info.format} stream that does not",
                where=full, fix="convert it to FLAC or WAV, or exclude it",
            )  # fmt: skip
        return resampled_length(info.frames, info.sample_rate, self.sample_rate)

    @property
    def n_tokens(self) -> int:
        """Samples of all files."""
        return int(self.lengths(np.arange(len(self))).sum())

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def starts(self, indices: I64) -> I64:
        """Samples before each file."""
        before = np.concatenate([[0], np.cumsum(self.lengths(np.arange(len(self))))])
        return np.asarray(before[indices], np.int64)

    def documents_at(self, positions: I64) -> I64:
        """The file that holds each sample of all."""
        return np.searchsorted(self.starts(np.arange(len(self) + 1)), positions, side="right").astype(np.int64) - 1

    def gather(self, starts: I64, length: int) -> NDArray[Any]:
        raise UsageError(
            "tokens before .windows() or .pack()",
            got="recordings",
            where=self.root,
            fix="read_audio(folder).decode_audio(duration=...) makes rows of one length",
        )

    def fingerprint(self) -> str:
        return f"{super().fingerprint()} at {self.sample_rate}"

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"sample_rate": self.sample_rate}
