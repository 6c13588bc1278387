"""Mixture weights from source sizes, and a check against unnoticed repetition.

Sizes are in the unit that the mixture counts, samples or tokens. Every rule returns weights that sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from penstock.core.errors import UsageError


def proportional(sizes: Sequence[int]) -> tuple[float, ...]:
    """Weights in proportion to size: every item is equally likely.

    >>> proportional([300, 100])
    (0.75, 0.25)
    """
    return normalise([float(size) for size in _checked(sizes)], where="proportional weights")


def temperature(sizes: Sequence[int], t: float) -> tuple[float, ...]:
    """Weights in proportion to `size ** (1 / t)`: t=1 is proportional, a large t is nearly uniform.

    >>> temperature([900, 100], t=2)
    (0.75, 0.25)
    """
    if not (math.isfinite(t) and t > 0):
        raise UsageError(
            "a temperature above 0",
            got=repr(t),
            where="temperature weights",
            fix="1 is proportional; 3 to 5 raises the weight of small sources",
        )
    largest = max(_checked(sizes))
    # Relative to the largest, so that a small t does not overflow.
    return normalise([(size / largest) ** (1.0 / t) for size in sizes], where="temperature weights")


def unimax(sizes: Sequence[int], budget: float, max_passes: float) -> tuple[float, ...]:
    """Weights as even as possible, with no source repeated more than `max_passes` times in `budget` draws.

    From the smallest source up: each gets an even share of the remaining draws, or `max_passes` times its size if that
    is less; the difference goes to the larger ones. If all sources together have fewer than `budget` items in
    `max_passes` passes, the weights are proportional, and `check_repeats` raises.

    >>> unimax([10, 1000, 1000], budget=840, max_passes=4)
    (0.047619047619047616, 0.47619047619047616, 0.47619047619047616)
    """
    if not (math.isfinite(budget) and math.isfinite(max_passes) and budget > 0 and max_passes > 0):
        raise UsageError(
            "a budget and a number of passes above 0",
            got=f"budget={budget}, max_passes={max_passes}",
            where="UniMax weights",
            fix="the budget is the number of draws of the full training run; 4 passes is a usual cap",
        )
    _checked(sizes)
    share = [0.0] * len(sizes)
    left = float(budget)
    ascending = sorted(range(len(sizes)), key=lambda k: sizes[k])
    for done, k in enumerate(ascending):
        share[k] = min(left / (len(sizes) - done), sizes[k] * max_passes)
        left -= share[k]
    return normalise(share, where="UniMax weights")


def check_repeats(
    weights: Sequence[float], sizes: Sequence[int | None], draws: int, cap: float, names: Sequence[str] = ()
) -> None:
    """Raises if `draws` draws would repeat any source more than `cap` times. A size of None is endless.

    >>> check_repeats([0.5, 0.5], [100, 400], draws=400, cap=4)
    """
    shares = normalise(weights, where="check of repeats")
    if len(shares) != len(sizes):
        raise UsageError(
            "a size for each weight",
            got=f"{len(shares)} weights, {len(sizes)} sizes",
            where="check of repeats",
            fix="use None as the size of an endless source",
        )
    passes = [_passes(share * draws, size) for share, size in zip(shares, sizes, strict=True)]
    worst = max(range(len(passes)), key=passes.__getitem__)
    if passes[worst] > cap * (1 + 1e-9):
        size = sizes[worst] or 0
        name = repr(names[worst]) if worst < len(names) else f"source {worst}"
        raise UsageError(
            f"no source to be repeated more than {cap:g} times",
            got=f"{passes[worst]:.2f} passes over {name} ({size} items, weight {shares[worst]:.4g})",
            where=f"a mixture of {len(shares)} sources, {draws} draws",
            fix=f"lower its weight to {cap * size / draws:.4g}, take fewer draws, use unimax weights, or raise the cap",
        )


def _passes(draws: float, size: int | None) -> float:
    if size is None or draws == 0:
        return 0.0
    return draws / size if size else math.inf


def normalise(weights: Sequence[float], where: str) -> tuple[float, ...]:
    """Divides weights by their sum. Weights that already sum to 1 are unchanged, so that doing it twice is harmless.

    >>> normalise([2, 1, 1], where="mixture")
    (0.5, 0.25, 0.25)
    """
    values = [float(weight) for weight in weights]
    if not values or not all(math.isfinite(v) and v >= 0 for v in values) or not any(values):
        raise UsageError(
            "weights of zero or more, at least one above zero",
            got=str(values),
            where=where,
            fix="pass one finite weight per source",
        )
    if max(values) > 1e150:  # the sum of huge weights would overflow
        values = [v / max(values) for v in values]
    total = math.fsum(values)
    return tuple(values) if abs(total - 1.0) < 1e-9 else tuple(v / total for v in values)


@lru_cache(maxsize=256)
def normalised(weights: tuple[float, ...], where: str) -> tuple[float, ...]:
    """The same for weights that come again and again: those of earlier stages of a mixture."""
    return normalise(weights, where)


def _checked(sizes: Sequence[int]) -> Sequence[int]:
    if not sizes or min(sizes) < 1:
        raise UsageError(
            "at least one source, and a size of at least 1 for each",
            got=str(list(sizes)),
            where="weights from sizes",
            fix="leave empty sources out; an endless source needs an explicit weight",
        )
    return sizes
