"""A loader that records its run: `write_snapshots`, and what a snapshot holds."""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from penstock._version import __version__
from penstock.core.cpus import usable_cores
from penstock.core.errors import UsageError
from penstock.engine.advice import verdict
from penstock.engine.run_file import check_new, rank_path
from penstock.engine.snapshots import SECONDS, VARIABLE, Snapshots, memory
from penstock.plan.branches import Combined
from penstock.storage.filesystem import local_only

if TYPE_CHECKING:
    from penstock.engine.output import Output
    from penstock.engine.stats import Stats
    from penstock.engine.storage_stats import StorageStats
    from penstock.plan.build import Plan
    from penstock.plan.definition import Definition

MOST_TEXT = 200  # characters of a step's description


class Recorded:
    """The methods of a loader that write snapshots of it."""

    _record_to: tuple[str, float] | None = None  # the file, and the seconds between two lines
    _recording: Snapshots | None = None  # of this loader in this process: a copy or another process has its own

    if TYPE_CHECKING:
        definition: Definition
        output: Output
        _plan: Plan
        _stats: Stats
        _storage: StorageStats
        _rows: int
        _threads: int | None
        _settled: int | None
        _workers: int

        @property
        def step(self) -> int: ...

        @property
        def epoch(self) -> int: ...

    def write_snapshots(self, path: str | os.PathLike[str], *, seconds: float = SECONDS) -> Self:
        """Writes a line of JSON about the run to a file, one a second while a `for` runs; returns the loader.

        `penstock view run.jsonl` shows it while it trains: throughput, waiting, seconds of each verb, memory, storage,
        and a verdict. Costs the trainer well under 0.5% of its time; the batches are the same. With several ranks each
        writes a file of its own, `run.rank3.jsonl`. The file stays below 3,000 lines: old ones are thinned out. If it
        cannot be written, a warning says so once and training goes on. The environment variable `PENSTOCK_RUN=path`
        does the same for every loader of a script.

        Args:
            path: a local file; lines are appended, so a resumed run continues it.
            seconds: between two lines, at least 0.1.

        >>> import json, tempfile
        >>> from pathlib import Path
        >>> import penstock as ps
        >>> path = tempfile.mkdtemp() + "/run.jsonl"
        >>> loader = ps.from_arrays({"x": range(8)}).batch(2).to_numpy().write_snapshots(path)
        >>> for batch in loader:
        ...     pass
        >>> json.loads(Path(path).read_text().splitlines()[-1])["batches"]
        4
        """
        name = local_only(path, "snapshots")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.1 <= seconds < math.inf:
            raise UsageError("at least 0.1 seconds between two snapshots", got=repr(seconds)[:80])
        check_new(name)
        self._record_to, self._recording = (name, float(seconds)), None
        return self

    @property
    def snapshots(self) -> str | None:
        """The file that snapshots of this loader are written to; None if there is none."""
        if self._recording is not None and self._recording.written is not None:
            return self._recording.written
        return rank_path(self._record_to[0], self.definition.rank, self.definition.world) if self._record_to else None

    def _prepare_recording(self) -> None:
        """Called before a `for` begins to compute."""
        if self._record_to is None and (path := os.environ.get(VARIABLE)):
            self._record_to = (path, SECONDS)
        if self._recording is None and self._record_to is not None:
            self._recording = Snapshots(*self._record_to)
        if self._recording is not None and self._stats.verbs is None:
            from penstock.engine.verb_seconds import VerbSeconds

            self._stats.verbs = VerbSeconds()

    def _begin_recording(self) -> None:
        if self._recording is None:
            return
        definition, own = self.definition, weakref.ref(self)
        place = rank_path(self._recording.path, definition.rank, definition.world)
        self._recording.begin(place, lambda: _start(own()), lambda: _now(own()))

    def _end_recording(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._recording is not None and not _ending():
            self._recording.end()

    def _snapshot(self) -> dict[str, Any]:
        """The totals of the run so far, as plain JSON."""
        plan, definition = self._plan, self.definition
        facts = self._stats.summary()
        self._storage.add_to(facts, plan)
        found = verdict(facts, usable_cores())
        rows = facts["rows_computed"] * facts["batches_taken"] / max(1, facts["batches_computed"])
        if plan.needs_global_batch:
            rows /= definition.world
        tokens = {"tokens": round(rows * plan.root.facts.width)} if plan.root.facts.width else {}
        return {
            "rank": definition.rank,
            "world": definition.world,
            "step": self.step,
            "epoch": self.epoch,
            "batches": facts["batches_taken"],
            "rows": round(rows),
            **tokens,
            "seconds": facts["seconds"],
            "waited": facts["waited_seconds"],
            "verbs": {verb: round(seconds, 4) for verb, seconds in facts.get("verb_seconds", {}).items()},
            "memory": memory(self._stats.children),
            **({"storage": facts["storage"]} if "storage" in facts else {}),
            "threads": self._threads if self._threads is not None else self._settled or 0,
            "workers": self._workers,
            "skipped": plan.ledger.total,
            "filtered": plan.refusals.total,
            "verdict": found.text,
            "change": found.change,
        }


def _now(loader: Recorded | None) -> dict[str, Any] | None:
    return None if loader is None else loader._snapshot()


def _start(loader: Recorded | None) -> dict[str, Any]:
    """What does not change during a run."""
    if loader is None:
        return {}
    definition, origin = loader.definition, loader.definition.origin
    kind = f"penstock.{origin.verb}" if isinstance(origin, Combined) else str(origin.describe().get("kind", "data"))
    steps = [f".{step.name}({str(step)[:MOST_TEXT]})" for step in definition.steps]
    return {
        "pipeline": [kind, *steps],
        "output": loader.output.name,
        "batch": loader._rows,
        "fingerprint": loader._plan.fingerprint,
        "version": __version__,
    }
