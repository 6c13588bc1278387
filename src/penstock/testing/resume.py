"""Assertions of the invariant for any pipeline, for your own tests and steps.

`assert_exact_resume` saves before every batch, restores each state in a new loader and compares all following batches.
`assert_elastic` compares ordered global batches over world sizes and threads, and resumes with another world size and
batch size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from penstock.core.columns import Columns, Ragged, concat, cut, rows_of, take
from penstock.pipeline import Pipeline

_PER_BATCH = ("cu_seqlens", "max_seqlen", "valid_labels")


def batches(loader: Iterable[Any], count: int | None) -> list[Columns]:
    """Returns the first `count` batches of an iteration, or all."""
    return list(islice(loader, count))


def _same_value(one: Any, other: Any) -> bool:
    """Whether two values of an object column are equal; arrays by dtype, shape and content."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)


def assert_same(one: Mapping[str, Any], other: Mapping[str, Any], what: str = "batches") -> None:
    """Asserts that two batches have the same columns, values, dtypes and shapes."""
    if one.keys() != other.keys():
        raise AssertionError(f"{what}: columns {sorted(one)} and {sorted(other)}")
    for name, left in one.items():
        right = other[name]
        if isinstance(left, Ragged) or isinstance(right, Ragged):
            both = isinstance(left, Ragged) and isinstance(right, Ragged)
            if not both or left.tolist() != right.tolist():
                raise AssertionError(f"{what}: column {name!r} differs: {left.tolist()} and {right.tolist()}")
            continue
        if left.dtype != right.dtype or left.shape != right.shape:
            raise AssertionError(f"{what}: column {name!r} is {left.dtype}{left.shape} and {right.dtype}{right.shape}")
        same = (
            all(_same_value(a, b) for a, b in zip(left.flat, right.flat, strict=True))
            if left.dtype == object
            else np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
        )
        if not same:
            raise AssertionError(f"{what}: values of column {name!r} differ: {left} and {right}")


def assert_same_batches(
    one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], what: str = "batches"
) -> None:
    """Asserts that two lists hold the same batches in the same order."""
    if len(one) != len(other):
        raise AssertionError(f"{what}: {len(one)} batches and {len(other)}")
    for i, (left, right) in enumerate(zip(one, other, strict=True)):
        assert_same(left, right, f"{what}, batch {i}")


def assert_exact_resume(make: Callable[[], Pipeline], *, most: int = 64, epochs: int = 2, threads: int = 0) -> None:
    """Asserts that a loader resumes exactly: saves before every batch, restores each state in a new loader, and
    compares all following batches.

    Covers `epochs` epochs, at most `most` batches. `make` must build a new batched pipeline at every call. States go
    through JSON, as in a checkpoint.
    """
    loader = _alone(make()).to_numpy(threads=threads)
    states: list[str] = []
    expected: list[Columns] = []
    for _ in range(epochs):
        for batch in _saving(loader, states, most):
            expected.append(batch)
        if len(expected) >= most:
            break
    if not expected:
        raise AssertionError("the pipeline has no batches")
    for at, text in enumerate(states):
        if len(text) > 1024:
            raise AssertionError(f"the state before batch {at} is {len(text)} bytes")
        fresh = _alone(make()).to_numpy(threads=threads)
        fresh.load_state_dict(json.loads(text))
        rest: list[Columns] = []
        while len(rest) < len(expected) - at:
            rest += batches(fresh, len(expected) - at - len(rest))
        assert_same_batches(expected[at:], rest, f"after a restore before batch {at}")
        assert_same(expected[at], fresh.batch_at(json.loads(text)["step"]), f"batch_at for batch {at}")


def _alone(pipeline: Pipeline) -> Pipeline:
    """The pipeline, with all rows also where several processes run this test."""
    return Pipeline(replace(pipeline.definition, sharded=True))


def _saving(loader: Any, states: list[str], most: int) -> Iterable[Columns]:
    run = iter(loader)
    while len(states) < most:
        text = json.dumps(loader.state_dict())
        try:
            batch = next(run)
        except StopIteration:
            return
        states.append(text)
        yield batch
    run.close()


def global_batches(
    make: Callable[[], Pipeline], world: int, count: int | None, state: Any = None, **engine: Any
) -> list[Columns]:
    """Returns the ordered global batches of `world` ranks: the rows of all ranks, in the order of the run.

    Without what belongs to a rank's batch and not to its rows, such as `cu_seqlens` of packed rows.
    """
    ranks, numbers = [], []
    for rank in range(world):
        loader = Pipeline(replace(make().definition, rank=rank, world=world, sharded=True)).to_numpy(**engine)
        if state is not None:
            loader.load_state_dict(state)
        first = loader.step
        ranks.append([{k: c for k, c in one.items() if k not in _PER_BATCH} for one in batches(loader, count)])
        if loader.assigned_by_lane:
            numbers.append([loader.row_numbers(first + i) for i in range(len(ranks[-1]))])
    if len({len(r) for r in ranks}) != 1:
        raise AssertionError(f"ranks have different numbers of batches: {[len(r) for r in ranks]}")
    found = [concat(list(parts)) for parts in zip(*ranks, strict=True)]
    if not numbers:  # ranks have consecutive rows
        return found
    order = [np.argsort(np.concatenate(parts), kind="stable") for parts in zip(*numbers, strict=True)]
    return [take(batch, rows) for batch, rows in zip(found, order, strict=True)]


def assert_elastic(
    make: Callable[[int], Pipeline],
    *,
    batch: int = 24,
    worlds: Sequence[int] = (1, 2, 3, 4, 6, 8),
    threads: Sequence[int] = (0, 1, 2, 4),
    other_batch: int | None = 12,
    most: int | None = 16,
) -> None:
    """Asserts that ordered global batches are the same for every world size and thread count, and that a restore with
    another world size and batch size continues with the same rows.

    `make(batch)` must build the pipeline with that global batch size.
    """
    want = global_batches(lambda: make(batch), 1, most, threads=0)
    if not want:
        raise AssertionError("the pipeline has no batches")
    for count in threads:
        got = global_batches(lambda: make(batch), 1, most, threads=count)
        assert_same_batches(want, got, f"threads={count}")
    for world in worlds:
        got = global_batches(lambda: make(batch), world, most, threads=0)
        assert_same_batches(want, got, f"world={world}")
    if other_batch is None:
        return
    half = len(want) // 2
    loader = _alone(make(batch)).to_numpy(threads=0)
    batches(loader, half)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = concat(want[half:])
    if rows_of(rest) < other_batch:
        raise AssertionError(
            f"{rows_of(rest)} rows are left after half of the batches: pass other_batch= of at most that, or None"
        )
    for world in worlds:
        if other_batch % world:
            continue
        count = rows_of(rest) // other_batch
        after = concat(global_batches(lambda: make(other_batch), world, count, state, threads=0))
        assert_same(cut(rest, 0, rows_of(after)), after, f"resumed on world={world} with batch={other_batch}")
