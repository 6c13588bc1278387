"""NumPy, torch and JAX give the same values, contiguous, in their own types; kept batches are never overwritten."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

import penstock as ps
from penstock.core.buffers import Buffers

TOKENS = (np.arange(40_000) * 7919 % 60_000).astype(np.uint16)


def windows(batch: int = 8) -> ps.Pipeline:
    return ps.open_tokens(TOKENS).windows(128).shuffle(seed=4).batch(batch)


def test_the_three_outputs_agree() -> None:
    for a, b, c in zip(windows().to_numpy(), windows().to_torch(), windows().to_jax(), strict=True):
        for name in ("input_ids", "labels"):
            assert a[name].dtype == np.int64
            assert a[name].flags.c_contiguous
            assert b[name].dtype == torch.int64
            assert b[name].is_contiguous()
            assert c[name].dtype == np.int32
            assert isinstance(c[name], jax.Array)
            assert np.array_equal(a[name], b[name].numpy())
            assert np.array_equal(a[name], np.asarray(c[name]))


def test_ids_as_asked() -> None:
    assert windows().to_torch(ids="int32").batch_at(0)["labels"].dtype == torch.int32
    assert windows().to_numpy(ids="uint16").batch_at(0)["labels"].dtype == np.uint16


@pytest.mark.parametrize("output", ["to_numpy", "to_torch", "to_jax"])
@pytest.mark.parametrize("threads", [None, 2])
def test_kept_batches_are_never_overwritten(output: str, threads: int | None) -> None:
    make = lambda: ps.open_tokens(TOKENS).windows(1024, stride=16).shuffle(seed=1).batch(16)  # noqa: E731
    kept = list(getattr(make(), output)(threads=threads))
    fresh = make().to_numpy(threads=0)
    assert len(kept) == len(fresh) > 100
    for step in range(0, len(kept), 7):
        assert np.array_equal(np.asarray(kept[step]["input_ids"]), fresh.batch_at(step)["input_ids"])


def test_a_view_keeps_its_buffer_and_a_dropped_one_gives_it_back() -> None:
    pool = Buffers()
    first = pool.empty((1 << 17,), np.dtype(np.int64))
    first[:] = 7
    view = torch.from_numpy(first)[5:9]
    address = first.__array_interface__["data"][0]
    del first
    other = pool.empty((1 << 17,), np.dtype(np.int64))
    other[:] = 9
    assert view.tolist() == [7, 7, 7, 7]
    del view
    again = pool.empty((1 << 17,), np.dtype(np.int64))
    assert again.__array_interface__["data"][0] == address


def test_images_stay_bytes_and_strings_come_as_lists() -> None:
    p = ps.from_arrays({"image": np.zeros((4, 2, 2, 3), np.uint8), "name": ["a", "b", "c", "d"]}).batch(2)
    batch = p.to_torch().batch_at(0)
    assert batch["image"].dtype == torch.uint8
    assert batch["name"] == ["a", "b"]
    assert p.to_jax().batch_at(1)["name"].tolist() == ["c", "d"]


@pytest.mark.parametrize(("output", "name"), [("to_torch", "torch"), ("to_jax", "JAX")])
def test_ragged_columns_say_how_to_pad(output: str, name: str) -> None:
    p = ps.from_arrays({"input_ids": ps.Ragged.of([[1, 2], [3]])}).batch(2)
    with pytest.raises(ps.UsageError, match=f"rows of equal length in column 'input_ids' for {name}") as caught:
        getattr(p, output)().batch_at(0)
    assert ".pad(" in str(caught.value)
    assert p.to_numpy().batch_at(0)["input_ids"].tolist() == [[1, 2], [3]]


def test_jax_refuses_integers_that_do_not_fit() -> None:
    with pytest.raises(ps.UsageError, match="fit 32 bits"):
        ps.from_arrays({"x": np.array([2**40, 1])}).batch(2).to_jax().batch_at(0)


def test_jax_batches_go_through_jit_and_sharding() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    batch = windows().to_jax(sharding=sharding).batch_at(0)
    assert batch["input_ids"].sharding == sharding
    assert int(jax.jit(lambda b: b["labels"].sum())(batch)) == int(windows().to_numpy().batch_at(0)["labels"].sum())


def test_read_only_columns_become_writable_tensors() -> None:
    array = np.arange(4.0)
    array.flags.writeable = False
    tensor = ps.from_arrays({"x": array}).batch(4).to_torch().batch_at(0)["x"]
    tensor += 1
    assert array.tolist() == [0, 1, 2, 3]


def test_the_pool_stays_bounded_when_shapes_vary() -> None:
    pool = Buffers(4 << 20)
    held = pool.empty((70_000,), np.dtype(np.uint8))
    held[:] = 3
    for width in range(70_000, 71_000, 3):
        pool.empty((width,), np.dtype(np.int64))[:] = 1
    assert pool._bytes <= 4 << 20
    assert (held == 3).all()


def test_labels_that_a_user_made_floats_stay_floats() -> None:
    soft = lambda c: {**c, "labels": c["labels"] * 0.5}  # noqa: E731
    batch = ps.open_tokens(TOKENS).windows(16).map_batches(soft).batch(2).to_torch().batch_at(0)
    assert batch["labels"].dtype == torch.float64


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("remainder", ["drop", "short"])
def test_every_batch_of_windows_is_counted_the_short_one_too(threads: int, remainder: str) -> None:
    loader = ps.open_tokens(TOKENS).windows(128).shuffle(seed=4).batch(9, remainder=remainder).to_torch(threads=threads)
    rows = [len(batch["labels"]) for batch in loader]
    assert (min(rows) < 9) == (remainder == "short")
    found = loader.stats()
    assert (found["batches_taken"], found["batches_computed"]) == (len(rows), len(rows))
    assert found["rows_computed"] == sum(rows)


def test_byte_tokens_become_ids_where_they_are_not_made_in_place() -> None:
    """Contiguous uint8 columns need no conversion in general; those of token ids do."""
    tokens = ps.open_tokens(np.arange(200, dtype=np.uint8)).windows(4)
    mixed = ps.mix([tokens, tokens], [0.5, 0.5], stop="first").map_batches(lambda c: c).batch(4)
    for loader in (mixed.to_torch(threads=0), tokens.map_batches(dict).batch(4).to_torch(threads=2)):
        batch = next(iter(loader))
        assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
        assert torch.equal(batch["labels"], batch["input_ids"] + 1)
