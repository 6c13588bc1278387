"""The shuffle looks random: one set of statistics on it, on NumPy's permutation, and on poor shuffles that must fail.

All keys are fixed, so nothing here depends on luck when it runs; the bounds are 5 standard deviations.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.core.randomness import key, keys
from penstock.order.shuffle import permute

Shuffle = Callable[[int, int], NDArray[np.int64]]

SIZES = [65, 100, 257, 1000, 1023, 1024, 1025, 4099, 10_000, 65_536, 100_003]


def ours(n: int, seed: int) -> NDArray[np.int64]:
    return permute(np.arange(n), n, key(seed, "quality"))


def numpys(n: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng([n, seed]).permutation(n)


def affine(n: int, seed: int) -> NDArray[np.int64]:
    step = next(s for s in range(int(n * 0.618) + seed, 2 * n) if np.gcd(s, n) == 1)
    return (np.arange(n) * step + seed) % n


def nearly_in_place(n: int, seed: int) -> NDArray[np.int64]:
    return np.argsort(np.arange(n) + np.random.default_rng(seed).uniform(0, n / 2, n))


def position_chi_square(p: NDArray[np.int64], cells: int = 8) -> float:
    """How unevenly stretches of the input spread over stretches of the output, in standard deviations."""
    n = p.size
    source, target = np.arange(n) * cells // n, p * cells // n
    table = np.bincount(source * cells + target, minlength=cells * cells).reshape(cells, cells)
    share = np.bincount(source, minlength=cells) / n
    expected = n * np.outer(share, share)
    freedom = (cells - 1) ** 2
    return float((((table - expected) ** 2 / expected).sum() * (n - 1) / n - freedom) / np.sqrt(2 * freedom))


def serial_correlation(p: NDArray[np.int64], lag: int) -> float:
    """Correlation of elements `lag` apart, in standard deviations."""
    return float(np.corrcoef(p[:-lag], p[lag:])[0, 1] * np.sqrt(p.size - lag))


def distinct_gaps(p: NDArray[np.int64]) -> float:
    """The share of differences between neighbours that occur at all: 1 - 1/e for a random permutation."""
    return np.unique(np.diff(p) % p.size).size / p.size


def flaws(shuffle: Shuffle, n: int) -> list[str]:
    found = []
    samples = [shuffle(n, seed) for seed in range(20)]
    chi = np.array([position_chi_square(p) for p in samples])
    if abs(chi.mean()) > 5 / np.sqrt(20) or chi.max() > 6:
        found.append(f"positions {chi.mean():.2f} {chi.max():.2f}")
    for lag in (1, 2, 8, 16, 32):
        serial = np.array([serial_correlation(p, lag) for p in samples])
        if abs(serial.mean()) > 5 / np.sqrt(20) + 0.2 or np.abs(serial).max() > 5:
            found.append(f"lag {lag} {serial.mean():.2f} {np.abs(serial).max():.2f}")
    gaps = np.mean([distinct_gaps(p) for p in samples])
    if abs(gaps - (1 - np.exp(-1))) > 0.5 / np.sqrt(20 * n) * 5 + 1 / n:
        found.append(f"gaps {gaps:.4f}")
    fixed = np.mean([(p == np.arange(n)).sum() for p in samples])
    if fixed > 1 + 5 / np.sqrt(20):
        found.append(f"fixed points {fixed}")
    rises = np.array([((np.diff(p) > 0).sum() - (n - 1) / 2) / np.sqrt((n + 1) / 12) for p in samples])
    if abs(rises.mean()) > 5 / np.sqrt(20) or np.abs(rises).max() > 5:
        found.append(f"rises {rises.mean():.2f}")
    return found


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("shuffle", [ours, numpys])
def test_looks_random(shuffle: Shuffle, n: int) -> None:
    assert flaws(shuffle, n) == []


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("poor", [affine, nearly_in_place])
def test_poor_shuffles_fail(poor: Shuffle, n: int) -> None:
    assert flaws(poor, n) != []


def test_neighbours_of_a_huge_range_are_as_far_apart_as_random_ones() -> None:
    n = 10**12
    p = permute(np.arange(200_000) + 10**11, n, key("huge"))
    assert abs(serial_correlation(p, 1)) < 5
    counts = np.bincount(p * 100 // n, minlength=100)
    assert abs(((counts - 2000) ** 2 / 2000).sum() - 99) < 5 * np.sqrt(2 * 99)
    assert np.unique(np.diff(p)).size == p.size - 1


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_order_of_a_few_elements_comes_up_equally_often(n: int) -> None:
    orders = list(permutations(range(n)))
    trials = 2000 * len(orders)
    per_trial = keys(key("tiny"), np.repeat(np.arange(trials), n))
    shuffled = permute(np.tile(np.arange(n), trials), n, per_trial).reshape(trials, n)
    code = shuffled @ (n ** np.arange(n))
    counts = np.array([(code == np.dot(order, n ** np.arange(n))).sum() for order in orders])
    assert counts.sum() == trials
    freedom = len(orders) - 1
    assert abs(((counts - 2000) ** 2 / 2000).sum() - freedom) < 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("n", [7, 20, 64, 65, 66, 80, 129])
def test_pairs_of_elements_land_on_every_pair_of_places_equally_often(n: int) -> None:
    trials = 100_000
    per_trial = keys(key("pairs", n), np.arange(trials))
    for i, j in [(0, 1), (0, n // 2), (1, n - 1)]:
        first, second = permute(np.full(trials, i), n, per_trial), permute(np.full(trials, j), n, per_trial)
        table = np.bincount(first * n + second, minlength=n * n).reshape(n, n)
        assert table.trace() == 0
        off = table[~np.eye(n, dtype=bool)]
        expected = trials / off.size
        chi = ((off - expected) ** 2 / expected).sum()
        assert abs(chi - (off.size - 1)) < 5 * np.sqrt(2 * (off.size - 1))


@pytest.mark.parametrize("n", [1000, 10**6 + 3])
def test_other_epochs_and_seeds_are_unrelated(n: int) -> None:
    positions = np.arange(1000)
    shuffles = [
        permute(positions, n, key(seed, "shuffle", epoch)) for seed, epoch in product((0, 1, 2**40), (0, 1, 2, 1000))
    ]
    for a in range(len(shuffles)):
        for b in range(a):
            assert (shuffles[a] == shuffles[b]).sum() < 12
            assert abs(np.corrcoef(shuffles[a], shuffles[b])[0, 1]) * np.sqrt(1000) < 5


def test_keys_that_differ_in_one_bit_are_unrelated() -> None:
    positions = np.arange(1000)
    base = permute(positions, 1000, 0)
    for bit in range(64):
        assert (permute(positions, 1000, 1 << bit) == base).sum() < 12
