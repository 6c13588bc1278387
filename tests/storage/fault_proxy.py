"""A proxy on loopback between a client and a real object store, which fails as networks and stores do.

The fate of a request depends on the seed, the request and how often the same request came before, not on the order in
which concurrent requests arrive: a run with the same requests meets the same faults. Requests and faults are counted.

    with FaultProxy(s3.endpoint, Faults(refuse=0.2, reset=0.05, seed=1)) as proxy:
        objects.read_all("s3://bucket/key", proxy.options)
        proxy.requests, proxy.made["refuse"]
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.storage.servers import BUCKET, options

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_PIECE = 64 << 10


@dataclass(frozen=True)
class Faults:
    """The share of requests that fail in each way, and what slows all of them down."""

    refuse: float = 0.0  # answered with `status` and nothing else
    status: int = 503
    reset: float = 0.0  # the connection is reset: half before the answer, half in the middle of its body
    stall: float = 0.0  # no answer, or half of one, and then nothing for `stall_seconds`
    stall_seconds: float = 3600.0
    wrong: float = 0.0  # one byte of the body differs
    short: float = 0.0  # the body of a range misses its last bytes, with headers that agree
    full: float = 0.0  # a range is answered as if it had been ignored: status 200, and more bytes than asked for
    slow: float = 0.0  # answered `slow_seconds` later
    slow_seconds: float = 1.0
    latency: float = 0.0  # seconds added to every request
    rate: float = 0.0  # bytes per second of one connection; 0: not limited
    link: float = 0.0  # bytes per second of all connections together; 0: not limited
    seed: int = 0
    methods: tuple[str, ...] = ("GET", "HEAD", "PUT", "POST", "DELETE")  # requests that may fail
    times: int = 1000  # the same request fails at most so often

    def fate(self, request: str, attempt: int) -> tuple[str, random.Random]:
        """What happens to a request: the name of a fault, or ""."""
        dice = random.Random(f"{self.seed} {request} {attempt}")
        at = dice.random()
        if attempt < self.times:
            for name in ("refuse", "reset", "stall", "wrong", "short", "full", "slow"):
                at -= getattr(self, name)
                if at < 0:
                    return name, dice
        return "", dice


Twist = Callable[[str, str, str, bytes, bytes], Iterable[bytes] | None]
"""Gets method, path, range, and the head and body of the real answer; returns the pieces of another one, or None."""

USUAL = Faults(refuse=0.20, reset=0.05, stall=0.02, wrong=0.001, seed=1)


@dataclass
class Counts:
    """What went through a proxy."""

    requests: int = 0
    bytes: int = 0
    made: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)
    log: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range


class FaultProxy:
    """A server between a client and a real one. `faults` may be replaced at any time; `clear()` resets the counts."""

    def __init__(self, upstream: str, faults: Faults = Faults()) -> None:  # noqa: B008 - frozen
        self._upstream = urlsplit(upstream)
        self.faults = faults
        self.twist: Twist | None = None
        self.counts = Counts()
        self._seen: Counter[str] = Counter()
        self._link_free = 0.0  # when what was sent so far has passed the link
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20))
        port = self._server.sockets[0].getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        await asyncio.sleep(0)  # connections that were accepted begin
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close their sockets

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @property
    def options(self) -> dict[str, Any]:
        """The storage_options for this proxy."""
        return options(self.endpoint)

    def url(self, *names: str) -> str:
        return "/".join([f"s3://{BUCKET}", *names])

    @property
    def requests(self) -> int:
        return self.counts.requests

    @property
    def made(self) -> Counter[str]:
        """The faults that were made, by name."""
        return self.counts.made

    def clear(self, faults: Faults | None = None) -> None:
        """Forgets what was counted; later requests meet `faults`, if they are said."""
        self.counts, self._seen = Counts(), Counter()
        self.faults = self.faults if faults is None else faults

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await _body(reader, head)
                if upstream is None:
                    place = self._upstream
                    upstream = await asyncio.open_connection(place.hostname, place.port, limit=1 << 20)
                await self._answer(head, body, upstream, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            if upstream is not None:
                upstream[1].transport.abort()

    async def _answer(self, head: bytes, body: bytes, upstream: Any, client: asyncio.StreamWriter) -> None:
        faults = self.faults
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        wanted = re.search(rb"(?mi)^range: *bytes=([0-9-]+)", head)
        span = wanted[1].decode() if wanted else ""
        request = f"{method} {path} {span}"
        self.counts.requests += 1
        self.counts.methods[method] += 1
        self.counts.log.append((method, path, span))
        name, dice = faults.fate(request, self._seen[request]) if method in faults.methods else ("", random.Random(0))
        self._seen[request] += 1
        if (name in ("short", "full") and not span) or (name in ("short", "wrong") and method != "GET"):
            name = ""
        if name:
            self.made[name] += 1
        await asyncio.sleep(faults.latency + (faults.slow_seconds if name == "slow" else 0))
        if name == "refuse":
            client.write(b"HTTP/1.1 %d Slow Down\r\nContent-Length: %d\r\n" % (faults.status, len(SLOW_DOWN)))
            client.write(b"Content-Type: application/xml\r\n\r\n" + (b"" if method == "HEAD" else SLOW_DOWN))
            await client.drain()
            return
        early = dice.random() < 0.5
        if name == "reset" and early:
            raise ConnectionResetError
        if name == "stall" and early:
            await asyncio.sleep(faults.stall_seconds)
            raise ConnectionResetError
        upstream[1].write(head + body)
        status, answer = await _response(upstream[0], method)
        if name == "wrong" and answer:
            at = dice.randrange(len(answer))
            answer = answer[:at] + bytes([answer[at] ^ (1 << dice.randrange(8))]) + answer[at + 1 :]
        if name == "short" and answer:
            answer = answer[: dice.randrange(len(answer))]
            status = re.sub(rb"(?i)\r\ncontent-length: [^\r]*", b"\r\nContent-Length: %d" % len(answer), status)
        if name == "full" and answer:
            answer *= 2
            status = re.sub(rb"(?i)\r\ncontent-(length|range): [^\r]*", b"", status).replace(b" 206 ", b" 200 ", 1)
            status = status[:-2] + b"Content-Length: %d\r\n\r\n" % len(answer)
        if name in ("reset", "stall"):
            client.write((status + answer)[: len(status) + len(answer) // 2 if answer else len(status) // 2])
            await client.drain()
            await asyncio.sleep(faults.stall_seconds if name == "stall" else 0.01)
            raise ConnectionResetError
        if self.twist is not None:
            twisted = self.twist(method, path, span, status, answer)
            if twisted is not None:  # then the connection ends
                for piece in twisted:
                    client.write(piece)
                    await client.drain()
                    await asyncio.sleep(0.01)
                client.close()
                raise ConnectionResetError
        await self._send(client, status, answer, faults)

    async def _send(self, client: asyncio.StreamWriter, status: bytes, answer: bytes, faults: Faults) -> None:
        self.counts.bytes += len(answer)
        client.write(status)
        for at in range(0, len(answer), _PIECE):
            piece = answer[at : at + _PIECE]
            if faults.link:
                now = self._loop.time()
                self._link_free = max(now, self._link_free) + len(piece) / faults.link
                await asyncio.sleep(self._link_free - now)
            client.write(piece)
            await client.drain()
            if faults.rate:
                await asyncio.sleep(len(piece) / faults.rate)
        await client.drain()


def _length(head: bytes) -> int | None:
    found = re.search(rb"(?mi)^content-length: *([0-9]+)", head)
    return int(found[1]) if found else None


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if not re.search(rb"(?mi)^transfer-encoding: *chunked", head):
        return await reader.readexactly(_length(head) or 0)
    parts = []
    while True:
        line = await reader.readuntil(b"\r\n")
        parts.append(line + await reader.readexactly(int(line.split(b";")[0], 16) + 2))
        if int(line.split(b";")[0], 16) == 0:
            return b"".join(parts)


async def _response(reader: asyncio.StreamReader, method: str) -> tuple[bytes, bytes]:
    """Head and body of an answer; a chunked body as it came."""
    head = await reader.readuntil(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100"):
        head = await reader.readuntil(b"\r\n\r\n")
    number = int(head.split(b" ", 2)[1])
    return head, b"" if method == "HEAD" or number in (204, 304) else await _body(reader, head)
