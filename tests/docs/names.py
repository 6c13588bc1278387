"""Writes `docs/reference/names.md`: every public name with the first sentence of its docstring.

python -m tests.docs.names
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import penstock
from tests.docs.pages import ROOT

PATH = ROOT / "docs" / "reference" / "names.md"
HEAD = """# Public names

Everything that `import penstock` offers, first what most programs use. All of it is typed. This page is written by
`python -m tests.docs.names`.
"""


def page() -> str:
    """The page as it should be."""
    return HEAD + "".join(_section(title, modules) for title, modules in penstock._GROUPS.items())


def _section(title: str, modules: dict[str, str]) -> str:
    homes = [(name, module) for module, names in modules.items() for name in names.split()]
    rows = [f"| `{name}` | {_first(getattr(import_module(f'penstock.{home}'), name))} |" for name, home in homes]
    return f"\n## {title}\n\n| name | what |\n|---|---|\n" + "\n".join(rows) + "\n"


def _first(value: object) -> str:
    """First sentence of a docstring, on one line."""
    text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:])\s+(?=[A-Z])", text, maxsplit=1)[0]
    return sentence.replace("|", "\\|")


if __name__ == "__main__":
    PATH.write_text(page())
