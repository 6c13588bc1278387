"""Token budgets in a pipeline: never exceeded, nothing lost or doubled, any number of ranks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps

from .test_bucket import check_batch, documents, tokens


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=50),
    budget=st.integers(48, 200),
    multiple=st.sampled_from([1, 4, 8]),
    max_rows=st.none() | st.integers(1, 5),
    world=st.sampled_from([1, 2, 3, 4]),
    balance=st.booleans(),
)
def test_the_budget_holds_and_every_record_comes_once(lengths, budget, multiple, max_rows, world, balance):
    pipeline = tokens(lengths).shuffle(seed=1).batch_tokens(
        budget, multiple=multiple, max_rows=max_rows, balance=balance
    )  # fmt: skip
    ranks = [list(pipeline.shard(r, world).to_numpy(threads=0)) for r in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    seen: Counter[int] = Counter()
    for parts in zip(*ranks, strict=True):
        (width,) = {p["input_ids"].shape[1] for p in parts}
        rows = sum(int(p["valid"].sum()) for p in parts)
        assert rows * width <= budget and width % multiple == 0 and rows <= (max_rows or rows)
        assert sum(int((p["labels"] != -100).sum()) for p in parts) == parts[0]["valid_labels"]
        if world == 1:
            assert parts[0]["input_ids"].size <= budget
        for part in parts:
            assert len(part["valid"]) == max(1, part["valid"].sum())
            assert (part["labels"][part["attention_mask"] == 0] == -100).all()
            check_batch(part, lengths)
            seen.update(documents(part))
    assert seen == Counter(range(len(lengths)))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_static_mode_has_only_the_declared_shapes(world: int) -> None:
    lengths = (np.arange(90) * 7 % 31 + 1).tolist()
    pipeline = tokens(lengths).shuffle(seed=1).batch_tokens(128, shapes=[8, 16, 32], static=True)
    seen: Counter[int] = Counter()
    for rank in range(world):
        for batch in pipeline.shard(rank, world).to_numpy(threads=0):
            rows, width = batch["input_ids"].shape
            assert rows == -(-(128 // width) // world) and width in (8, 16, 32)
            check_batch(batch, lengths)
            seen.update(documents(batch))
    assert seen == Counter(range(len(lengths)))


def test_records_that_do_not_fit() -> None:
    lengths = [5, 50, 9, 3]
    with pytest.raises(ps.DataError, match="records of at most 16 tokens"):
        tokens(lengths).batch_tokens(16).to_numpy()
    dropped = [d for b in tokens(lengths).batch_tokens(16, overlong="drop").to_numpy(threads=0) for d in documents(b)]
    assert sorted(dropped) == [0, 2, 3]
    for rank in range(2):
        batches = list(tokens(lengths).batch_tokens(16, overlong="truncate").shard(rank, 2).to_numpy(threads=0))
        assert max(b["input_ids"].size for b in batches) <= 16
        assert sum(int(b["valid_labels"]) for b in batches) == 4 + 15 + 8 + 2


def test_batches_change_every_epoch_and_functions_come_after() -> None:
    lengths = (np.arange(60) * 7 % 31 + 1).tolist()
    pipeline = (
        tokens(lengths).shuffle(seed=1).batch_tokens(64, multiple=8).map_batches(lambda c: {**c, "n": c["valid_"]})
    )
    with pytest.raises(ps.UserCodeError):
        next(iter(pipeline.to_numpy(threads=0)))
    loader = (
        tokens(lengths).shuffle(seed=1).batch_tokens(64, multiple=8)
        .map_batches(lambda c: {**c, "twice": c["input_ids"] * 2}).to_numpy(threads=0)
    )  # fmt: skip
    first, second = [b["twice"].tolist() for b in loader], [b["twice"].tolist() for b in loader]
    assert len(first) == len(second) == len(loader) and first != second
    assert loader.why(3, 0)["from"]["document"] == documents(loader.batch_at(3))[0]


def test_another_budget_is_another_plan_and_the_refusal_names_it() -> None:
    lengths = (np.arange(60) * 7 % 31 + 1).tolist()
    make = lambda **o: tokens(lengths).shuffle(seed=1).batch_tokens(**{"budget": 64, **o}).to_numpy(threads=0)  # noqa: E731
    loader = make()
    next(iter(loader))
    state = loader.state_dict()
    assert state["n"] == state["step"] == 1
    for options, name in (({"budget": 65}, "budget"), ({"multiple": 2}, "multiple"), ({"pad_id": 3}, "pad_id")):
        with pytest.raises(
            ps.StateError, match=f"other data or arguments in: batch_tokens.{name}$|batch_tokens.{name}\n"
        ):
            make(**options).load_state_dict(state)
    make(balance=True).load_state_dict(state)  # who gets a row may change


WRONG = {
    "budget": (lambda: tokens([3]).batch_tokens(0), "budget: an integer of 1 or more"),
    "static": (lambda: tokens([3]).batch_tokens(8, static=True), "shapes in .batch_tokens(static=True)"),
    "shape": (lambda: tokens([3]).batch_tokens(8, shapes=[9]).to_numpy(), "padded lengths of at most the budget, 8"),
    "overlong": (lambda: tokens([3]).batch_tokens(8, overlong="split"), "overlong: one of error, truncate, drop"),
    "mix": (
        lambda: ps.mix([tokens([3]).batch_tokens(8)], [1.0]).batch(1).to_numpy(),
        "sources without .batch() in penstock.mix()",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_says_what_to_do(name: str) -> None:
    make, text = WRONG[name]
    with pytest.raises(ps.UsageError) as caught:
        make()
    assert text in str(caught.value)
