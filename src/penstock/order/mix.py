"""A mixture of sources: which source each position draws from, and which draw of that source it is.

Positions are cut into blocks. Before a block edge x positions into a stage, source k has been drawn
`floor(w_k * x + phase_k)` times; the source with the largest weight gets the rest. Inside a block the sources are
permuted with a key of the block. So at every edge every source but the largest is within one draw of its exact share,
counted from the start of the stage, and a weight of one in a million is drawn once in a million.

Any position is computed on its own: nothing is stored per sample, and position 10**15 costs the same as position 0.
A call costs about 0.1 us per position of every block that it touches (`block` positions, 1,024 unless a very even
mixture of many sources needs more: (sources - 1) / largest weight; then of every part of 65,536 positions, and once
0.03 us for each position of the block on one side), so request neighbouring positions together.

A stage changes the weights from one exact position on. Appending a stage changes no position before it: each source
continues with its next draw.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.order.lru_cache import LruCache
from penstock.order.shuffle import LARGEST, permute, unpermute
from penstock.order.weights import normalised

I64 = NDArray[np.int64]

_SHIFT = 96  # weights and phases are integers in units of 2**-96: exact, and the same on every machine
_ONE = 1 << _SHIFT
PART = 1 << 16  # positions of a block that are computed together


@dataclass(frozen=True)
class Mixture:
    """Draws from sources in fixed proportions, in closed form.

    `weights` are normalised. `sizes` holds the number of items of each source, None where it is endless; only
    `first_exhausted` and `all_exhausted` use them, `pick` never ends. `stages` are (start position, weights).

    >>> mixture = Mixture(weights=(3, 1), sizes=(100, 100), key=7, block=4)
    >>> source, draw = mixture.pick(np.arange(8))
    >>> source, draw
    (array([0, 1, 0, 0, 0, 0, 0, 1]), array([0, 0, 1, 2, 3, 4, 5, 1]))
    >>> mixture.counts(8)
    array([6, 2])
    """

    weights: tuple[float, ...]
    sizes: tuple[int | None, ...]
    key: int = 0
    block: int = 1024
    stages: tuple[tuple[int, tuple[float, ...]], ...] = ()
    drawn: tuple[int, ...] = ()  # of each source before the first stage, if positions before it are not known

    def __post_init__(self) -> None:
        _check(self)
        stages = tuple((int(start), normalised(tuple(weights), f"stage at {start}")) for start, weights in self.stages)
        object.__setattr__(self, "weights", normalised(tuple(self.weights), "mixture"))
        object.__setattr__(self, "sizes", tuple(self.sizes))
        object.__setattr__(self, "stages", stages)

    def pick(self, position: Any) -> tuple[I64, I64]:
        """Returns the source of each position and the number of that draw: 0, 1, 2, ... in the order of positions.

        The item is number `draw % size` of pass `draw // size` over that source.
        """
        positions = np.asarray(position, np.int64)
        flat = positions.ravel()
        if flat.size and (int(flat.min()) < self._plan[0].start or int(flat.max()) > LARGEST):
            raise UsageError(
                f"positions from {self._plan[0].start} to 2**62",
                got=f"{int(flat.min())} to {int(flat.max())}",
                where="mixture",
                fix="use positions of the training sequence",
            )
        source, draw = np.empty(flat.shape, np.int64), np.empty(flat.shape, np.int64)
        stage_of = np.searchsorted(self._starts, flat, side="right") - 1
        for s in np.unique(stage_of).tolist():
            stage = self._plan[s]
            in_stage = np.flatnonzero(stage_of == s)
            in_stage = in_stage[np.argsort(flat[in_stage], kind="stable")]
            block_of, slot = np.divmod(flat[in_stage] - stage.start, stage.block)
            parts, begin = np.unique(block_of * stage.parts + slot // PART, return_index=True)
            for part, low, high in zip(parts.tolist(), begin, [*begin[1:], in_stage.size], strict=True):
                labels, draws = stage.part_draws(*divmod(part, stage.parts))
                inside = slot[low:high] % PART
                source[in_stage[low:high]], draw[in_stage[low:high]] = labels[inside], draws[inside]
        return source.reshape(positions.shape), draw.reshape(positions.shape)

    def counts(self, position: int) -> I64:
        """Returns how often each source is drawn before a position."""
        return self._stage_at(position).counts(position)

    def first_exhausted(self) -> int | None:
        """Number of positions after which the first source has been read once completely; None if none ever is."""
        ends = [end for end in self._ends() if end is not None]
        return min(ends) if ends else None

    def all_exhausted(self) -> int | None:
        """Number of positions after which every finite source has been read once completely; None if one never is."""
        ends = self._ends()
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None

    def exhausted(self, source: int) -> int | None:
        """Position after the last draw of the first pass over a source; None if it is endless or never completed."""
        size = self.sizes[source]
        if size is None:
            return None

        # Exponential, then binary search over block edges; only the last block is computed in full.
        def drawn_before(position: int) -> int:
            stage = self._stage_at(position)
            return stage.edge((position - stage.start) // stage.block)[source]

        beyond = _first(lambda p: drawn_before(p) >= size, LARGEST)
        if beyond is None:
            return None
        # `beyond` is the first block edge (or stage start) with enough draws, so the last of them lies just before it.
        stage = self._stage_at(beyond - 1)
        block = (beyond - 1 - stage.start) // stage.block
        return stage.start + block * stage.block + stage.slot_of(block, source, size - 1) + 1

    def _ends(self) -> list[int | None]:
        return [self.exhausted(k) for k, size in enumerate(self.sizes) if size is not None]

    @cached_property
    def _plan(self) -> tuple[_Stage, ...]:
        """The stages. Those of the same mixture with one change of weights less are kept: a change costs one stage."""
        known = len(self.stages) - 1
        plan: tuple[_Stage, ...] = _PLANS.known(self._prefix(known)) if known >= 0 else ()
        stages = self.stages[known:] if plan else self.stages
        if not plan:
            if self.drawn:
                plan, stages = (_stage(self, *stages[0], list(self.drawn)),), stages[1:]
            else:
                plan = (_stage(self, 0, self.weights, [0] * len(self.weights)),)
        for start, weights in stages:
            plan = (*plan, _stage(self, start, weights, plan[-1].counts(start).tolist()))
        _PLANS.keep(self._prefix(len(self.stages)), plan)
        return plan

    def _prefix(self, stages: int) -> Hashable:
        return (self.key, self.block, self.weights, self.drawn, self.stages[:stages])

    @cached_property
    def _starts(self) -> I64:
        return np.array([stage.start for stage in self._plan], np.int64)

    def _stage_at(self, position: int) -> _Stage:
        if not self._plan[0].start <= position <= LARGEST:
            raise UsageError(
                "a position from 0 to 2**62",
                got=str(position),
                where="mixture",
                fix="use a position of the training sequence",
            )
        return self._plan[int(np.searchsorted(self._starts, position, side="right")) - 1]


@dataclass(frozen=True)
class _Stage:
    """A range of positions with constant weights, computed as if it never ended: the next stage cuts it off."""

    start: int
    base: tuple[int, ...]  # draws of each source before the stage
    weights: tuple[int, ...]  # in units of 2**-96
    phase: tuple[int, ...]  # the fraction of a draw that each source starts with, in the same units
    largest: int
    block: int
    key: int

    def edge(self, block: int) -> list[int]:
        """Returns the number of draws of each source before a block of this stage."""
        x = block * self.block
        drawn = [b + ((w * x + p) >> _SHIFT) for b, w, p in zip(self.base, self.weights, self.phase, strict=True)]
        drawn[self.largest] += self.start + x - sum(drawn)
        return drawn

    @property
    def parts(self) -> int:
        """Parts of a block, of at most `PART` positions: blocks of mixtures of thousands of sources have millions."""
        return -(-self.block // PART)

    @cached_property
    def _blocks(self) -> LruCache[tuple[I64, NDArray[Any], int]]:
        return LruCache(size=2)

    @cached_property
    def _parts(self) -> LruCache[tuple[NDArray[Any], I64]]:
        return LruCache(size=4)

    @cached_property
    def _drawn(self) -> LruCache[I64]:
        return LruCache(size=4)

    def _block(self, block: int) -> tuple[I64, NDArray[Any], int]:
        """The draws of each source before a block, the sources in the block before it is permuted, and its key."""

        def make() -> tuple[I64, NDArray[Any], int]:
            before = np.array(self.edge(block), np.int64)
            number = np.array(self.edge(block + 1), np.int64) - before
            in_order = np.repeat(np.arange(number.size, dtype=np.min_scalar_type(number.size)), number)
            return before, in_order, randomness.key(self.key, "mix", self.start, block)

        return self._blocks.get(block, make)

    def _labels(self, block: int, low: int, high: int) -> NDArray[Any]:
        """The sources of positions [low, high) of a block."""
        _, in_order, block_key = self._block(block)
        return in_order[permute(np.arange(low, high), self.block, block_key)]

    def part_draws(self, block: int, part: int) -> tuple[NDArray[Any], I64]:
        """Returns the source of each position of a part of a block, and the number of each draw; the last are kept."""
        return self._parts.get((block, part), lambda: self._part_draws(block, part))

    def _part_draws(self, block: int, part: int) -> tuple[NDArray[Any], I64]:
        low, high = part * PART, min((part + 1) * PART, self.block)
        before = self._drawn.get((block, part), lambda: self._drawn_before(block, low))
        labels = self._labels(block, low, high)
        number = np.bincount(labels, minlength=before.size)
        first = np.cumsum(number) - number
        draws = np.empty(high - low, np.int64)
        # A stable sort brings the occurrences of each source together, still in the order of positions.
        draws[np.argsort(labels, kind="stable")] = np.arange(high - low) + np.repeat(before - first, number)
        self._drawn.get((block, part + 1), lambda: before + number)
        return labels, draws

    def _drawn_before(self, block: int, slot: int) -> I64:
        """Draws of each source before a position of a block, by counting those on the shorter side of it."""
        before = self._block(block)[0]
        if not slot:
            return before
        if 2 * slot <= self.block:
            return before + np.bincount(self._labels(block, 0, slot), minlength=before.size)
        rest = np.bincount(self._labels(block, slot, self.block), minlength=before.size)
        return np.array(self.edge(block + 1), np.int64) - rest

    def slot_of(self, block: int, source: int, draw: int) -> int:
        """The position in a block of a draw of a source that lies in it."""
        before, in_order, block_key = self._block(block)
        first, last = np.searchsorted(in_order, [source, source + 1]).tolist()
        slots = np.sort(unpermute(np.arange(first, last), self.block, block_key))
        return int(slots[draw - int(before[source])])

    def counts(self, position: int) -> I64:
        block, slot = divmod(position - self.start, self.block)
        return self._drawn_before(block, slot)


class _Plans:
    """The stages of the mixtures that were used last."""

    def __init__(self, size: int) -> None:
        self._size, self._lock = size, threading.Lock()
        self._held: OrderedDict[Hashable, tuple[_Stage, ...]] = OrderedDict()

    def known(self, name: Hashable) -> tuple[_Stage, ...]:
        with self._lock:
            return self._held.get(name, ())

    def keep(self, name: Hashable, plan: tuple[_Stage, ...]) -> None:
        with self._lock:
            self._held[name] = plan
            self._held.move_to_end(name)
            while len(self._held) > self._size:
                self._held.popitem(last=False)


_PLANS = _Plans(4)


def _stage(mixture: Mixture, start: int, weights: tuple[float, ...], base: list[int]) -> _Stage:
    from fractions import Fraction  # here: most pipelines have no mixture

    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    scaled = tuple(int(weight / total * _ONE) for weight in exact)
    # Random phases make the expected number of draws exact, also for a stage too short for one draw of a source.
    phase = tuple(randomness.key(mixture.key, "phase", start, k) << (_SHIFT - 64) for k in range(len(scaled)))
    largest = scaled.index(max(scaled))
    others = sum(1 for k, weight in enumerate(scaled) if weight and k != largest)
    # In a block of at least this length all other sources can be due at once and still fit.
    shortest = -(-others * _ONE // scaled[largest])
    return _Stage(start, tuple(base), scaled, phase, largest, max(mixture.block, shortest), mixture.key)


def _first(reached: Callable[[int], bool], limit: int) -> int | None:
    """Returns the smallest argument for which a monotone condition holds."""
    high = 1
    while not reached(high):
        if high >= limit:
            return None
        high = min(high * 2, limit)
    low = 0
    while low < high:
        middle = (low + high) // 2
        if reached(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _check(mixture: Mixture) -> None:
    sources = len(mixture.weights)
    if len(mixture.sizes) != sources:
        raise UsageError(
            "a size for each weight",
            got=f"{sources} weights, {len(mixture.sizes)} sizes",
            where="mixture",
            fix="use None as the size of an endless source",
        )
    for k, size in enumerate(mixture.sizes):
        if size is not None and size < 1:
            raise UsageError(
                "sources of at least 1 item", got=f"{size} in source {k}", where="mixture", fix="leave it out"
            )
    if mixture.block < 1:
        raise UsageError("a block of at least 1", got=str(mixture.block), where="mixture", fix="leave block out")
    if mixture.drawn and (not mixture.stages or len(mixture.drawn) != sources):
        raise UsageError("draws of each source before the first stage", got=str(mixture.drawn), where="mixture")
    last = -1
    for start, weights in mixture.stages:
        if not last < start <= LARGEST:
            raise UsageError(
                f"stages in ascending order, this one after position {max(0, last)}",
                got=str(start),
                where="mixture stages",
                fix="append stages only; never insert one before a position that was already used",
            )
        if len(weights) != sources:
            raise UsageError(
                f"{sources} weights, one for each source",
                got=str(len(weights)),
                where=f"mixture stage at position {start}",
                fix="use weight 0 for a source that is not in the stage",
            )
        last = start
