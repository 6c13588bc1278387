"""The class for LMDB of the page on other formats, on a real file, where `lmdb` is installed."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from penstock.testing import assert_elastic, assert_exact_resume
from tests.docs.pages import ROOT


def test_the_class_reads_resumes_and_is_sent_to_child_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmdb = pytest.importorskip("lmdb")
    page = (ROOT / "docs" / "how-to" / "other-formats.md").read_text()
    blocks = re.findall(r"^```python fragment\n(.*?)^```$", page, re.M | re.S)
    (tmp_path / "lmdb_recipe.py").write_text(next(block for block in blocks if "import lmdb" in block))
    monkeypatch.syspath_prepend(str(tmp_path))
    import lmdb_recipe  # type: ignore[import-not-found]

    path = str(tmp_path / "rows")
    expected = {f"{i:03}": bytes([i]) * (i + 1) for i in range(40)}
    with lmdb.open(path) as made, made.begin(write=True) as write:
        for key, value in expected.items():
            write.put(key.encode(), value)
    found = [(row["key"], bytes(row["bytes"])) for row in lmdb_recipe.rows(path).rows()]
    assert len(found) == 40 and dict(found) == expected
    assert pickle.loads(pickle.dumps(lmdb_recipe.LmdbRows(path)))[3]["key"] == "003"
    assert_exact_resume(lambda: lmdb_recipe.rows(path).batch(6))
    assert_elastic(lambda batch: lmdb_recipe.rows(path).batch(batch), batch=12, worlds=(1, 2, 3, 4), most=3)
    ahead, here = (lmdb_recipe.rows(path).batch(8).to_numpy(**how) for how in ({"workers": 1}, {"threads": 0}))
    assert [batch["key"].tolist() for batch in ahead] == [batch["key"].tolist() for batch in here]
    lmdb_recipe.environment(path).close()
