"""`viewer(target, **choices)`: a running viewer and a plain HTTP client that entered with its token."""

from __future__ import annotations

import http.client
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.view.server import Viewer
from penstock.view.session import Choices, open_beside, open_session

ROOT = Path(__file__).parents[2]


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class Client:
    viewer: Viewer
    cookie: str = ""

    def request(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """One request with exactly these headers; `Host` and `Cookie` are added unless they are passed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.viewer.port, timeout=60)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"Host": f"127.0.0.1:{self.viewer.port}", "Cookie": self.cookie} | given
        for name, value in sent.items():
            if value:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        found = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        connection.close()
        return found

    def get(self, path: str, **headers: str) -> Answer:
        return self.request(path, **headers)

    def enter(self) -> Answer:
        """Opens the address with the token and keeps the cookie."""
        split = urlsplit(self.viewer.url)
        answer = self.request(f"{split.path}?{split.query}", Cookie="")
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer


@pytest.fixture
def viewer() -> Iterator[Callable[..., Client]]:
    with ExitStack() as stack:

        def start(target: Any, beside: Any = None, **options: Any) -> Client:
            choices = Choices(**options)
            session = open_session(target, choices) if beside is None else open_beside(target, beside, choices)
            client = Client(stack.enter_context(Viewer(session)))
            client.enter()
            return client

        yield start


AXE = next(
    (
        path
        for path in (Path(os.environ.get("AXE_CORE", "")), ROOT / ".venv/axe/node_modules/axe-core/axe.min.js")
        if path.is_file()
    ),
    None,
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
VIOLATIONS = """async (rules) => (await axe.run(document, rules)).violations.map(
    one => [one.id, ...one.nodes.slice(0, 3).map(node => node.html.slice(0, 200))])"""
XSS_TEXT = "<img src=x onerror='window.alerted=1'><script>window.alerted=1</script>"


def violations(page: Any, *, only: tuple[str, ...] = ()) -> list[list[str]]:
    """What axe-core finds on a page that was opened with `bypass_csp`; nothing where it is not installed."""
    if AXE is None:
        return []
    page.add_script_tag(path=str(AXE))
    found: list[list[str]] = page.evaluate(VIOLATIONS, {"runOnly": list(only)} if only else {})
    return found


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser for all tests of a worker; without one the tests are skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser tests")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no browser on this machine (apt-get install chromium): the viewer is not tested in one")
    with playwright.sync_playwright() as running:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--autoplay-policy=no-user-gesture-required"]
        browser = running.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens an address in a new window and fails at the end if the page logged an error or asked another host."""
    contexts, wrong = [], []

    def page(url: str, *, width: int = 1000, color_scheme: str = "light", bypass_csp: bool = False) -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=color_scheme, bypass_csp=bypass_csp
        )
        contexts.append(context)
        opened = context.new_page()
        opened.set_default_timeout(30_000)
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        opened.on("request", lambda request: wrong.append(request.url) if "//127.0.0.1:" not in request.url else None)
        opened.goto(url)
        opened.wait_for_selector("main h1")
        return opened

    yield page
    for context in contexts:
        context.close()
    assert wrong == []
