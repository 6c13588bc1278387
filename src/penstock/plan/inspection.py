"""What a pipeline says of itself without being run: its rows, its first rows, its size and cost, its identity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.core.arguments import explained_methods

if TYPE_CHECKING:
    from penstock.plan.definition import Definition
    from penstock.plan.row_source import RowSource
    from penstock.plan.run_estimate import RunEstimate


@explained_methods
class Inspection:
    """The methods of a pipeline that only look at it."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def definition(self) -> Definition: ...

    def rows(self) -> RowSource:
        """Returns the rows of the first epoch as a sequence of dicts, and `read(indices)` for many at once.

        >>> import penstock as ps
        >>> rows = ps.from_arrays({"x": range(9)}).skip(4).rows()
        >>> len(rows), rows.read([0, 2])
        (5, {'x': array([4, 6])})
        """
        from penstock.plan.row_source import RowSource

        return RowSource(self.definition)

    def peek(self, rows: int = 5) -> list[dict[str, Any]]:
        """Returns the first rows of the first epoch as dicts, of all ranks: only a batch is divided among them.

        >>> import penstock as ps
        >>> ps.from_texts(["a", "b", "c"]).peek(2)
        [{'text': 'a'}, {'text': 'b'}]
        """
        from penstock.plan.describe import peek

        return peek(self.definition, rows)

    def view(self, *, port: int = 0, browser: bool = True, tokenizer: str | None = None) -> Any:
        """Opens the viewer for this pipeline and returns it: see `penstock.open_viewer`."""
        from penstock.core.viewer import open_viewer

        return open_viewer(self, port=port, browser=browser, tokenizer=tokenizer)

    def plan(
        self, *, batch: int | None = None, world: int | None = None, hosts: int | None = None, epochs: int = 1,
        step_seconds: float | None = None, gpu_price: float | None = None, assume: Mapping[str, float] | None = None,
    ) -> RunEstimate:  # fmt: skip
        """Returns the size and cost of a run without running it: steps, tokens, drops, requests, cache, dollars.

        Print the result, or take its fields or `to_json()`. Reads no records. Requests, bytes and dollars are those of
        an object store, wherever the data is now.

        Args:
            batch: global batch size, if it is not that of the pipeline.
            world, hosts: data-parallel ranks, and the hosts they run on (default: 8 ranks on each).
            step_seconds: time of a training step; then rates are shown, and lanes advised where they are needed.
            gpu_price: dollars per GPU and hour; then costs are compared with it. A rank is a GPU.
            assume: other prices, latencies and sizes than the usual ones; see docs/how-to/plan-a-run.md.

        >>> import penstock as ps
        >>> plan = ps.open_tokens(range(1_000_000)).windows(100).shuffle(seed=7).plan(batch=64, world=8)
        >>> plan.steps_per_epoch, plan.tokens_per_step, plan.dropped
        (156, 6400, {'tokens_left_over': 99, 'rows_left_over': 15})
        """
        from penstock.plan.estimate import Run, estimate_pipeline

        return estimate_pipeline(self.definition, Run(batch, world, hosts, epochs, step_seconds, gpu_price), assume)

    def fingerprint(self) -> str:
        """Returns a hash that is equal for pipelines with the same rows in the same order.

        >>> import penstock as ps
        >>> texts = ps.from_texts(["a", "b"])
        >>> texts.batch(1).fingerprint() == texts.batch(2).fingerprint() != texts.shuffle(seed=7).fingerprint()
        True
        """
        return self.definition.fingerprint()

    def __repr__(self) -> str:
        from penstock.plan.describe import show

        return show(self.definition)

    def _repr_html_(self) -> str:
        from penstock.plan.describe import show_html

        return show_html(self.definition)
