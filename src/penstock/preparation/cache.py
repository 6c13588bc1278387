"""Token stores made on the way: kept under a cache folder, keyed by content, made once however many ask.

The key is a hash of the texts' content, the tokenizer and the settings; never of a path or a time. Two processes that
ask at the same moment: one prepares, the other waits and reads. A preparation that was killed is completed by the next.
A store whose files are missing, cut or changed is rebuilt, when it is opened or at the first page that is wrong.
Past its size limit the cache evicts the least recently used entries, never one that is open.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.core import local_files
from penstock.core.columns import Columns, Ragged
from penstock.core.errors import PenstockError, StoreError, UsageError
from penstock.core.hashing import content_id
from penstock.preparation.output import checked_place
from penstock.preparation.run import check_budget, prepare, source_id
from penstock.sources.base import LocatesRows, TextSource
from penstock.sources.tokens import TokenStore
from penstock.storage import cache_entries, objects
from penstock.storage.filesystem import local_only, scheme
from penstock.store.manifest import NAME
from penstock.store.opening import open_token_store
from penstock.tokenizers import as_tokenizer
from penstock.tokenizers.base import BaseTokenizer
from penstock.tokenizers.known import remember

WAIT_SECONDS = 0.2
MOST_REPAIRS = 3


def cache_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """The cache folder: the argument, else `PENSTOCK_CACHE`, else the user's cache folder."""
    if folder is not None:
        return Path(local_only(folder, "cache_dir"))
    if named := os.environ.get("PENSTOCK_CACHE"):
        return Path(local_only(named, "PENSTOCK_CACHE"))
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def cached_store(
    source: TextSource,
    tokenizer: Any,
    *,
    cache_dir: str | os.PathLike[str] | None,
    settings: dict[str, Any],
    limit: int | None = None,
) -> TokenStore:
    """The token store of these texts, prepared if it is not in the cache.

    `limit` bounds the cache in bytes; without it `PENSTOCK_CACHE_LIMIT` does ("50GB"), else 256 GiB.
    """
    root: str | Path  # first: a path that cannot be used is refused before any work
    if cache_dir is not None and scheme(os.fspath(cache_dir)):
        root = checked_place(cache_dir)
    else:
        root = cache_folder(cache_dir) / "tokens"
    chosen = {k: v for k, v in settings.items() if k in ("add_special_tokens", "allowed_special", "disallowed_special")}
    resolved = as_tokenizer(tokenizer, **chosen)
    remember(resolved)
    settings = {k: v for k, v in settings.items() if k not in chosen}
    plain = {k: v for k, v in settings.items() if k in ("eos", "shard_tokens", "on_error")}
    plain |= resolved.policy() if isinstance(resolved, BaseTokenizer) else {}
    key = content_id([*source_id(source), orjson.dumps(resolved.identity()), orjson.dumps(plain)])
    if isinstance(root, str):
        store = _stored_remotely(source, resolved, objects.join(root, "tokens", key), settings)
    else:
        fill = partial(prepare, source, resolved, **settings)
        store = kept_store(root, key, fill, settings.get("budget"), cache_entries.limit_of(limit))
    store.place_of_row = partial(place, source)
    return store


def place(source: TextSource, row: int) -> dict[str, Any]:
    """The provenance of a row that was prepared, as far as its source still knows it."""
    try:
        facts = source.locate(row) if isinstance(source, LocatesRows) else {}
    except PenstockError:  # moved or changed since: the tokens are still those of this row
        return {}
    return {name: fact for name, fact in facts.items() if name != "source"}


def kept_store(
    root: Path, key: str, fill: Callable[[Path], Any], budget: int | float | Fraction | None, most: int
) -> TokenStore:
    """The store `key` of the cache `root`, written by `fill(folder)` if it is not there."""
    folder = root / key

    def make() -> TokenStore:
        made = False
        use = cache_entries.Use(root, key)
        while not (folder / NAME).exists():
            try:
                fill(folder)
                made = True
            except UsageError as error:
                if cache_entries.PURPOSE not in str(error):
                    raise
                time.sleep(WAIT_SECONDS)  # another process is preparing the same store
        store = TokenStore(folder)
        check_budget(store.manifest, budget)  # not in the key: it does not change the documents
        _check_files(store)
        store.__dict__["use"] = use  # kept as long as the store: entries in use are not evicted
        if made:
            with local_files.writing(str(root)):
                cache_entries.sweep(root, most)
        return store

    return CachedStore(folder, make)


