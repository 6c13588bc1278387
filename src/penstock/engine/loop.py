"""One `for` over a loader, as the loader sees it: whether it has begun, and whether a newer one took its place."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

from penstock.core.errors import UsageError
from penstock.engine.stalls import Run, watch
from penstock.engine.stats import Stats


class HasStep(Protocol):
    """A loader, as the number of its next batch."""

    @property
    def step(self) -> int: ...


class Loop:
    """A running `for`. An `independent` one goes on when a newer one begins; any other is refused its next batch.

    A `guided` one ends when the position changes: who iterates it begins another.
    """

    __slots__ = ("__weakref__", "detached", "guided", "independent", "inline", "run", "started")
    run: Callable[[], Run | None]  # what is iterated, a weak reference; nothing where it could not be started

    def __init__(self, independent: bool) -> None:
        self.run = _nothing
        self.independent, self.guided = independent, False
        self.started = self.detached = False
        self.inline = False  # whether batches are computed in the thread that iterates

    def begin(self, loader: HasStep | None, stats: Stats) -> None:
        """The first batch is taken. Warns of stalls of a `loader` while it is `inline`, without keeping it alive."""
        self.started = True
        if loader is not None:
            own = weakref.ref(loader)
            watch(self.run, lambda: stats.taken, lambda: _step(own()) if self.inline else None)

    def detach(self) -> None:
        """A newer `for` has begun: this one no longer moves the loader's position."""
        if not self.independent:
            raise UsageError(
                "one running `for` (or iterator) over a loader, which has one position",
                got="a newer one that was begun over the same loader",
                fix="use a second loader for the inner loop: call .to_numpy(), .to_torch() or .to_jax() again",
            )
        self.detached = True


def _nothing() -> None:
    """No run."""


def _step(loader: HasStep | None) -> int | None:
    return None if loader is None else loader.step
