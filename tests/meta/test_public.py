"""The public face: complete, sorted, documented."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import penstock

ROOT = Path(penstock.__file__).parents[2]
NAMES = [name for name in penstock.__all__ if name != "__version__"]


def test_all_is_sorted_and_without_doubles() -> None:
    assert sorted(set(NAMES)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_resolves_and_has_a_docstring(name: str) -> None:
    value = getattr(penstock, name)
    assert value.__doc__, name
    assert name in dir(penstock)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = penstock.nonsense


def test_no_file_is_long() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    long = [p for p in listed.stdout.split() if len((ROOT / p).read_text().splitlines()) > 500]
    assert long == []


def test_only_framework_files_import_frameworks() -> None:
    """Everything else goes through `_optional.need`, inside functions."""
    allowed = {"outputs/torch_data.py"}
    guilty = []
    for path in (ROOT / "src/penstock").rglob("*.py"):
        for line in path.read_text().splitlines():
            if line.startswith(
                ("import torch", "from torch", "import jax", "from jax", "import flax", "import tensorflow")
            ):
                guilty.append(f"{path.relative_to(ROOT / 'src/penstock')}: {line}")
    assert [g for g in guilty if g.partition(":")[0] not in allowed] == []
