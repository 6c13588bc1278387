"""A change that makes a hot path slow fails here: processor time, in units of a frozen plain implementation.

Bounds are about 1.6 times what was measured on two cores with a load of 14, and twice what it is without: other load
does not reach them, and a path that does its work three times does. When one is exceeded, `python -m bench.against TREE
NAME` compares the path with an older tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from bench.hot_paths import HOT_PATHS, measure, one_thread, write_data

from penstock.engine.batches import Batches

SECONDS, ROUNDS, MORE_ROUNDS = 0.06, 2, 4

BOUNDS = {
    "windows": 2.9,
    "windows, 2 threads": 4.4,
    "mixture": 5.7,
    "packed": 8.0,
    "documents": 0.78,
    "jax": 0.55,
    "collate": 0.21,
    "rows": 1.6,
    "images": 1.9,
    "audio": 1.2,
    "log mel": 1.5,
    "prepare": 0.5,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    one_thread()
    made = tmp_path_factory.mktemp("hot paths")
    write_data(made, tokens=4_000_000, images=16, texts=400)
    return made


class ThreeTimes:
    """Takes three items for each that it gives: a path that has become three times as slow."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        for number, item in enumerate(item for again in repeat(self.items) for item in again):
            if number % 3 == 2:
                yield item


def ratio(name: str, folder: Path, change: Callable[[Iterable[Any]], Iterable[Any]] = lambda items: items) -> float:
    """The least cost of the path over the least cost of the plain implementation; more rounds while above the bound."""
    path = HOT_PATHS[name]
    ours, plain = change(path.ours(folder)), path.plain(folder)
    costs: list[tuple[float, float]] = []
    for number in range(ROUNDS + MORE_ROUNDS):
        costs.append(tuple(measure(items, SECONDS, path.least).cpu for items in (ours, plain)))  # type: ignore[arg-type]
        found = min(cost for cost, _ in costs) / min(cost for _, cost in costs)
        if number + 1 >= ROUNDS and found < BOUNDS[name]:
            break
    return found


def test_every_hot_path_has_a_bound() -> None:
    assert BOUNDS.keys() == HOT_PATHS.keys()


@pytest.mark.parametrize("name", BOUNDS)
def test_a_hot_path_is_not_slow(name: str, folder: Path) -> None:
    found = ratio(name, folder)
    assert found < BOUNDS[name], f"{name} takes {found:.2f} times the processor time of its plain implementation"


@pytest.mark.parametrize("name", BOUNDS)
def test_a_hot_path_three_times_as_slow_is_noticed(name: str, folder: Path) -> None:
    found = ratio(name, folder, ThreeTimes)
    assert found > BOUNDS[name], (
        f"{name}: three times the work takes {found:.2f} times the processor time of the plain one"
    )


def test_a_slow_hot_path_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Batches.make

    def slow(self: Batches, part: Any) -> Any:
        for _ in range(9):
            make(self, part)
        return make(self, part)

    monkeypatch.setattr(Batches, "make", slow)
    assert ratio("windows", folder) > BOUNDS["windows"]
