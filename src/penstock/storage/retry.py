"""Which failures of an object store are tried again, after which pauses, and until when.

Answers 5xx, 408, 425, 429 and racing 409, lost and stalled connections, and answers that are short or too long are
tried again, with growing pauses and jitter, until a number of retries or a deadline is reached. A missing object, a
refused access and a wrong option are final.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from penstock.core.errors import FileMissing, PenstockError, StorageError, StoreError
from penstock.core.signals import surface
from penstock.storage import metrics

Result = TypeVar("Result")

_DAMAGED_READS = 4
_dice = random.Random()  # of its own: the user's `random` stays as seeded
_STATUS = re.compile(r"status code: (\d{3})")
_TRANSIENT = frozenset({408, 409, 425, 429})
_FINAL = frozenset(
    {
        "PermissionDeniedError", "UnauthenticatedError", "NotFoundError", "PreconditionError", "InvalidPathError",
        "UnknownConfigurationKeyError", "NotSupportedError", "ValueError", "TypeError", "KeyError",
        "OfflineModeIsEnabled",
    }
)  # fmt: skip
_NO_CREDENTIALS = ("169.254.169.254", "metadata.google.internal", "169.254.170.2")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_DENIED = "(code: AccessDenied)"  # in the answer to a delete, which has no status of its own
_HOPELESS = (_DENIED, "certificate", "builder error", "URL scheme is not allowed", "Missing ", "invalid port")


class BadAnswer(Exception):
    """An answer that is not what was asked for: short, too long, or with another hash."""


@dataclass(frozen=True)
class Policy:
    """How often and how long failed requests are tried again.

    >>> Policy.of({"max_retries": 3, "retry_timeout": timedelta(seconds=9)}).deadline
    9.0
    """

    max_retries: int = 10
    deadline: float = 120.0
    first_pause: float = 0.1
    longest_pause: float = 5.0
    base: float = 2.0

    @classmethod
    def of(cls, said: Mapping[str, Any] | None) -> Policy:
        """The policy of obstore's `retry_config`."""
        said = said or {}
        pauses = said.get("backoff", {})
        return cls(
            int(said.get("max_retries", cls.max_retries)),
            seconds(said.get("retry_timeout", cls.deadline)),
            seconds(pauses.get("init_backoff", cls.first_pause)),
            seconds(pauses.get("max_backoff", cls.longest_pause)),
            float(pauses.get("base", cls.base)),
        )

    def obstore(self) -> dict[str, Any]:
        """The same as obstore's `retry_config`."""
        pauses = {"init_backoff": self.first_pause, "max_backoff": self.longest_pause}
        backoff: dict[str, Any] = {name: timedelta(seconds=value) for name, value in pauses.items()}
        limits = {"max_retries": self.max_retries, "retry_timeout": timedelta(seconds=self.deadline)}
        return {**limits, "backoff": {**backoff, "base": self.base}}

    def pause(self, retries: int) -> float:
        """Seconds before a retry: growing, half of it random, so that many clients do not come back together."""
        return float(min(self.longest_pause, self.first_pause * self.base**retries) * _dice.uniform(0.5, 1.0))

    def ended(self, retries: int, age: float) -> bool:
        return retries >= self.max_retries or age >= self.deadline


