"""Where steps begin: step number -> epoch and rows, in closed form.

The run is one sequence of rows; epoch e is rows [e * size, (e + 1) * size). A stage says from which row on, at which
step number, the sequence is cut into batches of how many rows. A restore with another batch size appends a stage, so
old
step numbers keep their meaning and no row is lost or repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from penstock.core.errors import UsageError


class Stage(NamedTuple):
    """From `step` on, beginning at row `n` of the run, batches have `rows` rows."""

    step: int
    n: int
    rows: int


class Cut(NamedTuple):
    """One step: its epoch, its first row in that epoch and how many rows it really has."""

    epoch: int
    offset: int
    rows: int


@dataclass(frozen=True)
class Cuts:
    """`size` rows an epoch (None: one endless epoch), cut as `stages` say; `keep` the short batch at an epoch's end."""

    size: int | None
    stages: tuple[Stage, ...]
    keep: bool

    @classmethod
    def start(cls, size: int | None, rows: int, keep: bool) -> Cuts:
        """From the beginning, with batches of `rows`.

        >>> Cuts.start(10, 4, keep=False).at(2)
        Cut(epoch=1, offset=0, rows=4)
        """
        cuts = cls(size, (Stage(0, 0, rows),), keep)
        if size is not None and cuts.steps(rows) == 0:
            raise UsageError(
                f"at least one batch of {rows} rows an epoch",
                got=f"{size} rows",
                fix='use a smaller batch, .repeat() before .batch(), or remainder="short"',
            )
        return cuts

    def steps(self, rows: int, offset: int = 0) -> int:
        """Steps from a row of an epoch to its end."""
        left = (self.size or 0) - offset
        return -(-left // rows) if self.keep else left // rows

    def at(self, step: int) -> Cut:
        """The rows of a step."""
        stage = self.stage(step)
        ahead = step - stage.step
        if self.size is None:
            return Cut(0, stage.n + ahead * stage.rows, stage.rows)
        epoch, offset = divmod(stage.n, self.size)
        first = self.steps(stage.rows, offset)
        if ahead < first:
            offset += ahead * stage.rows
        else:
            more, place = divmod(ahead - first, self.steps(stage.rows))
            epoch, offset = epoch + 1 + more, place * stage.rows
        return Cut(epoch, offset, min(stage.rows, self.size - offset))

    def row(self, step: int) -> int:
        """Row of the run at which a step begins."""
        cut = self.at(step)
        return cut.epoch * (self.size or 0) + cut.offset

    def epoch_end(self, step: int) -> int | None:
        """The step that begins the epoch after the one `step` is in; None when it never ends."""
        if self.size is None:
            return None
        stage = self.stage(step)
        cut = self.at(step)
        return step + self.steps(stage.rows, cut.offset)

    def then(self, step: int, n: int, rows: int) -> Cuts:
        """The same cuts up to `step`, and from row `n` on batches of `rows`."""
        kept = tuple(s for s in self.stages if s.step < step)
        last = kept[-1] if kept else None
        if last is not None and last.rows == rows and self.row(step) == n:
            return Cuts(self.size, kept, self.keep)
        return Cuts(self.size, (*kept, Stage(step, n, rows)), self.keep)

    def stage_end(self, step: int) -> int:
        """The step at which the stage of `step` ends; far away for the last one."""
        return next((s.step for s in self.stages if s.step > step), 1 << 62)

    def stage(self, step: int) -> Stage:
        """The stage a step is in."""
        for stage in reversed(self.stages):
            if step >= stage.step:
                return stage
        raise UsageError("a step number of at least 0", got=str(step))
