"""Draws docs/explanation/packages.svg from the import contract, and batch.svg: `python -m tests.docs.pictures`."""

from __future__ import annotations

import tomllib
from html import escape

from tests.docs.pages import ROOT

FOLDER = ROOT / "docs" / "explanation"
FONT = "font-family='ui-sans-serif, Helvetica, Arial, sans-serif'"
HIDDEN = {"_version"}

HOLDS = {
    "cli": "command line",
    "view": "HTML report",
    "testing": "assertions for your pipelines",
    "randomness": "keyed draws for your steps",
    "facades": "the interfaces of five existing loaders",
    "torch_data": "torch DataLoader objects, trainer integrations",
    "read": "open_*, read_*, from_*",
    "pipeline": "one method per verb",
    "preparation": "texts to a token store",
    "outputs": "NumPy, PyTorch, JAX",
    "engine": "loader, threads, child processes",
    "plan": "definition, build, step ranges, state",
    "steps": "one verb per file",
    "sources": "one format per file",
    "chat": "prompts, loss masks",
    "augment": "augmentation",
    "store": "token store",
    "collate": "padding",
    "codecs": "images, audio",
    "tokenizers": "tokenizer kinds",
    "storage": "local files, URLs",
    "order": "pure functions on index arrays",
    "markup": "escaped HTML and SVG",
    "core": "columns, errors, limits, randomness, buffers",
}

STAGES = [
    ("step number", "n = 48,210", "the loader's cursor"),
    ("positions", "rows [n0, n1) of the run", "plan: step ranges; engine: this rank's rows"),
    ("picks", "(record, epoch) of each row", "steps: Node.pick, one node per verb; order: arithmetic"),
    ("rows", "records of several batches", "steps: Node.open; sources, store: one read"),
    ("columns", "arrays, or values + offsets", "steps: Rows.columns; engine: stages after .batch()"),
    ("batch", "final dtype and device", "outputs: Output.make for NumPy, torch or JAX"),
]
BETWEEN = [
    "many steps at once: a block",
    "no data is read yet",
    "bytes are read and verified here",
    "one batch at a time, in the output's memory",
    "delivered in order, a few ahead",
]


def contract() -> list[list[str]]:
    """The layers of the import contract, highest first."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    rows = next(c["layers"] for c in tool["contracts"] if c["type"] == "layers")
    named = [[name.strip() for name in row.split("|")] for row in rows]
    return [row for row in named if not HIDDEN.issuperset(row)]


def packages() -> str:
    """One box per package, one row per layer."""
    width, height, gap = 860, 44, 6
    rows = contract()
    parts = []
    for number, row in enumerate(rows):
        top = gap + number * (height + gap)
        wide = (width - gap * (len(row) + 1)) / len(row)
        for place, name in enumerate(row):
            left = gap + place * (wide + gap)
            parts.append(_box(left, top, wide, height, name, HOLDS[name]))
    return _svg(width, gap + len(rows) * (height + gap), parts)


def batch() -> str:
    """The stages of one batch, top to bottom."""
    width, height, gap = 860, 52, 30
    parts = []
    for number, (name, what, where) in enumerate(STAGES):
        top = 8 + number * (height + gap)
        parts.append(_box(8, top, 300, height, name, what))
        parts.append(_text(328, top + height / 2 + 5, where, 14, "start", "#222"))
        if number < len(BETWEEN):
            x, y = 158, top + height
            parts.append(f"<path d='M{x} {y + 3} V{y + gap - 9}' stroke='#555' stroke-width='1.5'/>")
            parts.append(f"<path d='M{x - 5} {y + gap - 9} h10 l-5 7 z' fill='#555'/>")
            parts.append(_text(176, y + gap / 2 + 4, BETWEEN[number], 12, "start", "#555"))
    return _svg(width, 8 + len(STAGES) * (height + gap) - gap + 8, parts)


def _box(left: float, top: float, width: float, height: float, name: str, what: str) -> str:
    middle = left + width / 2
    place = f"x='{left:g}' y='{top:g}' width='{width:g}' height='{height:g}'"
    return "\n".join(
        [
            f"<rect {place} rx='6' fill='#eef3f8' stroke='#5b7a99'/>",
            _text(middle, top + height / 2 - 3, name, 15, "middle", "#123", "bold"),
            _text(middle, top + height / 2 + 14, what, 12, "middle", "#345"),
        ]
    )


def _text(x: float, y: float, text: str, size: int, anchor: str, colour: str, weight: str = "normal") -> str:
    style = f"font-size='{size}' font-weight='{weight}' text-anchor='{anchor}' fill='{colour}'"
    return f"<text x='{x:g}' y='{y:g}' {FONT} {style}>{escape(text)}</text>"


def _svg(width: float, height: float, parts: list[str]) -> str:
    size = f"width='{width:g}' height='{height:g}' viewBox='0 0 {width:g} {height:g}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size}>"
    return "\n".join([head, "<rect width='100%' height='100%' fill='white'/>", *parts, "</svg>", ""])


PICTURES = {"packages.svg": packages, "batch.svg": batch}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
