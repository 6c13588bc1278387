"""Examples in docstrings may use `ps`, as every program that uses Penstock does."""

from __future__ import annotations

from typing import Any

import pytest

import penstock

collect_ignore = ["tests/data"]  # files that tests read, and scripts that wrote them with other libraries


@pytest.fixture(autouse=True)
def _ps(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace["ps"] = penstock
