"""Pads arrays that differ in their last axis, such as spectrograms (bands, frames), into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.collate.layout import Layout


def is_uneven(column: Any) -> bool:
    """Whether a column holds an array of numbers per row, of two or more axes, that differ in the last one at most."""
    if not (isinstance(column, np.ndarray) and column.dtype == object and column.ndim == 1 and len(column)):
        return False
    kinds = {(row.ndim, row.shape[:-1], row.dtype) if isinstance(row, np.ndarray) else None for row in column}
    if len(kinds) != 1 or None in kinds:
        return False
    first: NDArray[Any] = column[0]
    return first.ndim >= 2 and first.dtype.kind in "biuf"


def pad_last_axis(rows: Sequence[NDArray[Any]], layout: Layout) -> NDArray[Any]:
    """Rows (..., n) as one array (rows, ..., width), zeros where they end.

    >>> from penstock.collate.layout import lay_out
    >>> pad_last_axis([np.ones((1, 2)), np.ones((1, 3))], lay_out([2, 3])).tolist()
    [[[1.0, 1.0, 0.0]], [[1.0, 1.0, 1.0]]]
    """
    made = np.zeros((len(rows), *rows[0].shape[:-1], layout.width), rows[0].dtype)
    for place, row, count, start in zip(made, rows, layout.counts, layout.starts(), strict=True):
        kept = row[..., :count] if layout.truncate == "right" else row[..., row.shape[-1] - count :]
        place[..., start : start + count] = kept
    return made
