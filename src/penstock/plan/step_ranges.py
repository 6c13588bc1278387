"""Step ranges: which epoch and rows a step number stands for, in closed form.

A run is one sequence of rows; epoch e is rows [e * size, (e + 1) * size). Inside a section all batches have the same
number of rows. Resuming with another batch size appends a section: earlier step numbers keep their meaning, and no row
is lost or repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from penstock.core.errors import UsageError
from penstock.order.shuffle import LARGEST


class Section(NamedTuple):
    """Steps of one batch size: from `step` on, starting at row `n` of the run, batches have `rows` rows."""

    step: int
    n: int
    rows: int


class StepRange(NamedTuple):
    """The rows of one step: its epoch, its first row in that epoch and its number of rows."""

    epoch: int
    offset: int
    rows: int


@dataclass(frozen=True)
class StepRanges:
    """The rows of every step: `size` rows per epoch (None: one endless epoch), in batches of the sizes in `sections`.

    `keep`: an epoch ends with a short batch if rows are left over.
    """

    size: int | None
    sections: tuple[Section, ...]
    keep: bool

    @classmethod
    def start(cls, size: int | None, rows: int, keep: bool) -> StepRanges:
        """Step ranges of a new run with batches of `rows` rows.

        >>> StepRanges.start(10, 4, keep=False).at(2)
        StepRange(epoch=1, offset=0, rows=4)
        """
        ranges = cls(size, (Section(0, 0, rows),), keep)
        if size is not None and ranges.steps(rows) == 0:
            raise UsageError(
                f"at least one batch of {rows} rows an epoch",
                got=f"{size} rows",
                fix='use a smaller batch, .repeat() before .batch(), or remainder="short"',
            )
        return ranges

    def steps(self, rows: int, offset: int = 0) -> int:
        """The number of steps from row `offset` of an epoch to its end."""
        left = (self.size or 0) - offset
        return -(-left // rows) if self.keep else left // rows

    def at(self, step: int) -> StepRange:
        """The rows of a step."""
        section = self.section(step)
        ahead = step - section.step
        if self.size is None:
            return StepRange(0, section.n + ahead * section.rows, section.rows)
        epoch, offset = divmod(section.n, self.size)
        first = self.steps(section.rows, offset)
        if ahead < first:
            offset += ahead * section.rows
        else:
            more, place = divmod(ahead - first, self.steps(section.rows))
            epoch, offset = epoch + 1 + more, place * section.rows
        return StepRange(epoch, offset, min(section.rows, self.size - offset))

    def row(self, step: int) -> int:
        """The row of the run at which a step starts."""
        found = self.at(step)
        return found.epoch * (self.size or 0) + found.offset

    def epoch_end(self, step: int) -> int | None:
        """The first step of the epoch after that of `step`; None for an endless epoch."""
        if self.size is None:
            return None
        section = self.section(step)
        return step + self.steps(section.rows, self.at(step).offset)

    def then(self, step: int, n: int, rows: int) -> StepRanges:
        """The same ranges before `step`; from there, at row `n`, batches of `rows` rows."""
        kept = tuple(s for s in self.sections if s.step < step)
        last = kept[-1] if kept else None
        if last is not None and last.rows == rows and self.row(step) == n:
            return StepRanges(self.size, kept, self.keep)
        return StepRanges(self.size, (*kept, Section(step, n, rows)), self.keep)

    def since(self, n: int) -> StepRanges:
        """The same ranges from row `n` on, at which a step begins; steps before it are no longer known."""
        place = max(i for i, section in enumerate(self.sections) if section.n <= n)
        step, row, rows = self.sections[place]
        if self.size is None:
            step += (n - row) // rows
        else:
            (epoch, offset), (last, end) = divmod(row, self.size), divmod(n, self.size)
            if epoch == last:
                step += (end - offset) // rows
            else:
                step += self.steps(rows, offset) + (last - epoch - 1) * self.steps(rows) + end // rows
        return StepRanges(self.size, (Section(step, n, rows), *self.sections[place + 1 :]), self.keep)

    def section_end(self, step: int) -> int:
        """The first step after the section of `step`; 2**62 for the last section."""
        return next((s.step for s in self.sections if s.step > step), 1 << 62)

    def section(self, step: int) -> Section:
        """The section of a step."""
        for section in reversed(self.sections):
            if step >= section.step:
                return section
        raise UsageError(
            f"a step number of at least {self.sections[0].step}",
            got=str(step),
            fix="a state holds only the last changes of weights: earlier batches can be computed where it was saved",
        )


def row_number(row: int, rows: int, step: int) -> int:
    """A row number of the user, checked to be one of the `rows` rows of a batch."""
    if 0 <= row < rows:
        return row
    expected = f"a row of the batch, from 0 to {rows - 1}" if rows else "a step in which this rank has rows"
    raise UsageError(expected, got=f"row {row} of step {step}", fix="rows count from 0 in each batch")


def step_number(step: int) -> int:
    """A step number of the user, checked."""
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < LARGEST:
        raise UsageError("a step number of at least 0", got=repr(step)[:80], fix="steps count from 0 over all epochs")
    return step
