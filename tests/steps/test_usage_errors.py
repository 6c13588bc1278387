"""Wrong calls are refused while building, and say what to do."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as ps


def numbers(n: int = 20) -> ps.Pipeline:
    return ps.from_arrays({"x": np.arange(n)})


def tokens(n: int = 100) -> ps.Pipeline:
    return ps.open_tokens(np.arange(n, dtype=np.uint16))


CASES = {
    "no batch": (lambda: numbers().to_numpy(), [".batch(n) before .to_numpy()", "add .batch(32)"]),
    "two batches": (lambda: numbers().batch(2).batch(3).to_numpy(), ["one .batch()", "two"]),
    "step after batch": (
        lambda: numbers().batch(2).shuffle().to_numpy(),
        [".shuffle() before .batch()", "put .shuffle() first"],
    ),
    "map after pad": (
        lambda: numbers().pad().map(lambda r: r).batch(2).to_numpy(),
        [".map() before .pad()", "put .map() first"],
    ),
    "take after a budget": (
        lambda: tokens().batch_tokens(200).take(3).to_numpy(),
        [".take() before .batch_tokens()", "put .take() first: .take(), .sample()"],
    ),
    "a function before a budget": (
        lambda: tokens().enumerate().batch_tokens(200).to_numpy(),
        ["a step that changes documents before it", ".map() and what changes records before .tokenize()"],
    ),
    "a shuffle too early for a budget": (
        lambda: tokens().shuffle(seed=1).take(1).batch_tokens(200).to_numpy(),
        [".shuffle() or penstock.mix() of documents", "put one .shuffle() right before .batch_tokens()"],
    ),
    "shuffle after a bucket": (
        lambda: tokens().bucket([200], 1).shuffle().to_numpy(),
        [".shuffle() before .bucket()", "put .shuffle() first"],
    ),
    "batch of zero": (lambda: numbers().batch(0), ["an integer of at least 1 in .batch()", "got:   0"]),
    "batch of what": (lambda: numbers().batch(), ["either .batch(size) or .batch(per_rank=...)"]),
    "bad remainder": (lambda: numbers().batch(2, remainder="keep"), ['remainder="drop", "pad" or "short"', "'keep'"]),
    "indivisible": (
        lambda: numbers().shard(0, 3).batch(8).to_numpy(),
        ["a global batch that 3 ranks can share equally", ".batch(8)", ".batch(6), .batch(9), or .batch(per_rank=3)"],
    ),
    "rank outside": (lambda: numbers().shard(3, 3), ["a rank from 0 to 2", "rank=3, world=3"]),
    "half a shard": (lambda: numbers().shard(1), ["both rank and world"]),
    "windows of records": (
        lambda: numbers().windows(4).batch(1).to_numpy(),
        ["tokens right before .windows()", ".tokenize(...)"],
    ),
    "windows after shuffle": (
        lambda: tokens().shuffle().windows(4).batch(1).to_numpy(),
        ["tokens right before .windows()"],
    ),
    "windows too long": (
        lambda: tokens().windows(100).batch(1).to_numpy(),
        ["at least 101 tokens for one window of 100", "100 tokens", "a smaller length"],
    ),
    "window of zero": (lambda: tokens().windows(0), ["an integer of at least 1 for length"]),
    "stride of zero": (lambda: tokens().windows(4, stride=0), ["an integer of at least 1 for stride"]),
    "take nothing": (lambda: numbers().take(0), ["an integer of at least 1 in .take()"]),
    "skip all": (lambda: numbers().skip(20).batch(1).to_numpy(), ["fewer than 20 rows in .skip()"]),
    "repeat zero": (lambda: numbers().repeat(0), ["an integer of at least 1 in .repeat()"]),
    "endless twice": (
        lambda: numbers().repeat().repeat().batch(1).to_numpy(),
        ["an endless one", "leave .repeat() out"],
    ),
    "shuffle endless": (
        lambda: numbers().repeat().shuffle().batch(1).to_numpy(),
        ["a sequence with an end before .shuffle()"],
    ),
    "map what": (lambda: numbers().map(3), ["a function in .map()", "got:   3"]),
    "filter what": (lambda: numbers().filter("x"), ["a function in .filter()"]),
    "whole before batch": (
        lambda: numbers().map_batches(lambda c: c, whole=True).batch(2).to_numpy(),
        ["a batch before .map_batches(whole=True)", "put .batch(n) before it"],
    ),
    "pad to what": (lambda: numbers().pad(to="widest"), ['a length or "longest" in .pad()', "'widest'"]),
    "pad side": (lambda: numbers().pad(side="middle"), ['side="right" or "left"']),
    "mix nothing": (lambda: ps.mix([]), ["at least one pipeline"]),
    "mix weights": (lambda: ps.mix([numbers(), numbers()], [1.0]), ["2 weights in penstock.mix()", "1: [1.0]"]),
    "mix batched": (lambda: ps.mix([numbers().batch(2)], [1.0]).batch(2).to_numpy(), ["sources without .batch()"]),
    "mix stop": (lambda: ps.mix([numbers()], stop="soon"), ['stop="never", "first" or "all"']),
    "mix columns": (
        lambda: ps.mix([numbers(), ps.from_arrays({"y": range(9)})], [1, 1]).batch(8).to_numpy(threads=0).batch_at(0),
        ["the same columns from every source of a mixture", ".rename() gives it another name"],
    ),
    "threads": (lambda: numbers().batch(2).to_numpy(threads=-1), ["at least 0 for threads="]),
    "prefetch": (lambda: numbers().batch(2).to_numpy(prefetch=0), ["at least 1 for prefetch="]),
    "step number": (lambda: numbers().batch(2).to_numpy().batch_at(-1), ["a step number of at least 0"]),
    "row number": (lambda: numbers().batch(2).to_numpy().why(0, 5), ["a row of the batch"]),
    "budget": (lambda: numbers().skip_errors(-1), ["a budget of at least 0"]),
    "on_error": (lambda: ps.read_text("x", on_error="ignore"), []),
    "batch too large": (lambda: numbers(5).batch(8).to_numpy(), ["at least one batch of 8 rows an epoch", "5 rows"]),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_use_says_what_to_do(name: str) -> None:
    call, texts = CASES[name]
    with pytest.raises(ps.PenstockError) as caught:
        call()
    for text in texts:
        assert text in str(caught.value)


def test_what_is_said_of_steps_before_a_plan_works() -> None:
    texts = ps.from_texts(["a b c", "dd", "eeee"] * 5)
    for some, count in ((texts.take(4), 4), (texts.filter(lambda r: len(r["text"]) > 2), 10)):
        documents = some.tokenize("bytes", show_progress=False)
        (batch,) = documents.shuffle(seed=1).batch_tokens(64).to_numpy(threads=0)
        assert len(batch["input_ids"]) == count


def test_user_functions_that_return_nonsense() -> None:
    with pytest.raises(ps.UserCodeError, match="a dict from"):
        numbers().map(lambda r: 3).batch(2).to_numpy(threads=0).batch_at(0)
    with pytest.raises(ps.UserCodeError, match="2 rows in every column"):
        numbers().batch(2).map_batches(lambda c: {"x": c["x"][:1]}).to_numpy(threads=0).batch_at(0)
    with pytest.raises(ps.UserCodeError, match="a bool array of 2 rows"):
        numbers().filter(lambda c: c["x"], batched=True).batch(2).to_numpy(threads=0).batch_at(0)
    with pytest.raises(ps.UsageError, match="the same keys in every row"):
        numbers().map(lambda r: {"x": 1} if r["x"] else {"y": 1}).batch(2).to_numpy(threads=0).batch_at(0)


def test_pipelines_are_immutable_values() -> None:
    p = numbers()
    q = p.shuffle(seed=1)
    assert p != q
    assert q == numbers().shuffle(seed=1)
    assert hash(q) == hash(numbers().shuffle(seed=1))
    with pytest.raises(AttributeError, match="immutable"):
        p.definition = q.definition
    text = repr(numbers(10).shuffle(seed=7).batch(4))
    assert ".shuffle(seed=7)  10 rows" in text
    assert "2 batches an epoch, 2 rows dropped" in text


def test_endless_loaders_have_no_length() -> None:
    loader = numbers().repeat().batch(2).to_numpy()
    with pytest.raises(TypeError, match="endless"):
        len(loader)


def test_sharding_twice_is_refused() -> None:
    once = ps.from_arrays({"x": range(8)}).shard(0, 2)
    assert once.shard(0, 2) == once
    with pytest.raises(ps.UsageError, match="rank 0 of 2, and then rank 1 of 4"):
        once.shard(1, 4)
    with pytest.raises(ps.UsageError, match=r"one \.shard\(\)"):
        once.batch(4).shard(1, 2)
