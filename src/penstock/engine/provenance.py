"""Which rows a batch of a loader holds, and where they come from. Moves nothing; only `why` may read data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.markup.notebook import facts_html
from penstock.plan.step_ranges import row_number, step_number
from penstock.steps.picks import Picks

if TYPE_CHECKING:
    from penstock.engine.batches import Batches
    from penstock.engine.output import Output
    from penstock.plan.build import Plan
    from penstock.plan.definition import Definition
    from penstock.plan.step_ranges import StepRanges
    from penstock.sources.base import Source

ORDER_ROWS = 1 << 18  # rows whose picks are computed together where nothing is read


class Look(NamedTuple):
    """The batch of a step as it is delivered, and what is known of its rows.

    `why(row)` is the provenance of a row, `encoded(row)` the files that were decoded for it, by column. `epoch_end`
    is the first step of the next epoch, None for an endless one; `ids` are the columns of token ids, `sources` the
    sources of the plan.
    """

    batch: Any
    rows: int
    epoch: int
    epoch_end: int | None
    ids: frozenset[str]
    sources: list[Source]
    why: Callable[[int], dict[str, Any]]
    encoded: Callable[[int], dict[str, Any]]


class Provenance:
    """The methods of a loader that look at its rows."""

    if TYPE_CHECKING:
        definition: Definition
        _plan: Plan
        _ranges: StepRanges
        _step: int

        def _work(self, single: bool = False) -> Batches: ...

        def _loop_end(self) -> int | None: ...

        output: Output

        def stats(self) -> dict[str, Any]: ...

        def __len__(self) -> int: ...

    def view(self, *, port: int = 0, browser: bool = True, tokenizer: str | None = None) -> Any:
        """Opens the viewer for this loader and returns it: see `penstock.open_viewer`. The position does not move."""
        from penstock.core.viewer import open_viewer

        return open_viewer(self, port=port, browser=browser, tokenizer=tokenizer)

    def why(self, step: int, row: int = 0) -> dict[str, Any]:
        """The provenance of a row of this rank's batch `step`: record, offsets and seed."""
        picks = self._work(single=True).rows(step_number(step))
        row = row_number(row, len(picks), step)
        return self._explained(step, row, picks.rows(slice(row, row + 1)))

    def look(self, step: int) -> Look:
        """The batch of any step, with the provenance of its rows; they are read once."""
        batch, picks = self._work(single=True).with_picks(step_number(step))
        return Look(
            batch,
            len(picks),
            self._ranges.at(step).epoch,
            self._ranges.epoch_end(step),
            self._plan.ids,
            [leaf.source for leaf in self._plan.root.leaves()],
            partial(self._row, step, picks),
            partial(self._encoded, picks),
        )

    def _row(self, step: int, picks: Picks, row: int) -> dict[str, Any]:
        return self._explained(step, row, picks.rows(slice(row, row + 1)))

    def _encoded(self, picks: Picks, row: int) -> dict[str, Any]:
        return self._plan.root.encoded(picks.rows(slice(row, row + 1)))

    def _explained(self, step: int, row: int, picks: Picks) -> dict[str, Any]:
        return {
            "step": step,
            "row": row,
            "epoch": self._ranges.at(step).epoch,
            "n": int(picks.column("slot")[0]),
            "record": int(picks.record[0]),
            "pass": int(picks.column("epoch")[0]),
            "refused_before": int(picks.column("tries")[0]),
            "seed": self.definition.seed,
            "from": self._plan.root.explain(picks),
        }

    def records(self) -> Iterator[NDArray[np.int64]]:
        """The record numbers of each batch of this rank, from the current position to the end of the epoch.

        Reads no data. A filter or a bad record may replace some of them when the batch is computed.
        """
        work, step, stop = self._work(), self._step, self._loop_end()
        steps = count(step) if stop is None else range(step, stop)
        return (work.order(at).record for at in steps)

    @property
    def assigned_by_lane(self) -> bool:
        """Whether the rows of a step are assigned to ranks by lane: `.shuffle(lanes=)`."""
        return self.definition.world > 1 and self._plan.root.facts.lanes

    def _repr_html_(self) -> str:
        """For notebooks: position, statistics and plan. Computes no batch."""
        from penstock.plan.describe import show_html

        return "".join((facts_html(self._shown_facts()), show_html(self.definition)))

    def _shown_facts(self) -> dict[str, Any]:
        """Where the run is, and how it goes."""
        at, size, stats = self._ranges.at(self._step), self._ranges.size, self.stats()
        facts: dict[str, Any] = {"next step": self._step, "epoch": at.epoch}
        facts |= {} if size is None else {"steps per epoch": len(self)}
        facts |= {"batches of": self.output.name, "left out of an epoch": stats.get("left_out") or None}
        facts |= {"batches taken": stats.get("batches_taken"), "verdict": stats.get("verdict")}
        return {name: value for name, value in facts.items() if value is not None}

    def row_numbers(self, step: int) -> NDArray[np.int64]:
        """The number in the run of each row of this rank's batch `step`: `n` in `why`. Reads no data.

        Sorted by it, the rows of all ranks are the global batch, however they were assigned to ranks.
        """
        return self._work(single=True).order(step_number(step)).column("slot")

    def order(self, start: int, stop: int) -> Iterator[Picks]:
        """The planned picks of steps [start, stop), all ranks' rows in order, in blocks. No data is read."""
        while start < stop:
            end = min(stop, self._ranges.epoch_end(start) or stop, self._ranges.section_end(start))
            first, last = self._ranges.at(start), self._ranges.at(end - 1)
            after = last.offset + last.rows
            for row in range(first.offset, after, ORDER_ROWS):
                yield self._plan.root.pick(np.arange(row, min(after, row + ORDER_ROWS)), first.epoch)
            start = end
