"""Numbers keep their values: integers are never rounded, wrapped or unmasked, in any source or output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import UsageError

LARGE = 2**63 + 5  # a 64-bit hash
READERS = {
    "records": lambda values: ps.from_records([{"x": value} for value in values]),
    "arrays": lambda values: ps.from_arrays({"x": values}),
    "map": lambda values: ps.from_arrays({"i": range(len(values))}).map(lambda r: {"x": values[r["i"]]}),
    "flat_map": lambda values: ps.from_arrays({"i": [0]}).flat_map(lambda _: [{"x": value} for value in values]),
    "map_batches": lambda values: ps.from_arrays({"i": range(len(values))}).map_batches(lambda _: {"x": list(values)}),
    "dataset": lambda values: ps.from_dataset([{"x": value} for value in values]),
    "stream": lambda values: ps.from_stream(lambda: iter([{"x": value} for value in values])),
}
MIXED = {
    "beyond int64": [LARGE, 1],
    "beyond int64 and negative": [-1, LARGE],
    "beside floats": [2**53 + 1, 0.5],
    "lists": [[LARGE, 1], [2, 3]],
    "lists beside floats": [[2**53 + 1, 4], [0.5, 1.0]],
    "arrays": [np.array([LARGE], np.uint64), np.array([-1])],
    "numpy numbers": [np.uint64(LARGE), np.int64(-1)],
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("case", MIXED)
def test_integers_are_exact_or_refused(reader: str, case: str) -> None:
    values = MIXED[case]
    try:
        batch = READERS[reader](values).batch(len(values)).to_numpy(ids="uint64", threads=0).batch_at(0)
    except ps.PenstockError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.fix
        return
    assert [np.asarray(row).tolist() for row in batch["x"]] == [
        v.tolist() if isinstance(v, np.ndarray) else v for v in values
    ]
    assert batch["x"].dtype == np.uint64


def test_what_fits_is_read() -> None:
    assert READERS["records"]([LARGE, 1]).batch(2).to_numpy(ids="uint64").batch_at(0)["x"].tolist() == [LARGE, 1]
    assert READERS["arrays"]([2**53, 0.5]).batch(2).to_numpy().batch_at(0)["x"].tolist() == [2.0**53, 0.5]


@pytest.mark.parametrize(
    "value", [np.float32(0.5), np.array(3), np.datetime64("2024-05-01"), np.int8(-1), np.bool_(True)]
)
def test_numbers_without_dimensions_are_one_column(value: Any) -> None:
    rows = ps.from_records([{"x": value}, {"x": value}]).batch(2).to_numpy().batch_at(0)["x"]
    assert rows.dtype == np.asarray(value).dtype and rows.tolist() == [np.asarray(value).tolist()] * 2


def test_torch_numbers_of_different_types() -> None:
    torch = pytest.importorskip("torch")
    rows = ps.from_records([{"x": torch.tensor(1)}, {"x": torch.tensor(0.5)}]).batch(2).to_numpy().batch_at(0)["x"]
    assert rows.tolist() == [1.0, 0.5]


@pytest.mark.parametrize("reader", ["records", "arrays", "map", "dataset"])
def test_a_mask_is_not_dropped(reader: str) -> None:
    masked = np.ma.array([1, 2], mask=[True, False])
    with pytest.raises(ps.PenstockError, match="without a mask"):
        READERS[reader]([masked, masked]).batch(2).to_numpy(threads=0).batch_at(0)
    with pytest.raises(UsageError, match=r"array\.filled"):
        ps.from_arrays({"x": masked})