def seconds(value: Any) -> float:
    """Seconds of a number or a timedelta."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def transient(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, BadAnswer):
        return True
    if isinstance(error, PenstockError | FileNotFoundError) or not isinstance(error, Exception):
        return False
    text = str(error)
    found = status(error)
    if found is not None:
        return found in _TRANSIENT or found >= 500 or (found == 400 and "RequestTimeout" in text)
    if type(error).__name__ in _FINAL or no_credentials(text):
        return False
    return not any(mark in text for mark in _HOPELESS)


def status(error: BaseException) -> int | None:
    """The HTTP status that an error names, or of the answer that it holds (aiohttp, huggingface_hub)."""
    for said in (getattr(error, "status", None), getattr(getattr(error, "response", None), "status_code", None)):
        if isinstance(said, int):
            return said
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def no_credentials(text: str) -> bool:
    """Whether a client looked for the credentials of a cloud machine, which is where it looks last."""
    return any(address in text for address in _NO_CREDENTIALS)


def call(
    act: Callable[[], Result], url: str, doing: str, policy: Policy, again: Callable[[BaseException], bool] = transient
) -> Result:
    """Calls `act` until it succeeds or its failure is final; the failure is a StorageError that names `url`."""
    began, retries = time.monotonic(), 0
    scheme = url.partition("://")[0]
    while True:
        try:
            result = act()
        except Exception as error:
            surface(error)
            last = not again(error) or policy.ended(retries, time.monotonic() - began)
            metrics.add(scheme, metrics.Counters(requests=1, retries=min(retries, 1), failures=int(last)))
            if last:
                raise failure(url, error, doing, retries, time.monotonic() - began) from cause(error)
            time.sleep(policy.pause(retries))
            retries += 1
        else:
            waited = time.monotonic() - began
            metrics.add(scheme, metrics.Counters(requests=1, retries=min(retries, 1), wait_seconds=waited))
            return result


def right_bytes(read: Callable[[], Result]) -> Result:
    """Calls `read`, again if what came is damaged: what is between here and the storage may have changed bytes."""
    for _ in range(_DAMAGED_READS - 1):
        try:
            return read()
        except StoreError as error:
            if isinstance(error.__cause__, FileMissing):
                raise
    return read()


_QUERY = re.compile(r"(https?://[^\s?\"'<>]+)\?[^\s\"'<>]+")
_SECRET = re.compile(r"(?i)(sig|signature|token|secret|key|password|credential)([=:]\s*)[^\s&\"',;]+")


def redacted(text: str) -> str:
    """A text without the query of any URL (a SAS token is one) and without what follows `secret=` and the like.

    >>> redacted("GET https://a.blob.core.windows.net/c/k?sv=1&sig=abc failed")
    'GET https://a.blob.core.windows.net/c/k failed'
    """
    return _SECRET.sub(r"\1\2...", _QUERY.sub(r"\1", text))


def cause(error: BaseException) -> BaseException | None:
    """The error to chain, unless its text holds what `redacted` takes out: a traceback would print it."""
    return error if redacted(str(error)) == str(error) else None


def no_bucket(url: str) -> FileMissing:
    """The error for a bucket or container that does not exist."""
    scheme, _, rest = url.partition("://")
    return FileMissing(
        "a bucket that exists", got=f"no bucket {rest.partition('/')[0]!r}", where=url,
        fix=f"check the name after {scheme}://, the endpoint, and the account of the credentials",
    )  # fmt: skip


def shorter(url: str) -> StorageError:
    """The error for an object that ends before bytes that it had."""
    return StorageError(
        "the object as it was when it was opened", got="it changed while it was read: it is shorter now", where=url,
        fix="make the source again, and let nothing write to its objects",
    )  # fmt: skip


def failure(url: str, error: BaseException, doing: str, retries: int = 0, age: float = 0.0) -> PenstockError:
    """Returns an error that names the object and says in one line what the client says in many."""
    if isinstance(error, PenstockError):
        return error
    kind, text = type(error).__name__, str(error)
    tried = f" (tried {retries + 1} times in {age:.1f} s)" if retries else ""
    if any(mark in text for mark in _NO_BUCKET) or (doing == "listed" and status(error) == 404):
        return no_bucket(url)
    if isinstance(error, FileNotFoundError):
        return FileMissing("an object that exists", got="no object of this name", where=url)
    if status(error) == 416:
        return shorter(url)
    line = redacted(" ".join(text.split("\n\nDebug source", maxsplit=1)[0].split()))[:400]
    got = (line if isinstance(error, BadAnswer) else f"{kind}: {line}") + tried
    if kind == "PreconditionError":
        return StorageError(
            "the object as it was when it was opened", got="it was replaced: its ETag differs", where=url,
            fix="make the source again, and let nothing write to its objects",
        )  # fmt: skip
    if kind == "UnknownConfigurationKeyError":
        fix = "storage_options takes the names of obstore's configuration, and the common ones of s3fs, gcsfs and adlfs"
    elif no_credentials(text) or _DENIED in text or kind in ("PermissionDeniedError", "UnauthenticatedError"):
        fix = (
            "check the credentials: the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE ...), the config files, or "
            'storage_options=; {"anon": True} reads public data'
        )
        got = "no credentials found" if no_credentials(text) else got
    else:
        fix = "try again; if it stays so, check the URL, the endpoint and the region"
    return StorageError(f"an object that can be {doing}", got=got, where=url, fix=fix)
