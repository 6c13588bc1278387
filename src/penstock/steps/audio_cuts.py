"""Parts of recordings by columns of seconds, and filters by duration, for `decode_audio`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.audio.probe import AudioInfo, probe
from penstock.core.columns import Columns, rows_of
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.core.signals import surface
from penstock.steps.media import payloads

TOLERANCE = 0.05
"""Seconds by which a cut may end after its recording: manifests round."""


@dataclass(frozen=True)
class Cut:
    """The part of a recording that a row is: seconds from `start` on."""

    start: float
    duration: float

    def check(self, info: AudioInfo) -> None:
        """Raises `RecordError` if the recording ends before the cut does."""
        end = self.start + self.duration
        if info.frames >= 0 and end > info.seconds + TOLERANCE:
            raise RecordError(
                f"a cut inside of its recording of {info.seconds:.3f} seconds",
                got=f"{self.start:.3f} to {end:.3f}",
                fix="repair the columns of the cut, or leave the record out",
            )


def cut_of(columns: Columns, names: tuple[str, str], row: int) -> Cut:
    """The cut of a row; raises `RecordError` for what is not one."""
    for name in names:
        if name not in columns:
            raise UsageError(f"a column {name!r} of seconds for cut=", got=f"columns {', '.join(map(repr, columns))}")
    values = [columns[name][row] for name in names]
    try:
        start, duration = (float(value) for value in values)
    except (TypeError, ValueError) as error:
        surface(error)
        start = duration = math.nan
    if not (0 <= start < math.inf and 0 < duration < math.inf):
        raise RecordError(
            f"a start of 0 or more and a duration above 0 in columns {names[0]!r} and {names[1]!r}",
            got=f"{values[0]!r} and {values[1]!r}"[:80],
            fix="repair the columns of the cut, or leave the record out",
        )
    return Cut(start, duration)


@dataclass(frozen=True)
class DurationBetween:
    """For `.filter(batched=True)`: keeps recordings (or cuts) of `least` to `most` seconds, by their headers.

    Files whose header cannot be read, or does not say how long they are, are kept: the decoder reports them.
    """

    column: str
    least: float | None
    most: float | None
    cut: tuple[str, str] | None = None
    limits: Limits = field(default=LIMITS, kw_only=True)

    def __post_init__(self) -> None:
        low, high = self.least or 0.0, math.inf if self.most is None else self.most
        if not 0 <= low <= high or (self.most is not None and not self.most > 0):
            got = f"min_duration={self.least!r}, max_duration={self.most!r}"
            raise UsageError("0 <= min_duration <= max_duration in .decode_audio(), in seconds", got=got)

    def spec(self) -> dict[str, Any]:
        """The definition as plain JSON."""
        cut = list(self.cut) if self.cut else None
        return {"duration_between": [self.least, self.most], "column": self.column, "cut": cut}

    def __call__(self, columns: Columns) -> NDArray[np.bool_]:
        keep = np.ones(rows_of(columns), bool)
        try:
            medias = [] if self.cut else payloads(columns, self.column, "decode_audio", 'column="..."')
        except BadRecords:
            return keep
        for row in range(len(keep)):
            try:
                if self.cut:
                    seconds = cut_of(columns, self.cut, row).duration
                else:
                    seconds = probe(medias[row], limits=self.limits).seconds
            except RecordError:
                continue
            unknown = seconds < 0
            keep[row] = unknown or (seconds >= (self.least or 0) and (self.most is None or seconds <= self.most))
        return keep
