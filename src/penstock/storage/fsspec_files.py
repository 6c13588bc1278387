"""Files of http, hf and memory URLs through fsspec: found, described and read in ranges, with the retries of `retry`.

fsspec calls each failed HTTP request "not found", and waits five minutes for a stalled one; here errors are what they
are, and a connection without a byte for `STALLED` seconds is given up. `object_requests.read_many` makes the requests.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from penstock.core.errors import DataError, FileMissing, MissingExtra, PenstockError
from penstock.core.optional import install_line, need
from penstock.core.os_errors import storage_error
from penstock.core.signals import surface
from penstock.storage import retry
from penstock.storage.hedge import Hedger
from penstock.storage.retry import BadAnswer

if TYPE_CHECKING:
    from penstock.storage.object_options import Settings

Options = Mapping[str, Any] | None
Result = TypeVar("Result")

STALLED = 10.0
_TOTAL = 300.0  # seconds of one request
_EXTRAS = {"http": "http", "https": "http", "hf": "hf"}
_FINAL = (PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
_places: dict[tuple[object, ...], Place] = {}
_lock = threading.Lock()


class Place:
    """The fsspec filesystem of a scheme: what `object_client.Bucket` is for an object store."""

    def __init__(self, kind: str, options: Mapping[str, Any]) -> None:
        from penstock.storage import object_options  # here: local files need none of it

        self.kind = kind
        self.settings: Settings
        self.settings, self.options = object_options.requests(dict(options))
        self.policy, self.hedger = self.settings.policy, Hedger()

    def files(self, url: str) -> Any:
        """The filesystem."""
        fsspec = need("fsspec", extra="all")
        options = dict(self.options)
        try:
            if self.kind in ("http", "https"):
                aiohttp = need("aiohttp", extra="http")
                limits = aiohttp.ClientTimeout(total=_TOTAL, sock_connect=STALLED, sock_read=STALLED)
                options["client_kwargs"] = {"timeout": limits, **options.get("client_kwargs", {})}
            return fsspec.filesystem(self.kind, **options)
        except ImportError as error:
            raise MissingExtra(
                f"the package that reads {self.kind}:// URLs", got=str(error), where=url,
                fix=install_line(_EXTRAS.get(self.kind, "all")),
            ) from error  # fmt: skip


def find(url: str, options: Options = None) -> Place:
    """The place of a URL, made once for each process and set of options."""
    kind = url.partition("://")[0].lower()
    text = orjson.dumps(dict(options or {}), option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=repr)
    key = (os.getpid(), kind, text)
    with _lock:
        if key not in _places:
            _places[key] = Place(kind, options or {})
        return _places[key]


def call(act: Callable[[Any], Result], url: str, options: Options = None) -> Result:
    """Calls `act` with the filesystem of a URL, again after failures that may pass; the last is a StorageError."""
    place = find(url, options)
    files = place.files(url)

    def once() -> Result:
        with plain_errors(url):
            return act(files)

    return retry.call(once, url, "read", place.policy)


@contextmanager
def plain_errors(url: str) -> Iterator[None]:
    """Raises what happened for what fsspec says of it; a missing file is FileMissing."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        surface(error)
        found: BaseException = error
        while isinstance(found, FileNotFoundError) and isinstance(found.__cause__, Exception):
            found = found.__cause__
        if isinstance(found, FileNotFoundError) or retry.status(found) in (404, 410):
            raise storage_error(FileNotFoundError(), url) from error
        if isinstance(found, _FINAL):
            raise storage_error(found if isinstance(found, OSError) else OSError(str(found)), url) from error
        if found is error:
            raise
        raise found from error


def describe(url: str, options: Options = None, *, fresh: bool = True) -> dict[str, Any]:
    """What the storage says of a file. `fresh=False` uses what a listing said before."""

    def ask(files: Any) -> dict[str, Any]:
        if fresh:
            files.invalidate_cache()
        return dict(files.info(url))

    return call(ask, url, options)


def get(place: Place, url: str, start: int, stop: int | None) -> memoryview:
    """Bytes [start, stop) of a file, or all of it: one request, complete or an error."""
    with plain_errors(url):
        files = place.files(url)
        if stop is None:
            start, stop = 0, size_of(files.info(url), url)
        if start >= stop:
            return memoryview(b"")
        data = memoryview(files.cat_file(url, start=start, end=stop))
        if len(data) == stop - start:
            return data
        size = size_of(files.info(url), url)
    if size < stop:
        raise retry.shorter(url)
    if len(data) == size:
        return data[start:stop]  # a server without ranges answers with the full file
    raise BadAnswer(f"{len(data)} of {stop - start} bytes")


def size_of(info: Mapping[str, Any], url: str) -> int:
    """The size that a description states."""
    if info.get("size") is None:
        raise DataError("a file of known size", got="the server does not report it", where=url, fix="download it first")
    return int(info["size"])


def listed(url: str, options: Options, magic: bool) -> list[str]:
    """The file of a URL, the files that match its glob (`magic`), or all files below it: full URLs, sorted."""

    http = url.lower().startswith("http")

    def find_all(files: Any) -> list[str]:
        if magic:
            # `isfile` of http calls a failed request no file.
            found = [name for name in files.glob(url) if (not name.endswith("/") if http else files.isfile(name))]
        elif (http and not url.endswith("/") and files.exists(url, strict=True)) or (not http and files.isfile(url)):
            found = [url]
        else:
            found = files.find(url)
        return sorted(name if "://" in name else files.unstrip_protocol(name) for name in found)

    try:
        return call(find_all, url, options)
    except FileMissing:
        return []


def full_url(url: str, options: Options = None) -> str:
    """A URL as listings spell it: `memory://a` is `memory:///a`."""
    files = find(url, options).files(url)
    return str(files.unstrip_protocol(files._strip_protocol(url)))
