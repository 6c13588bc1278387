"""The classes for LMDB, Zarr and Lance of the page on other formats, on real files."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pytest
import zarr

from penstock import Pipeline
from penstock.testing import assert_elastic, assert_exact_resume
from tests.docs.pages import ROOT

ROWS = 40


def recipe(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The code of the page that imports this package, as a module."""
    page = (ROOT / "docs" / "how-to" / "other-formats.md").read_text()
    blocks = re.findall(r"^```python fragment\n(.*?)^```$", page, re.M | re.S)
    (folder / f"{package}_recipe.py").write_text(next(block for block in blocks if f"import {package}\n" in block))
    monkeypatch.syspath_prepend(str(folder))
    return import_module(f"{package}_recipe")


def follows_the_law(rows: Callable[[], Pipeline], column: str) -> None:
    assert_exact_resume(lambda: rows().batch(6))
    assert_elastic(lambda batch: rows().batch(batch), batch=12, worlds=(1, 2, 3, 4), most=3)
    ahead, here = (rows().batch(8).to_numpy(**how) for how in ({"workers": 1}, {"threads": 0}))
    assert [batch[column].tolist() for batch in ahead] == [batch[column].tolist() for batch in here]


def test_lmdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = recipe("lmdb", tmp_path, monkeypatch)
    path = str(tmp_path / "rows")
    expected = {f"{i:03}": bytes([i]) * (i + 1) for i in range(ROWS)}
    with lmdb.open(path) as made, made.begin(write=True) as write:
        for key, value in expected.items():
            write.put(key.encode(), value)
    found = [(row["key"], bytes(row["bytes"])) for row in module.rows(path).rows()]
    assert len(found) == ROWS and dict(found) == expected
    assert pickle.loads(pickle.dumps(module.LmdbRows(path)))[3]["key"] == "003"
    follows_the_law(lambda: module.rows(path), "key")
    module.environment(path).close()


def test_zarr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = recipe("zarr", tmp_path, monkeypatch)
    path = str(tmp_path / "rows.zarr")
    made = zarr.open_group(path, mode="w")
    made.create_array("x", shape=(ROWS, 3), chunks=(16, 3), dtype="f4")[:] = np.arange(3 * ROWS).reshape(ROWS, 3)
    made.create_array("label", shape=(ROWS,), chunks=(8,), dtype="i8")[:] = np.arange(ROWS)
    found = {int(row["label"]): row["x"].tolist() for row in module.rows(path).rows()}
    assert found == {i: [3 * i, 3 * i + 1, 3 * i + 2] for i in range(ROWS)}
    follows_the_law(lambda: module.rows(path), "label")


def check_lance(folder: Path) -> None:
    import lance  # type: ignore[import-untyped]

    with pytest.MonkeyPatch.context() as monkeypatch:
        module = recipe("lance", folder, monkeypatch)
    path = str(folder / "rows.lance")
    lance.write_dataset(pa.table({"x": np.arange(ROWS) / 2, "label": np.arange(ROWS), "other": ["o"] * ROWS}), path)
    assert {int(row["label"]): float(row["x"]) for row in module.rows(path).rows()} == {i: i / 2 for i in range(ROWS)}
    before = module.rows(path).fingerprint()
    follows_the_law(lambda: module.rows(path), "label")
    lance.write_dataset(pa.table({"x": [1.0], "label": [ROWS], "other": ["o"]}), path, mode="append")
    assert module.rows(path).fingerprint() != before and len(module.rows(path).rows()) == ROWS + 1


def test_lance(tmp_path: Path) -> None:
    """In a process of its own: once imported, it warns in every fork of the process."""
    code = f"from pathlib import Path; from {__name__} import check_lance; check_lance(Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300)
