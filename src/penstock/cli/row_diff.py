"""Compares two pipelines: their steps, or their rows one by one."""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np

from penstock.core.columns import Columns, row
from penstock.markup.visible import excerpt
from penstock.pipeline import Pipeline
from penstock.sources.base import TokenSource

_BLOCK = 1024
_TEXT = 120
_FACTS = ("tokenizer", "eos_id", "dtype", "vocab_size")


def plans(old: Pipeline, new: Pipeline) -> dict[str, Any]:
    """Which steps differ. The same steps over other data differ too."""
    before, after = str(old).splitlines(), str(new).splitlines()
    lines = [
        line
        for line in difflib.unified_diff(before, after, lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    same = old.fingerprint() == new.fingerprint()
    if not same and not lines:
        lines = ["the data, or the code of a function, differs: the steps read alike"]
    return {"same": same, "steps": lines}


def data(old: Pipeline, new: Pipeline, most: int) -> dict[str, Any]:
    """What differs in facts, columns and rows."""
    one, other = old.rows(), new.rows()
    facts = _facts(old, new)
    compared, differ, examples = min(len(one), len(other)), 0, list[dict[str, Any]]()
    for start in range(0, compared, _BLOCK):
        numbers = np.arange(start, min(start + _BLOCK, compared))
        left, right = one.read(numbers), other.read(numbers)
        if sorted(left) != sorted(right):
            facts["columns"] = (", ".join(left), ", ".join(right))
        shared = [name for name in left if name in right]
        for i, number in enumerate(numbers.tolist()):
            found = _different(left, right, i, shared)
            if found is not None:
                differ += 1
                if len(examples) < most:
                    examples.append({"row": number} | found)
    same = not facts and not differ and len(one) == len(other)
    return {
        "same": same, "facts": facts, "rows": {"old": len(one), "new": len(other)}, "compared": compared,
        "differ": differ, "examples": examples,
    }  # fmt: skip


def _facts(old: Pipeline, new: Pipeline) -> dict[str, tuple[Any, Any]]:
    """What two token sources say of themselves, where it differs."""
    sides = old.definition.origin, new.definition.origin
    if not all(isinstance(side, TokenSource) for side in sides):
        return {}
    before, after = (side.describe() for side in sides if isinstance(side, TokenSource))
    return {
        name: (_short(before.get(name)), _short(after.get(name)))
        for name in _FACTS
        if before.get(name) != after.get(name)
    }


def _different(left: Columns, right: Columns, i: int, names: list[str]) -> dict[str, Any] | None:
    one, other = row(left, i), row(right, i)
    for name in names:
        if not _equal(one[name], other[name]):
            return {"column": name, "old": _short(one[name]), "new": _short(other[name])}
    return None


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float | np.floating | np.ndarray) or isinstance(b, np.ndarray):
        left, right = np.asarray(a), np.asarray(b)
        return bool(np.array_equal(left, right, equal_nan=left.dtype.kind == "f" and right.dtype.kind == "f"))
    return bool(a == b)


def _short(value: Any) -> str:
    return excerpt(str(value.tolist() if isinstance(value, np.ndarray) else value), _TEXT)
