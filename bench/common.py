"""Rounds, medians, tables. Contenders alternate, so that other load on the machine affects all of them equally."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_missing: dict[str, str] = {}


def left_out(peer: str, why: str) -> None:
    """Prints that a peer is missing from a comparison; `save` keeps it with the results."""
    print(f"  left out: {peer}: {why}", flush=True)
    _missing[peer] = why


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


def unmeasured(name: str, target: float, why: str, *, most: bool = False) -> tuple[str, str, str, str]:
    """The line of a target whose peer is missing."""
    return name, "-", f"{'<=' if most else '>='} {target:g}", f"NOT MEASURED: {why}"


def least_cpu(run: Callable[[], Any], times: int = 5) -> float:
    """Processor seconds of a call, the least of several: other load only lengthens it."""
    found = []
    for _ in range(times):
        gc.collect()
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return min(found)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The power of n with which a cost grows, by least squares of the logarithms: 1 is linear, 0 is flat.

    >>> round(exponent([10, 100, 1000], [2, 20, 200]), 3)
    1.0
    """
    xs, ys = [math.log(n) for n in sizes], [math.log(max(c, 1e-12)) for c in costs]
    x, y = statistics.fmean(xs), statistics.fmean(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def curve(title: str, unit: str, points: Mapping[int, float], goal: str = "") -> dict[str, Any]:
    """A cost over n, for `save(curves=[...])` and `bench.figures`; prints it."""
    power = exponent(list(points), list(points.values()))
    print(f"  {title}: " + ", ".join(f"{n:,}: {v:.3g}" for n, v in points.items()) + f" {unit}; grows as n^{power:.2f}")
    return {"title": title, "unit": unit, "points": sorted(points.items()), "exponent": round(power, 3), "goal": goal}


def machine() -> dict[str, Any]:
    """What figures depend on besides the code: only those of one machine may be compared."""
    names = [line for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(int(memory[0]) / 1e6) if memory else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "id": hashlib.blake2b(f"{platform.node()} {names[:1]} {memory}".encode(), digest_size=4).hexdigest(),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def save(name: str, facts: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    facts = facts | {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "load_average": load}
    facts["left out"] = dict(_missing)
    _missing.clear()
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=1))
