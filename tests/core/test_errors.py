"""The tree of errors is drawn twice, in the module and on its page; both are what the classes say."""

from __future__ import annotations

import re
from textwrap import dedent

from penstock.core import errors
from tests.docs.pages import ROOT


def _drawn(text: str) -> str:
    return dedent(re.search(r"^ *PenstockError\n(?: *[│├└ ].*\n)+", text, re.M)[0])  # type: ignore[index]


def test_the_tree_on_the_page_is_that_of_the_module() -> None:
    assert errors.__doc__ is not None
    assert _drawn((ROOT / "docs/reference/errors.md").read_text()) == _drawn(errors.__doc__)


def test_the_tree_has_every_error_under_its_base() -> None:
    drawn, above = {}, ["PenstockError"]
    for bars, name, other in re.findall(r"^([│├└─ ]+)(\w+) *(?:\((\w+)\))?", _drawn(errors.__doc__ or ""), re.M):
        above[len(bars) // 4 :] = [name]
        drawn[name] = {above[-2], *filter(None, [other])}
    found = {
        name: {base.__name__ for base in kind.__bases__}
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.PenstockError) and kind is not errors.PenstockError
    }
    assert drawn == found
