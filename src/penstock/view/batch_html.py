"""A batch as HTML: for the batch explorer, reports and notebooks. Works without scripts: `why` is a `details` element.

Pictures and sounds are files inside the page, or addresses of the viewer (`Address`). Classes are those of
`markup.style`; every text is escaped by `markup.html`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.markup.html import Html, join, tag
from penstock.markup.media import data_url, png, wav
from penstock.markup.visible import number_of
from penstock.view.batch_media import Picture, Sound
from penstock.view.batch_tokens import TokenRow
from penstock.view.batches import Column, Row, Shown
from penstock.view.token_html import pack_picture, tokens_html
from penstock.view.why_html import why_html

ASSUMED_RATE = 16000
_POINTS = 240  # of a waveform


@dataclass(frozen=True)
class File:
    """A picture or sound of a row, made when it is needed."""

    kind: Literal["before", "after", "sound"]
    row: int
    column: str
    media_type: str
    make: Callable[[], bytes]


Address = Callable[[File], str]
"""Where a page finds a file."""
Where = dict[tuple[str, str], str]  # address by kind and column


def inside(file: File) -> str:
    """An address that holds the file itself."""
    return data_url(file.make(), file.media_type)


def files_of(row: Row) -> list[File]:
    """The pictures and sounds of a row."""
    found = []
    for p in row.pictures:
        found.append(File("after", row.number, p.name, "image/png", partial(png, p.after)))
        if p.before is not None:
            found.append(File("before", row.number, p.name, "image/png", partial(png, p.before)))
    for s in row.sounds:
        found.append(File("sound", row.number, s.name, "audio/wav", partial(wav, s.samples, s.rate or ASSUMED_RATE)))
    return found


def _addresses(row: Row, address: Address) -> Where:
    return {(file.kind, file.column): address(file) for file in files_of(row)}


def batch_html(shown: Shown, address: Address = inside, *, key: str = "a", heading: str | None = None) -> Html:
    """The batch: facts, packing, rows. `key` keeps the ids of two batches on one page apart."""
    parts = [
        tag("p", _lead(shown), class_="note"),
        [tag("p", note, class_="note") for note in shown.notes],
        _packing(shown),
        _key(shown),
        _sheet(shown, address, key) if _only_pictures(shown) else [_row(row, address, key) for row in shown.rows],
        _columns(shown.columns),
    ]
    if not shown.rows:
        parts.insert(1, tag("p", "no rows", class_="note"))
    return tag("div", tag("h2", heading) if heading else None, parts, class_="batch")


def _lead(shown: Shown) -> str:
    said = []
    if shown.step is not None:
        said.append(f"step {shown.step:,} of epoch {shown.epoch:,}")
    last = shown.rows[-1].number if shown.rows else 0
    first = shown.rows[0].number if shown.rows else 0
    count = f"{shown.total:,} row{'' if shown.total == 1 else 's'}"
    said.append(count if len(shown.rows) == shown.total else f"rows {first:,} to {last:,} of {count}")
    rows = [row for one in shown.rows for row in one.tokens]
    if rows:
        places, filled = sum(row.total for row in rows), sum(row.filled for row in rows)
        said.append(f"{number_of(filled, 'token')}" + (f" in {places:,} places" if filled < places else ""))
        counted = [row.n_trained for row in rows if row.n_trained is not None]
        if counted and filled:
            said.append(f"{sum(counted) / filled:.1%} of them in the loss")
        said.append(
            f"shown with {_short_name(shown.tokenizer)}"
            if shown.tokenizer
            else "shown as ids: name a tokenizer for text"
        )
    return ", ".join(said)


def _short_name(path: str) -> str:
    """The last two parts of a path."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])


def _packing(shown: Shown) -> Html | None:
    rows = [(one.number, row) for one in shown.rows for row in one.tokens[:1]]
    if not any(len(row.spans) > 2 or row.spans[-1] for _, row in rows):
        return None
    fill = f"{shown.fill:.1%}" if shown.fill is not None else ""
    return tag(
        "figure",
        tag("figcaption", f"places of each row, by document; {fill} filled", class_="note"),
        pack_picture(rows),
        class_="packing",
    )


def _key(shown: Shown) -> Html | None:
    """What the colours of tokens mean, where they mean something."""
    rows = [row for one in shown.rows for row in one.tokens]
    if not any(row.trained is not None for row in rows):
        return None
    packed = any(row.segments is not None for row in rows)
    trained = tag(
        "span", tag("span", "abc", class_="key-on"), " in the loss", "; one colour per document" if packed else ""
    )
    other = tag("span", tag("span", "abc", class_="key-off"), " read, not in the loss")
    return tag("div", trained, other, class_="keys")


def _only_pictures(shown: Shown) -> bool:
    return bool(shown.rows) and all(row.pictures and not row.tokens and not row.sounds for row in shown.rows)


def _sheet(shown: Shown, address: Address, key: str) -> Html:
    return tag("div", [_card(row, address, key) for row in shown.rows], class_="sheet batch-sheet")


def _card(row: Row, address: Address, key: str) -> Html:
    where = _addresses(row, address)
    said = [f"row {row.number:,}", *(f"{value.name} {value.text}" for value in row.values[:2])]
    return tag(
        "figure",
        [_picture(picture, row, where) for picture in row.pictures],
        tag("figcaption", join(said, " · ")),
        _why(row, key),
        id=f"{key}-row-{row.number}",
    )


