"""A dataset that preprocesses each record once and caches it in memory, and on disk if `cache_dir` is set.

Files are named by a hash of the record and of the preprocessing code, so that another dataset or a changed function
never reads a wrong one. Of a record that is the path of a file, its size and modification time count too. They are
plain `.npy`, written atomically; a damaged one is written again. Nothing is unpickled. Memory holds `cache_size`
records; the least recently used are evicted first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.codecs.npy import read_npy
from penstock.core import hashing, local_files
from penstock.core.arguments import explained_class
from penstock.core.errors import UsageError
from penstock.core.function_id import code_id
from penstock.core.signals import surface
from penstock.facades.artifex.datasets.base import BaseDataset
from penstock.order.lru_cache import LruCache
from penstock.storage.filesystem import local_only


@explained_class
class CachedDataset(BaseDataset):
    """Samples `{"data": preprocessed, "index": i}` of a list or other sequence.

    Pass `preprocess=`, or define `_expensive_preprocessing(data)` in a subclass.

    >>> dataset = CachedDataset(None, [np.ones(2), np.zeros(2)], preprocess=lambda data: data + 1)
    >>> dataset.get_batch(indices=[1, 0])["data"].tolist()
    [[1.0, 1.0], [2.0, 2.0]]
    """

    def __init__(
        self,
        config: Any,
        data_source: Sequence[Any],
        cache_dir: str | os.PathLike[str] | None = None,
        split: str = "train",
        *,
        preprocess: Callable[[Any], Any] | None = None,
        cache_size: int | None = None,
        rngs: Any = None,
    ) -> None:
        super().__init__(config, split, rngs=rngs)
        if cache_size is not None and cache_size < 1:
            raise UsageError("cache_size of at least 1, or None for all", got=repr(cache_size))
        self.data_source = data_source
        self.cache_dir = None if cache_dir is None else Path(local_only(cache_dir, "cache_dir"))
        self.cache_size = cache_size
        self.cache = LruCache[Any](sys.maxsize if cache_size is None else cache_size)
        self._preprocess = preprocess
        if self.cache_dir is not None:
            self.cache_dir.mkdir(parents=True, exist_ok=True)

    # The source of this method, docstring included, is part of the names of cache files: do not edit it.
    def _expensive_preprocessing(self, data: Any) -> Any:
        """What is done to each record, once."""
        return data if self._preprocess is None else self._preprocess(data)

    def __len__(self) -> int:
        return len(self.data_source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        place = self._place(index)
        return {"data": self._load_and_preprocess(place), "index": place}

    def _load_and_preprocess(self, index: int) -> Any:
        raw = self.data_source[index]
        version = _file_version(raw)
        return self.cache.get((index, *version), lambda: self._preprocessed(raw, version))

    def _preprocessed(self, raw: Any, version: tuple[int, ...]) -> Any:
        if self.cache_dir is None:
            return self._expensive_preprocessing(raw)
        path = self.cache_dir / f"{self._content(raw, version)}.npy"
        try:
            with open(path, "rb") as file:
                return read_npy(file)
        except (OSError, ValueError, EOFError) as error:  # missing or damaged: written again
            surface(error)
        made = np.asarray(self._expensive_preprocessing(raw))
        if made.dtype == object:
            raise UsageError(
                "arrays of numbers to cache on disk", got=f"dtype {made.dtype}", fix="cache_dir=None caches any object"
            )
        with local_files.atomic_file(str(path)) as out:
            np.save(out, made, allow_pickle=False)
        return made

    def _content(self, raw: Any, version: tuple[int, ...]) -> str:
        own = code_id(self._preprocess or type(self)._expensive_preprocessing)
        try:
            raw = os.fspath(raw) if isinstance(raw, os.PathLike) else raw
            return hashing.content_id([own, np.asarray(raw) if hasattr(raw, "__array__") else raw, *version])
        except TypeError as error:
            raise UsageError(
                "records of text, bytes, numbers or arrays to cache on disk",
                got=type(raw).__name__,
                fix="cache_dir=None caches any object in memory",
            ) from error


def _file_version(raw: Any) -> tuple[int, ...]:
    """Size and modification time of the file that a record names; empty for other records."""
    if not isinstance(raw, str | os.PathLike):
        return ()
    try:
        facts = os.stat(raw)
    except (OSError, ValueError) as error:  # a text, or a file that is not there
        surface(error)
        return ()
    return facts.st_size, facts.st_mtime_ns
