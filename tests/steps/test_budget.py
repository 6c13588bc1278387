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
    "ranks": (lambda: tokens([3]).batch_tokens(8, ranks=0), "ranks: an integer of 1 or more"),
    "share": (
        lambda: tokens([3]).batch_tokens(63, shapes=[16], ranks=4).to_numpy(),
        "at most the budget, 63: 15 for each of 4 ranks\n  got:   shape 16\n  fix:   raise the budget to 64",
    ),
    "static rows": (
        lambda: tokens([3]).batch_tokens(64, shapes=[8], static=True, max_rows=3, ranks=2).to_numpy(),
        "max_rows that 2 ranks can share equally in static mode\n  got:   3\n  fix:   max_rows=2",
    ),
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


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=50),
    ranks=st.sampled_from([1, 2, 3, 4, 6, 8]),
    extra=st.integers(0, 200),
    max_rows=st.none() | st.integers(1, 9),
    shapes=st.sampled_from([None, (8, 40), (16, 24, 40)]),
    static=st.booleans(),
    balance=st.booleans(),
    data=st.data(),
)
def test_with_ranks_the_budget_holds_for_what_is_delivered(
    lengths, ranks, extra, max_rows, shapes, static, balance, data
):
    """Rows that only fill up are counted, on so many ranks and on any divisor of them."""
    world = data.draw(st.sampled_from([w for w in range(1, ranks + 1) if ranks % w == 0]))
    budget, static = 40 * ranks + extra, static and shapes is not None
    if static and max_rows is not None:
        max_rows *= ranks
    pipeline = tokens(lengths).shuffle(seed=1).batch_tokens(
        budget, max_rows=max_rows, shapes=shapes, static=static, balance=balance, ranks=ranks
    )  # fmt: skip
    parts = [list(pipeline.shard(r, world).to_numpy(threads=0)) for r in range(world)]
    rows: Counter[int] = Counter()
    for step in zip(*parts, strict=True):
        assert sum(p["input_ids"].size for p in step) <= budget
        assert all(p["input_ids"].size * world <= budget for p in step)
        rows.update(sum((documents(p) for p in step), []))
        assert not static or len({p["input_ids"].shape for p in step}) == 1
    filled = Counter({d: 1 for d, n in enumerate(lengths) if n})
    assert {d: n for d, n in rows.items() if d >= 0} == filled  # a document without tokens is a row of padding


def test_without_ranks_only_the_rows_that_count_keep_the_budget() -> None:
    pipeline = tokens([59, 3, 3]).batch_tokens(192)
    for world, most in ((1, 192), (4, 236)):
        batches = [next(iter(pipeline.shard(r, world).to_numpy(threads=0))) for r in range(world)]
        assert sum(b["input_ids"].size for b in batches) <= most
        assert sum(int(b["valid"].sum()) * b["input_ids"].shape[1] for b in batches) <= 192
    with pytest.raises(ps.DataError, match="at most 48 tokens.*budget of 192 on each of 4 ranks"):
        tokens([59, 3, 3]).batch_tokens(192, ranks=4).to_numpy()


def test_ranks_are_part_of_the_plan_only_where_they_are_given() -> None:
    plain = tokens([5, 9, 3]).batch_tokens(64)
    assert "ranks" not in plain.definition.steps[0].spec()
    loader = tokens([5, 9, 3]).batch_tokens(64, ranks=2).to_numpy(threads=0)
    state = loader.state_dict()
    with pytest.raises(ps.StateError, match="batch_tokens.ranks"):
        tokens([5, 9, 3]).batch_tokens(64, ranks=4).to_numpy().load_state_dict(state)
    tokens([5, 9, 3]).batch_tokens(64, ranks=2).shard(1, 2).to_numpy().load_state_dict(state)


def test_numpy_integers_are_integers() -> None:
    n = np.int64
    one = tokens([5, 9, 3]).batch_tokens(n(64), max_rows=n(4), shapes=[n(16)], pad_id=n(1), ranks=n(2))
    assert one == tokens([5, 9, 3]).batch_tokens(64, max_rows=4, shapes=[16], pad_id=1, ranks=2)
    assert tokens([5]).bucket([n(8)], n(1)) == tokens([5]).bucket([8], 1)
    assert tokens([5]).pack(n(8), max_docs=n(2)).take(n(1)).batch(n(1)) == tokens([5]).pack(8, max_docs=2).take(1)
    assert tokens([5]).windows(n(2), n(1)).pad(n(4)) == tokens([5]).windows(2, 1).pad(4)
