"""Pages use the common words of the field, not a dialect of our own."""

from __future__ import annotations

import re

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
