"""The batch explorer: the batch of any step, past or future, and where each of its rows comes from.

`?step=` is the step, `?other=` a second one beside it, `?seed=` the seed of the second one. In a session with a second
target (`session.beside`) the second batch is that one's, of the same step if no other is asked for. Batches are
computed by `loader.look`, which moves nothing; the last few are kept for their pictures and sounds. Where a batch
cannot be computed, its error is in its place, and the form leads to other steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from penstock.core.errors import FileMissing, PenstockError
from penstock.engine.loader import Loader
from penstock.markup.html import Html, join, section, tag
from penstock.markup.visible import number_of
from penstock.order.shuffle import LARGEST
from penstock.view.batch_html import File, batch_html, files_of
from penstock.view.batches import MOST_ROWS, Shown, batch_of, steps_of
from penstock.view.error_html import error_table
from penstock.view.pages import Content, Query
from penstock.view.run_of import loader_for
from penstock.view.session import Session

_KEPT = 4  # batches kept for their files
_TOKEN_ROWS = 16  # rows of tokens on a page
_ENDLESS = 1000  # steps of the slider of an endless run


@dataclass(frozen=True)
class Asked:
    """A batch that the address asks for."""

    step: int
    seed: int | None
    first: int


def shown(session: Session) -> bool:
    """Whether there is data, and not only the record of a run."""
    return session.has_data


def page(session: Session, query: Query) -> Html:
    """The batch of a step, or two batches side by side."""
    loader, notes = _loader(session, None)
    last = LARGEST // max(1, _rows(loader)) - 1
    step = query.number("step", 0, 0, last)
    first = query.number("first", 0)
    asked = [Asked(step, None, first)]
    seed = query.number("seed", -1, -1)
    second = session.beside or session
    if session.beside is not None or query.get("other", "").strip() or seed >= 0:  # a form sends empty fields too
        high = LARGEST // max(1, _rows(_loader(second, None)[0])) - 1
        asked.append(Asked(query.number("other", min(step, high), 0, high), None if seed < 0 else seed, first))
    batches = [_found(of, one) for of, one in zip((session, second), asked, strict=False)]
    said = [*notes, *_clamped(query, "step", step)]
    if len(asked) > 1:
        said += _clamped(query, "other", asked[1].step)
    opened = zip((session, second), asked, batches, "ab", strict=False)
    sides = [_side(of, one, batch, query, key, session.beside is not None) for of, one, batch, key in opened]
    return join(
        [
            tag("h1", "Batches"),
            tag("p", session.title + (f", beside {second.title}" if session.beside else ""), class_="lead"),
            tag("section", _form(query, _steps(batches[0], session, step), asked),
                [tag("p", note, class_="note") for note in said]),
            tag("div", sides, class_="sides" if len(sides) > 1 else None),
        ]
    )  # fmt: skip


def file(session: Session, query: Query) -> Content:
    """A picture or sound of a batch."""
    seed = query.number("seed", -1, -1)
    asked = Asked(query.number("step", 0), None if seed < 0 else seed, query.number("first", 0))
    wanted = (query.get("kind"), query.number("row", 0), query.get("column"))
    opened = session.beside if session.beside is not None and query.get("side") == "b" else session
    for row in _shown(opened, asked).rows:
        for found in files_of(row):
            if (found.kind, found.row, found.column) == wanted:
                return Content(found.make(), found.media_type)
    raise FileMissing("a picture or sound of this batch", got=f"{wanted[0]} of column {wanted[2]!r}, row {wanted[1]}")


def _found(session: Session, asked: Asked) -> Shown | PenstockError:
    try:
        return _shown(session, asked)
    except PenstockError as error:
        return error


def _steps(found: Shown | PenstockError, session: Session, step: int) -> Shown:
    """What the form needs to know of a batch, also of one that cannot be shown."""
    if isinstance(found, Shown):
        return found
    per = steps_of(_loader(session, None)[0])
    epoch = step // per if per else 0
    return Shown(0, [], [], step, epoch, per, None if not per else (epoch + 1) * per)


def _side(
    session: Session, asked: Asked, shown: Shown | PenstockError, query: Query, key: str, named: bool
) -> Html:  # fmt: skip
    def address(found: File) -> str:
        what = {"step": asked.step, "first": asked.first, "kind": found.kind, "row": found.row, "column": found.column}
        what |= {"side": key} if named else {}
        return "/batch-file?" + urlencode(what if asked.seed is None else what | {"seed": asked.seed})

    heading = (
        (f"{session.title}: " if named else "")
        + f"step {asked.step:,}"
        + ("" if asked.seed is None else f", seed {asked.seed}")
    )
    if isinstance(shown, PenstockError):
        return section(heading, tag("p", "This batch cannot be shown.", class_="bad"),
                   error_table(shown))  # fmt: skip
    notes = [] if asked.seed is None and not (named and key == "b") else _loader(session, asked.seed)[1]
    if replaced := sum(bool(row.why and row.why.get("refused_before")) for row in shown.rows):
        notes = [
            *notes,
            f"{number_of(replaced, 'row')} in the place of records that were rejected or are bad",
        ]
    body = batch_html(replace(shown, notes=[*shown.notes, *notes]), address, key=key, heading=heading)
    return tag("section", body, _pager(query, shown) if key == "a" else None)


def _shown(session: Session, asked: Asked) -> Shown:
    kept: dict[Asked, Shown] = session.keep("batches shown", dict)
    if asked not in kept:
        loader, _ = _loader(session, asked.seed)
        made = batch_of(loader, asked.step, first=asked.first, rows=MOST_ROWS, tokenizer=session.choices.tokenizer)
        if any(row.tokens for row in made.rows):
            made = replace(made, rows=made.rows[:_TOKEN_ROWS])
        kept[asked] = made
        while len(kept) > _KEPT:
            kept.pop(next(iter(kept)))
    return kept[asked]


def _loader(session: Session, seed: int | None) -> tuple[Loader[Any], list[str]]:
    kept: dict[int | None, tuple[Loader[Any], list[str]]] = session.keep("batch loaders", dict)
    if seed not in kept:
        while len(kept) > _KEPT:
            kept.pop(next(one for one in kept if one is not None))
        kept[seed] = loader_for(session, seed)
    return kept[seed]


def _rows(loader: Loader[Any]) -> int:
    batch = loader.definition.batch
    return 1 if batch is None else batch.rows(1)


def _clamped(query: Query, name: str, used: int) -> list[str]:
    """What to say where the address asks for a step that there is not."""
    text = query.get(name, "").strip()
    if not text or text.replace(",", "").replace("_", "") == str(used):
        return []
    return [f"{text[:40]!r} is not a step of this run, or past its end: step {used:,} is shown"]


def _form(query: Query, shown: Shown, asked: list[Asked]) -> Html:
    step = shown.step or 0
    low, high = 0, max(_ENDLESS, 2 * step)
    if shown.epoch_end is not None:
        high = shown.epoch_end - 1
        low = max(0, shown.epoch_end - (shown.steps_per_epoch or 1))
    other, seed = (query.get("other", "")[:20], query.get("seed", "")[:20]) if len(asked) > 1 else ("", "")
    of_epoch = f"step in epoch {shown.epoch:,}: {low:,} to {high:,}" if shown.epoch_end is not None else "step"
    fields = [
        tag(
            "div",
            tag("label", of_epoch, for_="slider"),
            tag(
                "input", type="range", id="slider", min=low, max=high, step=1, value=step, data_sets="step",
                aria_valuetext=f"step {step}",
            ),
            class_="steps",
        ),
        _number("step", "any step", step),
        _number("other", "beside it: step", other),
        _number("seed", "with seed", seed),
        tag("button", "Show"),
    ]  # fmt: skip
    per = shown.steps_per_epoch
    moves = [("‹ previous", step - 1), ("next ›", step + 1)]
    moves += [("« epoch before", step - per), ("epoch after »", step + per)] if per else []
    links = [tag("a", name, href=query.link(step=to, first=None)) for name, to in moves if to >= 0]
    return join(
        [
            tag("form", fields, class_="bar-form", action="/batch", method="get", data_live=True),
            tag("div", links, class_="pager"),
        ]
    )


def _number(name: str, label: str, value: Any) -> Html:
    box = tag("input", type="text", inputmode="numeric", id=name, name=name, value=value, size=10, autocomplete="off")
    return tag("div", tag("label", label, for_=name), box)


def _pager(query: Query, shown: Shown) -> Html | None:
    if not shown.rows or len(shown.rows) == shown.total:
        return None
    first, count = shown.rows[0].number, len(shown.rows)
    links = []
    if first:
        links.append(tag("a", "‹ rows before", href=query.link(first=max(0, first - count))))
    if first + count < shown.total:
        links.append(tag("a", "rows after ›", href=query.link(first=first + count)))
    return tag("div", links, class_="pager")
