"""`decode_audio`: encoded sound becomes float32 samples at one rate, or mel features, only the seconds needed.

With `duration` every row has the same length: the place of the slice is drawn from (seed, epoch, record) before the
file is opened, only that slice is read (a seek, not a decode of what comes before, where the format allows), and short
files are filled up with silence. Without it rows are ragged, features an array per row: `.pad()` or `.bucket()` makes
arrays of them. `lengths` is how much of each row is sound. A bad file is a bad record: the error names the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.audio import definitions
from penstock.codecs.audio.decode import decode
from penstock.codecs.audio.probe import AudioInfo, probe
from penstock.core import randomness
from penstock.core.columns import Columns, Ragged, strings
from penstock.core.errors import BadRecords, PenstockError, RecordError, UsageError
from penstock.core.read_budget import spend
from penstock.steps.audio_cuts import Cut, cut_of
from penstock.steps.base import Context, Extent, column_field
from penstock.steps.media import DecodedMedia, Media, MediaStep
from penstock.steps.node import Node
from penstock.steps.picks import Picks, row_keys

Offset = Literal["random", "start"]
Features = definitions.Kind
F32 = NDArray[np.float32]


@dataclass(frozen=True)
class DecodeAudio(MediaStep):
    """Samples at `sample_rate` in the column `out`, and `lengths`; the column of files is removed.

    `duration` seconds from a "random" `offset` or from the "start"; None is the full file. `mono` is the mean of the
    channels, (n, samples); `mono=False` returns (n, samples, `channels`), and repeats the channel of a mono file.
    `features` returns (n, bands, frames) instead, of the row filled up with silence, and `lengths` in frames; without a
    duration an array (bands, frames) per row. `mel` is whose definition they follow: see `codecs.audio.definitions`.
    `cut` names two columns, start and duration in seconds: each row is that part of its file, and only it is decoded.
    `mask=True` adds a column `mask`, True where there is sound; it is padded with the samples.
    """

    axes: ClassVar[frozenset[str]] = frozenset({"time"})
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
    mel: definitions.Definition | None = None
    cut: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        return "decode_audio"

    def __post_init__(self) -> None:
        super().__post_init__()
        column_field(self, self.column)
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
        if self.duration is None and not self.mono:
            raise UsageError(
                "duration= with several channels: their rows must be of one length",
                got=f"mono={self.mono}",
                fix="duration=4.0, or mono=True",
            )
        if self.features and not self.mono:
            raise UsageError("mono=True with features", got="mono=False")
        if self.mel not in (*get_args(definitions.Definition), None) or (self.mel and not self.features):
            got = f"mel={self.mel!r}, features={self.features!r}"
            raise UsageError(f"mel= one of {get_args(definitions.Definition)}, with features=", got=got)
        if self.cut is not None and (len(self.cut) != 2 or not all(isinstance(name, str) for name in self.cut)):
            fix = 'cut=("start", "duration")'
            raise UsageError("cut= as the names of two columns, start and duration", got=repr(self.cut), fix=fix)
        if self.features:
            sizes = {"sample_rate": self.sample_rate, "n_fft": self.n_fft, "hop": self.hop}
            definitions.check(self.mel, self.features, **sizes)
            self.featured(np.zeros(self.samples or self.n_fft, np.float32))

    def spec(self) -> dict[str, Any]:
        """Without `mel` and `cut` where they are not used, as before they existed: fingerprints stay."""
        return {name: value for name, value in super().spec().items() if name not in ("mel", "cut") or value}

    @property
    def samples(self) -> int:
        """Samples of a row, if all rows have the same number."""
        return round((self.duration or 0) * self.sample_rate)

    @property
    def draws(self) -> bool:
        return self.duration is not None and self.offset == "random"

    @property
    def extent(self) -> Extent:
        return self._extent(self.column, self.out)

    def build(self, child: Node, context: Context) -> Node:
        return _Decoded(child, self, context, ".decode_audio(16000, column={})")

    def start(self, info: AudioInfo, key: randomness.U64, cut: Cut | None = None) -> float:
        """Where the slice of one file begins, in seconds; the start where the file is short or its length unknown."""
        if cut is not None:
            cut.check(info)
        first, frames = (0.0, info.frames) if cut is None else (cut.start, round(cut.duration * info.sample_rate))
        room = frames - round((self.duration or 0) * info.sample_rate)
        if self.offset == "start" or self.duration is None or room <= 0:
            return first
        return first + float(randomness.integers(key, 0, room + 1)[0]) / info.sample_rate

    def apply(self, medias: list[Media], keys: randomness.U64, columns: Columns, /) -> Columns:
        """Columns of these files; `BadRecords` names each bad one."""
        rows: list[F32] = []
        errors: list[RecordError] = []
        for row, media in enumerate(medias):
            try:
                cut = None if self.cut is None else cut_of(columns, self.cut, row)
                rows.append(self._one(media, keys[row : row + 1], cut))
                spend(rows[-1].nbytes)
            except RecordError as error:
                error.row = row
                errors.append(error.with_traceback(None))  # its frames would keep what was decoded so far
        if errors:
            raise BadRecords(errors)
        return self._columns(rows)

    def _columns(self, rows: list[F32]) -> Columns:
        lengths = np.array(
            [min(row.shape[-1 if self.ragged else 0], self.samples or 1 << 62) for row in rows], np.int64
        )
        if self.ragged:
            made_rows: Columns = {self.out: strings(rows), "lengths": lengths}
            masks = [np.ones(n, bool) for n in lengths.tolist()]
            return made_rows | ({"mask": Ragged.of(masks, np.bool_)} if self.mask else {})
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
            lengths = np.minimum(definitions.frames_of(lengths, self.hop, self.mel), width)
        out: Columns = {self.out: made, "lengths": lengths}
        return out | ({"mask": np.arange(width) < lengths[:, None]} if self.mask else {})

    @property
    def ragged(self) -> bool:
        """Whether rows are features of different lengths."""
        return self.features is not None and self.duration is None

    def _one(self, media: Media, key: randomness.U64, cut: Cut | None) -> F32:
        lengths = [d for d in (self.duration, None if cut is None else cut.duration) if d is not None]
        samples = decode(
            media,
            start=lambda info: self.start(info, key, cut),
            duration=min(lengths, default=None),
            sample_rate=self.sample_rate,
            mono=self.mono,
            limits=self.limits,
        )
        if self.ragged:
            least = definitions.shortest(self.n_fft, self.mel)
            if len(samples) < least:
                fix = "min_duration= leaves short recordings out"
                raise RecordError(f"at least {least} samples for features", got=f"{len(samples)}", fix=fix)
            return self.featured(samples)
        if self.mono or samples.shape[1] == self.channels:
            return samples
        if samples.shape[1] != 1:
            got = f"{samples.shape[1]}"
            raise RecordError(f"{self.channels} channels, or one", got=got, fix="mono=True, or leave it out")
        return np.repeat(samples, self.channels, axis=1)

    def featured(self, samples: F32) -> F32:
        """Features of rows of samples."""
        assert self.features is not None
        return definitions.features(
            samples, self.sample_rate, self.features, self.mel, n_fft=self.n_fft, hop=self.hop, n_mels=self.n_mels,
            n_mfcc=self.n_mfcc,
        )  # fmt: skip


class _Decoded(DecodedMedia[DecodeAudio]):
    def encoded(self, picks: Picks) -> dict[str, Any]:
        return self.child.encoded(picks) | {self.step.out: self.medias(self.child.fetch(picks).columns)[0]}

    def explain(self, picks: Picks) -> dict[str, Any]:
        """Also the slice of the row, where its file has a readable header."""
        facts = self.child.explain(picks)
        try:
            columns = self.child.fetch(picks).columns
            info = probe(self.medias(columns)[0], limits=self.step.limits)
            cut = None if self.step.cut is None else cut_of(columns, self.step.cut, 0)
            start = self.step.start(info, row_keys(self.base, picks), cut)
        except PenstockError:  # `fetch` reports the bad file; the facts so far are still valid
            return facts
        facts["seconds"] = info.seconds
        if self.step.duration is not None or cut is not None:
            facts["start"] = start
        return facts
