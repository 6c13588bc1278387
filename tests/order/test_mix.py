"""The mixture against its definition: exact counts, no gaps, stages at their exact position, any position by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock.order import mix
from penstock.order.mix import Mixture


def endless(*weights: float, **options: object) -> Mixture:
    return Mixture(weights=weights, sizes=(None,) * len(weights), **options)  # type: ignore[arg-type]


def check_draws(mixture: Mixture, positions: int) -> np.ndarray:
    """Every source's draws are 0, 1, 2, ... in the order of positions; returns the sources."""
    source, draw = mixture.pick(np.arange(positions))
    seen = np.zeros(len(mixture.weights), np.int64)
    for position in range(positions):
        k = source[position]
        assert draw[position] == seen[k]
        seen[k] += 1
    assert mixture.counts(positions).tolist() == seen.tolist()
    return source


weights_with_zeros = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=1, max_size=7).filter(
    lambda w: max(w) > 0
)


@given(weights_with_zeros, st.integers(0, 2**64 - 1), st.integers(1, 200), st.data())
@settings(max_examples=60, deadline=None)
def test_draws_have_no_gap_for_any_weights_and_stages(
    weights: list[float], key: int, block: int, data: st.DataObject
) -> None:
    starts = sorted(data.draw(st.sets(st.integers(1, 600), max_size=4)))
    same_length = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1.0)), min_size=len(weights), max_size=len(weights))
    stages = tuple((s, tuple(data.draw(same_length.filter(lambda w: max(w) > 0)))) for s in starts)
    mixture = endless(*weights, key=key, block=block, stages=stages)
    source = check_draws(mixture, 800)
    bounds = [0, *starts, 800]
    for low, high, used in zip(bounds[:-1], bounds[1:], [tuple(weights), *(w for _, w in stages)], strict=True):
        assert all(used[k] > 0 for k in np.unique(source[low:high])), "a source of weight zero was drawn"


@pytest.mark.parametrize("weights", [(0.6, 0.3, 0.1), (1, 1, 1, 1, 1), (0.5, 0.25, 0.125, 0.125), (0.999, 0.001)])
def test_at_every_block_edge_all_but_the_largest_are_within_one_draw(weights: tuple[float, ...]) -> None:
    mixture = endless(*weights, key=3, block=64)
    wanted = np.array(mixture.weights)
    largest = int(wanted.argmax())
    for block in [*range(1, 200), 10**6, 10**9 + 7]:
        off = np.abs(mixture.counts(block * 64) - wanted * block * 64)
        off[largest] = 0
        assert off.max() < 1 + 1e-3  # the comparison itself is in floats
    assert mixture.counts(64 * 10**9).sum() == 64 * 10**9


def test_tiny_weights_are_drawn_as_often_as_they_should() -> None:
    mixture = endless(1.0, 1e-6, 1e-3, key=11)
    total = 1 + 1e-6 + 1e-3
    for position in (10**7, 10**9, 10**12):
        _, tiny, small = mixture.counts(position)
        assert abs(tiny - position * 1e-6 / total) <= 2
        assert abs(small - position * 1e-3 / total) <= 12
    # Over many keys also a stretch too short for one draw gets its share: 1e-4 * 1000 = 0.1 draws.
    drawn = [int(endless(1.0, 1e-4, key=k, block=1000).counts(1000)[1]) for k in range(500)]
    assert set(drawn) == {0, 1}
    assert 25 < sum(drawn) < 80


def test_frequent_stages_neither_starve_nor_favour_a_small_source() -> None:
    stages = tuple((start, (0.999, 0.001)) for start in range(500, 20_000, 500))
    drawn = [int(endless(0.999, 0.001, key=key, stages=stages).counts(20_000)[1]) for key in range(50)]
    assert abs(np.mean(drawn) - 20) < 5 * np.sqrt(20 / 50)


def test_zero_weight_is_never_drawn_and_one_source_is_everything() -> None:
    source, _ = endless(0, 1, 0, 2, key=1).pick(np.arange(20_000))
    assert np.unique(source).tolist() == [1, 3]
    source, draw = endless(5.0, key=1).pick(np.arange(10**12, 10**12 + 3000))
    assert not source.any()
    assert (draw == np.arange(10**12, 10**12 + 3000)).all()


def test_many_even_sources_get_a_block_that_is_long_enough() -> None:
    mixture = endless(*[1.0] * 60, key=1, block=1)
    check_draws(mixture, 5000)
    counts = mixture.counts(59 * 60 * 10)
    assert counts.min() >= 530
    assert counts.max() <= 650


def test_any_position_is_computed_by_itself() -> None:
    mixture = endless(0.5, 0.3, 0.2, key=9, block=100, stages=((1234, (0.1, 0.1, 0.8)),))
    source, draw = mixture.pick(np.arange(3000))
    order = np.random.default_rng(0).permutation(3000)
    again = mixture.pick(order.reshape(30, 100))
    assert (again[0] == source[order].reshape(30, 100)).all()
    assert (again[1] == draw[order].reshape(30, 100)).all()
    for position in (0, 99, 100, 1233, 1234, 1235, 2999):
        assert mixture.pick([position])[0][0] == source[position]
        assert (mixture.counts(position) == np.bincount(source[:position], minlength=3)).all()


