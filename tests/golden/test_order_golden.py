"""The order is a promise: a state saved by one version must go on with the same samples in the next.

If this fails, a change has altered the order. If that was an accident, take the change back. If it was meant, run
`python tests/golden/make_order.py` and say in the change log that saved states continue differently.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
STORED: dict[str, Any] = json.loads((HERE / "order.json").read_text(encoding="utf-8"))
ADVICE = "the order has changed: take the change back, or run `python tests/golden/make_order.py` if it was meant"


@pytest.fixture(scope="module")
def computed() -> dict[str, Any]:
    return json.loads(json.dumps(runpy.run_path(str(HERE / "make_order.py"))["compute"]()))


@pytest.mark.parametrize("part", sorted(STORED))
def test_the_order_is_the_stored_one(computed: dict[str, Any], part: str) -> None:
    assert computed[part] == STORED[part], ADVICE


def test_the_stored_file_is_complete(computed: dict[str, Any]) -> None:
    assert sorted(computed) == sorted(STORED)
    assert sum(len(row["value"]) for row in STORED["shuffle"]) > 250
