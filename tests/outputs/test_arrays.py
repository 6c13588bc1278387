"""One array at a time as a framework's: memory, dtypes, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import jax
import numpy as np
import pytest

from penstock import UsageError
from penstock.core.buffers import Aligned
from penstock.outputs.arrays import jax_array, narrowed, torch_tensor


@pytest.mark.parametrize(
    ("given", "made"), [("int64", "int32"), ("uint64", "uint32"), ("float64", "float32"), ("uint16", "uint16")]
)
def test_numbers_of_64_bits_become_32(given: str, made: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(given)
    assert jax_array(array).dtype == made
    assert narrowed(array).dtype == made
    assert jax_array(array).tolist() == array.tolist()


@pytest.mark.parametrize("array", [np.array([2**31]), np.array([-(2**31) - 1]), np.array([2**32], np.uint64)])
def test_integers_that_do_not_fit_are_refused_by_name(array: np.ndarray) -> None:
    with pytest.raises(UsageError, match="integers that fit 32 bits") as caught:
        narrowed(array, "x")
    assert f"{array[0]} in 'x'" in caught.value.got
    with pytest.raises(UsageError, match="integers that fit 32 bits"):
        jax_array(array)


def test_a_jax_array_does_not_share_memory_that_may_change() -> None:
    array = Aligned().empty((1024,), np.dtype(np.float32))  # aligned as JAX wants it, so it could be taken over
    array.fill(1)
    made = jax_array(array)
    array.fill(2)
    assert made.tolist() == [1.0] * 1024


def test_it_may_be_made_where_implicit_transfers_are_refused() -> None:
    with jax.transfer_guard("disallow"):
        assert jax_array(np.arange(3)).shape == (3,)


@pytest.mark.parametrize("convert", [torch_tensor, jax_array])
def test_text_is_refused(convert: object) -> None:
    with pytest.raises(UsageError, match="an array of numbers(.|\n)*dtype <U1"):
        convert(np.array(["a"]))  # type: ignore[operator]


def test_collation_in_numpy_needs_nothing_of_the_outputs() -> None:
    code = (
        "import sys, penstock.collate.causal_lm as c, penstock.collate.options as o\n"
        "batch = c.CausalCollate(o.CollateOptions(0))([{'input_ids': [1, 2]}])\n"
        "assert batch['labels'].tolist() == [[2, -100]]\n"
        "print([m for m in sys.modules if m.startswith(('penstock.outputs', 'penstock.engine', 'torch', 'jax'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
