"""A recorded run as plain data: the snapshots that `loader.write_snapshots` wrote, as rates over time.

Lines hold totals, so a rate is the difference of two lines. A file may hold several runs, of a job that was resumed:
rates are of two lines of one run, totals those of the newest. Everything in a file is treated as hostile.
"""

from __future__ import annotations

import glob
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from penstock.core.errors import DataError
from penstock.core.os_errors import storage_errors
from penstock.engine.run_file import STARTS, parse

MOST_BYTES = 16 << 20  # read of a file, from its end
POINTS = 240  # of a chart
MOST_VERBS, MOST_TEXT = 60, 300
QUIET_SECONDS = 10.0  # without a line, after which a run that has not ended is said to be silent


@dataclass(frozen=True)
class Point:
    """Rates between two lines; `seconds` since the first line of the file."""

    seconds: float
    step: int
    rows: float  # a second
    tokens: float  # a second
    waiting: float  # share of the time
    memory: float  # bytes


@dataclass(frozen=True)
class RunFacts:
    """One run of one rank."""

    name: str
    rank: int
    world: int
    running: bool
    age: float  # seconds since the last line
    step: int
    epoch: int
    batches: int
    rows: int
    tokens: int
    seconds: float
    waited: float
    verbs: dict[str, float]
    memory: dict[str, int]
    storage: dict[str, float]
    threads: int
    workers: int
    skipped: int
    filtered: int
    verdict: str
    change: str
    pipeline: list[str] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    runs: int = 1  # in the file
    unreadable: int = 0  # lines

    @property
    def silent(self) -> bool:
        """Whether the run has neither ended nor written a line for a while."""
        return self.running and self.age > QUIET_SECONDS

    @property
    def waited_share(self) -> float:
        return min(1.0, self.waited / self.seconds) if self.seconds > 0 else 0.0

    @property
    def rows_per_second(self) -> float:
        """Over the full run."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def now(self) -> Point | None:
        return self.points[-1] if self.points else None


def run_paths(path: str) -> tuple[str, ...]:
    """The files of snapshots at a path: the file, or those of all ranks of `run.jsonl`; none for anything else."""
    if os.path.isfile(path):
        return (path,) if _is_run(path) else ()
    stem, end = os.path.splitext(path)
    ranks = glob.glob(f"{glob.escape(stem)}.rank*{glob.escape(end)}") if end and not os.path.exists(path) else []
    return tuple(sorted((one for one in ranks if _is_run(one)), key=lambda one: (len(one), one)))


def _is_run(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return parse(file.readline(1 << 16)) is not None
    except OSError:
        return False


def read_run(path: str, now: float | None = None) -> RunFacts:
    """Reads a file of snapshots.

    `now`: the time to compute the age of the last line with; by default the clock's.
    """
    with storage_errors(path, "read"), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MOST_BYTES))
        data = file.read(MOST_BYTES)
    lines = data.split(b"\n")[1 if size > MOST_BYTES else 0 :]
    lines.pop()  # what follows the last line break is nothing, or a line that is being written
    found = [facts for facts in map(parse, lines) if facts is not None]
    if not found:
        raise DataError("snapshots of a loader", got="none", where=path, fix="loader.write_snapshots(path) writes them")
    last = found[-1]
    first: dict[str, Any] = next((facts for facts in reversed(found) if STARTS in facts), {})
    age = max(0.0, (time.time() if now is None else now) - _number(last, "time"))
    about = {name: _text(first.get(name)) for name in ("host", "pid", "output", "batch", "fingerprint", "version")}
    return RunFacts(
        name=os.path.basename(path),
        running=last.get("running") is True,
        age=age,
        **{name: _whole(last, name) for name in ("rank", "step", "epoch", "batches", "rows", "tokens")},
        **{name: _whole(last, name) for name in ("threads", "workers", "skipped", "filtered")},
        world=max(1, _whole(last, "world")),
        seconds=_number(last, "seconds"),
        waited=_number(last, "waited"),
        verbs=_numbers(last.get("verbs")),
        memory={name: int(value) for name, value in _numbers(last.get("memory")).items()},
        storage=_numbers(last.get("storage")),
        verdict=_text(last.get("verdict")),
        change=_text(last.get("change")),
        pipeline=[_text(step) for step in _list(first.get(STARTS))[:MOST_VERBS]],
        about={name: value for name, value in about.items() if value},
        points=_points(found),
        runs=len({_text(facts.get("id")) for facts in found}),
        unreadable=sum(1 for line in lines if line.strip()) - len(found),
    )


def _points(lines: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Rates between lines, at most `POINTS`: many lines are taken together."""
    every = max(1, -(-len(lines) // POINTS))
    chosen = [*range(0, len(lines) - 1, every), len(lines) - 1]
    start = _number(lines[0], "time")
    points = []
    for before, after in pairwise(chosen):
        old, new = lines[before], lines[after]
        passed, worked = (_number(new, name) - _number(old, name) for name in ("time", "seconds"))
        if old.get("id") != new.get("id") or passed <= 0:
            continue
        rows, tokens, waited = (_number(new, name) - _number(old, name) for name in ("rows", "tokens", "waited"))
        share = min(1.0, max(0.0, waited / worked)) if worked > 0 else 0.0
        memory = sum(_numbers(new.get("memory")).values())
        seconds = _number(new, "time") - start
        points.append(Point(seconds, _whole(new, "step"), rows / passed, tokens / passed, share, memory))
    return points


def _number(facts: Mapping[str, Any], name: str) -> float:
    value = facts.get(name)
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18
    return float(value) if good and math.isfinite(value) else 0.0  # type: ignore[arg-type]


def _whole(facts: Mapping[str, Any], name: str) -> int:
    return int(_number(facts, name))


def _numbers(value: Any) -> dict[str, float]:
    items = list(value.items())[:MOST_VERBS] if isinstance(value, dict) else []
    return {_text(name): max(0.0, _number({"": number}, "")) for name, number in items if number is not None}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}… (cut)"
