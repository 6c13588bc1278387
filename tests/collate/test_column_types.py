"""Numbers of different types in one column: refused, unless a schema names the type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps

PAIRS = {
    "scalars": (1, 0.5),
    "bool": (True, 2),
    "numpy": (np.float32(1), 0.5),
    "per token": ([1, 2], [0.5, 1.0]),
    "vectors": ([1, 2, 3], [0.5, 1.0, 2.0]),
    "arrays": (np.zeros((2, 2), np.int32), np.zeros((2, 2))),
}
MAKERS = {
    "pad": lambda **more: ps.create_collate_fn(0, **more),
    "causal": lambda **more: ps.create_causal_lm_collate(0, **more),
    "fim": lambda **more: ps.create_fim_collate(0, 5, 6, 7, **more),
    "mlm": lambda **more: ps.create_mlm_collate(0, 5, 99, **more),
}


def rows(pair: tuple[Any, Any], name: str = "score") -> list[dict[str, Any]]:
    return [{"input_ids": [1, 2], name: pair[0]}, {"input_ids": [3, 4], name: pair[1]}]


@pytest.mark.parametrize("case", PAIRS)
@pytest.mark.parametrize("kind", MAKERS)
def test_mixed_types_are_refused_and_a_schema_decides(case: str, kind: str) -> None:
    with pytest.raises(ps.UsageError, match="of one type in column 'score'") as caught:
        MAKERS[kind](return_tensors=False)(rows(PAIRS[case]))
    assert "OutputSchema({'score'" in caught.value.fix
    schema = ps.OutputSchema({"score": "float64"}, extra="keep")
    batch = MAKERS[kind](return_tensors=False, schema=schema)(rows(PAIRS[case]))
    assert batch["score"].dtype == np.float64


def test_labels_for_regression() -> None:
    """In a batch of integers alone they would be classes."""
    with pytest.raises(ps.UsageError, match="of one type in column 'labels'"):
        ps.create_collate_fn(0)(rows((1, 0.5), "labels"))
    assert ps.create_collate_fn(0, return_tensors=False)(rows((1.0, 0.5), "labels"))["labels"].dtype == np.float32


def test_large_integers_are_exact() -> None:
    batch = ps.create_collate_fn(0, return_tensors=False)(rows((2**63 + 5, 2**63 + 7)))
    assert batch["score"].tolist() == [2**63 + 5, 2**63 + 7]
