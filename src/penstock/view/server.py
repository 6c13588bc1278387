"""The viewer's server: a Starlette app on a loopback port, behind `guard.Guard`, in a thread of its own."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from penstock._version import __version__
from penstock.core.arguments import explained_call
from penstock.core.errors import PenstockError, UsageError
from penstock.core.optional import need
from penstock.markup.html import Html, join, tag
from penstock.markup.style import STYLE
from penstock.view.error_html import error_table
from penstock.view.guard import Guard
from penstock.view.pages import PAGES, Content, Page, Query
from penstock.view.session import Choices, Session, open_beside, open_session

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MEDIA_TYPES = ("image/png", "image/jpeg", "audio/wav", "application/json")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_PURPOSE = "for the viewer"


class Viewer:
    """A running viewer. `url` opens it; `close()` ends it, and so does leaving a `with` block or the process."""

    def __init__(self, session: Session, port: int = 0) -> None:
        uvicorn = need("uvicorn", extra="view", purpose=_PURPOSE)
        self.session = session
        self._socket = _bind(port)
        self.port: int = self._socket.getsockname()[1]
        self._guard = Guard(app(session), self.port)
        self.url = f"http://127.0.0.1:{self.port}/?token={self._guard.token}"
        config = uvicorn.Config(
            self._guard, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        run = self._server.run
        self._thread = threading.Thread(
            target=run, kwargs={"sockets": [self._socket]}, name="penstock view", daemon=True
        )
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.005)

    def wait(self) -> None:
        """Waits until the viewer is closed."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Ends the server and waits for its thread."""
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "open" if self._thread.is_alive() else "closed"
        return f"Viewer({self.session.title!r}, {state}, {self.url})"


@explained_call
def open_viewer(
    target: Any, *, port: int = 0, browser: bool = True, tokenizer: str | None = None, field: str | None = None,
    window: int = 1024, beside: Any = None,
) -> Viewer:  # fmt: skip
    """Opens the viewer for a path, a dataset's name, a pipeline or a loader, and returns it.

    It runs in a thread of this process, on a loopback port; `close()` ends it. The address holds a token: only who
    knows it can look. A loader is only looked at: its position does not move.

    Args:
        target: a token store, files, a folder of images or audio, tar shards, a dataset's name, a configuration file,
            a pipeline or a loader.
        port: the port to listen on; 0 takes a free one.
        browser: opens the system's browser too.
        tokenizer: shows texts of a token store: "bytes", the path of a tokenizer.json, a name.
        field: the field that holds the text.
        window: tokens of a window, for the cut line in the chart of lengths.
        beside: a second target: its batches and its plan are shown beside those of the first.

    >>> with open_viewer(ps.from_texts(["a", "b"]), browser=False) as viewer:
    ...     viewer.url.startswith("http://127.0.0.1:")
    True
    """
    choices = Choices(tokenizer=tokenizer, field=field, window=window)
    viewer = Viewer(open_session(target, choices) if beside is None else open_beside(target, beside, choices), port)
    if browser:
        import webbrowser

        webbrowser.open(viewer.url)
    return viewer


def app(session: Session) -> Any:
    """The Starlette app of a session, without the guard."""
    applications = need("starlette.applications", extra="view", purpose=_PURPOSE)
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import RedirectResponse, Response
    from starlette.routing import Route

    script = files("penstock.view").joinpath("static/view.js").read_bytes()
    fixed = {
        "/static/view.css": (STYLE.encode(), "text/css; charset=utf-8"),
        "/static/view.js": (script, "text/javascript; charset=utf-8"),
    }

    def endpoint(page: Page) -> Any:
        async def answer(request: Request) -> Response:
            return await run_in_threadpool(_respond, session, page, request)

        return answer

    async def static(request: Request) -> Response:
        data, kind = fixed[request.url.path]
        return Response(data, media_type=kind)

    async def home(_: Request) -> Response:
        return RedirectResponse(f"/{_menu(session)[0].name}", 303)

    async def missing(_: Request, __: Exception) -> Response:
        body = _frame(session, None, tag("h1", "There is no such page"))
        return Response(body, 404, media_type="text/html; charset=utf-8")

    async def no_icon(_: Request) -> Response:
        return Response(status_code=204)

    routes = [Route("/", home), Route("/favicon.ico", no_icon), *(Route(path, static) for path in fixed)]
    routes += [Route(f"/{page.name}", endpoint(page)) for page in PAGES]
    return applications.Starlette(routes=routes, exception_handlers={404: missing})


def _respond(session: Session, page: Page, request: Request) -> Response:
    from starlette.responses import Response

    status = 200
    try:
        with session.lock:
            found = page.answer(session, Query(request.query_params))
    except PenstockError as error:
        found, status = _error(error), 400
    except Exception as error:
        logging.getLogger("penstock.view").exception("the page %s failed", page.name)
        found, status = _failure(error), 500
    if isinstance(found, Content):
        return _content(found, request.headers.get("range"))
    return Response(_frame(session, page, found), status, media_type="text/html; charset=utf-8")


def _content(content: Content, wanted: str | None) -> Response:
    """The bytes, or the range of them that was asked for, as players do."""
    from starlette.responses import Response

    if content.media_type not in MEDIA_TYPES:
        raise UsageError(f"one of {', '.join(MEDIA_TYPES)}", got=content.media_type)
    size, headers = len(content.data), {"Accept-Ranges": "bytes"}
    match = _RANGE.fullmatch(wanted or "")
    if match is None or match.group() == "bytes=-":
        return Response(content.data, headers=headers, media_type=content.media_type)
    first, last = match.groups()
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        return Response(status_code=416, headers={"Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return Response(content.data[start:stop], 206, headers, content.media_type)


def _menu(session: Session) -> list[Page]:
    return [page for page in PAGES if page.is_shown(session)]


def _frame(session: Session, page: Page | None, content: Html) -> bytes:
    """The complete page: head, menu, content."""
    title = f"{page.title or page.name} · {session.title}" if page else session.title
    links = [
        tag("a", one.title, href=f"/{one.name}", aria_current="page" if one is page else None) for one in _menu(session)
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · Penstock"),
        tag("link", rel="stylesheet", href="/static/view.css"),
        tag("script", src="/static/view.js", defer=True),
    ]
    body = [
        tag("nav", tag("b", "Penstock"), links, aria_label="pages"),
        tag("main", content, id="main"),
        tag("footer", tag("p", f"Penstock {__version__}"), class_="foot"),
    ]
    html = tag("html", tag("head", head), tag("body", body), lang="en")
    return f"<!DOCTYPE html>\n{html}\n".encode("utf-8", "backslashreplace")


def _error(error: PenstockError) -> Html:
    return join([tag("h1", "This cannot be shown"), tag("section", error_table(error))])


def _failure(error: Exception) -> Html:
    message = tag("p", f"{type(error).__name__}: {str(error)[:500]}", class_="bad")
    note = tag("p", "The terminal shows where. This is a defect of the viewer: please report it.", class_="note")
    return join([tag("h1", "The page failed"), tag("section", message, note)])


def _bind(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
    except OSError as error:
        found.close()
        raise UsageError(
            "a free port", got=f"{port}: {error.strerror}", where="--port", fix="leave it out: a free one is taken"
        ) from error
    return found
