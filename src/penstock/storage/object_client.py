"""Clients of object stores, through obstore: one for each bucket and set of options, made when it is first needed.

obstore runs its own threads, which a forked process does not have: there every request would wait for ever, so it is
refused. Spawned processes make their own clients. obstore's own retries are off: `retry` and `object_requests` retry,
count and bound them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import orjson

from penstock.core.errors import StorageError, UsageError
from penstock.core.optional import need
from penstock.storage import retry
from penstock.storage.hedge import Hedger
from penstock.storage.object_options import Settings, settings

Options = Mapping[str, Any] | None

_EXTRA = {"s3": "s3", "gs": "gs", "az": "az", "abfs": "az"}
_STORES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore", "abfs": "AzureStore"}


class Bucket:
    """The clients of a bucket, how its requests are retried, and how fast it answers."""

    def __init__(self, kind: str, name: str, options: Mapping[str, Any]) -> None:
        self.kind, self.url = kind, f"{kind}://{name}"
        self.settings: Settings = settings(kind, name, options)
        self.policy, self.hedger = self.settings.policy, Hedger()
        self._clients: dict[str, Any] = {}
        self.known = False  # whether it has been seen to exist

    def __repr__(self) -> str:
        return f"Bucket({self.url!r})"

    def client(self, use: str = "read") -> Any:
        """The client to "read", to "list", for a "small write" or a "write"; they differ in their timeouts.

        Pages of a listing cannot be asked for again one by one: there, obstore retries.
        """
        if use not in self._clients:
            module = need("obstore.store", extra=_EXTRA[self.kind])
            said = self.settings
            try:
                self._clients[use] = getattr(module, _STORES[self.kind])(
                    said.bucket, config=said.config, client_options=said.client(use),
                    retry_config=self.policy.obstore() if use == "list" else {"max_retries": 0}, **said.extra,
                )  # fmt: skip
            except Exception as error:
                raise retry.failure(self.url, error, "opened") from retry.cause(error)
        return self._clients[use]


class Place(NamedTuple):
    """An object: the client of its bucket, and its key there."""

    client: Any
    key: str


# What obstore and `object_options` read when a client is made: with other values it is another client.
_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION",
    "AWS_DEFAULT_REGION", "AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT",
    "GOOGLE_BASE_URL",
)  # fmt: skip
_buckets: dict[tuple[object, ...], Bucket] = {}
_lock = threading.Lock()
_default: dict[str, Any] = {}  # the options where none are passed
_pid: int | None = None  # the process that has used obstore


def split(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and key of a URL. A key that obstore would read as another one is refused.

    >>> split("s3://bucket/a b/50%#?.txt")
    ('s3', 'bucket', 'a b/50%#?.txt')
    """
    kind, rest = url.split("://", 1)
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise UsageError(f"{kind}://bucket/key", got=repr(url))
    names = key.split("/")
    control = any(ord(letter) < 32 or ord(letter) == 127 for letter in key)
    if any(name in (".", "..") for name in names) or "" in names[:-1] or control:
        raise UsageError(
            "an object's key of names joined by single slashes",
            got=f"{url!r}, with an empty name, '.', '..' or a control character",
            fix="such keys cannot be read exactly: rename the object",
        )
    return kind.lower(), bucket, key


def find(url: str, options: Options = None, *, folder: bool = False) -> tuple[Bucket, str]:
    """The bucket of a URL, and the key there: of an object, or of a folder, which may be empty or end in "/"."""
    kind, bucket, key = split(url)
    if not folder and (not key or key.endswith("/")):
        raise UsageError(f"the URL of an object, {kind}://bucket/key", got=repr(url), fix="name the object")
    return _bucket(kind, bucket, options), key


@contextmanager
def by_default(options: Mapping[str, Any]) -> Iterator[None]:
    """Inside, these are the options of every request of this process that has none; for the command line."""
    _default.update(options)
    try:
        yield
    finally:
        _default.clear()


def place(url: str, options: Options = None) -> Place:
    """Returns client and key of an object's URL, for reading."""
    bucket, key = find(url, options)
    return Place(bucket.client(), key)


def _bucket(kind: str, name: str, options: Options) -> Bucket:
    global _pid  # noqa: PLW0603 - one process-wide fact
    if _pid is not None and _pid != os.getpid():
        raise StorageError(
            f"{kind}:// in the process that first used it, or in a spawned one",
            got="a forked process: the client's threads were not copied into it",
            where=f"{kind}://{name}",
            fix='start workers with the "spawn" method (multiprocessing_context="spawn" in a torch DataLoader), or use '
            "Penstock's own threads or workers=",
        )
    said = dict(options or _default)
    text = orjson.dumps(said, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=repr)
    key = (kind, name, text, *map(os.environ.get, _ENVIRONMENT))
    with _lock:
        if key not in _buckets:
            need("obstore", extra=_EXTRA.get(kind, "all"))
            made = Bucket(kind, name, said)
            made.client()
            _pid = os.getpid()
            _buckets[key] = made
        return _buckets[key]
