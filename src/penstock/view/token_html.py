"""Tokens as HTML: one element per token, coloured by segment and loss mask, and the picture of a pack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.collate.tokens import IGNORE
from penstock.markup.html import Html, tag, text
from penstock.markup.visible import number_of
from penstock.view.batch_tokens import TokenRow

_COLOURS = 6  # `.seg-0` to `.seg-5`
_BAR, _GAP, _NAME = 14, 4, 9  # pixels of a row of the picture, and percent of its width for the row's number


def tokens_html(row: TokenRow, key: str) -> Html:
    """The tokens of a row; a click (or the arrow keys) shows what is known of one."""
    kinds = "tokens packed" if row.segments is not None else "tokens"
    parts = list(_tokens(row))
    if row.total > len(row.ids):
        parts.append(tag("span", f" … {number_of(row.total - len(row.ids), 'more token')}", class_="cut-here"))
    name = None if row.name == "input_ids" else tag("h3", row.name)
    box = tag(
        "div", parts, class_=kinds, id=f"{key}-{row.name}", tabindex=0, role="group",
        aria_label=f"{row.name}: {number_of(row.filled, 'token')}",
    )  # fmt: skip
    said = tag(
        "output", "choose a token to see its id, label and document", class_="token note", for_=f"{key}-{row.name}"
    )
    return tag("div", name, box, said)


def _tokens(row: TokenRow) -> Iterator[Html]:
    at = 0
    while at < len(row.ids):
        if row.padding[at]:
            end = at
            while end < len(row.ids) and row.padding[end]:
                end += 1
            yield tag("span", f"padding × {end - at:,}", class_="padding", data_at=at)
            at = end
            continue
        yield tag("span", _shown(row, at), class_=_class(row, at), title=_title(row, at), data_at=at)
        at += 1


def _shown(row: TokenRow, at: int) -> Html:
    if row.pieces is None:
        return Html(f"{row.ids[at]} ")
    piece = row.pieces[at]
    if not piece or piece == row.special.get(row.ids[at]):
        return tag("b", row.special.get(row.ids[at], "·"))
    return Html(text(piece.replace("\n", "⏎\n"), keep="\n\t"))


def _class(row: TokenRow, at: int) -> str:
    kinds = ["tok"]
    if row.segments is not None:
        kinds.append(f"seg-{(row.segments[at] - 1) % _COLOURS}")
    if row.trained is not None and not row.trained[at]:
        kinds.append("loss-0")
    return " ".join(kinds)


def _title(row: TokenRow, at: int) -> str:
    said = [f"token {at:,}", f"id {row.ids[at]}"]
    if row.pieces is not None and row.pieces[at]:
        said.append(repr(row.pieces[at]))
    if row.labels is not None:
        said.append("no label" if row.labels[at] == IGNORE else f"label {row.labels[at]}")
    if row.trained is not None:
        said.append("in the loss" if row.trained[at] else "not in the loss")
    if row.segments is not None:
        said.append(f"segment {row.segments[at]}")
    return " · ".join(said)


def pack_picture(rows: Sequence[tuple[int, TokenRow]]) -> Html:
    """One bar per row: its documents side by side, then padding; wide as the longest row."""
    longest = max((row.total for _, row in rows), default=0) or 1
    scale = (100 - _NAME) / longest
    parts = []
    for line, (number, row) in enumerate(rows):
        y, begin = line * (_BAR + _GAP), 0
        parts.append(tag("text", f"row {number}", x="0", y=y + _BAR - 3, class_="start"))
        for document, count in enumerate(row.spans):
            if not count:
                continue
            last = document == len(row.spans) - 1
            said = f"row {number}: {count:,} of {row.total:,} places " + (
                "are padding" if last else f"of document {document + 1}"
            )
            parts.append(
                tag(
                    "rect", tag("title", said), x=f"{_NAME + begin * scale:.3f}%", y=y, width=f"{count * scale:.3f}%",
                    height=_BAR, class_="pad" if last else f"seg seg-{document % _COLOURS}",
                )
            )  # fmt: skip
            begin += count
    height = len(rows) * (_BAR + _GAP)
    label = f"how {number_of(len(rows), 'row')} are filled"
    return tag("svg", parts, class_="chart packs", role="img", aria_label=label, width="100%", height=height)
