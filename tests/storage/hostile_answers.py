"""Answers of object stores that are wrong in ways of their own, for `FaultProxy.twist`. Each ends its connection.

A twist is only made for reads of objects, not for listings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

Answer = Iterable[bytes] | None
HTML = b"<html><body>Please log in to the network</body></html>"


def header(head: bytes, name: str, value: str | None) -> bytes:
    """A head with this header, or without it."""
    head = re.sub(rb"(?im)^%b:[^\r]*\r\n" % name.encode(), b"", head)
    return head if value is None else head[:-2] + f"{name}: {value}\r\n\r\n".encode()


def status(head: bytes, line: str) -> bytes:
    return b"HTTP/1.1 " + line.encode() + b"\r\n" + head.split(b"\r\n", 1)[1]


def _span(span: str) -> tuple[int, int]:
    first, _, last = span.partition("-")
    return int(first), int(last)


def wrong_content_range(span: str, head: bytes, body: bytes) -> Answer:
    first, last = _span(span)
    return header(head, "Content-Range", f"bytes {first + 1}-{last + 1}/{1 << 30}"), body


def content_range_of_less(span: str, head: bytes, body: bytes) -> Answer:
    first, last = _span(span)
    return header(head, "Content-Range", f"bytes {first}-{max(first, last - 1)}/{1 << 30}"), body


def no_content_range(span: str, head: bytes, body: bytes) -> Answer:
    return header(head, "Content-Range", None), body


def part_as_a_full_object(span: str, head: bytes, body: bytes) -> Answer:
    return status(header(head, "Content-Range", None), "200 OK"), body


def another_page(span: str, head: bytes, body: bytes) -> Answer:
    head = header(header(head, "Content-Range", None), "Content-Type", "text/html")
    return status(header(head, "Content-Length", str(len(HTML))), "200 OK"), HTML


def another_tag(span: str, head: bytes, body: bytes) -> Answer:
    return header(head, "ETag", '"0123456789abcdef0123456789abcdef"'), body


def cut_body(span: str, head: bytes, body: bytes) -> Answer:
    return head, body[: len(body) // 2]


def cut_body_without_length(span: str, head: bytes, body: bytes) -> Answer:
    return header(header(head, "Content-Length", None), "Connection", "close"), body[: len(body) // 2]


def cut_chunks(span: str, head: bytes, body: bytes) -> Answer:
    half = body[: len(body) // 2]
    head = header(header(head, "Content-Length", None), "Transfer-Encoding", "chunked")
    return head, b"%x\r\n" % len(half) + half + b"\r\n"


def too_long(span: str, head: bytes, body: bytes) -> Answer:
    return header(head, "Content-Length", str(len(body) + 7)), body + b"and mor"


def nothing(span: str, head: bytes, body: bytes) -> Answer:
    return status(header(header(head, "Content-Length", "0"), "Content-Range", None), "204 No Content"), b""


def redirects(span: str, head: bytes, body: bytes) -> Answer:
    head = header(header(head, "Content-Length", "0"), "Location", "/bucket/elsewhere")
    return (status(head, "307 Temporary Redirect"),)


def denied(span: str, head: bytes, body: bytes) -> Answer:
    xml = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    return status(header(head, "Content-Length", str(len(xml))), "403 Forbidden"), xml


def missing(span: str, head: bytes, body: bytes) -> Answer:
    xml = b"<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>"
    return status(header(head, "Content-Length", str(len(xml))), "404 Not Found"), xml


def endless_head(span: str, head: bytes, body: bytes) -> Answer:
    yield b"HTTP/1.1 206 Partial Content\r\n"
    for number in range(60):
        yield b"X-Header-%d: %s\r\n" % (number, b"x" * 9000)


def not_http(span: str, head: bytes, body: bytes) -> Answer:
    return (b"\x16\x03\x01 this is no answer\r\n\r\n",)


def compressed(span: str, head: bytes, body: bytes) -> Answer:
    return header(head, "Content-Encoding", "gzip"), body


def endless_listing(method: str, path: str, span: str, head: bytes, body: bytes) -> Answer:
    """Every page of a listing says that there is another one: the same again."""
    if "list-type" not in path:
        return None
    body = re.sub(rb"<(IsTruncated|NextContinuationToken)>[^<]*</\1>", b"", body)
    more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken></ListBucketResult>"
    body = body.replace(b"</ListBucketResult>", more)
    return header(header(head, "Transfer-Encoding", None), "Content-Length", str(len(body))), body


NOTICED = (
    wrong_content_range, content_range_of_less, no_content_range, part_as_a_full_object, another_page, another_tag,
    cut_body, cut_body_without_length, cut_chunks, too_long, nothing, redirects, denied, missing, endless_head,
    not_http, compressed,
)  # fmt: skip


class Twisted:
    """Makes `answer` of every GET of an object, after `first` of them; of each request at most `times`."""

    def __init__(self, answer: Callable[[str, bytes, bytes], Answer], *, first: int = 0, times: int = 1 << 30) -> None:
        self.answer, self.left, self.times, self.made = answer, first, times, 0
        self._seen: Counter[tuple[str, str]] = Counter()

    def __call__(self, method: str, path: str, span: str, head: bytes, body: bytes) -> Answer:
        if not _of_object(method, path):
            return None
        if not span:  # the full object
            span = f"0-{len(body) - 1}"
        self.left -= 1
        self._seen[path, span] += 1
        if self.left >= 0 or self._seen[path, span] > self.times:
            return None
        self.made += 1
        return self.answer(span, head, body)


class Flip:
    """Flips a bit in the middle of one answer: that of the GET of an object after `first` others."""

    def __init__(self, first: int) -> None:
        self.left = first

    def __call__(self, method: str, path: str, span: str, head: bytes, body: bytes) -> Answer:
        if not _of_object(method, path):
            return None
        self.left -= 1
        at = len(body) // 2
        return None if self.left != -1 else (head, body[:at] + bytes([body[at] ^ 4]) + body[at + 1 :])


def _of_object(method: str, path: str) -> bool:
    """Whether a request reads an object: here their names have an ending."""
    return method == "GET" and re.search(r"\.[a-z]+(\?|$)", path) is not None
