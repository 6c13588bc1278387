"""Examples in docstrings may use `ps`, as every program that uses Penstock does."""

from __future__ import annotations

from typing import Any

import pytest

import penstock


@pytest.fixture(autouse=True)
def _ps(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace["ps"] = penstock
