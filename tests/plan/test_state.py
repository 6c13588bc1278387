"""States: any change is refused when it is loaded; they stay small."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pytest

import penstock as ps
from penstock.plan import state as states
from penstock.steps.base import Context, Step
from penstock.steps.node import Node, WrapperNode
from penstock.steps.picks import I64, Epoch, Picks
from penstock.testing import assert_same_batches


def source(k: int, rows: int = 50) -> ps.Pipeline:
    return ps.from_arrays({"x": np.arange(rows) + 1000 * k}).shuffle(seed=k)


def mixture(count: int = 2, batch: int = 8, **options: Any) -> ps.Loader:
    return ps.mix([source(k) for k in range(count)], [1.0] * count).batch(batch).to_numpy(**({"threads": 0} | options))


def plain(batch: int = 4) -> ps.Loader:
    return source(0).batch(batch).to_numpy(threads=0)


def after(loader: ps.Loader, batches: int) -> dict:
    run = iter(loader)
    for _ in range(batches):
        next(run)
    return json.loads(json.dumps(loader.state_dict()))


def changed() -> dict:
    loader = mixture()
    after(loader, 3)
    loader.set_weights([0.25, 0.75])
    return after(loader, 4)


def folded() -> dict:
    loader = mixture(3)
    for k in range(30):
        after(loader, 2)
        loader.set_weights([1 + k / 7, 2, 3 + k / 3])
    return after(loader, 1)


def many() -> dict:
    loader, draw = mixture(40), random.Random(3)
    for _ in range(5):
        loader.set_weights([draw.random() for _ in range(40)])
        after(loader, 2)
    return after(loader, 1)


def lanes() -> ps.Loader:
    return ps.from_arrays({"x": range(100)}).shuffle(seed=5, lanes=4, block=5, window=2).batch(8).to_numpy(threads=0)


MAKERS = {"lanes": (lanes, lambda: after(lanes(), 7)),
          "plain": (plain, lambda: after(plain(), 7)), "epoch end": (plain, lambda: after(plain(), 12)),
          "changed": (mixture, changed), "folded": (lambda: mixture(3), folded),
          "many": (lambda: mixture(40), many)}  # fmt: skip


def meaning(loader: ps.Loader) -> Any:
    return loader.step, loader.epoch, [b["x"].tolist() for b in islice(loader, 3)]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("signed", [True, False])
def test_mutants_are_refused_or_mean_the_same(name: str, signed: bool) -> None:
    """Flipped bits, replaced values, missing and extra keys, nested junk; without a checksum at least never a crash."""
    make, state = MAKERS[name][0], MAKERS[name][1]()
    if not signed:
        state.pop("check")
    loader = make()
    loader.load_state_dict(state)
    want = meaning(loader)
    draw, refused, loads = random.Random(7), 0, 0
    for _ in range(300):
        mutant = _mutant(state, draw)
        if mutant is None:
            continue
        loader.load_state_dict(state)
        loads += 1
        try:
            loader.load_state_dict(mutant)
        except ps.PenstockError:
            refused += 1
            assert loader.step == want[0], "a refused state changes nothing"
            continue
        got = meaning(loader)
        if signed:
            assert got == want, mutant
    assert loads > 100
    assert refused > loads // 2


JUNK = [None, True, -1, 1.5, float("nan"), 2**62, 2**63, 10**30, "", "x", [], {}, [[]], [[0, 0, 0]], {"a": [1]}]


def _mutant(state: dict, draw: random.Random) -> Any:
    kind = draw.randrange(4)
    if kind == 0:
        data = bytearray(json.dumps(state).encode())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        try:
            return json.loads(bytes(data))
        except ValueError:
            return None
    mutant = json.loads(json.dumps(state))
    name = draw.choice([key for key in mutant if key != "check"])
    if kind == 1:
        mutant[name] = draw.choice(JUNK)
    elif kind == 2:
        del mutant[name]
    elif isinstance(mutant[name], list) and mutant[name]:
        place = draw.randrange(len(mutant[name]))
        mutant[name][place] = draw.choice(JUNK)
    else:
        mutant[draw.choice(["extra", "mix", "drawn", "epoch_end"])] = draw.choice(JUNK)
    return mutant


def test_states_without_a_checksum_are_still_checked() -> None:
    state = after(plain(), 7)
    del state["check"]
    plain().load_state_dict(state)
    for wrong in ({"n": 10**30}, {"n": state["n"] + 4}, {"step": 8}, {"stages": [[3, 0, 4]]}, {"more": 1}, {"n": True}):
        with pytest.raises(ps.StateError):
            plain().load_state_dict(state | wrong)
    with pytest.raises(ps.StateError, match="as it was saved"):
        plain().load_state_dict(after(plain(), 7) | {"step": 8, "n": 32})


def test_forty_sources_are_under_1_kb_and_the_changed_one_is_named() -> None:
    state = after(mixture(40), 5)
    assert len(json.dumps(state)) < 1024
    fresh = mixture(40)
    fresh.load_state_dict(state)
    assert fresh.step == 5
    other = [source(k, 51 if k == 17 else 50) for k in range(40)]
    with pytest.raises(ps.StateError, match=r"other data or arguments in: 17\.source"):
        ps.mix(other, [1.0] * 40).batch(8).to_numpy().load_state_dict(state)
    with pytest.raises(ps.StateError, match="other sources or steps"):
        mixture(39).load_state_dict(state)


def test_many_changes_stay_small_and_resume_exactly() -> None:
    loader, sizes, batches, texts = mixture(3, batch=5), set(), [], []
    for batch in loader:
        batches.append(batch)
        texts.append(json.dumps(loader.state_dict()))
        sizes.add(len(texts[-1]))
        if loader.step == 60:
            break
        loader.set_weights([1 + loader.step / 7, 2, 3])
    assert max(sizes) < 1024
    assert_same_batches(batches, [loader.batch_at(i) for i in range(60)])
    for step in (0, 1, 5, 30, 57):
        fresh = mixture(3, batch=5)
        fresh.load_state_dict(json.loads(texts[step]))
        fresh.set_weights([1 + fresh.step / 7, 2, 3])  # the state was saved just before this change
        rest = []
        for batch in fresh:
            rest.append(batch)
            assert json.dumps(fresh.state_dict()) == texts[fresh.step - 1]
            if fresh.step == 60:
                break
            fresh.set_weights([1 + fresh.step / 7, 2, 3])
        assert_same_batches(batches[step + 1 :], rest, f"resumed after step {step}")
    at = mixture(3, batch=5)
    at.load_state_dict(json.loads(texts[57]))
    with pytest.raises(ps.UsageError, match="a step number of at least"):
        at.batch_at(3)
    assert at.batch_at(57)["x"].tolist() == batches[57]["x"].tolist()


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_forty_sources_with_many_changes_are_under_1_kb_and_resume_exactly(scale: float) -> None:
    loader, draw, saved = mixture(40), random.Random(5), {}
    for step, batch in enumerate(loader, 1):
        saved[step] = (json.dumps(loader.state_dict()), batch["x"].tolist())
        assert len(saved[step][0]) < 1024
        if step == 51:
            break
        loader.set_weights([draw.random() * scale for _ in range(40)])
    for step in (1, 2, 30, 50, 51):
        fresh = mixture(40)
        fresh.load_state_dict(json.loads(saved[step][0]))
        assert json.dumps(fresh.state_dict()) == saved[step][0]
        assert (saved[step][1], fresh.batch_at(step)["x"].tolist()) == _last_and_next(step)
    late = json.loads(saved[51][0])
    late |= {"n": late["n"] + 10**15, "step": late["step"] + 10**15 // 8}
    late["check"] = states._checksum({name: value for name, value in late.items() if name != "check"})
    fresh = mixture(40)
    fresh.load_state_dict(late)
    for _ in range(2):
        after(fresh, 1)
        fresh.set_weights([draw.random() * scale for _ in range(40)])
    assert len(json.dumps(after(fresh, 1))) < 1024, "also late in a run"


@pytest.mark.parametrize("count", [9, 14, 16, 20])
def test_weights_with_all_their_digits_are_under_1_kb_beside_many_parts(count: int) -> None:
    """Sources of several steps, weights as numbers, late in a run: what is written by name otherwise is shortened."""

    def loader(kept: int = 0) -> ps.Loader:
        rows = [ps.from_arrays({"x": np.arange(50) + 1000 * k}) for k in range(count)]
        return ps.mix([*rows[:-1], rows[-1].skip(kept)], [1.0] * count).batch(8).to_numpy(threads=0)

    first, draw = loader(), random.Random(5)
    for _ in range(6):
        after(first, 2)
        first.set_weights([draw.random() for _ in range(count)])
    late = after(first, 1)
    late |= {"n": late["n"] + 10**15, "step": late["step"] + 10**15 // 8}
    far = loader()
    far.load_state_dict(states.signed(late))
    for _ in range(6):
        far.set_weights([draw.random() for _ in range(count)])
        after(far, 1)
    saved = after(far, 1)
    assert len(json.dumps(saved)) < 1024
    fresh = loader()
    fresh.load_state_dict(saved)
    assert fresh.state_dict() == saved
    assert fresh.batch_at(far.step)["x"].tolist() == far.batch_at(far.step)["x"].tolist()
    with pytest.raises(ps.StateError, match="other sources or steps|arguments in"):
        loader(kept=1).load_state_dict(saved)


@cache
def _last_and_next(step: int) -> tuple[list[int], list[int]]:
    """Batch `step` of the run, and the next one if the weights stay."""
    loader, draw = mixture(40), random.Random(5)
    run = iter(loader)
    for at in range(1, step + 1):
        last = next(run)["x"].tolist()
        if at < step:
            loader.set_weights([draw.random() for _ in range(40)])
    return last, next(run)["x"].tolist()


def test_weights_of_an_earlier_version_keep_all_their_digits() -> None:
    draw = random.Random(6)
    weights = [draw.random() for _ in range(40)]
    state = after(mixture(40), 3)
    del state["check"]
    state |= {"mix": [[16, weights]]}
    loader = mixture(40)
    loader.load_state_dict(state)
    assert loader.definition.origin.stages == ((16, tuple(weights)),)
    again = mixture(40)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert again.definition.origin.stages == ((16, tuple(weights)),)


@pytest.mark.parametrize("batch", [5, 10])
def test_a_folded_history_resumes_exactly_with_any_batch_size(batch: int) -> None:
    loader = mixture(3, batch=10)
    for k in range(25):
        after(loader, 1)
        loader.set_weights([1 + k / 7, 2, 3 + k / 3])
    state = after(loader, 2)
    assert "drawn" in state
    fresh = mixture(3, batch=batch)
    fresh.load_state_dict(state)
    want = np.concatenate([b["x"] for b in islice(loader, 20)])
    got = np.concatenate([b["x"] for b in islice(fresh, 200 // batch)])
    assert got.tolist() == want.tolist()
    same = mixture(3, batch=10)
    same.load_state_dict(state)
    same.set_weights([1, 1, 1])
    other = mixture(3, batch=10)
    other.load_state_dict(json.loads(json.dumps(same.state_dict())))
    assert same.state_dict() == other.state_dict()
    assert_same_batches(list(islice(same, 5)), list(islice(other, 5)))


def test_weights_before_the_first_batch_and_twice_at_one_step() -> None:
    loader = mixture()
    loader.set_weights([0, 1])
    assert min(b["x"].min() for b in islice(loader, 4)) >= 1000
    loader.set_weights([1, 0])
    loader.set_weights([1, 1])
    loader.set_weights([1, 0])
    state = json.loads(json.dumps(loader.state_dict()))
    assert [start for start, _ in state["mix"]] == [0, 32]
    rest = list(islice(loader, 3))
    assert max(b["x"].max() for b in rest) < 1000
    fresh = mixture()
    fresh.load_state_dict(state)
    assert_same_batches(rest, list(islice(fresh, 3)))


def test_a_state_from_before_a_change_undoes_it() -> None:
    loader = mixture()
    state, want = loader.state_dict(), [loader.batch_at(i)["x"].tolist() for i in range(6)]
    after(loader, 3)
    loader.set_weights([0, 1])
    loader.load_state_dict(state)
    assert "mix" not in loader.state_dict()
    assert [b["x"].tolist() for b in islice(loader, 6)] == want


@pytest.mark.parametrize(
    "weights",
    [[float("nan"), 1], [-1, 2], [0, 0], [1], [1, 2, 3], "11", None, 5, ["a", 1], [10**400, 1], [1, float("inf")],
     {1: 2, 3: 4}],
)  # fmt: skip
def test_wrong_weights_are_refused_and_change_nothing(weights) -> None:
    loader = mixture()
    state = loader.state_dict()
    with pytest.raises(ps.PenstockError):
        loader.set_weights(weights)
    assert loader.state_dict() == state


def test_an_epoch_keeps_its_length_when_weights_change() -> None:
    loader = ps.mix([source(0), source(1)], [1, 1], stop="first").batch(5).to_numpy(threads=0)
    length, first = len(loader), [b["x"].tolist() for b in loader]
    loader.set_weights([1, 9])
    second = [b["x"].tolist() for b in loader]
    assert len(second) == len(loader) == length
    assert [loader.batch_at(i)["x"].tolist() for i in range(2 * length)] == first + second


class _Second(WrapperNode):
    def pick(self, position: I64, epoch: Epoch) -> Picks:
        return self.child.pick(2 * position, epoch)


@dataclass(frozen=True)
class EverySecond(Step):
    """A step of a user's own, which says only that it works by position."""

    by_position: ClassVar[bool] = True

    def build(self, child: Node, context: Context) -> Node:
        return _Second(child)


def test_weights_are_refused_after_a_step_of_ones_own_by_position() -> None:
    made = ps.mix([source(0), source(1)], [1, 1]).then(EverySecond()).batch(4).to_numpy(threads=0)
    with pytest.raises(ps.StateError, match=r"\.everysecond\(\) after it"):
        made.set_weights([1, 2])
    ps.mix([source(0), source(1)], [1, 1]).take(40).batch(4).to_numpy(threads=0).set_weights([1, 2])


def test_weights_are_refused_where_rows_are_replaced() -> None:
    pipeline = ps.mix([source(0), source(1)], [1, 1])
    for made in (pipeline.filter(lambda r: r["x"] % 2 == 0), pipeline.skip_errors()):
        with pytest.raises(ps.StateError, match="nothing after it that replaces rows"):
            made.batch(4).to_numpy().set_weights([1, 2])