def _row(row: Row, address: Address, key: str) -> Html:
    where = _addresses(row, address)
    parts = [tokens_html(one, f"{key}-{row.number}") for one in row.tokens]
    parts += [_picture(picture, row, where) for picture in row.pictures]
    parts += [_sound(sound, row, where) for sound in row.sounds]
    if row.values:
        cells = [tag("tr", tag("th", v.name, scope="row"), tag("td", v.text, keep="\n")) for v in row.values]
        parts.append(tag("table", cells, class_="values"))
    head = tag("header", tag("span", f"row {row.number:,}"), tag("span", _size(row)))
    return tag("article", head, parts, _why(row, key), id=f"{key}-row-{row.number}")


def _size(row: Row) -> str:
    said = []
    for one in row.tokens:
        said.append(_filled(one))
    said += [_seconds(sound) for sound in row.sounds]
    return ", ".join(said)


def _filled(row: TokenRow) -> str:
    said = f"{number_of(row.filled, 'token')}" + (f" of {row.total:,}" if row.filled < row.total else "")
    if row.n_trained is not None and row.filled:
        said += f", {row.n_trained / row.filled:.1%} in the loss"
    return said


def _seconds(sound: Sound) -> str:
    return f"{sound.total / sound.rate:.2f} s at {sound.rate:,} Hz" if sound.rate else number_of(sound.total, "sample")


def _shot(src: str, alt: str, title: str, pixels: NDArray[Any], kind: str, box: Html | None = None) -> Html:
    height, width = pixels.shape[:2]
    img = tag("img", src=src, alt=alt, title=title, loading="lazy", width=width, height=height)
    return tag("div", img, box, class_=kind)


def _picture(picture: Picture, row: Row, where: Where) -> Html:
    height, width = picture.after.shape[:2]
    caption = f"delivered, {width} × {height} pixels" + (f"; {picture.note}" if picture.note else "")
    after = _shot(
        where["after", picture.name], f"{picture.name} of row {row.number}, {caption}", caption, picture.after, "shot"
    )
    if picture.before is None:
        return tag("div", after, class_="pair")
    box = None
    if picture.crop is not None:
        y, x, h, w = (f"{100 * part:.3f}" for part in picture.crop)
        rect = tag("rect", x=x, y=y, width=w, height=h, class_="crop")
        box = tag("svg", rect, viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true")
    said = "the file, with its crop" if box else "the file"
    said += ", then mirrored" if picture.flip else ""
    before = _shot(
        where["before", picture.name], f"the file of row {row.number}", said, picture.before, "shot before", box
    )
    return tag("div", before, after, class_="pair")


def _sound(sound: Sound, row: Row, where: Where) -> Html:
    rate = sound.rate or ASSUMED_RATE
    note = None
    if len(sound.samples) < sound.total:
        note = f"the first {len(sound.samples) / rate:.0f} s"
    elif sound.rate is None:
        note = f"played at {ASSUMED_RATE:,} Hz: nothing says the rate"
    label = f"{sound.name} of row {row.number}"
    player = tag("audio", controls=True, preload="none", src=where["sound", sound.name], aria_label=label)
    return tag("div", wave(sound), player, tag("span", note, class_="cut-here") if note else None)


def wave(sound: Sound) -> Html:
    """The waveform: the lowest and the highest sample of each part."""
    samples = np.nan_to_num(np.asarray(sound.samples, np.float32))
    samples = samples.mean(axis=1) if samples.ndim == 2 else samples
    edges = np.linspace(0, len(samples), min(_POINTS, max(1, len(samples))) + 1).astype(int)
    parts = [samples[a : max(b, a + 1)] for a, b in pairwise(edges.tolist())] if len(samples) else []
    top = max(1e-9, float(np.abs(samples).max(initial=0.0)))
    upper = [f"{i},{50 - 48 * float(p.max()) / top:.1f}" for i, p in enumerate(parts)]
    lower = [f"{i},{50 - 48 * float(p.min()) / top + 0.5:.1f}" for i, p in enumerate(parts)]
    shape = tag("polygon", points=" ".join([*upper, *reversed(lower)]), class_="wave")
    return tag(
        "svg", shape, viewBox=f"0 0 {max(1, len(parts))} 100", preserveAspectRatio="none", class_="picture",
        role="img", aria_label=f"waveform, {_seconds(sound)}",
    )  # fmt: skip


def _why(row: Row, key: str) -> Html | None:
    return None if row.why is None else why_html(row.why, f"{key}-why-{row.number}")


def _columns(columns: list[Column]) -> Html:
    head = tag("thead", tag("tr", [tag("th", name, scope="col") for name in ("column", "dtype", "shape", "")]))
    rows = [
        tag(
            "tr", tag("th", c.name, scope="row"), tag("td", c.dtype), tag("td", c.shape),
            tag("td", f"of the batch: {c.text}" if c.of_batch else ""),
        )
        for c in columns
    ]  # fmt: skip
    table = tag("div", tag("table", head, tag("tbody", rows)), class_="wide")
    return tag("details", tag("summary", f"{number_of(len(columns), 'column')}"), table)
