"""`decode_audio`: encoded sound becomes float32 samples at one rate, or mel features, only the seconds needed.

With `duration` every row has the same length: the place of the slice is drawn from (seed, epoch, record) before the
file is opened, only that slice is read (a seek, not a decode of what comes before, where the format allows), and short
files are filled up with silence. Without it rows are ragged: `.pad()` or `.bucket()` makes arrays of them. `lengths`
is how much of each row is sound. A bad file is a bad record: the error names the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.audio import features as sound
from penstock.codecs.audio.decode import decode
from penstock.codecs.audio.probe import AudioInfo, probe
from penstock.core import randomness
from penstock.core.columns import Columns, Ragged
from penstock.core.errors import BadRecords, PenstockError, RecordError, UsageError
from penstock.steps.base import Context
from penstock.steps.media import Media, MediaStep, located, payloads
from penstock.steps.node import ContentNode, Fetched, Node
from penstock.steps.picks import Picks, row_keys
from penstock.steps.replacement import rows_asked

Offset = Literal["random", "start"]
Features = Literal["log_mel", "mel", "mfcc"]
F32 = NDArray[np.float32]


@dataclass(frozen=True)
class DecodeAudio(MediaStep):
    """Samples at `sample_rate` in the column `out`, and `lengths`; the column of files is removed.

    `duration` seconds from a "random" `offset` or from the "start"; None is the full file. `mono` is the mean of the
    channels, (n, samples); `mono=False` returns (n, samples, `channels`), and repeats the channel of a mono file.
    `features` returns (n, bands, frames) instead, of the row filled up with silence, and `lengths` in frames.
    `mask=True` adds a column `mask`, True where there is sound; it is padded with the samples.
    """

    sample_rate: int = 16000
    duration: float | None = None
    offset: Offset = "random"
    mono: bool = True
    channels: int = 2
    features: Features | None = None
    n_mels: int = 80
    n_mfcc: int = 20
    n_fft: int = 400
    hop: int = 160
    mask: bool = False
    column: str = "audio"
    out: str = "audio"

    @property
    def name(self) -> str:
        return "decode_audio"

    def __post_init__(self) -> None:
        for name in ("sample_rate", "channels", "n_mels", "n_mfcc", "n_fft", "hop"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name}= of at least 1 in .decode_audio()", got=repr(value))
        if self.offset not in get_args(Offset) or self.features not in (*get_args(Features), None):
            raise UsageError(
                f"offset= one of {get_args(Offset)} and features= one of {get_args(Features)} or None",
                got=f"{self.offset!r} and {self.features!r}",
            )
        if self.duration is not None and not self.samples > 0:
            raise UsageError("a duration= of at least one sample", got=repr(self.duration), fix="seconds: duration=1.5")
        if self.duration is None and (self.features or not self.mono):
            raise UsageError(
                "duration= with features or several channels: their rows must be of one length",
                got=f"features={self.features!r}, mono={self.mono}",
                fix="duration=4.0; or .pad() the samples first and compute features in .map_batches() after it",
            )
        if self.features and not self.mono:
            raise UsageError("mono=True with features", got="mono=False")
        if self.features:
            self.featured(np.zeros(self.samples, np.float32))

    @property
    def samples(self) -> int:
        """Samples of a row, if all rows have the same number."""
        return round((self.duration or 0) * self.sample_rate)

    def build(self, child: Node, context: Context) -> Node:
        return _Decoded(child, self, randomness.key(context.seed, self.name, context.place))

    def start(self, info: AudioInfo, key: randomness.U64) -> float:
        """Where the slice of one file begins, in seconds; the start where the file is short or its length unknown."""
        room = info.frames - round((self.duration or 0) * info.sample_rate)
        if self.offset == "start" or self.duration is None or room <= 0:
            return 0.0
        return float(randomness.integers(key, 0, room + 1)[0]) / info.sample_rate

    def apply(self, medias: list[Media], keys: randomness.U64) -> Columns:
        """Columns of these files; `BadRecords` names each bad one."""
        rows: list[F32] = []
        errors: list[RecordError] = []
        for row, media in enumerate(medias):
            try:
                rows.append(self._one(media, keys[row : row + 1]))
            except RecordError as error:
                error.row = row
                errors.append(error.with_traceback(None))  # its frames would keep what was decoded so far
        if errors:
            raise BadRecords(errors)
        return self._columns(rows)

    def _columns(self, rows: list[F32]) -> Columns:
        lengths = np.array([min(len(row), self.samples or len(row)) for row in rows], np.int64)
        if self.duration is None:
            ragged = Ragged.of(rows, np.float32)
            columns: Columns = {self.out: ragged, "lengths": lengths}
            return columns | ({"mask": Ragged(np.ones(len(ragged.values), bool), ragged.offsets)} if self.mask else {})
        shape = (len(rows), self.samples) if self.mono else (len(rows), self.samples, self.channels)
        filled = np.zeros(shape, np.float32)
        for place, row, length in zip(filled, rows, lengths.tolist(), strict=True):
            place[:length] = row[:length]
        made, width = filled, self.samples
        if self.features:
            made = self.featured(filled)
            width = int(made.shape[2])
            lengths = np.minimum(1 + lengths // self.hop, width)
        out: Columns = {self.out: made, "lengths": lengths}
        return out | ({"mask": np.arange(width) < lengths[:, None]} if self.mask else {})

    def _one(self, media: Media, key: randomness.U64) -> F32:
        samples = decode(
            media,
            start=lambda info: self.start(info, key),
            duration=self.duration,
            sample_rate=self.sample_rate,
            mono=self.mono,
            limits=self.limits,
        )
        if self.mono or samples.shape[1] == self.channels:
            return samples
        if samples.shape[1] != 1:
            got = f"{samples.shape[1]}"
            raise RecordError(f"{self.channels} channels, or one", got=got, fix="mono=True, or leave it out")
        return np.repeat(samples, self.channels, axis=1)

    def featured(self, samples: F32) -> F32:
        """Features of rows of samples."""
        shared: dict[str, Any] = {"n_fft": self.n_fft, "hop": self.hop, "n_mels": self.n_mels, "pad": "constant"}
        if self.features == "mfcc":
            return sound.mfcc(samples, self.sample_rate, n_mfcc=self.n_mfcc, **shared)
        function: Callable[..., F32] = sound.log_mel if self.features == "log_mel" else sound.mel_spectrogram
        return function(samples, self.sample_rate, **shared)


class _Decoded(ContentNode):
    def __init__(self, child: Node, step: DecodeAudio, base: int) -> None:
        super().__init__(child)
        self.step, self.base = step, base

    def _medias(self, columns: Columns) -> list[Media]:
        return payloads(columns, self.step.column, "decode_audio", 'name it: .decode_audio(16000, column="flac")')

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = self.child.fetch(picks)
        if not len(used):
            return Fetched({}, used)
        with rows_asked(picks, used), located(self.child, used):
            made = self.step.apply(self._medias(columns), row_keys(self.base, used))
        return Fetched(made | {name: c for name, c in columns.items() if name != self.step.column}, used)

    def explain(self, picks: Picks) -> dict[str, Any]:
        """Also the slice of the row, where its file has a readable header."""
        facts = self.child.explain(picks)
        try:
            info = probe(self._medias(self.child.fetch(picks).columns)[0], limits=self.step.limits)
        except PenstockError:  # `fetch` reports the bad file; the facts so far are still valid
            return facts
        facts["seconds"] = info.seconds
        if self.step.duration is not None:
            facts["start"] = self.step.start(info, row_keys(self.base, picks))
        return facts
