"""Order and state format as they were released. A change here breaks every saved run: it must be meant.

If it is meant, say so in CHANGELOG.md under STATE or ORDER and run `python tests/golden/make_state.py`.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("make_state", Path(__file__).with_name("make_state.py"))
assert SPEC is not None
assert SPEC.loader is not None
make_state = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(make_state)
GOLDEN = json.loads(make_state.PATH.read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_batches_and_state_are_as_released(name: str) -> None:
    assert json.loads(json.dumps(make_state.facts(make_state.pipelines()[name]))) == GOLDEN[name]


def test_all_pipelines_are_golden() -> None:
    assert set(GOLDEN) == set(make_state.pipelines())
