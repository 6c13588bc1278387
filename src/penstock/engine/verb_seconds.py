"""Seconds of each step of a pipeline, measured on request: which verb takes the time.

The methods of a built plan's nodes are replaced by timed ones, on these objects only: a loader that does not measure
runs what it always ran. A verb's seconds are its own, without those of the steps below it, summed over all threads and
child processes. A measured call costs about a microsecond. Where that is more than 0.5% of the work itself, only some
calls are measured, each standing for those that are not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.core.columns import Columns, Compact
from penstock.engine.stages import Apply, BatchInProgress, PadToPlan, Stage
from penstock.plan.build import Plan, verbs_on_batches
from penstock.steps.node import ContentNode, Node, SourceNode, WrapperNode
from penstock.steps.picks import Picks
from penstock.steps.rows import Memory, Read, Rows

if TYPE_CHECKING:
    from penstock.engine.batches import Batches

BATCH, DELIVER = "batch", "deliver"
CALL_SECONDS, SHARE, MOST_SKIPPED = 1e-6, 0.005, 31  # of measuring a call, at most this part of the time, or 1 in 32


class _Here(threading.local):
    """What is being measured in this thread."""

    off = False  # whether the current call is one of those that are not measured
    depth = 0  # timed calls inside each other now
    inner = 0.0  # seconds of the timed calls inside the current one
    calls = 0  # in the outermost one
    weight = 1  # of this measurement: how many calls it stands for


class _Calls:
    """The outermost calls of one kind: how many are not measured before the next that is."""

    __slots__ = ("skip", "weight")

    def __init__(self) -> None:
        self.skip, self.weight = 0, 1

    def measured(self, calls: int, seconds: float) -> None:
        """Measures fewer of them if measuring takes more than `SHARE` of their time."""
        cost = calls * CALL_SECONDS / max(seconds, 1e-9)
        self.skip = min(MOST_SKIPPED, int(cost / SHARE))
        self.weight = self.skip + 1


class VerbSeconds:
    """Counters that the threads of a loader add to."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        self._here = _Here()
        self._calls: dict[tuple[str, str], _Calls] = {}
        self._plan: Plan | None = None  # whose nodes are timed
        self._applied: list[str] = []  # names of the steps that this plan applies to batches

    def measure(self, work: Batches) -> None:
        """Measures what this object computes from now on."""
        plan = work.plan
        if plan is not self._plan:
            nodes = list(labelled(plan.root))
            for label, node in nodes:
                self._time_node(label, node)
            self._plan, names = plan, verbs_on_batches(plan.definition, len(plan.finish))
            self._applied = numbered(names, dict(nodes))
        applied = iter(self._applied)
        work.stages = tuple(_TimedStage(s, self.timed(self._label(s, plan, applied), s)) for s in work.stages)
        for name, label in (("_plan_block", BATCH), ("make", DELIVER)):
            setattr(work, name, self.timed(label, getattr(work, name), name))

    def _label(self, stage: Stage, plan: Plan, applied: Iterator[str]) -> str:
        if isinstance(stage, Apply):
            return next(applied)
        return plan.root.verb if isinstance(stage, PadToPlan) else BATCH

    def timed(self, label: str, function: Callable[..., Any], kind: str = "") -> Callable[..., Any]:
        """The same function, whose own time is added to `label`; calls of one `kind` and label are sampled together."""
        here, seconds, lock, clock = self._here, self._seconds, self._lock, time.perf_counter
        seconds.setdefault(label, 0.0)
        calls = self._calls.setdefault((label, kind), _Calls())

        def call(*args: Any, **named: Any) -> Any:
            if here.off:
                return function(*args, **named)
            outermost = not here.depth
            if outermost:
                if calls.skip:
                    calls.skip -= 1
                    here.off = True
                    try:
                        return function(*args, **named)
                    finally:
                        here.off = False
                here.weight, here.calls, here.inner = calls.weight, 0, 0.0
            outside, here.inner = here.inner, 0.0
            here.depth += 1
            began = clock()
            try:
                return function(*args, **named)
            finally:
                took = clock() - began
                with lock:
                    seconds[label] += (took - here.inner) * here.weight
                here.inner = outside + took
                here.depth -= 1
                here.calls += 1
                if outermost:
                    calls.measured(here.calls, took)

        return call

    def _time_node(self, label: str, node: Node) -> None:
        for name in node.timed:
            if getattr(type(node), name) is not getattr(WrapperNode, name, None):  # otherwise it only calls the child's
                setattr(node, name, self.timed(label, getattr(node, name), name))
        if type(node).open is WrapperNode.open:
            return
        # A node without an `open` of its own reads with `fetch`, whose result needs no time before it is cut.
        cuts = type(node).open in (Node.open, ContentNode.open)
        opened = self.timed(label, node.open, "open")

        def open_timed(picks: Picks, compact: bool = False) -> Read:
            read = opened(picks, compact)
            if cuts:
                return read  # type: ignore[no-any-return]
            read = self.timed(label, read, "read")
            return lambda start, stop: _TimedRows(read(start, stop), self, label)

        for name, made in (("open", open_timed),):
            setattr(node, name, made)

    def add(self, more: Mapping[str, float]) -> None:
        """Adds seconds that were measured elsewhere."""
        with self._lock:
            for label, seconds in more.items():
                self._seconds[label] = self._seconds.get(label, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        """The seconds of each verb so far, in the order of the pipeline."""
        with self._lock:
            return dict(self._seconds)


class _TimedStage:
    def __init__(self, stage: Stage, call: Callable[[BatchInProgress], None]) -> None:
        self.final_dtypes, self.call = stage.final_dtypes, call

    def __call__(self, batch: BatchInProgress) -> None:
        self.call(batch)


class _TimedRows:
    """Rows of which making the columns is timed."""

    __slots__ = ("_rows", "columns", "compact")

    def __init__(self, rows: Rows, verbs: VerbSeconds, label: str) -> None:
        self._rows = rows
        self.columns: Callable[[int, int, Memory | None], Columns] = verbs.timed(label, rows.columns, "columns")
        self.compact: Callable[[int, int], Compact | None] = verbs.timed(label, rows.compact, "compact")

    @property
    def picks(self) -> Picks:
        return self._rows.picks

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes


def labelled(node: Node, above: str = "") -> Iterator[tuple[str, Node]]:
    """A node and all below it, from the sources up, each with the name of its verb: `map`, `map 2` for the second."""
    below: dict[str, Node] = {}
    for each in node.inputs():
        for label, found in labelled(each, node.verb or above):
            below[label] = found
            yield label, found
    if isinstance(node, SourceNode):
        yield str(node.source.describe().get("kind", type(node.source).__name__)), node
    else:
        yield numbered([node.verb], below)[0] if node.verb else above or BATCH, node


def numbered(names: list[str], taken: Mapping[str, Any]) -> list[str]:
    """Names that are not taken: the second `map` becomes `map 2`.

    >>> numbered(["map", "map"], {"map": 0.0})
    ['map 2', 'map 3']
    """
    found: list[str] = []
    for name in names:
        label, count = name, 1
        while label in taken or label in found:
            count += 1
            label = f"{name} {count}"
        found.append(label)
    return found
