"""Pages made from docstrings: one for each verb and reader, one for the loader, one for each facade.

The cost and the resume behaviour of a verb are declared in `docs/reference/verbs.md`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import penstock
from website import docstrings
from website.pages import DOCS, change_links, title_of

VERBS = DOCS / "reference" / "verbs.md"
GROUPS = {
    "OrderVerbs": "Order and choice of rows",
    "RowVerbs": "Rows and columns",
    "TextVerbs": "Text and tokens",
    "MediaVerbs": "Images, audio and video",
    "BatchVerbs": "Batches",
    "Outputs": "Outputs",
    "WriteVerbs": "Files",
    "ConfigVerbs": "Configuration",
    "Inspection": "Inspection",
    "Verbs": "Inspection",
}
FACADES = {
    "Document 000, Capibara": ("capibara", "Capibara: named datasets for JAX"),
    "Document 001, preprocessed datasets and collation": ("preprocessed", "Instruction data for torch"),
    "Document 002, micro-transformer": ("micro-transformer", "Micro-transformer"),
    "Document 003, Artifex guide": ("artifex", "Artifex: synthetic and multi-modal datasets"),
    "Document 004, sliding windows": ("gpt-windows", "Sliding windows"),
}
BASES = ("BaseDataset", "BaseModalityConfig", "Loader")  # their methods are described once, with them
ORPHAN = "---\norphan: true\n---\n\n"  # not in the sidebar, which would double the time of a build; a table lists them
_SKIPPED = {"definition"}  # for other packages, not for users


def pages(written: Mapping[str, str]) -> dict[str, str]:
    """All generated pages by name; `written` are the other pages, to link to where something is used."""
    behaviour = behaviours(VERBS.read_text())
    made = {f"api/verbs/{name}.md": verb_page(name, behaviour[name], written) for name in verbs()}
    made |= {f"api/readers/{name}.md": reader_page(name, home, written) for name, home in readers().items()}
    made["api/loader.md"] = f"# Loader\n\n{_class('Loader', penstock.Loader)}"
    for group, (page, title) in FACADES.items():
        made[f"api/facades/{page}.md"] = facade_page(group, page, title)
    made["api/core.md"] = facade_page("More of the core", "", "Other classes and functions")
    lists = {
        "api/verbs.md": ("Pipeline verbs", "Each verb of `penstock.Pipeline` returns a new pipeline.", _verb_lists()),
        "api/readers.md": ("Readers", "Where pipelines begin, all in the module `penstock`.", _reader_list()),
        "api/facades.md": ("Facades", "The interfaces of five existing data loaders.", _facade_list()),
    }
    for name, (title, about, body) in lists.items():
        made[name] = f"# {title}\n\n{about}\n\n{body}"
    entries = [("Readers", "readers"), ("Pipeline verbs", "verbs"), ("Loader", "loader")]
    entries += [("Facades", "facades"), ("Other classes and functions", "core")]
    body = "\n".join(f"- [{title}]({name}.md)" for title, name in entries)
    tree = _toctree([name for _, name in entries])
    made["api/index.md"] = f"# API\n\nMade from the docstrings of the code.\n\n{body}\n\n{tree}"
    return made


def verbs() -> dict[str, str]:
    """Names of the verbs and other public members of a pipeline, with the title of their group, in reading order."""
    found = {}
    for name in dir(penstock.Pipeline):
        if not name.startswith("_") and name not in _SKIPPED:
            owner = next(kind for kind in penstock.Pipeline.__mro__ if name in vars(kind))
            found[name] = GROUPS[owner.__name__]
    order = list(dict.fromkeys(GROUPS.values()))
    return dict(sorted(found.items(), key=lambda item: (order.index(item[1]), item[0])))


def readers() -> dict[str, str]:
    """Functions where pipelines begin, with their module."""
    homes = penstock._GROUPS["Where to begin"]
    return {name: home for home, names in homes.items() for name in names.split() if name not in ("Pipeline", "Loader")}


def behaviours(table: str) -> dict[str, tuple[str, str]]:
    """(cost, resume behaviour) of each verb, from the rows of the tables in `docs/reference/verbs.md`."""
    found = {}
    for names, cost, resume in re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \|$", table, re.M):
        for name in re.findall(r"`(\w+)`", names):
            found[name] = (cost, resume)
    return found


def verb_page(name: str, behaviour: tuple[str, str], written: Mapping[str, str]) -> str:
    value = getattr(penstock.Pipeline, name)
    cost, resume = (change_links(text, lambda link: f"../../reference/{link}") for text in behaviour)
    table = f"## Cost and resume\n\n**Cost:** {cost}.\n\n**Resume:** {resume}.\n\n"
    kind = "property" if isinstance(value, property) else "method"
    return (
        ORPHAN
        + f"# {name}\n\n[Pipeline verbs](../verbs.md) › {verbs()[name]}\n\n"
        + _described(f"py:{kind}", f"Pipeline.{name}{_signature(value)}", value)
        + table
        + _uses(rf"\.{name}\(", written, "../../")
    )


def reader_page(name: str, home: str, written: Mapping[str, str]) -> str:
    value = getattr(import_module(f"penstock.{home}"), name)
    head = f"{ORPHAN}# {name}\n\n[Readers](../readers.md)\n\n" + _described(
        "py:function", f"penstock.{name}{_signature(value)}", value
    )
    return head + _uses(rf"ps\.{name}\(", written, "../../")


def facade_page(group: str, page: str, title: str) -> str:
    guide = f"[What it is and how to use it](../../reference/{page}.md).\n\n" if page else ""
    parts = [f"# {title}\n\n{guide}"]
    for home, names in penstock._GROUPS[group].items():
        for name in names.split():
            value = getattr(import_module(f"penstock.{home}"), name)
            parts.append(f"## {name}\n\n")
            parts.append(_class(name, value) if inspect.isclass(value) else _function(name, value))
    return "".join(parts)


def link_tables(written: Mapping[str, str], generated: Mapping[str, str]) -> dict[str, str]:
    """Signatures in the first column of the reference tables become links to their pages."""
    linked = dict(written)
    for page, folder in (("pipeline", "verbs"), ("sources", "readers"), ("verbs", "verbs")):
        name = f"reference/{page}.md"

        def link(cell: re.Match[str], folder: str = folder) -> str:
            target = f"api/{folder}/{cell[2]}.md"
            return f"[{cell[1]}](../{target})" if target in generated else cell[1]

        rows = [
            re.sub(r"(`(\w+)(?:\([^`]*\))?`)", link, first) + mark + rest if row.startswith("| `") else row
            for row in written[name].split("\n")
            for first, mark, rest in [row.partition(" | ")]
        ]
        linked[name] = "\n".join(rows)
    return linked


def _function(name: str, value: Any) -> str:
    return _described("py:function", f"penstock.{name}{_signature(value)}", value)


def _class(name: str, value: type) -> str:
    made = _described("py:class", f"penstock.{name}{_signature(value)}", value)
    for member in sorted(vars_of(value)):
        what = inspect.getattr_static(value, member)
        shown = getattr(value, member)
        if isinstance(what, property):
            made += _described("py:property", f"penstock.{name}.{member}", what)
        elif callable(shown):
            made += _described("py:method", f"penstock.{name}.{member}{_signature(shown)}", shown)
    return made


def vars_of(value: type) -> set[str]:
    """Public methods and properties that a class of ours defines; not those of torch or of another public class."""
    public = {getattr(penstock, name) for name in BASES if name != value.__name__}
    return {
        name
        for kind in value.__mro__
        if kind.__module__.startswith("penstock") and kind not in public
        for name, what in vars(kind).items()
        if not name.startswith("_") and inspect.getdoc(what) and (callable(what) or isinstance(what, _DESCRIPTORS))
    }


_DESCRIPTORS = (property, classmethod, staticmethod)


def _described(directive: str, signature: str, value: Any) -> str:
    """A signature with what its docstring says below it."""
    doc = docstrings.read(value)
    body = doc.about
    if doc.arguments:
        rows = "\n".join(f"| {_code(names)} | {_cell(text)} |" for names, text in doc.arguments)
        body += f"\n\n| argument | what |\n|---|---|\n{rows}"
    if doc.example:
        body += f"\n\n```pycon\n{doc.example}\n```"
    return f"``````{{{directive}}} {signature}\n\n{body}\n``````\n\n"


def _signature(value: Any) -> str:
    """On one line, as Sphinx reads it: annotations as they are written in the code."""
    if isinstance(value, property):
        return ""
    try:
        made = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    kept = [p for p in made.parameters.values() if p.name != "self"]
    shown = made.replace(parameters=[p.replace(annotation=_plain(p.annotation)) for p in kept])
    back = made.return_annotation
    shown = shown.replace(return_annotation=inspect.Signature.empty)
    text = re.sub(r" at 0x[0-9a-f]+|<class '([\w.]+)'>", r"\1", _unquoted(str(shown)))
    text = re.sub(r"=\s*<[^>]*>", "= ...", text)
    if back is inspect.Signature.empty or back in ("None", None):
        return text
    return f"{text} -> {'Pipeline' if back == 'Self' else _unquoted(str(back))}"


class _Written(str):
    """An annotation that `inspect` shows without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _plain(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    if isinstance(annotation, str):
        return _Written("Pipeline" if annotation == "Self" else annotation)
    return annotation


def _unquoted(text: str) -> str:
    return text.replace("\n", " ")


def _code(names: str) -> str:
    return ", ".join(f"`{name.strip()}`" for name in names.split(","))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _uses(pattern: str, written: Mapping[str, str], up: str) -> str:
    """Links to the pages that use something most, at most six."""
    counts = {
        name: len(re.findall(pattern, text))
        for name, text in written.items()
        if name.startswith(("how-to/", "tutorials/", "recipes/", "explanation/"))
    }
    most = sorted((name for name in counts if counts[name]), key=lambda name: (-counts[name], name))[:6]
    if not most:
        return ""
    return "## Used in\n\n" + "".join(f"- [{title_of(written[name])}]({up}{name})\n" for name in most)


def _verb_lists() -> str:
    grouped: dict[str, list[str]] = {}
    for name, group in verbs().items():
        grouped.setdefault(group, []).append(name)
    body = ""
    for group, names in grouped.items():
        lines = [f"| [`{name}`](verbs/{name}.md) | {_first(getattr(penstock.Pipeline, name))} |" for name in names]
        body += f"## {group}\n\n| verb | what |\n|---|---|\n" + "\n".join(lines) + "\n\n"
    return body


def _reader_list() -> str:
    lines = [
        f"| [`{name}`](readers/{name}.md) | {_first(getattr(import_module(f'penstock.{home}'), name))} |"
        for name, home in readers().items()
    ]
    return "| reader | what |\n|---|---|\n" + "\n".join(lines) + "\n"


def _facade_list() -> str:
    lines = "\n".join(f"- [{title}](facades/{page}.md)" for page, title in FACADES.values())
    return lines + "\n\n" + _toctree([f"facades/{page}" for page, _ in FACADES.values()])


def _first(value: Any) -> str:
    return _cell(docstrings.read(value).first)


def _toctree(entries: list[str]) -> str:
    return "```{toctree}\n:hidden:\n\n" + "\n".join(entries) + "\n```\n"