def _stored_remotely(source: TextSource, tokenizer: Any, url: str, settings: dict[str, Any]) -> TokenStore:
    """The store below a URL, prepared there if it is not there yet; nothing is ever evicted from an object store."""
    if not objects.exists(objects.join(url, NAME)):
        prepare(source, tokenizer, url, **settings)  # of several processes each writes the same bytes
    store = open_token_store(url)
    check_budget(store.manifest, settings.get("budget"))
    return store


class CachedStore(TokenStore):
    """A store that is rebuilt if it is found damaged. The bytes are the same, so readers can continue.

    A copy in another process is a plain `TokenStore`, which raises instead.
    """

    _folder: Path
    _make: Callable[[], TokenStore]
    _lock: Any
    _mark: cache_entries.Mark

    def __init__(self, folder: Path, make: Callable[[], TokenStore]) -> None:
        self._adopt(folder, make, threading.RLock())

    def _adopt(self, folder: Path, make: Callable[[], TokenStore], lock: Any) -> None:
        """Opens the store and takes over its fields. Other threads see the old or the new ones: the same data."""
        for repairs in range(MOST_REPAIRS + 1):
            mark = cache_entries.mark(folder / NAME)
            try:
                fresh = make()
                break
            except StoreError:
                if repairs == MOST_REPAIRS:
                    raise
                cache_entries.discard(folder, mark)
        fresh.__dict__.update(_folder=folder, _make=make, _lock=lock, _mark=cache_entries.mark(folder / NAME))
        if (known := self.__dict__.get("place_of_row")) is not None:
            fresh.place_of_row = known
        self._end_use()
        self.__dict__ = fresh.__dict__

    def _end_use(self) -> None:
        if (use := self.__dict__.get("use")) is not None:
            use.release()

    __del__ = _end_use  # at once: the fields refer to each other, and would wait for the garbage collector

    def _mended(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a call; if the store is damaged, the result from the rebuilt store."""
        for _ in range(MOST_REPAIRS):
            mark = self._mark
            try:
                return call(*arguments)
            except StoreError:
                with self._lock:
                    if self._mark == mark:  # else another thread has already rebuilt it
                        cache_entries.discard(self._folder, mark)
                        self._adopt(self._folder, self._make, self._lock)
        return call(*arguments)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        columns: Columns = self._mended(super().read, indices)
        return columns

    def column(self, name: str, indices: NDArray[np.int64]) -> Ragged | NDArray[Any]:
        column: Ragged | NDArray[Any] = self._mended(super().column, name, indices)
        return column

    def lengths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        lengths: NDArray[np.int64] = self._mended(super().lengths, indices)
        return lengths

    def starts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        starts: NDArray[np.int64] = self._mended(super().starts, indices)
        return starts

    def documents_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        documents: NDArray[np.int64] = self._mended(super().documents_at, positions)
        return documents

    def gather(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        windows: NDArray[Any] = self._mended(super().gather, starts, length)
        return windows

    def reader(self, starts: NDArray[np.int64], length: int) -> Callable[[int, int], NDArray[Any]]:
        quick = super().reader(starts, length) if self.sound else None
        return quick or (lambda a, b: self.gather(starts[a:b], length))

    def locate(self, index: int) -> dict[str, Any]:
        facts: dict[str, Any] = self._mended(super().locate, index)
        return facts


def _check_files(store: TokenStore) -> None:
    """Every shard is there and as long as in the manifest; costs two stat calls each."""
    for shard in store.manifest.shards:
        path = store.path / shard.name
        if not path.is_file() or path.stat().st_size != shard.bytes:
            raise StoreError(
                f"a shard of {shard.bytes} bytes",
                got=f"{path.stat().st_size} bytes" if path.is_file() else "no file",
                where=str(path),
                fix="delete the cache entry; it will be rebuilt",
            )
