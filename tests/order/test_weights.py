"""Known answers of the weighting rules, and the guard against repetition."""

from __future__ import annotations

import math

import pytest

from penstock.core.errors import UsageError
from penstock.order.weights import check_repeats, normalise, proportional, temperature, unimax


def test_proportional() -> None:
    assert proportional([1, 1, 2]) == (0.25, 0.25, 0.5)
    assert proportional([5]) == (1.0,)


def test_temperature() -> None:
    sizes = [10_000, 100, 1]
    assert temperature(sizes, 1) == pytest.approx(proportional(sizes))
    assert temperature(sizes, 2) == pytest.approx([100 / 111, 10 / 111, 1 / 111])
    assert temperature(sizes, 1e9) == pytest.approx([1 / 3] * 3, rel=1e-6)
    assert temperature([10**300, 1], 0.01) == (1.0, 0.0)


def test_unimax_shares_evenly_what_small_sources_cannot_use() -> None:
    # Budget 1200, at most 4 passes: 10 -> 40; then (1200-40)/2 = 580 > 4*100 = 400; the rest, 760, to the largest.
    assert unimax([100, 10_000, 10], 1200, 4) == pytest.approx([400 / 1200, 760 / 1200, 40 / 1200])
    # Nothing is capped: uniform.
    assert unimax([100, 200, 300], 30, 1) == pytest.approx([1 / 3] * 3)
    # Everything is capped: proportional.
    assert unimax([100, 200, 300], 10**9, 4) == pytest.approx([1 / 6, 2 / 6, 3 / 6])


def test_unimax_never_repeats_more_than_asked() -> None:
    sizes = [3, 17, 1000, 250_000, 9_000_000]
    check_repeats(unimax(sizes, 5_000_000, 4), sizes, 5_000_000, cap=4)


def test_repeats_above_the_cap_are_an_error() -> None:
    check_repeats([0.5, 0.5], [100, None], draws=800, cap=4)
    with pytest.raises(UsageError) as caught:
        check_repeats([0.5, 0.5], [100, None], draws=1000, cap=4, names=["books", "web"])
    assert str(caught.value) == (
        "expected no source to be repeated more than 4 times\n"
        "  got:   5.00 passes over 'books' (100 items, weight 0.5)\n"
        "  where: a mixture of 2 sources, 1000 draws\n"
        "  fix:   lower its weight to 0.4, take fewer draws, use unimax weights, or raise the cap"
    )
    with pytest.raises(UsageError, match="passes over source 1"):
        check_repeats([2, 2], [1000, 1], draws=1000, cap=4)
    with pytest.raises(UsageError, match="inf passes over source 0"):
        check_repeats([1, 1], [0, 10], draws=2, cap=4)


def test_the_fix_of_the_repeat_error_works() -> None:
    check_repeats([0.4, 0.6], [100, None], draws=1000, cap=4)


def test_normalising_twice_changes_nothing() -> None:
    many = [[float(k % m + 0.1) for k in range(m)] for m in range(2, 60)]
    for weights in ([0.6, 0.3, 0.1], [1, 1, 1], [1e-6, 5], [1e300, 1e300], [7, 0], *many):
        once = normalise(weights, "test")
        assert normalise(once, "test") == once
        assert math.fsum(once) == pytest.approx(1)


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], [math.nan], [math.inf, 1]])
def test_bad_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(UsageError) as caught:
        normalise(weights, "mixture")
    assert str(caught.value) == (
        f"expected weights of zero or more, at least one above zero\n  got:   {[float(w) for w in weights]}\n"
        "  where: mixture\n  fix:   pass one finite weight per source"
    )


@pytest.mark.parametrize("rule", [proportional, lambda s: temperature(s, 2), lambda s: unimax(s, 10, 1)])
@pytest.mark.parametrize("sizes", [[], [3, 0], [-1]])
def test_bad_sizes_are_refused(rule: object, sizes: list[int]) -> None:
    with pytest.raises(UsageError, match="at least one source, and a size of at least 1 for each"):
        rule(sizes)  # type: ignore[operator]


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(UsageError, match=r"a temperature above 0\n  got:   0"):
        temperature([1, 2], 0)
    with pytest.raises(UsageError, match=r"a budget and a number of passes above 0\n  got:   budget=0, max_passes=4"):
        unimax([1, 2], 0, 4)
    with pytest.raises(UsageError, match=r"a size for each weight\n  got:   2 weights, 1 sizes"):
        check_repeats([1, 1], [5], 10, 1)
