"""The public names: complete, typed, grouped, documented."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import penstock

ROOT = Path(penstock.__file__).parents[2]
NAMES = [name for name in penstock.__all__ if name != "__version__"]


def reexports(source: str) -> dict[str, str]:
    """Public name -> module, as type checkers read it: `from module import name as name`."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock."):
            found |= {a.name: str(node.module).removeprefix("penstock.") for a in node.names if a.asname == a.name}
    return found


def test_type_checkers_and_the_run_time_see_the_same_names() -> None:
    seen = reexports(Path(penstock.__file__).read_text())
    assert seen.pop("__version__") == "_version"
    assert seen == penstock._HOME


def test_a_name_missing_from_either_side_is_noticed() -> None:
    source = "from penstock.read import a as a\nfrom penstock.read import b\nfrom penstock.core import c as d"
    assert reexports(source) == {"a": "read"}


def test_all_is_complete_without_doubles_and_begins_with_what_matters() -> None:
    assert [name for name, count in Counter(penstock.__all__).items() if count > 1] == []
    assert set(penstock.__all__) == set(dir(penstock)) == {"__version__", *penstock._HOME}
    first = NAMES[: len(penstock._GROUPS["Where to begin"]["read"].split())]
    assert first[0] == "open_store" and len(first) < 25
    help_text = penstock.__doc__.partition(">>>")[0].split()
    start = {n for names in penstock._GROUPS["Where to begin"].values() for n in names.split()}
    assert start - set(help_text) == set(), "help(penstock) names them first"


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(penstock.__file__).parent / "py.typed").is_file()


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
