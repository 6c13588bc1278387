"""One sample as HTML: tokens with boundaries, fields of a record, an image, a recording. Long values are cut."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import numpy as np
import orjson

from penstock.markup.html import Html, join, tag, text
from penstock.markup.visible import measure, number_of
from penstock.view.media import TEXT_BYTES, as_text, media_kind
from penstock.view.samples import CHARACTERS, RecordSamples, Sample, Samples, TokenSamples

_FIELDS = 40


def excerpt(value: str, most: int) -> str:
    """The beginning of a text, and how much of it that is.

    >>> excerpt("abcdef", 3)
    'abc… (3 of 6 characters)'
    """
    return value if len(value) <= most else f"{value[:most]}… ({most:,} of {len(value):,} characters)"


def card(samples: Samples, one: Sample, wanted: str = "") -> Html:
    """A sample of the Data page; `wanted` is marked."""
    if samples.kind == "images":
        return _image(one)
    size = measure(one.length, samples.unit) if not one.error else "bad"
    head = tag("header", tag("span", marked(one.where, wanted)), tag("span", size))
    if one.error:
        why = tag("pre", excerpt(one.error, CHARACTERS), class_="bad", keep="\n", tabindex=0)
        body = join([why, _fields(samples, one, wanted) if samples.kind == "records" and one.values else None])
    elif isinstance(samples, TokenSamples):
        body = _tokens(samples, one, wanted)
    elif samples.kind == "audio":
        body = recording(one.number, one.where, one.values)
    else:
        body = _fields(samples, one, wanted)
    return tag("article", head, body, id=f"sample-{one.number}")


def _image(one: Sample) -> Html:
    shape = f"{one.values.get('width', '?')} × {one.values.get('height', '?')}"
    said = one.brief or one.error
    caption = [
        tag("span", _middle_cut(one.where), title=one.where), tag("br"),
        shape if not one.error else tag("span", excerpt(said, 160), class_="bad"),
    ]  # fmt: skip
    if "class" in one.values:
        caption += [tag("br"), tag("b", one.values["class"])]
    picture = None
    if not one.error:
        large = f"/data/image?n={one.number}&side=1200"
        img = tag("img", src=f"/data/image?n={one.number}", alt=one.where, loading="lazy", width=240, height=240)
        picture = tag("a", img, href=large)
    else:
        picture = tag("div", "cannot be read", class_="no-picture")
    return tag("figure", picture, tag("figcaption", caption))


def _middle_cut(name: str) -> str:
    """A long name without its middle: class and number are at its ends."""
    return name if len(name) <= 60 else f"{name[:30]}…{name[-30:]}"


def recording(number: int, name: str, values: dict[str, Any], field: str = "") -> Html:
    """A player, the waveform and the mel spectrogram of a recording."""
    query = urlencode({"n": number} | ({"f": field} if field else {}))
    shown = values | ({"sample rate": f"{values['sample rate']:,} Hz"} if "sample rate" in values else {})
    facts = ", ".join(f"{key} {value}" for key, value in shown.items())
    return tag(
        "div",
        tag("img", src=f"/data/wave?{query}", alt=f"waveform of {name}", class_="picture", loading="lazy"),
        tag("img", src=f"/data/mel?{query}", alt=f"mel spectrogram of {name}", class_="picture", loading="lazy"),
        tag("audio", controls=True, preload="none", src=f"/data/sound?{query}", aria_label=f"play {name}"),
        tag("p", facts, class_="note") if facts else None,
    )


def tokens(pieces: list[tuple[int, str]], label: str) -> Html:
    """Tokens with boundaries; a click, or arrow keys, show a token's id in the line below."""
    spans = [
        tag("span", piece.replace("\n", "↵\n") or "·", class_="tok", title=f"token {at}: id {number}, {piece!r}",
            keep="\n")
        for at, (number, piece) in enumerate(pieces)
    ]  # fmt: skip
    box = tag("div", spans, class_="tokens pre", tabindex=0, role="group", aria_label=label)
    return tag("div", box, tag("output", "", class_="token note"))


def _tokens(samples: TokenSamples, one: Sample, wanted: str) -> Html:
    cut = one.length > len(one.ids)
    left = f"{len(one.ids):,} of {one.length:,.0f} tokens are shown"
    note = tag("p", left, class_="cut-here") if cut else None
    cut_up = samples.tokens(one)
    if cut_up is None:
        ids = tag("pre", " ".join(map(str, one.ids)), tabindex=0)
        return tag("div", ids, note, tag("p", "--tokenizer shows the text", class_="note"))
    plain = "".join(piece for _, piece in cut_up)
    found = tag("pre", marked(plain, wanted), tabindex=0) if wanted and wanted.casefold() in plain.casefold() else None
    return tag("div", found, tokens(cut_up, f"tokens of {one.where}"), note)


