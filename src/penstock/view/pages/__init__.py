"""The pages of the viewer, one file each. This is how a page is added:

1. `view/pages/<name>.py` with a function `page(session, query) -> Html`: the content of `<main>`, built with
   `markup.html.tag` and `markup.charts` (every text is escaped; no `style=` attributes, no scripts: the content
   security policy refuses them). The server adds the frame, the menu and the headers. `query` is a `Query`: the decoded
   parameters of the address, with `number`, `word` and `link` to read them and to make links to the same page.
2. One line in `PAGES` below. `title=""` keeps it out of the menu: pictures, sounds and JSON are such entries, whose
   function returns `Content(bytes, "image/png")` instead of Html; the server answers ranges of it. `shown` names a
   function `(session) -> bool` beside `page` when the page makes no sense for every target.
3. What figures a page shows is computed in a file of `view/` that knows nothing of HTML (dataclasses), so that the
   report and notebooks use it too. Styles go into `markup/style.py`, behaviour into `view/static/view.js`: a form with
   `data-live` reloads `<main>` when it changes, an element with `id` and `data-refresh="2"` is renewed every 2 s.
4. Tests in `tests/view/`: `viewer` (a running server, by `httpx`-like `get`) and `browser` (Chromium) are fixtures.

Only GET: a page changes nothing. Raise `PenstockError` for what the user can fix; the frame shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlencode

from penstock.markup.html import Html
from penstock.view.session import Session


class Query(dict[str, str]):
    """The parameters of an address: text from outside, whatever the page that links here wrote."""

    def number(self, name: str, default: int, low: int = 0, high: int = 2**63 - 1) -> int:
        """A parameter as an integer within [low, high]; the default if it is missing or not one.

        >>> Query(step="12").number("step", 0, high=9), Query(step="x").number("step", 3)
        (9, 3)
        """
        text = self.get(name, "").strip().replace(",", "").replace("_", "")
        if not text.removeprefix("-").isdecimal() or len(text) > 20:
            return default
        return min(high, max(low, int(text)))

    def word(self, name: str, allowed: Mapping[str, Any] | tuple[str, ...] | list[str], default: str) -> str:
        """A parameter that is one of `allowed`, or else the default."""
        return self[name] if self.get(name) in allowed else default

    def link(self, **changes: Any) -> str:
        """The address of the same page with other parameters; None removes one.

        >>> Query(page="2", sort="length").link(page=3, sort=None)
        '?page=3'
        """
        merged = {**self, **changes}
        return "?" + urlencode([(name, str(value)) for name, value in merged.items() if value is not None])


@dataclass(frozen=True)
class Content:
    """An answer that is not a page: a picture, a sound, JSON."""

    data: bytes
    media_type: str  # one of `server.MEDIA_TYPES`


Answer = Html | Content


@dataclass(frozen=True)
class Page:
    """An entry of the registry: the path below "/", the title in the menu, and "module:function" in `view.pages`."""

    name: str
    title: str
    function: str
    shown: str = ""  # "module:function" of (session) -> bool; empty: for every target but runs

    def answer(self, session: Session, query: Query) -> Answer:
        found: Answer = _function(self.function)(session, query)
        return found

    def is_shown(self, session: Session) -> bool:
        return bool(self.title) and (bool(_function(self.shown)(session)) if self.shown else session.has_data)


PAGES = (
    Page("data", "Data", "data:page"),
    Page("batch", "Batches", "batch:page", "batch:shown"),
    Page("batch-file", "", "batch:file"),
    Page("plan", "Plan", "plan:page", "plan:shown"),
    Page("run", "Run", "run:page", "run:shown"),
    Page("data/image", "", "data_media:image"),
    Page("data/sound", "", "data_media:sound"),
    Page("data/wave", "", "data_media:wave"),
    Page("data/mel", "", "data_media:mel"),
)  # fmt: skip


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"penstock.view.pages.{module}"), function)
    return found