def test_a_huge_position_lays_out_one_block_only() -> None:
    mixture = endless(0.6, 0.3, 0.1, key=7)
    base = 10**15 + 5
    source, draw = mixture.pick(np.arange(base, base + 32))
    before, after = mixture.counts(base), mixture.counts(base + 32)
    assert (np.bincount(source, minlength=3) == after - before).all()
    for k in range(3):
        assert draw[source == k].tolist() == list(range(before[k], after[k]))


def test_a_stage_starts_exactly_and_changes_nothing_before() -> None:
    plain = endless(1, 1, key=4)
    staged = endless(1, 1, key=4, stages=((777, (1, 0)),))
    longer = endless(1, 1, key=4, stages=((777, (1, 0)), (900, (0, 1))))
    source, draw = staged.pick(np.arange(2000))
    assert (plain.pick(np.arange(777))[0] == source[:777]).all()
    assert not source[777:].any()
    assert 1 in source[770:777]
    assert draw[777] == plain.counts(777)[0]
    later, later_draw = longer.pick(np.arange(2000))
    assert (later[:900] == source[:900]).all()
    assert (later_draw[:900] == draw[:900]).all()
    assert later[900:].all()
    assert later_draw[900] == longer.counts(777)[1]


def test_labels_inside_a_block_are_in_random_order() -> None:
    source, _ = endless(1, 1, key=2, block=1000).pick(np.arange(100_000))
    changes = (np.diff(source) != 0).mean()
    assert abs(changes - 0.5) < 0.01
    blocks = source.reshape(100, 1000)
    assert np.unique(blocks, axis=0).shape[0] == 100
    assert np.abs(blocks.mean(axis=0) - 0.5).max() < 5 * 0.05


def test_different_keys_have_different_orders_and_equal_mixtures_are_equal() -> None:
    a, b = endless(1, 1, key=1), endless(1, 1, key=2)
    assert (a.pick(np.arange(1000))[0] != b.pick(np.arange(1000))[0]).any()
    assert a == Mixture(a.weights, a.sizes, a.key, a.block, a.stages)
    assert hash(a) == hash(endless(2, 2, key=1))
    assert a.weights == (0.5, 0.5)


def exhausted_by_loop(mixture: Mixture, positions: int) -> list[int | None]:
    source, draw = mixture.pick(np.arange(positions))
    ends: list[int | None] = []
    for k, size in enumerate(mixture.sizes):
        at = np.flatnonzero((source == k) & (draw == (size or 0) - 1))
        ends.append(int(at[0]) + 1 if size and at.size else None)
    return ends


@pytest.mark.parametrize("stages", [(), ((333, (0.0, 1.0, 1.0)), (401, (1.0, 3.0, 0.5)))])
@pytest.mark.parametrize("sizes", [(1, 2, 3), (100, 50, 70), (500, 1, 300), (200, None, 3)])
def test_exhaustion_is_where_a_loop_finds_it(sizes: tuple[int | None, ...], stages: tuple[object, ...]) -> None:
    for key in range(5):
        mixture = Mixture((0.5, 0.3, 0.2), sizes, key, 50, stages)  # type: ignore[arg-type]
        expected = exhausted_by_loop(mixture, 5000)
        assert [mixture.exhausted(k) for k in range(3)] == expected
        finite = [end for end in expected if end is not None]
        assert mixture.first_exhausted() == min(finite)
        assert mixture.all_exhausted() == max(finite)


def test_exhaustion_in_a_block_that_a_stage_cuts_short() -> None:
    stages = ((333, (1.0, 1.0)), (340, (3.0, 1.0)))
    for size in range(145, 180):
        mixture = Mixture((1, 1), (size, None), 1, 50, stages)
        assert mixture.first_exhausted() == exhausted_by_loop(mixture, 1000)[0]


