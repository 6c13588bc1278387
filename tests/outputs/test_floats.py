"""`floats=` and `memory_format=`: the dtype and layout of floating-point columns, in each framework."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import penstock as ps
from penstock.testing import assert_exact_resume

VALUES = np.random.default_rng(3).standard_normal((12, 3, 4, 5)).astype(np.float32)


def rows() -> ps.Pipeline:
    return ps.from_arrays({"image": VALUES, "x": np.arange(12), "weight": np.arange(12) / 7}).shuffle(seed=1).batch(4)


@pytest.mark.parametrize(("floats", "numpy"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_the_three_outputs_round_alike(floats: str, numpy: Any) -> None:
    plain = rows().to_numpy().batch_at(1)
    expected = {name: plain[name].astype(numpy) for name in ("image", "weight")}
    made = rows().to_numpy(floats=floats).batch_at(1)
    tensors = rows().to_torch(floats=getattr(torch, floats)).batch_at(1)
    arrays = rows().to_jax(floats=getattr(jnp, floats)).batch_at(1)
    for name, want in expected.items():
        assert made[name].dtype == numpy and arrays[name].dtype == numpy
        assert tensors[name].dtype == getattr(torch, floats)
        assert np.array_equal(made[name].astype(np.float64), want.astype(np.float64))
        assert np.array_equal(tensors[name].double().numpy(), want.astype(np.float64))
        assert np.allclose(np.asarray(arrays[name]).astype(np.float64), want.astype(np.float64), rtol=2**-7)
    assert made["x"].dtype == np.int64 and tensors["x"].dtype == torch.int64 and arrays["x"].dtype == np.int32
    assert jax.jit(lambda batch: batch["image"].sum())(arrays).dtype == numpy


@pytest.mark.parametrize("output", ["to_numpy", "to_torch", "to_jax"])
def test_with_threads_and_children_and_after_resuming(output: str) -> None:
    def shown(loader: Any) -> list[list[float]]:
        return [[float(x) for x in batch["weight"]] for batch in loader]

    expected = shown(getattr(rows(), output)(floats="bfloat16", threads=0))
    assert shown(getattr(rows(), output)(floats="bfloat16", threads=2)) == expected
    assert shown(getattr(rows(), output)(floats="bfloat16", workers=1)) == expected
    loader = getattr(rows(), output)(floats="bfloat16")
    next(iter(loader))
    again = getattr(rows(), output)(floats="bfloat16")
    again.load_state_dict(loader.state_dict())
    assert shown(again) == expected[1:]
    assert_exact_resume(rows)


@pytest.mark.parametrize("output", ["to_numpy", "to_torch", "to_jax"])
def test_numbers_beyond_the_range_are_refused_and_infinities_stay(output: str) -> None:
    large = ps.from_arrays({"x": np.array([1.0, 1e6])}).batch(2)
    with pytest.raises(ps.UsageError, match="within the range of .*float16"):
        getattr(large, output)(floats="float16", threads=0).batch_at(0)
    assert float(getattr(large, output)(floats="bfloat16", threads=0).batch_at(0)["x"][1]) > 9e5
    endless = ps.from_arrays({"x": np.array([1.0, np.inf, -np.inf, np.nan])}).batch(4)
    made = [float(x) for x in getattr(endless, output)(floats="float16", threads=0).batch_at(0)["x"]]
    assert made[:3] == [1.0, np.inf, -np.inf] and np.isnan(made[3])


def test_what_is_no_floating_dtype_is_refused() -> None:
    with pytest.raises(ps.UsageError, match="floating-point dtype"):
        rows().to_numpy(floats="int8")
    with pytest.raises(ps.UsageError, match="channels_last"):
        rows().to_torch(memory_format=torch.preserve_format)


def test_channels_last() -> None:
    batch = rows().to_torch(memory_format=torch.channels_last).batch_at(0)
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch["image"], rows().to_torch().batch_at(0)["image"])
    assert batch["weight"].is_contiguous()


def test_ragged_columns_of_floats() -> None:
    column = ps.Ragged(np.arange(5, dtype=np.float32) / 3, np.array([0, 2, 5]))
    made: Any = ps.from_arrays({"x": column}).batch(2).to_numpy(floats="float16").batch_at(0)["x"]
    assert made.values.dtype == np.float16
