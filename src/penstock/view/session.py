"""What the viewer has open: a path, a dataset's name, a configuration, a pipeline or a loader.

A session is opened once and shared by all pages. Requests are answered one at a time (`lock`), so pages may keep what
they computed in `kept`; keep bounded things only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.core.errors import UsageError
from penstock.engine.loader import Loader
from penstock.pipeline import Pipeline
from penstock.sources.formats import Format, format_of
from penstock.storage import filesystem
from penstock.view.run_facts import run_paths
from penstock.view.targets import is_name

T = TypeVar("T")


@dataclass(frozen=True)
class Choices:
    """How to read what a path does not say by itself; the options of `penstock view`."""

    tokenizer: str | None = None
    field: str | None = None  # the field that holds the text
    by: str | None = None  # what a record of a text file is; None: a line of one file, or each of several files
    split: str | None = None
    dtype: str | None = None  # of token files without a header
    split_id: int | None = None  # the id that ends documents in them
    window: int = 1024  # tokens of a window: where lengths are cut
    batch: int = 32  # rows of a batch, for data that has no pipeline yet
    seed: int = 0
    storage_options: filesystem.Options = None


@dataclass
class Session:
    """One open target. Exactly one of `format` and `pipeline` is set when it is opened, or only `runs`.

    `loader` is set when a loader was opened, and is never iterated or moved: pages use `batch_at` and `why`.
    """

    title: str
    choices: Choices = field(default_factory=Choices)
    path: str | None = None
    format: Format | None = None  # of a path that is not a configuration
    pipeline: Pipeline | None = None
    loader: Loader[Any] | None = None
    runs: tuple[str, ...] = ()  # files of snapshots that a loader wrote
    beside: Session | None = None  # what its batches and plan are compared with
    lock: threading.RLock = field(default_factory=threading.RLock)
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def has_data(self) -> bool:
        """Whether there is data to look at, and not only the record of a run."""
        return self.format is not None or self.pipeline is not None

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """Returns what `make` returned the first time."""
        if name not in self.kept:
            self.kept[name] = make()
        found: T = self.kept[name]
        return found


def open_session(target: Any, choices: Choices | None = None) -> Session:
    """Opens a path, URL, dataset name, configuration file, pipeline or loader. Reads no records.

    >>> import penstock as ps
    >>> open_session(ps.from_texts(["a", "b"]).batch(2)).title
    'pipeline of 2 steps'
    """
    choices = choices or Choices()
    if isinstance(target, Loader):
        pipeline = Pipeline(target.definition)
        return Session(f"loader: {_title(pipeline)}", choices, pipeline=pipeline, loader=target)
    if isinstance(target, Pipeline):
        return Session(_title(target), choices, pipeline=target)
    if isinstance(target, list | tuple) and len(target) > 1:
        return _open_runs([os.fspath(one) for one in target], choices)
    if isinstance(target, list | tuple) and target:
        target = target[0]
    if not isinstance(target, str | os.PathLike):
        raise UsageError("a path, a dataset's name, a pipeline or a loader", got=type(target).__name__)
    path = os.fspath(target)
    title = os.path.basename(path.rstrip("/")) or path
    if runs := run_paths(path):
        return Session(title, choices, path, runs=runs)
    from penstock.read.config import from_config, is_config

    if is_config(path):
        return Session(title, choices, path, pipeline=from_config(path, storage_options=choices.storage_options))
    if is_name(path):
        from penstock.facades.capibara.resolve import resolve_dataset

        split = {"split": choices.split} if choices.split else {}
        found = resolve_dataset(path, every_field=True, **split)
        if not isinstance(found, Pipeline):
            raise UsageError(
                "a dataset with random access", got="a stream", where=path, fix="download it first: from_hf"
            )
        return Session(title, choices, pipeline=found)
    return Session(title, choices, path, format_of(path, choices.storage_options, most=True))


def open_beside(target: Any, other: Any, choices: Choices | None = None) -> Session:
    """Opens a target whose batches and plan are shown beside those of another one.

    >>> import penstock as ps
    >>> rows = ps.from_texts(["a", "b"])
    >>> open_beside(rows.batch(2), rows.batch(1)).beside.title
    'pipeline of 2 steps'
    """
    opened, beside = open_session(target, choices), open_session(other, choices)
    for one in (opened, beside):
        if not one.has_data:
            raise UsageError(
                "data, a configuration, a pipeline or a loader, to show its batches beside others",
                got="snapshots of a run",
                where=one.title,
                fix="name several files of snapshots to compare runs: penstock view a.jsonl b.jsonl",
            )
    opened.beside = beside
    return opened


def _open_runs(paths: list[str], choices: Choices) -> Session:
    found = {path: run_paths(path) for path in paths}
    other = [path for path, runs in found.items() if not runs]
    if other:
        raise UsageError(
            "one target, or several files of snapshots to compare",
            got=f"{len(paths)} targets",
            where=other[0],
            fix="loader.write_snapshots(path) writes such files",
        )
    title = ", ".join(os.path.basename(path) for path in paths[:3]) + ("…" if len(paths) > 3 else "")
    return Session(title, choices, runs=tuple(one for runs in found.values() for one in runs))


def _title(pipeline: Pipeline) -> str:
    count = len(pipeline.definition.steps) + 1
    return f"pipeline of {count} step{'' if count == 1 else 's'}"
