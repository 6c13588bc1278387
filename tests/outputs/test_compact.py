"""What is shipped to a JAX device in small, and made there, is what NumPy makes of the same rows."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import penstock as ps
from penstock.core.columns import Ragged
from penstock.engine.loader import Loader
from penstock.outputs.jax import JaxOutput
from penstock.outputs.numpy import NumpyOutput
from penstock.sources.arrays import Arrays
from penstock.sources.tokens import TokenArray
from penstock.steps.node import SourceNode
from penstock.steps.pad import Pad, Padding
from penstock.steps.pad_rows import PadRecipe
from penstock.steps.rows import Rows
from penstock.steps.windows import Shifted

NAMES = ("input_ids", "attention_mask", "labels")


def documents(dtype: type, seed: int = 0) -> Ragged:
    rng = np.random.default_rng(seed)
    return Ragged.of([rng.integers(0, 200, n).astype(dtype) for n in (5, 0, 1, 2, 8, 9, 30, 7, 3, 1)])


def opened(tokens: Ragged, length: int, pad_id: int, compact: bool) -> Rows:
    node = SourceNode(TokenArray(tokens.values, tokens.offsets), 0)
    padded = Padding(Pad(length, pad_id=pad_id, truncate=True), own=False).on_rows(node)
    assert padded is not None
    return padded.open(node.pick(np.arange(len(tokens)), 0), compact)(0, len(tokens))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int32, np.int64])
@pytest.mark.parametrize(("length", "pad_id"), [(8, 0), (1, 7), (40, 199)])
def test_the_recipe_makes_what_the_step_makes(dtype: type, length: int, pad_id: int) -> None:
    tokens = documents(dtype)
    expected = opened(tokens, length, pad_id, compact=False).columns(0, len(tokens), None)
    small = opened(tokens, length, pad_id, compact=True).compact(0, len(tokens))
    assert small is not None
    assert sum(array.nbytes for array in small.values()) < sum(array.nbytes for array in expected.values())
    for xp in (np, jax.numpy):
        made = small.recipe.expand(xp, small)
        for name in NAMES:
            assert made[name].dtype == np.int32
            assert np.array_equal(made[name], expected[name]), name


def test_rows_with_more_than_tokens_are_not_made_small() -> None:
    for columns in ({"labels": [[5]]}, {"language": [0]}):
        node = SourceNode(Arrays({"input_ids": [[5]], **columns}), 0)
        padded = Padding(Pad(8, truncate=True), own=False).on_rows(node)
        assert padded is not None
        assert padded.open(node.pick(np.arange(1), 0), True)(0, 1).compact(0, 1) is None
    assert Padding(Pad(8, truncate=True, side="left"), own=False).on_rows(node).recipe is None
    assert Padding(Pad("longest"), own=False).on_rows(node) is None


def test_equal_recipes_are_one_program() -> None:
    assert PadRecipe(8, 0) == PadRecipe(8, 0) != PadRecipe(8, 1)
    assert hash(Shifted("a", "b")) == hash(Shifted("a", "b"))


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("length", [4, 16, 300, 5000])
def test_documents_reach_jax_as_they_reach_numpy(threads: int, length: int) -> None:
    """Short documents at the very end of the stream too, where a row of full length would go on past it."""
    rng = np.random.default_rng(1)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 60, 64))])
    tokens = ps.open_tokens(rng.integers(0, 60_000, offsets[-1]).astype(np.uint16), offsets)
    loader = ps.CapibaraDataLoader(dataset_name=tokens, batch_size=8, max_length=length, num_workers=threads)
    plain = Loader(loader._loader.definition, NumpyOutput("int32"), threads=0)
    for ours, expected in zip(loader, plain, strict=True):
        for name in NAMES:
            assert isinstance(ours[name], jax.Array)
            assert ours[name].dtype == np.int32
            assert np.array_equal(ours[name], expected[name]), name
    again = loader.batch_at(3)
    assert all(np.array_equal(again[name], plain.batch_at(3)[name]) for name in NAMES)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("remainder", ["drop", "short"])
def test_windows_reach_jax_as_they_reach_numpy(dtype: type, threads: int, remainder: str) -> None:
    tokens = (np.arange(5_000) * 7919 % 60_000).astype(dtype)
    p = ps.open_tokens(tokens).windows(32, stride=7).shuffle(seed=3).batch(16, remainder=remainder)
    for ours, expected in zip(p.to_jax(threads=threads), p.to_numpy(threads=0), strict=True):
        for name in ("input_ids", "labels"):
            assert ours[name].dtype == np.int32
            assert np.array_equal(ours[name], expected[name])


def test_batches_that_are_kept_do_not_change() -> None:
    p = ps.open_tokens(np.arange(40_000).astype(np.uint16)).windows(64).batch(8)
    kept = list(p.to_jax(threads=0))
    for ours, expected in zip(kept, p.to_numpy(threads=0), strict=True):
        assert np.array_equal(ours["labels"], expected["labels"])


def test_a_guard_against_unasked_transfers_does_not_stop_a_batch() -> None:
    p = ps.open_tokens(np.arange(2_000).astype(np.uint16)).windows(64).batch(8)
    with jax.transfer_guard("disallow"):
        batches = list(p.to_jax(threads=0))
    assert [batch["input_ids"].shape for batch in batches] == [(8, 64)] * 3


def test_micro_batches_and_other_types_go_the_long_way() -> None:
    assert JaxOutput().expands
    assert not JaxOutput(micro_batches=2).expands
    assert not JaxOutput(ids="uint16").expands
    p = ps.open_tokens(np.arange(2_000).astype(np.uint16)).windows(64).batch(8)
    assert next(iter(p.to_jax(ids="uint16")))["labels"].dtype == np.uint16
    assert next(iter(p.to_jax(micro_batches=2)))["labels"].shape == (2, 4, 64)
