"""Writes the call list of one batch into docs/explanation/architecture.md, from a trace of the real code.

    python -m tests.docs.trace_batch

The pipeline is `open_store(...).windows(32).shuffle(seed=7).batch(8).to_torch(threads=0)`; the batch is the loader's
first, so that the planning of its block is in the list. Only calls of our own modules are recorded.
"""

from __future__ import annotations

import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import penstock as ps
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "explanation" / "architecture.md"
BEGIN, END = "<!-- trace:begin -->", "<!-- trace:end -->"
TOP = "penstock"


@dataclass(frozen=True)
class Call:
    """One call: the package, module and function, and the package that called it ("" for the user's script)."""

    package: str
    module: str
    function: str
    caller: str


def layers() -> dict[str, int]:
    """The layer of every package, 0 the highest, from the import contract."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    rows = next(contract["layers"] for contract in tool["contracts"] if contract["type"] == "layers")
    return {name.strip(): number for number, row in enumerate(rows) for name in row.split("|")}


def trace(action: Callable[[], Any]) -> tuple[list[Call], Any]:
    """The calls of our modules while `action` runs, in order, and what it returned."""
    calls: list[Call] = []

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (module := _module(frame)):
            below = frame.f_back
            if below is not None and below.f_globals.get("__name__") == "typing":
                return  # isinstance(source, Protocol) reads properties, in an order that differs between processes
            while below is not None and not _module(below):
                below = below.f_back
            caller = _package(_module(below)) if below is not None else ""
            calls.append(Call(_package(module), module, frame.f_code.co_qualname, caller))

    sys.setprofile(record)
    try:
        result = action()
    finally:
        sys.setprofile(None)
    return calls, result


def _module(frame: FrameType) -> str:
    """The name of a frame's module below `penstock`, or "" if it is another's."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.removeprefix(TOP + ".") if name.startswith(TOP + ".") else ""


def _package(module: str) -> str:
    return module.partition(".")[0]


def walk() -> tuple[list[Call], list[Call]]:
    """The calls that build the loader, and those that make its first batch."""
    with tempfile.TemporaryDirectory() as folder:
        texts = ps.from_texts([f"the river runs {i}" for i in range(400)])
        ps.prepare(texts, "bytes", Path(folder) / "store", show_progress=False)

        def build() -> Any:
            return ps.open_store(Path(folder) / "store").windows(32).shuffle(seed=7).batch(8).to_torch(threads=0)

        next(iter(build()))  # imports and caches once, so that the list does not depend on what ran before
        building, loader = trace(build)
        batches = iter(loader)
        making, _ = trace(lambda: next(batches))
        batches.close()
    return building, making


def upward(calls: Iterable[Call]) -> set[tuple[str, str]]:
    """Calls from a package into one that is not below it, as (caller, called)."""
    layer = layers()
    return {
        (c.caller, c.package) for c in calls if c.caller not in ("", c.package) and layer[c.caller] >= layer[c.package]
    }


def entered(calls: Iterable[Call]) -> dict[str, list[str]]:
    """For each package, top to bottom: the functions that other packages call in it, in order of first call."""
    layer = layers()
    found: dict[str, list[str]] = {}
    for call in calls:
        name = f"{call.module.partition('.')[2] or call.module}:{call.function}"
        hidden = re.search(r"__create_fn__|<(genexpr|listcomp|dictcomp|setcomp|lambda)>", call.function)
        if call.caller != call.package and not hidden and name not in found.setdefault(call.package, []):
            found[call.package].append(name)
    return {name: found[name] for name in sorted(found, key=lambda name: (layer[name], name)) if found[name]}


def listing() -> str:
    """The two tables of the page."""
    parts = []
    for title, calls in zip(("Building the loader", "The first batch"), walk(), strict=True):
        rows = [
            f"| `{name}` | {', '.join(f'`{f}`' for f in functions)} |" for name, functions in entered(calls).items()
        ]
        parts += [
            f"{title}:",
            "",
            "| package | functions called from other packages |",
        ]
        parts += ["|---|---|", *rows, ""]
    return "\n".join(parts)


def page(text: str) -> str:
    """The page with a fresh call list between its marks."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{listing()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    text = page(PAGE.read_text())
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(text)
    else:
        PAGE.write_text(text)
