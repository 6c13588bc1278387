"""Counts what a template spends per rendering, in each thread separately: steps, bytes and processor time.

Steps are counted, not timed, so that a record which renders on one machine renders on every other: each loop turn,
call, filter, test, comparison and operator is one, and working on a large value is one more per thousand characters or
per few items. Processor time is a second, much higher limit, for long work that hides in few steps.
Bytes are those of every value a template ever makes, kept or not, so that memory is bounded too.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from penstock.core.errors import LimitError
from penstock.core.limits import LIMITS, MB

RENDER_SECONDS = LIMITS.template_seconds
RENDER_STEPS = LIMITS.template_steps
RENDER_CHARS = 4 * MB
RENDER_BYTES = 128 * MB
MAX_NODES = 200_000
_LOOK = 1024
# Tuples, since a union would be built anew at each test.
_HOLDERS, _LISTS, _TEXTS = (list, tuple, dict), (list, tuple), (str, tuple)


class _Clock(threading.local):
    deadline = 0.0
    steps = 0
    look = 0
    spent = 0

    def start(self, seconds: float) -> None:
        self.deadline, self.steps, self.look, self.spent = time.thread_time() + seconds, 0, 0, 0

    def tick(self, steps: int = 1) -> bool:
        self.steps += steps
        if self.steps >= self.look:
            self._look()
        return True

    def spend(self, size: int) -> None:
        self.spent += size
        if self.spent > RENDER_BYTES:
            raise too_much(f"a template that makes at most {RENDER_BYTES >> 20} MB of values in all", "it makes more")
        self.tick(size >> 12)

    def _look(self) -> None:
        if self.steps > RENDER_STEPS:
            raise too_much(f"a template that renders in at most {RENDER_STEPS} steps", "it takes more")
        if time.thread_time() > self.deadline:
            raise too_much(f"a template that renders within {RENDER_SECONDS:g} s of processor time", "it runs longer")
        self.look = min(self.steps + _LOOK, RENDER_STEPS + 1)


clock = _Clock()


def too_much(expected: str, got: str) -> LimitError:
    return LimitError(expected, got=got, fix="use a template you trust; no chat template needs more")


def fits(length: int) -> None:
    """Refuses text or lists longer than a template may make, before they are made."""
    if length > RENDER_CHARS:
        raise too_much(f"text of at most {RENDER_CHARS} characters", f"{length} characters")


def worked_on(value: Any) -> Any:
    """`value`, after counting the steps that a look through it takes."""
    steps = 1
    if isinstance(value, str):
        steps += len(value) >> 10
    elif isinstance(value, _HOLDERS):
        steps += len(value) >> 3
    clock.tick(steps)
    return value


def spent(value: Any) -> Any:
    """`value`, its bytes counted, and those of texts and pairs in it: they were made with it."""
    if isinstance(value, str) or isinstance(value, dict):  # noqa: SIM101  quicker apart
        clock.spend(sys.getsizeof(value))
    elif isinstance(value, _LISTS):
        inside = sum(sys.getsizeof(item) for item in value if isinstance(item, _TEXTS))
        clock.spend(sys.getsizeof(value) + inside)
    return value


def spent_alone(value: Any) -> Any:
    """`value`, its own bytes counted: what is in it was there before."""
    measure(value)
    clock.spend(sys.getsizeof(value))
    return value


def check_record(values: Any) -> None:
    """Refuses a record larger than anything a template may write."""
    try:
        _count(values)
    except LimitError as error:
        raise LimitError(
            f"a record of at most {RENDER_CHARS} characters and {MAX_NODES} parts for a chat template",
            got="a larger one",
            fix="cut the record into shorter ones, or drop it",
        ) from error


def measure(value: Any) -> int:
    """Size of a value written out as text, an upper bound; stops at the limit, so a nest of shared lists is cheap too.

    >>> measure(["ab", {"c": 1}]) < 200
    True
    """
    total, nodes = _count(value)
    clock.tick(nodes >> 3)
    return total


def _count(value: Any) -> tuple[int, int]:
    total, nodes, stack = 0, 0, [value]
    while stack:
        item = stack.pop()
        nodes += 1
        if isinstance(item, str):
            total += len(item) + 8
        elif isinstance(item, Mapping):
            total += 8 * len(item)
            if len(item) <= MAX_NODES:
                stack.extend(item.keys())
                stack.extend(item.values())
        elif isinstance(item, _LISTS):
            total += 4 * len(item)
            if len(item) <= MAX_NODES:
                stack.extend(item)
        else:
            total += 24
        if total > RENDER_CHARS or nodes + len(stack) > MAX_NODES:
            raise too_much(f"values of at most {RENDER_CHARS} characters and {MAX_NODES} parts", "a larger one")
    return total, nodes
