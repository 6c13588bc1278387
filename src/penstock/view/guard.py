"""Who may talk to the viewer: only pages of its own, in a browser that was opened with the token.

Checked for every request, before anything else, in this order:

| check | against |
|---|---|
| none of the headers below is sent twice | two readings of one request |
| `Host` is a loopback name with our port | DNS rebinding: a site whose name resolves to 127.0.0.1 |
| `Origin`, if sent, is ours | other sites |
| `Sec-Fetch-Site` is ours, except for opening the page | other sites, and other ports of this machine |
| the method is GET or HEAD | anything that changes something |
| the cookie, or the token in the address | other users of this machine |

The token arrives in the address once; the answer sets a cookie (HttpOnly, SameSite=Strict) and goes on to the address
without it. Nothing is logged. Every answer carries `HEADERS`.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from penstock.markup.html import tag

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
_CHECKED = {"host", "origin", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest"}


class Guard:
    """Wraps the app: refuses what fails a check, and adds the headers to every answer."""

    def __init__(self, app: App, port: int, token: str | None = None) -> None:
        self.app, self.port = app, port
        self.token = token or secrets.token_urlsafe(32)
        self.secret = secrets.token_urlsafe(32)  # the cookie's value: the address in a history is not the cookie
        self.cookie = f"penstock-{port}"  # cookies are shared by all ports of a host
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        sent = [name.decode("latin-1").lower() for name, _ in scope["headers"]]
        repeated = any(sent.count(name) > 1 for name in _CHECKED)
        refusal = (400, "A header is sent twice.") if repeated else self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        if not self._has_cookie(headers):
            await self._enter(scope, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_encoded(HEADERS)]
            await send(message)

        await self.app(scope, receive, with_headers)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if headers.get("host", "").lower() not in self.hosts:
            return 403, "This address is not the viewer's own."
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in {f"http://{host}" for host in self.hosts}:
            return 403, "Other sites cannot use the viewer."
        navigates = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not navigates:
            return 403, "Other sites cannot use the viewer."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "The viewer only shows: it takes GET."
        return None

    def _has_cookie(self, headers: dict[str, str]) -> bool:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self.secret.encode())

    async def _enter(self, scope: Scope, send: Send) -> None:
        """Without the cookie: with the right token sets it, and goes on without the token in the address."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = next((value for name, value in pairs if name == "token"), "")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
            await _answer(send, 403, "Open the address that Penstock printed: it ends in a token.")
            return
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        onward = "/" + scope["path"].lstrip("/\\") + (f"?{rest}" if rest else "")
        # A refresh from our own page, not a redirect: after a link from elsewhere (a notebook) a redirect would still
        # count as that site's, and the browser would withhold a SameSite=Strict cookie.
        cookie = ("Set-Cookie", f"{self.cookie}={self.secret}; Path=/; HttpOnly; SameSite=Strict")
        await _answer(send, 200, "Opening the viewer.", refresh=onward, more=(cookie,))


async def _answer(
    send: Send, status: int, text: str, *, refresh: str | None = None, more: tuple[tuple[str, str], ...] = ()
) -> None:
    head = [tag("meta", charset="utf-8"), tag("title", "Penstock")]
    if refresh is not None:
        head.append(tag("meta", http_equiv="refresh", content=f"0;url={refresh}"))
    html = tag("html", tag("head", head), tag("body", tag("p", text)), lang="en")
    body = f"<!DOCTYPE html>\n{html}".encode("utf-8", "backslashreplace")
    kind = (("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body))))
    start = {"type": "http.response.start", "status": status, "headers": [*_encoded((*kind, *HEADERS, *more))]}
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _encoded(headers: tuple[tuple[str, str], ...]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
