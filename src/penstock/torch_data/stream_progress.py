"""Which stream positions were consumed before an interruption, in a few numbers.

Workers and ranks take turns over the positions, and a run may stop in the middle of a turn. A `Layer` describes one
run: it numbers the positions that earlier runs left from 0, assigns position i to worker (i // world) % workers, and
holds the `rounds` that each worker completed (a round is one position for each of `world` ranks). `start` is the number
of leading positions that are dropped from the layer because all of them are consumed.

`simplified` reduces the layers to one number (everything before it was consumed) and one layer for each run that left
gaps which no later run has filled yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.core.errors import StateError

MAX_NUMBERS = 1 << 16  # in one state; a state needs about one for each run
_MAX = 1 << 62


class Layer(NamedTuple):
    """The positions that one run consumed."""

    world: int
    rounds: list[int]
    start: int = 0

    def has(self, position: int) -> bool:
        """Whether a position was consumed."""
        turn, reader = divmod(self.start + position, self.world * len(self.rounds))
        return turn < self.rounds[reader // self.world]

    def before(self, position: int) -> int:
        """The number of consumed positions before this one."""
        return self._until(self.start + position) - self._until(self.start)

    def total(self) -> int:
        """The number of consumed positions."""
        return self.world * sum(self.rounds) - self._until(self.start)

    def gap(self, number: int) -> int:
        """The position of gap `number`: the gaps are the positions that were not consumed."""
        low, high = number, number + self.total()
        while low < high:
            middle = (low + high) // 2
            if middle + 1 - self.before(middle + 1) > number:
                high = middle
            else:
                low = middle + 1
        return low

    def without(self, positions: int) -> Layer:
        """The layer with its first positions dropped."""
        turns, start = divmod(self.start + positions, self.world * len(self.rounds))
        return Layer(self.world, [max(0, own - turns) for own in self.rounds], start)

    def _until(self, end: int) -> int:
        turns, rest = divmod(end, self.world * len(self.rounds))
        full = sum(min(own, turns) for own in self.rounds) * self.world
        part = (max(0, min(rest - w * self.world, self.world)) for w, own in enumerate(self.rounds) if own > turns)
        return full + sum(part)


def simplified(layers: list[Layer]) -> tuple[int, list[Layer]]:
    """Returns the number of positions consumed without a gap from the start, and the layers that still have gaps.

    >>> simplified([Layer(1, [2, 0])])  # positions 0 and 2
    (1, [Layer(world=1, rounds=[2, 0], start=1)])
    >>> simplified([Layer(1, [2, 0]), Layer(1, [1])])  # and the first that was left, 1
    (3, [])
    """
    begin, out = 0, []
    for layer in layers:
        out.append(layer)
        filled = 0  # leading gaps that the next layer has filled
        for i in range(len(out) - 1, -1, -1):
            lead = out[i].gap(filled)
            out[i], filled = out[i].without(lead), lead
        begin += filled
        out = [each for each in out if each.total()]
    return begin, out


def remaining(layers: list[Layer]) -> Iterator[bool]:
    """For each position in turn, whether it still has to be read."""
    live, positions = list(layers), [0] * len(layers)  # the next position of each layer, in the layer's own numbers
    while live:
        wanted = True
        for i, layer in enumerate(live):
            positions[i] += 1
            if layer.has(positions[i] - 1):
                wanted = False
                break
        yield wanted
        on = [i for i, layer in enumerate(live) if layer.before(positions[i]) < layer.total()]
        live, positions = [live[i] for i in on], [positions[i] for i in on]
    while True:
        yield True


def numbered(
    placed: Iterator[tuple[int, Any]], start: int, layers: list[Layer]
) -> Iterator[tuple[int, tuple[int, Any]]]:
    """The (position, element) pairs from `start` on that were not consumed before, each with the number of such
    positions before it. Positions without an element count too."""
    if not layers:
        yield from ((each[0] - start, each) for each in placed)
        return
    wanted, at, turn, want = remaining(layers), start, -1, False
    for each in placed:
        while at <= each[0]:
            want, at = next(wanted), at + 1
            turn += want
        if want:
            yield turn, each


def to_json(layers: list[Layer]) -> list[Any]:
    """[world, rounds] or [world, rounds, start] of each layer, simplified."""
    begin, rest = simplified(layers)
    out: list[Any] = [[1, [begin]]] if begin else []
    return out + [[each.world, list(each.rounds), *([each.start] if each.start else [])] for each in rest]


def from_json(value: Any, fix: str) -> list[Layer]:
    """Reads layers from a state. States come from outside, so every number is checked."""
    good = isinstance(value, list) and all(_is_layer(each) for each in value)
    if not good or sum(len(each[1]) for each in value) > MAX_NUMBERS:
        raise StateError(
            "consumed positions, as [world, [rounds...]] or [world, [rounds...], start] for each run",
            got=str(value)[:80],
            where="'given' in the state",
            fix=fix,
        )
    return [Layer(each[0], list(each[1]), *each[2:]) for each in value]


def _is_layer(each: Any) -> bool:
    return (
        isinstance(each, list | tuple)
        and len(each) in (2, 3)
        and isinstance(each[1], list)
        and len(each[1]) > 0
        and all(type(number) is int and 0 <= number < _MAX for number in (each[0], *each[1], *each[2:]))
        and each[0] > 0
    )
