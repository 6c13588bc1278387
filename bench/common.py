"""Rounds, medians, tables. Contenders alternate, so that other load on the machine affects all of them equally."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def rate(batches: Iterable[Any], seconds: float, warm: int = 3) -> float:
    """Batches a second of an iterable over about `seconds`; one that ends is begun again, as in a next epoch."""
    for _ in islice(iter(batches), warm):
        pass
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        before = count
        run: Iterator[Any] = iter(batches)
        for _ in run:
            count += 1
            if count % 8 == 0 and time.perf_counter() - began > seconds:
                break
        close = getattr(run, "close", None)
        if close is not None:
            close()
        if count == before:
            break
    took = time.perf_counter() - began
    return count / took if count else float("nan")


class Again:
    """A generator function as an iterable that can be restarted."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return self.make()


def rounds(contenders: dict[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    """Each contender once per round, `count` rounds."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(count):
        for name, run in contenders.items():
            gc.collect()
            found[name].append(run())
        print(f"  round {number + 1} of {count}", flush=True)
    return found


def medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in found.items()}


def table(title: str, rows: list[tuple[str, ...]], head: tuple[str, ...]) -> None:
    widths = [max(len(str(r[i])) for r in [head, *rows]) for i in range(len(head))]
    print(f"\n{title}")
    for row in (head, tuple("-" * w for w in widths), *rows):
        print("  " + "  ".join(str(c).ljust(w) for c, w in zip(row, widths, strict=True)))


def judge(name: str, value: float, target: float, *, most: bool = False) -> tuple[str, str, str, str]:
    """One line of a target table; `most` when the value must stay below."""
    good = value <= target if most else value >= target
    return name, f"{value:.3g}", f"{'<=' if most else '>='} {target:g}", "met" if good else "MISSED"


def save(name: str, facts: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=1))
