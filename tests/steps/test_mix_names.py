"""Mixtures of named pipelines: the rows of the list, with names in `why`, the plan and `set_weights`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_same_batches
from penstock.view.plan_facts import plan_of

NAMES = ["web", "code", "books"]
WEIGHTS = {"books": 1, "web": 5, "code": 2}


def sources() -> list[ps.Pipeline]:
    return [ps.from_arrays({"x": np.arange(n), "of": np.full(n, n)}).shuffle(seed=n) for n in (30, 50, 7)]


def named() -> ps.Pipeline:
    return ps.mix(dict(zip(NAMES, sources(), strict=True)), WEIGHTS, seed=3).batch(8)


def listed() -> ps.Pipeline:
    return ps.mix(sources(), [5, 2, 1], seed=3).batch(8)


def take(loader: ps.Loader, count: int) -> list:
    return [batch for _, batch in zip(range(count), loader, strict=False)]


def test_rows_fingerprint_and_states_are_those_of_the_list() -> None:
    assert named().fingerprint() == listed().fingerprint()
    old, new = listed().to_numpy(threads=0), named().to_numpy(threads=2)
    take(old, 3)
    old.set_weights([1, 1, 2])
    take(old, 2)
    new.load_state_dict(old.state_dict())
    assert new.state_dict() == old.state_dict()
    assert_same_batches(take(old, 5), take(new, 5))
    assert new.why(9, 3)["from"]["mixture_name"] in NAMES  # names are kept when weights change
    old.load_state_dict(new.state_dict())


def test_why_names_the_source_of_each_row() -> None:
    loader = named().to_numpy(threads=0)
    batch = loader.batch_at(2)
    found = [loader.why(2, row)["from"]["mixture_name"] for row in range(8)]
    assert found == [NAMES[[30, 50, 7].index(n)] for n in batch["of"]]
    assert len(set(found)) > 1
    assert "mixture_name" not in listed().to_numpy(threads=0).why(2, 0)["from"]


def test_names_of_mixtures_in_mixtures_are_a_path() -> None:
    one, two, three = sources()
    for pipeline, expected in (
        (ps.mix({"a": ps.mix({"b": one, "c": two}), "d": three}, [1, 1]), {"a/b", "a/c", "d"}),
        (ps.mix([ps.mix({"b": one, "c": two}), three], [1, 1]), {"0/b", "0/c", None}),
        (ps.mix({"a": ps.mix([one, two]), "d": three}, [1, 1]), {"a/0", "a/1", "d"}),
    ):
        loader = pipeline.batch(87).to_numpy(threads=0)
        assert {loader.why(0, row)["from"].get("mixture_name") for row in range(87)} == expected


def test_the_plan_shows_names() -> None:
    assert "0.625 of web" in repr(ps.mix(dict(zip(NAMES, sources(), strict=True)), [0.625, 0.25, 0.125]))
    assert list(plan_of(named()).mixture) == NAMES


def test_weights_change_by_name() -> None:
    one, other = named().to_numpy(threads=0), named().to_numpy(threads=0)
    one.set_weights({"code": 3, "books": 0, "web": 1})
    other.set_weights([1, 3, 0])
    assert_same_batches(take(one, 5), take(other, 5))
    assert one.state_dict() == other.state_dict()


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda a: ps.mix({"web": a, "code": a}, {"web": 1, "cod": 1}), ["'web', 'code'", "no 'code', unknown 'cod'"]),
        (lambda a: ps.mix({"web": a, "code": a}, {"web": 1}), ["no 'code'"]),
        (lambda a: ps.mix({"web": a, "code": a}, [1]), ["2 weights"]),
        (lambda a: ps.mix([a, a], {"web": 1, "code": 1}), ["as a list", "have no names"]),
        (lambda a: ps.mix({1: a, "code": a}), ["names of pipelines", "1"]),
        (lambda a: ps.mix({"": a}), ["names of pipelines"]),
        (lambda a: ps.mix({"a\nb": a}), ["names of pipelines"]),
        (lambda a: ps.mix({"web": 3}), ["a list of pipelines", "3"]),
        (lambda a: ps.mix({}), ["at least one pipeline"]),
        (lambda a: named().to_numpy().set_weights({"web": 1, "code": 1}), ["set_weights", "no 'books'"]),
        (lambda a: listed().to_numpy().set_weights(WEIGHTS), ["set_weights", "have no names"]),
    ],
)
def test_wrong_names_are_refused(call: Callable[[ps.Pipeline], object], parts: list[str]) -> None:
    with pytest.raises(ps.UsageError) as caught:
        call(sources()[0])
    for part in parts:
        assert part in str(caught.value)
