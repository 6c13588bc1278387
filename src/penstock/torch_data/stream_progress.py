"""What of a stream was given before, in a few numbers, when workers and ranks took turns and were stopped anywhere.

A layer is what one run has given of the places it found: `rounds` of each worker, a round being one place for each of
`world` ranks. Place i went to worker (i // world) % workers. What it left is numbered anew for the layer after it.
`start` is the number of its first places that no longer count, since all of them were given in the end.

Settled, this is one number (all before it was given), and a layer for each run that was stopped in the middle of its
workers' turn, as long as there are holes that no later run has filled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.core.errors import StateError

MOST_NUMBERS = 1 << 16  # in one state; about a run for each of them
_MOST = 1 << 62


class Layer(NamedTuple):
    """What one run has given."""

    world: int
    rounds: list[int]
    start: int = 0

    def has(self, place: int) -> bool:
        """Whether a place was given."""
        turn, reader = divmod(self.start + place, self.world * len(self.rounds))
        return turn < self.rounds[reader // self.world]

    def before(self, place: int) -> int:
        """How many of the places before this one were given."""
        return self._until(self.start + place) - self._until(self.start)

    def total(self) -> int:
        """How many places were given."""
        return self.world * sum(self.rounds) - self._until(self.start)

    def hole(self, number: int) -> int:
        """The place of a hole, by its number: a place that was not given."""
        low, high = number, number + self.total()
        while low < high:
            middle = (low + high) // 2
            if middle + 1 - self.before(middle + 1) > number:
                high = middle
            else:
                low = middle + 1
        return low

    def without(self, places: int) -> Layer:
        """The layer that is left when its first places no longer count."""
        turns, start = divmod(self.start + places, self.world * len(self.rounds))
        return Layer(self.world, [max(0, own - turns) for own in self.rounds], start)

    def _until(self, end: int) -> int:
        turns, rest = divmod(end, self.world * len(self.rounds))
        full = sum(min(own, turns) for own in self.rounds) * self.world
        part = (max(0, min(rest - w * self.world, self.world)) for w, own in enumerate(self.rounds) if own > turns)
        return full + sum(part)


def settled(layers: list[Layer]) -> tuple[int, list[Layer]]:
    """The same in as few numbers as can be: how much was given from the beginning on, and what layers have holes.

    >>> settled([Layer(1, [2, 0])])  # places 0 and 2
    (1, [Layer(world=1, rounds=[2, 0], start=1)])
    >>> settled([Layer(1, [2, 0]), Layer(1, [1])])  # and the first that was left, 1
    (3, [])
    """
    begin, out = 0, []
    for layer in layers:
        out.append(layer)
        filled = 0  # holes, from the first on, that the next layer has filled
        for i in range(len(out) - 1, -1, -1):
            lead = out[i].hole(filled)
            out[i], filled = out[i].without(lead), lead
        begin += filled
        out = [each for each in out if each.total()]
    return begin, out


def left(layers: list[Layer]) -> Iterator[bool]:
    """For each place in turn, whether it is still to be given."""
    live, places = list(layers), [0] * len(layers)  # the next place in what each layer left to the one after it
    while live:
        wanted = True
        for i, layer in enumerate(live):
            places[i] += 1
            if layer.has(places[i] - 1):
                wanted = False
                break
        yield wanted
        on = [i for i, layer in enumerate(live) if layer.before(places[i]) < layer.total()]
        live, places = [live[i] for i in on], [places[i] for i in on]
    while True:
        yield True


def to_json(layers: list[Layer]) -> list[Any]:
    """[world, rounds] or [world, rounds, start] of each layer, settled."""
    begin, rest = settled(layers)
    out: list[Any] = [[1, [begin]]] if begin else []
    return out + [[each.world, list(each.rounds), *([each.start] if each.start else [])] for each in rest]


def from_json(given: Any, fix: str) -> list[Layer]:
    """Layers as they were written; a state comes from outside, so every number is checked."""
    good = isinstance(given, list) and all(_is_layer(each) for each in given)
    if not good or sum(len(each[1]) for each in given) > MOST_NUMBERS:
        raise StateError(
            "what was given, as [world, [rounds...]] or [world, [rounds...], start]", got=str(given)[:80], fix=fix
        )
    return [Layer(each[0], list(each[1]), *each[2:]) for each in given]


def _is_layer(each: Any) -> bool:
    return (
        isinstance(each, list | tuple)
        and len(each) in (2, 3)
        and isinstance(each[1], list)
        and len(each[1]) > 0
        and all(type(number) is int and 0 <= number < _MOST for number in (each[0], *each[1], *each[2:]))
        and each[0] > 0
    )
