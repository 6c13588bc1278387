"""Pages use the common words of the field, not a dialect of our own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

INSTEAD = {
    r"learnt": "trained on, learned",
    r"mend(s|ed)?": "fix",
    r"so many": "n, this many",
    r"serves again": "is reused",
    r"(is|are|be|was) told": "is configured, is passed",
    r"dealt? out": "shard, assign to ranks",
    r"deals (the|packs|rows)": "assigns",
    r"likes": "returns True for",
    r"dear": "expensive",
    r"rooms": "packages",
    r"go(es|ing)? on (with|from|in)": "resume, continue",
    r"begins? anew": "start over",
    r"in silence": "silently",
}
CHECKED = sorted([*PAGES, *(ROOT / "examples").glob("*.py"), *(ROOT / "bench").glob("*.py")])
GENERATED = {"docs/reference/names.md"}  # from docstrings


def found(text: str) -> list[str]:
    return [f"{m[0]!r}: say {say}" for word, say in INSTEAD.items() for m in re.finditer(rf"\b{word}\b", text, re.I)]


@pytest.mark.parametrize("name", [str(p.relative_to(ROOT)) for p in CHECKED])
def test_a_page_uses_common_words(name: str) -> None:
    text = (ROOT / name).read_text()
    assert name in GENERATED or found(text) == []


def test_a_word_of_the_dialect_is_noticed() -> None:
    assert found("what is not to be learnt") == ["'learnt': say trained on, learned"]
    assert found("recommended, a path, learned") == []


SOURCES = sorted((ROOT / "src" / "penstock").rglob("*.py"))
NAMES = {"given", "told", "learnt", "dealt", "mend", "whole", "spoken"}
PUBLIC = {("rows.py", "whole"), ("map_batches.py", "whole")}  # `.map_batches(whole=True)`


def names_in(path: Path) -> set[str]:
    """Arguments and variables that a file defines."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def test_docstrings_comments_and_messages_use_common_words() -> None:
    wrong = {str(path): found(path.read_text()) for path in SOURCES}
    assert {name: words for name, words in wrong.items() if words} == {}


def test_variables_and_arguments_use_common_words(tmp_path: Path) -> None:
    used = {(path.name, name) for path in SOURCES for name in names_in(path) & NAMES}
    assert used - PUBLIC == set()
    (tmp_path / "one.py").write_text("def f(given): whole = given")
    assert names_in(tmp_path / "one.py") & NAMES == {"given", "whole"}
