"""One `for` over a loader, as the loader sees it: whether it has begun, and whether a newer one took its place."""

from __future__ import annotations

from penstock.core.errors import UsageError


class Loop:
    """A running `for`. An `independent` one goes on when a newer one begins; any other is refused its next batch."""

    __slots__ = ("__weakref__", "detached", "independent", "started")

    def __init__(self, independent: bool) -> None:
        self.independent = independent
        self.started = self.detached = False

    def detach(self) -> None:
        """A newer `for` has begun: this one no longer moves the loader's position."""
        if not self.independent:
            raise UsageError(
                "one running `for` (or iterator) over a loader, which has one position",
                got="a newer one that was begun over the same loader",
                fix="use a second loader for the inner loop: call .to_numpy(), .to_torch() or .to_jax() again",
            )
        self.detached = True
