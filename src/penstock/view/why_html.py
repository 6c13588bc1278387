"""The provenance of a row as HTML: file, offset, crop, key. What `loader.why(step, row)` returns, for people."""

from __future__ import annotations

from typing import Any

from penstock.markup.html import Html, tag
from penstock.markup.visible import excerpt, figure, number_of

_MOST_DOCUMENTS = 50
_MOST_TEXT = 400
_DEEPEST = 6
_NAMES = {
    "n": "row of the run", "record": "record", "pass": "pass over the source", "refused_before": "rejected before it",
    "crop": "crop (y, x, height, width)", "size": "size (height, width)", "start": "start (seconds)",
    "seconds": "length (seconds)", "flip": "mirrored", "documents_in_window": "documents in the window",
    "tokens": "tokens of the stream (from, before)", "drawn": "drawn by augmentation",
}  # fmt: skip

_OF_DOCUMENT = {
    "document_in_shard": "document of the shard",
    "start": "its first token there",
    "tokens": "tokens in all",
}


def why_html(why: dict[str, Any], key: str) -> Html:
    """A `details` element: closed, it says file and record in a line; open, everything."""
    origin = dict(why.get("from", {}))
    documents = origin.pop("documents", None)
    facts = {name: why[name] for name in why if name != "from"} | origin
    table = tag("table", [_line(name, value) for name, value in facts.items()])
    parts = [_documents(documents) if isinstance(documents, list) else None, table]
    return tag("details", tag("summary", "why: ", short_why(why)), parts, class_="why", id=key)


def short_why(why: dict[str, Any]) -> str:
    """Record, file and line in a few words."""
    origin = why.get("from", {})
    documents = origin.get("documents") or []
    first = documents[0] if documents else origin
    place = next((str(first[name]) for name in ("file", "path", "shard", "key") if first.get(name) is not None), "")
    line = f", line {first['line']:,}" if isinstance(first.get("line"), int) else ""
    if documents:
        count = origin.get("documents_in_window", len(documents))
        more = f" and {count - 1:,} more" if count > 1 else ""
        said = f"document {first.get('document', 0):,} from token {first.get('from', 0):,}{more}"
        return f"{said}{f', {excerpt(place, 120)}' if place else ''}{line}"
    return f"record {why.get('record', 0):,}{f', {excerpt(place, 120)}' if place else ''}{line}"


def _documents(documents: list[dict[str, Any]]) -> Html:
    ends = [one.get("at") for one in documents[1:]] + [None]
    items = []
    for one, end in list(zip(documents, ends, strict=True))[:_MOST_DOCUMENTS]:
        at = one.get("at")
        here = f"{number_of(one['tokens_here'], 'token')} here, " if isinstance(one.get("tokens_here"), int) else ""
        head = f"document {figure(one.get('document'))}: {here}from its token {figure(one.get('from', 0))}"
        named = {k: one[k] for k in ("file", "line", "byte") if k in one} | one
        rest = {k: v for k, v in named.items() if k not in ("document", "from", "at", "tokens_here")}
        said = ", ".join(f"{_OF_DOCUMENT.get(k, k)} {_plain(v)}" for k, v in rest.items() if v is not None)
        place = None if at is None else tag("small", f"at token {at:,} of the row", class_="note")
        items.append(tag("li", tag("b", head), " ", place, tag("div", said), data_at=at, data_to=end))
    if len(documents) > _MOST_DOCUMENTS:
        items.append(tag("li", f"… {number_of(len(documents) - _MOST_DOCUMENTS, 'more document')}", class_="cut-here"))
    return tag("ol", items, class_="documents")


def _line(name: str, value: Any, depth: int = 0) -> Html:
    return tag("tr", tag("th", _NAMES.get(name, name.replace("_", " ")), scope="row"), tag("td", _cell(value, depth)))


def _cell(value: Any, depth: int) -> Any:
    if depth < _DEEPEST and isinstance(value, dict):
        return tag("table", [_line(str(name), inner, depth + 1) for name, inner in value.items()])
    if depth < _DEEPEST and isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return tag("ol", [tag("li", _cell(one, depth + 1)) for one in value[:_MOST_DOCUMENTS]])
    return _plain(value)


def _plain(value: Any) -> str:
    return excerpt(figure(value) if not isinstance(value, dict) else repr(value), _MOST_TEXT)
