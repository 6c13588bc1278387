"""Checks every byte of a store (`verify`), or describes it without reading tokens (`info`).

`verify` hashes every byte (about as fast as the disk reads), checks that document tables and column offsets are
non-decreasing and every id is in the vocabulary, and lists all damage. Memory is bounded by one block. A store in an
object store is read from there, not from the cache of an earlier run: in temporary disk space of about two shards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import FileMissing, PenstockError, StoreError
from penstock.core.os_errors import temporary_errors
from penstock.storage import objects
from penstock.store import layout
from penstock.store.manifest import NAME, Manifest, id_of_roots
from penstock.store.opening import open_token_store
from penstock.store.reader import TokenStore
from penstock.store.remote_store import RemoteStore
from penstock.store.shard import Shard
from penstock.store.writer import ShardInfo

SHOWN_SHARDS = 1024

_BLOCK = 1 << 22
_CACHE_BYTES = 256 << 20  # beside two shards


@dataclass
class Report:
    """The result of `verify`. `problems` is empty if the store is intact; `extras` are files the manifest lacks."""

    id: str = ""
    shards: int = 0
    documents: int = 0
    tokens: int = 0
    pages: int = 0
    bytes: int = 0
    problems: list[StoreError] = field(default_factory=list)
    extras: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def raise_first(self) -> None:
        """Raises the first problem, if any."""
        if self.problems:
            raise self.problems[0]


def verify(
    path: str | os.PathLike[str],
    progress: Callable[[int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Report:
    """Checks every byte of a store, or of one shard file. `progress(done, total)` is called with byte counts.

    The report counts only intact shards, documents and tokens.
    """
    report = Report()
    try:
        store = open_token_store(path, storage_options=storage_options)
    except StoreError as error:
        report.problems.append(error)
        return report
    with ExitStack() as stack:
        if isinstance(store, RemoteStore):
            store = _with_own_cache(store, stack)
        _verify(store, report, progress)
    return report


def _with_own_cache(store: RemoteStore, stack: ExitStack) -> RemoteStore:
    """The store with an empty cache, which is deleted at the end."""
    with temporary_errors("pages of the store"):
        folder = stack.enter_context(TemporaryDirectory(prefix="penstock-verify-"))
    largest = max((info.bytes for info in _entries(store.manifest, Report())), default=0)
    own = RemoteStore(
        store.url, storage_options=store.storage_options, cache_dir=folder, cache_bytes=2 * largest + _CACHE_BYTES
    )
    stack.callback(own.close)
    return own


def _verify(store: TokenStore, report: Report, progress: Callable[[int, int], None] | None) -> None:
    report.id = store.manifest.id
    total, done = store.manifest.bytes, 0
    names: set[str] = set()
    roots: list[str] = []
    for info in _entries(store.manifest, report):
        names.add(info.name)
        roots.append(info.root)
        shard = store.shard_of(info)
        before = len(report.problems)
        base = done

        def step(here: int, base: int = base) -> None:
            if progress is not None:
                progress(base + here, total)

        _verify_shard(store, shard, report, step)
        shard.drop()
        done += info.bytes
        step(info.bytes)
        if len(report.problems) == before:
            report.shards += 1
            report.documents += info.documents
            report.tokens += info.tokens
            report.bytes += info.bytes
    _verify_list(store, names, roots, report)
    if (found := store.files()) is not None:
        listed = {NAME, *names, *store.manifest.shards.files}
        report.extras = sorted(name for name in found if name not in listed)


def _entries(manifest: Manifest, report: Report) -> Iterator[ShardInfo]:
    """Yields the entries of the list of shards that can be read; reports each damaged group once."""
    for number in range(len(manifest.shards)):
        try:
            yield manifest.shards[number]
        except StoreError as error:
            if str(error) not in (str(problem) for problem in report.problems[-1:]):
                report.problems.append(error)


def _verify_list(store: TokenStore, names: set[str], roots: list[str], report: Report) -> None:
    """Checks what opening a store of very many shards does not: that names differ, and the id is of these roots."""
    manifest = store.manifest
    if len(roots) != len(manifest.shards):
        return
    where = objects.join(store.where, next(iter(manifest.shards.files), NAME))
    if len(names) != len(roots):
        report.problems.append(layout.damaged("different shard names", "a name that repeats", where))
    found = id_of_roots(roots, manifest.dtype, manifest.vocab_size, manifest.tokenizer, manifest.eos_id)
    if found != manifest.id:
        report.problems.append(layout.damaged(f"the shards of the store {manifest.id}", f"those of {found}", where))


def _verify_shard(store: TokenStore, shard: Shard, report: Report, step: Callable[[int], None]) -> None:
    try:
        shard.open()
        size = shard.header.page_bytes
        block = max(1, _BLOCK // size)
        intact = True
        for first in range(0, shard.pages, block):
            pages = np.arange(first, min(first + block, shard.pages))
            shard.fetch_ahead(pages)
            found = _damaged_pages(shard, pages)
            intact = intact and not found
            report.pages += len(pages) - len(found)
            report.problems += found
            step(min((first + block) * size, shard.body_bytes))
        if intact:
            store.reading_all(shard, _verify_values)
    except StoreError as error:
        report.problems.append(error)
    except FileMissing as error:
        report.problems.append(layout.damaged("a shard that the manifest names", error.got, str(shard.path)))


def _damaged_pages(shard: Shard, pages: NDArray[np.int64]) -> list[StoreError]:
    """One error for each page whose checksum differs: all are hashed in one call, and one by one where that fails."""
    try:
        shard.check_pages(pages)
        return []
    except StoreError as error:
        if len(pages) == 1:
            return [error]
    return [error for page in pages for error in _damaged_pages(shard, np.array([page]))]


def _verify_values(shard: Shard) -> None:
    """Checks numbers whose checksums are right: a shard that another tool wrote may still hold wrong ones."""
    header, where = shard.header, str(shard.path)
    if shard.open().array[: layout.ALIGN].tobytes() != layout.superblock(header.page_bytes):
        raise layout.damaged("a superblock that agrees with the footer", "a different one", where)
    _verify_offsets(shard.section("offsets"), header.tokens, f"{where}, document table")
    for spec in header.columns:
        if spec.ragged:
            name = f"column:{spec.name}"
            _verify_offsets(
                shard.section(f"{name}:offsets"),
                header.section(name).items,
                f"{where}, {name}",
            )
    if header.vocab_size is not None:
        tokens = shard.section("tokens")
        for at in range(0, len(tokens), _BLOCK):
            top = int(tokens[at : at + _BLOCK].max())
            if top >= header.vocab_size:
                raise layout.damaged(
                    f"ids below the vocabulary of {header.vocab_size}",
                    f"id {top}",
                    where,
                )


def _verify_offsets(offsets: NDArray[Any], stop: int, where: str) -> None:
    if int(offsets[0]) != 0 or int(offsets[-1]) != stop:
        raise layout.damaged(
            f"offsets from 0 to {stop}",
            f"from {int(offsets[0])} to {int(offsets[-1])}",
            where,
        )
    for at in range(0, len(offsets), _BLOCK):
        block = offsets[at : at + _BLOCK + 1]
        decreasing = np.flatnonzero(block[1:] < block[:-1])
        if len(decreasing):
            bad = at + int(decreasing[0])
            raise layout.damaged("non-decreasing offsets", f"offsets[{bad}] > offsets[{bad + 1}]", where)


def info(path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Describes a store from its manifest and the header of its first shard, without reading tokens.

    `shards` has the first 1,024 of them; `files` is their number.
    """
    store = open_token_store(path, storage_options=storage_options)
    manifest: Manifest = store.manifest
    facts = store.describe()
    facts["tool"] = manifest.tool
    facts["metadata"] = manifest.metadata
    shown = ("name", "bytes", "documents", "tokens", "root")
    try:
        listed = manifest.shards[:SHOWN_SHARDS]
        facts["shards"] = [{name: getattr(shard, name) for name in shown} for shard in listed]
        header = store.shard_of(listed[0]).header
        facts["shard_metadata"], facts["page_bytes"] = header.metadata, header.page_bytes
    except PenstockError as error:
        facts["damage"] = str(error)
    return facts
