"""Figures of the columns of a pipeline, in one pass over its rows or over some that are evenly spread."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Column, Columns, Ragged
from penstock.core.errors import BadRecords, RecordError
from penstock.pipeline import Pipeline

_BLOCK = 256
_MOST_CLASSES = 1000  # different values of a column, beyond which they are not classes
_SHARE = 0.5  # of the records that may have a value of their own


def stats_of(pipeline: Pipeline, most: int, field: str, tokenizer: Any = None) -> dict[str, Any]:
    """Returns `{"records", "read", "columns": {name: figures}}`."""
    rows = pipeline.rows()
    size = len(rows)
    numbers = np.arange(size) if size <= most else np.linspace(0, size - 1, most).astype(np.int64)
    columns: dict[str, _Figures] = {}
    bad: list[RecordError] = []
    for start in range(0, len(numbers), _BLOCK):
        for name, column in _read(rows, numbers[start : start + _BLOCK], bad).items():
            columns.setdefault(name, _Figures(tokenizer if name == field else None)).add(column)
    reasons = Counter(f"expected {error.expected}" for error in bad)
    return {
        "records": size, "read": len(numbers), "bad": len(bad), "reasons": dict(reasons.most_common(5)),
        "columns": {name: one.result() for name, one in columns.items()},
    }  # fmt: skip


def _read(rows: Any, numbers: NDArray[np.int64], bad: list[RecordError]) -> Columns:
    """The columns of the good rows; what is wrong with the others is added to `bad`."""
    try:
        columns: Columns = rows.read(numbers)
    except BadRecords as error:
        bad += error.errors
        good = np.delete(numbers, [one.row for one in error.errors])
        columns = rows.read(good) if len(good) else {}
    return columns


class _Figures:
    """What was seen of one column."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._kinds: Counter[str] = Counter()
        self._lengths: list[Any] = []
        self._tokens: list[int] = []
        self._values: list[Any] = []
        self._classes: Counter[str] | None = Counter()
        self._rows = 0

    def add(self, column: Column) -> None:
        self._rows += len(column)
        if isinstance(column, Ragged):
            self._kinds[f"lists of {column.dtype}"] += len(column)
            self._lengths.append(column.lengths)
            self._classes = None
        elif column.dtype == object or column.dtype.kind in "US":
            for value in column.tolist():
                self._one(value)
        elif column.ndim > 1:
            self._kinds[f"{column.dtype} of shape {list(column.shape[1:])}"] += len(column)
            self._classes = None
        else:
            self._kinds[str(column.dtype)] += len(column)
            self._values.append(column)
            if column.dtype.kind in "biu":
                self._count(column.tolist())
            else:
                self._classes = None

    def _one(self, value: Any) -> None:
        if value is None:
            self._kinds["missing"] += 1
            return
        kind = "text" if isinstance(value, str) else "bytes" if isinstance(value, bytes) else type(value).__name__
        self._kinds[kind] += 1
        if isinstance(value, str | bytes | list | tuple | dict):
            self._lengths.append(len(value))
        if isinstance(value, str):
            self._count([value])
            if self._tokenizer is not None:
                self._tokens.append(len(self._tokenizer.encode(value)))
        else:
            self._classes = None

    def _count(self, values: list[Any]) -> None:
        if self._classes is not None:
            self._classes.update(map(str, values))
            if len(self._classes) > _MOST_CLASSES:
                self._classes = None

    def result(self) -> dict[str, Any]:
        missing = self._kinds.pop("missing", 0)
        out: dict[str, Any] = {"kind": " or ".join(self._kinds) or "nothing", "missing": missing}
        if self._lengths:
            lengths = np.concatenate([np.atleast_1d(part) for part in self._lengths])
            unit = {"text": "characters", "bytes": "bytes"}.get(out["kind"], "values")
            out |= {"length": _spread(lengths), "total": int(lengths.sum()), "unit": unit}
        if self._tokens:
            out |= {"tokens": _spread(np.array(self._tokens)), "total": sum(self._tokens), "unit": "tokens"}
        if self._values:
            values = np.concatenate(self._values)
            if values.dtype.kind in "iuf" and len(values):
                out["value"] = _spread(values)
        if self._classes and len(self._classes) <= max(2, _SHARE * self._rows):
            out["classes"] = dict(self._classes.most_common())
        return out


def _spread(values: Any) -> dict[str, float | int]:
    """The least, the mean, some quantiles and the greatest; of numbers that are finite."""
    found = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not len(found):
        return {"finite": 0}
    middle = {f"p{q}": np.percentile(found, q, method="nearest").item() for q in (50, 90, 99)}
    return (
        {"min": found.min().item(), "mean": float(found.mean(dtype=np.float64))} | middle | {"max": found.max().item()}
    )
