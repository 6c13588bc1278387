"""Batches of a stream that has no random access: how it is cut, and the position of a run over it.

A stream is a sequence of (position, element) pairs that is the same for every worker, rank and batch size. `rounds`
cuts it into global batches. The state is the epoch and the position at which the next batch begins, so it can be
restored on any number of workers, another world size or another batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from penstock.plan import state as states

Placed = tuple[int, Any]


class Round(NamedTuple):
    """One global batch of a stream: its (position, element) pairs, and whether it is the last of the epoch."""

    placed: list[Placed]
    last: bool

    @property
    def next(self) -> int:
        """The position at which the next batch begins."""
        return self.placed[-1][0] + 1


def rounds(elements: Iterable[Placed], size: int, drop_last: bool) -> Iterator[Round]:
    """Global batches of `size` elements; each is yielded once it is known whether another one follows.

    >>> [([element for _, element in made.placed], made.last) for made in rounds(enumerate("abcde"), 2, False)]
    [(['a', 'b'], False), (['c', 'd'], False), (['e'], True)]
    """
    ready: list[Placed] = []
    coming: list[Placed] = []
    for pair in elements:
        coming.append(pair)
        if ready and (not drop_last or len(coming) == size):
            yield Round(ready, False)
            ready = []
        if len(coming) == size:
            ready, coming = coming, []
    if coming and not drop_last:
        ready = coming
    if ready:
        yield Round(ready, True)


class StreamPosition:
    """The epoch and position of the next batch, and how many batches were taken before it.

    `identity` returns what decides the stream's order and rows; it is written into the state.
    """

    def __init__(self, epoch: int, identity: Callable[[], Mapping[str, Any]]) -> None:
        self.epoch, self.n, self.step = epoch, 0, 0
        self.identity = identity
        self.restored = False  # whether the position comes from a saved state, and nothing was taken since

    def take(self, next_position: int, last: bool) -> None:
        """Moves past a batch that was delivered."""
        self.epoch, self.n = (self.epoch + 1, 0) if last else (self.epoch, next_position)
        self.step += 1

    def next_epoch(self) -> None:
        """Moves to the start of the next epoch."""
        self.epoch, self.n = self.epoch + 1, 0

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch; a position just restored in that epoch is kept."""
        if not self.restored or epoch != self.epoch:
            self.epoch, self.n, self.restored = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        """A few numbers, the same on every rank."""
        position = {"step": self.step, "epoch": self.epoch, "n": self.n}
        return states.write("stream loader", position, self.identity())

    def load_state_dict(self, state: Any, check: Callable[[dict[str, Any]], None]) -> None:
        """Moves to a saved position; `check` raises for a state of another stream."""
        saved = states.read(state, "stream loader")
        step = states.number(saved, "step") if "step" in saved else 0  # early versions did not save it
        epoch, n = states.number(saved, "epoch"), states.number(saved, "n")
        check(saved)
        self.step, self.epoch, self.n, self.restored = step, epoch, n, True
