"""A small server with the XML interface of Google Cloud Storage, as far as obstore uses it: for tests only."""

from __future__ import annotations

import hashlib
import re
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class FakeGCS:
    """One bucket in memory, with conditional puts and reads. `ignores_if_match`: reads do not compare ETags."""

    ignores_if_match = False

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def __enter__(self) -> FakeGCS:
        fake = self

        class Handler(_Handler):
            server_state = fake

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: FakeGCS

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server_state.lock:
            if self.headers.get("x-goog-if-generation-match") == "0" and self._key() in self.server_state.objects:
                return self._answer(412)
            self.server_state.objects[self._key()] = data
        return self._answer(200, ETag=_tag(data), x_goog_generation="1")

    def do_DELETE(self) -> None:
        found = self.server_state.objects.pop(self._key(), None)
        self._answer(204 if found is not None else 404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            return self._list(query.get("prefix", [""])[0])
        data = self.server_state.objects.get(self._key())
        if data is None:
            return self._answer(404)
        wanted = self.headers.get("If-Match")
        if wanted is not None and wanted != _tag(data) and not self.server_state.ignores_if_match:
            return self._answer(412)
        facts = {"ETag": _tag(data), "Last_Modified": formatdate(usegmt=True), "x_goog_generation": "1"}
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if not span:
            return self._answer(200, data, **facts)
        start, stop = int(span[1]), min(int(span[2]) + 1, len(data))
        if start >= len(data):
            return self._answer(416)
        return self._answer(206, data[start:stop], Content_Range=f"bytes {start}-{stop - 1}/{len(data)}", **facts)

    def _list(self, prefix: str) -> None:
        rows = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(_tag(data))}</ETag><Size>{len(data)}</Size></Contents>"
            for key, data in sorted(self.server_state.objects.items())
            if key.startswith(prefix)
        ]
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>"
        self._answer(200, body.encode(), Content_Type="application/xml")
