"""Checks every byte of a store (`verify`), or describes it without reading tokens (`info`).

`verify` hashes every byte (about as fast as the disk reads), checks that document tables and column offsets are
non-decreasing and every id is in the vocabulary, and lists all damage. Memory is bounded by one block.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import PenstockError, StoreError
from penstock.store import layout
from penstock.store.manifest import NAME, Manifest
from penstock.store.reader import TokenStore
from penstock.store.shard import Shard

_BLOCK = 1 << 22


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


def verify(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Report:
    """Checks every byte of a store, or of one shard file. `progress(done, total)` is called with byte counts.

    The report counts only intact shards, documents and tokens.
    """
    report = Report()
    try:
        store = TokenStore(path)
    except StoreError as error:
        report.problems.append(error)
        return report
    report.id = store.manifest.id
    folder = store.path if store.path.is_dir() else store.path.parent
    total, done = store.manifest.bytes, 0
    for info in store.manifest.shards:
        shard = Shard(folder / info.name, info)
        before = len(report.problems)
        base = done

        def step(here: int, base: int = base) -> None:
            if progress is not None:
                progress(base + here, total)

        _verify_shard(shard, report, step)
        shard.drop()
        done += info.bytes
        step(info.bytes)
        if len(report.problems) == before:
            report.shards += 1
            report.documents += info.documents
            report.tokens += info.tokens
            report.bytes += info.bytes
    if store.path.is_dir():
        listed = {NAME, *(s.name for s in store.manifest.shards)}
        report.extras = sorted(p.name for p in store.path.iterdir() if p.name not in listed)
    return report


def _verify_shard(shard: Shard, report: Report, step: Callable[[int], None]) -> None:
    try:
        shard.open()
        size = shard.header.page_bytes
        block = max(1, _BLOCK // size)
        intact = True
        for first in range(0, shard.pages, block):
            pages = np.arange(first, min(first + block, shard.pages))
            for page in pages.tolist():
                try:
                    shard.check_pages(np.array([page]))
                    report.pages += 1
                except StoreError as error:
                    intact = False
                    report.problems.append(error)
            step(min((first + block) * size, shard.body_bytes))
        if intact:
            _verify_values(shard)
    except StoreError as error:
        report.problems.append(error)


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


def info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describes a store from its manifest and the header of its first shard, without reading tokens."""
    store = TokenStore(path)
    manifest: Manifest = store.manifest
    folder = store.path if store.path.is_dir() else store.path.parent
    facts = store.describe()
    facts["tool"] = manifest.tool
    facts["metadata"] = manifest.metadata
    shown = ("name", "bytes", "documents", "tokens", "root")
    facts["shards"] = [{name: getattr(shard, name) for name in shown} for shard in manifest.shards]
    try:
        header = Shard(Path(folder) / manifest.shards[0].name, manifest.shards[0]).header
        facts["shard_metadata"], facts["page_bytes"] = header.metadata, header.page_bytes
    except PenstockError as error:
        facts["damage"] = str(error)
    return facts
