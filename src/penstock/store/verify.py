"""Reads a whole store again and says what is wrong with it; or, without reading tokens, what it is.

`verify` hashes every byte (about as fast as the disk reads), checks document tables and columns for order and every id
against the vocabulary, and lists all damage instead of stopping at the first. Memory is bounded by one block.
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
    """What `verify` found. `problems` is empty when the store is whole; `extras` are files no manifest lists."""

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
        """Raises the first problem, if there is one."""
        if self.problems:
            raise self.problems[0]


def verify(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Report:
    """Checks every byte of a store, or of one shard file. `progress(done, total)` is called in bytes.

    Counts in the report are of what was found whole.
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
        whole = True
        for first in range(0, shard.pages, block):
            pages = np.arange(first, min(first + block, shard.pages))
            for page in pages.tolist():
                try:
                    shard.check_pages(np.array([page]))
                    report.pages += 1
                except StoreError as error:
                    whole = False
                    report.problems.append(error)
            step(min((first + block) * size, shard.body_bytes))
        if whole:
            _verify_meaning(shard)
    except StoreError as error:
        report.problems.append(error)


def _verify_meaning(shard: Shard) -> None:
    """A sound checksum over numbers that make no sense means that the writer was not ours."""
    header, where = shard.header, str(shard.path)
    if bytes(memoryview(shard.open())[: layout.ALIGN]) != layout.superblock(header.page_bytes):
        raise layout.damaged("a superblock like the footer", "another", where)
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
        falls = np.flatnonzero(block[1:] < block[:-1])
        if len(falls):
            raise layout.damaged("offsets that rise", f"a fall at document {at + int(falls[0])}", where)


def info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Plain facts about a store, from its manifest and the header of its first shard; no token is read."""
    store = TokenStore(path)
    manifest: Manifest = store.manifest
    folder = store.path if store.path.is_dir() else store.path.parent
    facts = store.describe()
    facts["tool"] = manifest.tool
    facts["metadata"] = manifest.metadata
    facts["shards"] = [
        {
            "name": s.name,
            "bytes": s.bytes,
            "documents": s.documents,
            "tokens": s.tokens,
            "root": s.root,
        }
        for s in manifest.shards
    ]
    try:
        header = Shard(Path(folder) / manifest.shards[0].name, manifest.shards[0]).header
        facts["shard_metadata"], facts["page_bytes"] = (
            header.metadata,
            header.page_bytes,
        )
    except PenstockError as error:
        facts["damage"] = str(error)
    return facts