def test_exhaustion_that_never_comes_and_that_comes_late() -> None:
    assert endless(1, 1).first_exhausted() is None
    assert endless(1, 1).all_exhausted() is None
    never = Mixture((1, 0), (10, 10), 1)
    assert never.first_exhausted() == 10
    assert never.all_exhausted() is None
    late = Mixture((1, 1), (10**13, None), 1)
    end = late.first_exhausted()
    assert end is not None
    assert abs(end - 2 * 10**13) < 2000
    assert late.counts(end)[0] == 10**13
    assert late.counts(end - 1)[0] == 10**13 - 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"weights": (1, 1), "sizes": (5,)},
            (
                "a size for each weight\n  got:   2 weights, 1 sizes\n  where: mixture\n"
                "  fix:   use None as the size of an endless source"
            ),
        ),
        (
            {"weights": (1, 1), "sizes": (5, 0)},
            "sources of at least 1 item\n  got:   0 in source 1\n  where: mixture\n  fix:   leave it out",
        ),
        (
            {"weights": (1, -1), "sizes": (5, 5)},
            (
                "weights of zero or more, at least one above zero\n  got:   [1.0, -1.0]\n  where: mixture\n"
                "  fix:   pass one finite weight per source"
            ),
        ),
        (
            {"weights": (1,), "sizes": (5,), "block": 0},
            "a block of at least 1\n  got:   0\n  where: mixture\n  fix:   leave block out",
        ),
        (
            {"weights": (1,), "sizes": (5,), "stages": ((9, (1,)), (9, (1,)))},
            (
                "stages in ascending order, this one after position 9\n  got:   9\n  where: mixture stages\n"
                "  fix:   append stages only; never insert one before a position that was already used"
            ),
        ),
        (
            {"weights": (1,), "sizes": (5,), "stages": ((9, (1, 2)),)},
            (
                "1 weights, one for each source\n  got:   2\n  where: mixture stage at position 9\n"
                "  fix:   use weight 0 for a source that is not in the stage"
            ),
        ),
    ],
)
def test_invalid_arguments_raise(options: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Mixture(**options)  # type: ignore[arg-type]
    assert str(caught.value) == "expected " + text


def test_positions_out_of_range_raise() -> None:
    with pytest.raises(UsageError, match=r"positions from 0 to 2\*\*62\n  got:   -1 to 3"):
        endless(1).pick([-1, 3])
    with pytest.raises(UsageError, match=r"a position from 0 to 2\*\*62\n  got:   -1"):
        endless(1).counts(-1)


def _reference(mixture: Mixture, positions: int) -> tuple[list[int], list[int]]:
    """Sources and draws one after another, from the sources alone: each draw is the next of its source."""
    source, _ = mixture.pick(np.arange(positions))
    drawn = [0] * len(mixture.weights)
    draws = []
    for k in source.tolist():
        draws.append(drawn[k])
        drawn[k] += 1
    return source.tolist(), draws


def test_a_block_computed_in_parts_is_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        weights = tuple((rng.random(int(rng.integers(2, 9))) + 0.01).tolist())
        stages = tuple((start, tuple((rng.random(len(weights)) + 0.01).tolist())) for start in (1000, 1001, 2900))
        sizes = tuple(int(n) for n in rng.integers(1, 400, len(weights)))
        chosen: dict[str, Any] = {"weights": weights, "sizes": sizes, "key": seed, "block": 700, "stages": stages}
        monkeypatch.setattr(mix, "PART", 1 << 16)
        monkeypatch.setattr(mix, "_PLANS", mix._Plans(4))
        full = Mixture(**chosen)
        expected = full.pick(np.arange(5000))
        assert (expected[0].tolist(), expected[1].tolist()) == _reference(full, 5000)
        counts = [full.counts(p).tolist() for p in range(0, 5000, 97)]
        ends = [full.exhausted(k) for k in range(len(weights))]
        for k, end in enumerate(ends):
            assert end is not None
            source, draw = full.pick(np.array([end - 1]))
            assert (int(source[0]), int(draw[0])) == (k, sizes[k] - 1)
        for part in (1, 7, 64, 699):
            monkeypatch.setattr(mix, "PART", part)
            monkeypatch.setattr(mix, "_PLANS", mix._Plans(4))
            some = Mixture(**chosen)
            for at in rng.integers(0, 4900, 12).tolist():  # in any order
                found = some.pick(np.arange(at, at + 100))
                assert np.array_equal(found[0], expected[0][at : at + 100])
                assert np.array_equal(found[1], expected[1][at : at + 100])
            assert [some.counts(p).tolist() for p in range(0, 5000, 97)] == counts
            assert [some.exhausted(k) for k in range(len(weights))] == ends


def test_a_change_of_weights_computes_one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = mix._stage

    def counted(mixture: Mixture, start: int, *rest: Any) -> Any:
        made.append(start)
        return make(mixture, start, *rest)

    plans = mix._Plans(4)
    monkeypatch.setattr(mix, "_stage", counted)
    monkeypatch.setattr(mix, "_PLANS", plans)
    stages: tuple[tuple[int, tuple[float, ...]], ...] = ()
    for n in range(20):
        mixture = Mixture(weights=(3, 1, 1), sizes=(9, 9, 9), key=5, stages=stages)
        before = len(made)
        mixture.pick(np.arange(100 * n, 100 * n + 50))
        assert len(made) - before == 1  # however many there were before
        alone = Mixture(weights=(3, 1, 1), sizes=(9, 9, 9), key=5, stages=stages)
        monkeypatch.setattr(mix, "_PLANS", mix._Plans(4))
        assert np.array_equal(alone.pick(np.arange(100 * n + 50))[1], mixture.pick(np.arange(100 * n + 50))[1])
        monkeypatch.setattr(mix, "_PLANS", plans)
        stages = (*stages, (100 * (n + 1), (1.0 + n, 2.0, 3.0)))