def _fields(samples: Samples, one: Sample, wanted: str) -> Html:
    rows = []
    for name, value in list(one.values.items())[:_FIELDS]:
        shown = _value(samples, one, name, value, wanted)
        rows.append(tag("tr", tag("th", excerpt(str(name), 80), scope="row"), tag("td", shown)))
    left = len(one.values) - _FIELDS
    note = tag("p", number_of(left, "more field"), class_="cut-here") if left > 0 else None
    return tag("div", tag("table", rows), note, class_="wide", tabindex=0, role="group", aria_label=one.where)


def _value(samples: Samples, one: Sample, name: str, value: Any, wanted: str) -> Html:
    kind = media_kind(value)
    if kind == "image":
        source = "/data/image?" + urlencode({"n": one.number, "f": name})
        return tag("img", src=source, alt=f"{name} of {one.where}", loading="lazy", class_="thumb")
    if kind == "audio":
        return recording(one.number, f"{name} of {one.where}", {}, name)
    if turns := _turns(value):
        return tag("div", [_turn(role, said, wanted) for role, said in turns], class_="value", tabindex=0,
                   role="group", aria_label=f"{name} of {one.where}")  # fmt: skip
    shown = plain_text(value)
    if wanted and (at := shown.casefold().find(wanted.casefold())) > CHARACTERS - 200:
        shown = f"… (from character {at - 200:,}) {shown[at - 200 :]}"
    cut = tag("span", f" … {CHARACTERS:,} of {len(shown):,} characters are shown", class_="cut-here")
    left = cut if len(shown) > CHARACTERS else None
    if isinstance(samples, RecordSamples) and isinstance(value, str):
        cut_up = samples.tokens(name, shown[:CHARACTERS])
        if cut_up is not None:
            found = wanted and wanted.casefold() in shown.casefold()
            plain = tag("div", marked(shown[:CHARACTERS], wanted), class_="value") if found else None
            count = tag("span", f"{len(cut_up):,} token{'' if len(cut_up) == 1 else 's'}", class_="note")
            return tag("div", plain, tokens(cut_up, f"tokens of {name} of {one.where}"), left or count)
    return tag("div", marked(shown[:CHARACTERS], wanted), left, class_="value")


def _turns(value: Any) -> list[tuple[str, str]]:
    """Role and text of each message, if the value is a chat and nothing but that."""
    found = []
    for one in value if isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1 else ():
        if not isinstance(one, dict):
            return []
        for role, said in (("role", "content"), ("from", "value")):
            if set(one) == {role, said} and all(isinstance(part, str) for part in one.values()):
                found.append((one[role], one[said]))
                break
        else:
            return []
    return found


def _turn(role: str, said: str, wanted: str) -> Html:
    cut = tag("span", f" … {CHARACTERS:,} of {len(said):,} characters are shown", class_="cut-here")
    return tag("p", tag("b", excerpt(role, 80), class_="role"), marked(said[:CHARACTERS], wanted),
               cut if len(said) > CHARACTERS else None, class_="turn")  # fmt: skip


def plain_text(value: Any) -> str:
    """A value of a record as text: strings as they are, arrays by shape and first items, others as JSON.

    >>> plain_text(float("nan")), plain_text(None), plain_text(b"caf\\xc3\\xa9"), plain_text(b"\\xff\\0")
    ('nan', 'null', 'café', '2 bytes, not text: ff 00')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float | np.floating) and not np.isfinite(value):
        return str(value)  # JSON would say null
    if isinstance(value, bytes):
        if (decoded := as_text(value)) is not None:
            return decoded
        more = f", not text: {value[:24].hex(' ')}{' …' if len(value) > 24 else ''}" if len(value) <= TEXT_BYTES else ""
        return f"{len(value):,} bytes{more}"
    if isinstance(value, np.ndarray) and value.dtype != object:
        if value.ndim == 0:
            return str(value.item())
        more = " …" if value.size > 64 else ""
        return f"{value.dtype} {list(value.shape)}: {' '.join(map(str, value.ravel()[:64].tolist()))}{more}"
    try:
        options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
        return orjson.dumps(value, option=options, default=str).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)[: 4 * CHARACTERS]


def marked(value: str, wanted: str) -> Html:
    """A text in which `wanted` is marked, in any case."""
    if not wanted:
        return text(value, keep="\n")
    folded, key = value.casefold(), wanted.casefold()
    if len(folded) != len(value) or not key:  # folding changed positions: nothing is marked rather than the wrong part
        return text(value, keep="\n")
    parts: list[Html] = []
    at = 0
    while (found := folded.find(key, at)) >= 0 and len(parts) < 200:
        parts += [text(value[at:found], keep="\n"), tag("mark", value[found : found + len(key)], keep="\n")]
        at = found + len(key)
    return join([*parts, text(value[at:], keep="\n")])
