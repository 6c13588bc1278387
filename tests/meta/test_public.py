"""The public names: complete, typed, grouped, documented."""

from __future__ import annotations

import ast
import subprocess
import sys
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


NEEDS_TORCH = (
    "penstock.torch_data.",
    "penstock.outputs.torch_dataset",
    "penstock.outputs.torch_loader",
    "penstock.facades.preprocessed.",
    "penstock.facades.gpt_windows.",
    "penstock.facades.micro_transformer.dataset",
)
IMPORT_ALL = """
import importlib, pkgutil, sys, penstock
skipped = tuple(sys.argv[1:])
for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
    if module.name.startswith(skipped) or module.name.endswith("__main__"):
        continue
    importlib.import_module(module.name)
    for framework in ("torch", "jax", "tensorflow", "flax"):
        if framework in sys.modules:
            sys.exit(f"{module.name} imports {framework}")
"""


def _import_all(*skipped: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *skipped], capture_output=True, text=True, check=False, cwd=ROOT
    )
    return ran.stderr.strip()


def test_only_torch_modules_import_a_framework() -> None:
    """In a fresh interpreter: `need("torch")` at module level counts, whatever it looks like in the source."""
    assert _import_all(*NEEDS_TORCH) == ""


def test_the_import_test_can_fail() -> None:
    assert "imports torch" in _import_all("penstock.facades")
