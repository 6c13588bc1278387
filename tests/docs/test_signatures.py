"""Signatures written in the reference pages are those of the code: names, kinds and defaults."""

from __future__ import annotations

import ast
import inspect
import re

import pytest
from website import api, docstrings

import penstock
from tests.docs.pages import ROOT

PAGES = {
    "artifex.md": penstock.BaseDataset,
    "capibara.md": penstock,
    "gpt-windows.md": penstock,
    "micro-transformer.md": penstock,
    "pipeline.md": penstock.Pipeline,
    "preprocessed.md": penstock.DataLoaderBuilder,
    "sources.md": penstock,
}
NO_EXAMPLE = {"from_tfds", "view"}  # need a dataset that TFDS prepared; a browser
_SPAN = re.compile(r"`(\w+\([^`]*\))`")


def written(name: str) -> list[str]:
    """Calls in the first column of the tables, and at the start of a line."""
    text = (ROOT / "docs" / "reference" / name).read_text()
    cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith(("| `", "`"))]
    return [
        span for cell in cells for span in _SPAN.findall(cell if cell.startswith("|") else cell.split("`:")[0] + "`")
    ]


def parameters(call: str) -> list[tuple[str, str, str]]:
    """(name, kind, default) of a signature as it is written; `...` stands for a default too long to write."""
    given = ast.parse(f"def {call}: pass").body[0]
    assert isinstance(given, ast.FunctionDef)
    found, a = [], given.args
    defaults = [None] * (len(a.args) - len(a.defaults)) + list(a.defaults)
    for argument, default in zip(a.args, defaults, strict=True):
        found.append((argument.arg, "plain", _shown(default)))
    for argument, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        found.append((argument.arg, "keyword", _shown(default)))
    return found + [(rest.arg, "rest", "") for rest in (a.vararg, a.kwarg) if rest]


def _shown(default: ast.expr | None) -> str:
    """As `repr` shows it: `1 << 25` is a number."""
    return "" if default is None else repr(eval(ast.unparse(default), {}))


def of_code(value: object) -> list[tuple[str, str, str]]:
    kinds = {"KEYWORD_ONLY": "keyword", "VAR_KEYWORD": "rest", "VAR_POSITIONAL": "rest"}
    return [
        (p.name, kinds.get(p.kind.name, "plain"), "" if p.default is p.empty else repr(p.default))
        for p in inspect.signature(value).parameters.values()  # type: ignore[arg-type]
        if p.name != "self"
    ]


def differences(call: str, owner: object) -> str | None:
    name = call.partition("(")[0]
    value = getattr(owner, name, None) or getattr(penstock, name, None)
    if value is None:
        return f"{name}: no such name"
    said, real = parameters(call), of_code(value)
    same = [s[:2] for s in said] == [r[:2] for r in real] and all(
        s[2] in ("...", "Ellipsis", r[2]) for s, r in zip(said, real, strict=True)
    )
    return None if same else f"{name}: the page says {said}, the code {real}"


@pytest.mark.parametrize("page", sorted(PAGES))
def test_signatures_are_those_of_the_code(page: str) -> None:
    calls = written(page)
    assert len(calls) >= 3
    assert [d for call in calls if (d := differences(call, PAGES[page]))] == []


def test_every_verb_and_reader_is_shown() -> None:
    verbs = {name for name in dir(penstock.Pipeline) if callable(getattr(penstock.Pipeline, name)) and name[0] != "_"}
    readers = set(penstock._GROUPS["Where to begin"]["read"].split())
    for page, names in (("pipeline.md", verbs), ("sources.md", readers)):
        assert names - {call.partition("(")[0] for call in written(page)} == set(), page


def test_a_wrong_signature_is_noticed() -> None:
    right = "pad_batch(batch, target_size, *, mask=None)"
    assert differences(right, None) is None
    for wrong in (right.replace("None", "3"), right.replace("*, ", ""), right.replace("batch,", ""), "nothing()"):
        assert differences(wrong, None)


def test_each_verb_has_a_cost_and_a_resume_behaviour() -> None:
    declared = api.behaviours(api.VERBS.read_text())
    assert sorted(declared) == sorted(api.verbs()), "docs/reference/verbs.md has a line for each verb, and no other"
    assert [name for name, texts in declared.items() if not all(texts)] == []


def test_each_verb_and_reader_has_an_example() -> None:
    verbs = [name for name in api.verbs() if not docstrings.read(getattr(penstock.Pipeline, name)).example]
    readers = [name for name in api.readers() if not docstrings.read(getattr(penstock, name)).example]
    assert set(verbs + readers) - NO_EXAMPLE == set()
