"""Identities of functions that hold types: a default argument, a captured name, an argument of a partial."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.function_globals import globals_id
from penstock.core.function_id import code_id


def with_default(kind: Any) -> Callable[[dict], dict]:
    def cast(record: dict, kind: Any = kind) -> dict:
        return {"x": np.asarray(record["x"]).astype(kind)}

    return cast


def with_captured(kind: Any) -> Callable[[dict], dict]:
    return lambda record: {"x": np.asarray(record["x"]).astype(kind)}


def cast(kind: Any, record: dict) -> dict:
    return {"x": np.asarray(record["x"]).astype(kind)}


@pytest.mark.parametrize("make", [with_default, with_captured, lambda kind: partial(cast, kind)])
def test_a_function_may_hold_a_type_and_differs_by_it(make: Callable[[Any], Callable[[dict], dict]]) -> None:
    prints = []
    for kind in (np.float32, np.float64, int, float):
        rows = ps.from_arrays({"x": range(4)}).map(make(kind))
        assert rows.batch(4).to_numpy(threads=0).batch_at(0)["x"].dtype == kind
        assert rows.fingerprint() == ps.from_arrays({"x": range(4)}).map(make(kind)).fingerprint()
        prints.append(rows.fingerprint())
    assert len(set(prints)) == 4


def test_packages_of_another_environment_are_installed_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a .pth file or PYTHONPATH adds them: their code is not part of a checkpoint's identity."""
    for folder in ("lib/site-packages", "mine"):
        (tmp_path / folder).mkdir(parents=True)
        name = f"helper_{folder.rpartition('/')[2].replace('-', '_')}"
        (tmp_path / folder / f"{name}.py").write_text("def double(x):\n    return 2 * x\n")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        double = import_module(name).double
        own = globals_id(lambda record, double=double: {"x": double(record["x"])})
        assert bool(own) == (folder == "mine")


def test_a_decorator_is_part_of_what_it_decorates() -> None:
    """`functools.wraps` makes `inspect` show the source of the function inside."""

    def once(function: Any) -> Any:
        @wraps(function)
        def call(record: dict) -> dict:
            return {"x": function(record)["x"]}

        return call

    def twice(function: Any) -> Any:
        @wraps(function)
        def call(record: dict) -> dict:
            return {"x": function(function(record))["x"]}

        return call

    def other(kind: Any, record: dict) -> dict:
        return {"x": np.asarray(record["x"]).astype(kind) + 1}

    assert code_id(once(cast)) == code_id(once(cast)) != code_id(twice(cast))
    assert code_id(once(cast)) != code_id(once(other))
