"""How a store is begun and finished in a folder or an object store, and what is swept afterwards.

A folder is locked by one process. An object store has no locks: two runs of one job may write at the same time, and
both end with the same store, because every file is created once and has the same bytes from every run. That needs
storage that refuses to create a file twice, which is asked before anything is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from penstock.core import local_files
from penstock.core.errors import StorageError, StoreError
from penstock.preparation.journal import DONE, JOB, MANIFEST
from penstock.preparation.output import Output
from penstock.storage import filesystem, objects
from penstock.store.manifest import Manifest, decode_manifest, manifest_files, read_manifest
from penstock.store.shard_groups import is_index
from penstock.store.writer import ShardInfo

_SHARD = re.compile(r"\d{5,}\.tokens|g\d{6,}-\d{3,}-[0-9a-f]{32}\.tokens")  # see `Job.shard_name`
_PROBE = ".penstock-probe-"  # what `objects.honours_create_only` leaves if it is killed


def find_conditional(output: Output, *, single_writer: bool, many: bool = False) -> None:
    """Asks an object store whether it refuses to create a file twice; if not, a single writer is demanded."""
    output.conditional = objects.honours_create_only(output.place, output.options)
    if not output.conditional and (many or not single_writer):
        alone = (
            "; or make sure that this is the only process that writes there and pass single_writer=True "
            "(--single-writer): then it looks before each write; a cache_dir= can be a folder"
        )
        raise StorageError(
            "storage that refuses to create a file twice (conditional puts, If-None-Match)",
            got="it answered a second create with success, and overwrote the first",
            where=output.place,
            fix="use storage that honours conditional puts" + ("; a cluster has many writers" if many else alone),
        )


@contextmanager
def writing(output: Output, *, single_writer: bool, many: bool = False) -> Iterator[None]:
    """Locks the folder, or asks the object store whether several processes can write to it safely.

    `many`: there are several, on a cluster.
    """
    if output.remote:
        find_conditional(output, single_writer=single_writer, many=many)
        yield
        return
    with local_files.writing(output.place):
        Path(output.place).mkdir(parents=True, exist_ok=True)
    with local_files.writing(output.place), local_files.lock(output.path(".lock"), "preparing a token store"):
        yield


def read_store(output: Output) -> Manifest | None:
    """The manifest of the output; None if there is none."""
    if not output.remote:
        return read_manifest(output.place) if output.exists(MANIFEST) else None
    data = output.read(MANIFEST)
    return None if data is None else decode_manifest(data, output.path(MANIFEST), partial(_read_ranges, output))


def _read_ranges(output: Output, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    return filesystem.read_ranges(output.path(name), ranges, output.options)


def write_store(output: Output, shards: Sequence[ShardInfo], **facts: Any) -> Manifest:
    """Writes the manifest, last of all. If another run of the same job was first, its manifest must be the same."""
    manifest, files = manifest_files(shards, **facts)
    for name, data in files.items():
        if name != MANIFEST:
            output.put_same(name, data)
        elif not output.put(name, data):
            there = read_store(output)
            if there is None or there.id != manifest.id:
                raise StoreError(
                    f"the store {manifest.id}, if there is already one",
                    got="none" if there is None else f"the store {there.id}",
                    where=output.path(MANIFEST),
                    fix="another run wrote other documents from the same job: functions and tokenizers must return the "
                    "same for the same input on every machine",
                )
    return manifest


def sweep(output: Output, manifest: Manifest, before: float = math.inf) -> list[str]:
    """Deletes what a preparation left beside its finished store: shards it does not name, records, probes.

    Only what was written earlier than `before`, in seconds since 1970. Returns the names. A process that still works on
    the same job is not harmed: it finds the manifest.
    """
    kept = {shard.name for shard in manifest.shards} | set(manifest.shards.files)
    found = output.files()
    left = [name for name in found if is_leftover(name) and name not in kept and found[name].modified < before]
    output.delete(left)
    return left


def is_leftover(name: str) -> bool:
    """Whether a preparation writes files of this name that belong to a finished store only if it names them."""
    return name == JOB or name.startswith((f"{DONE}/", _PROBE)) or is_index(name) or bool(_SHARD.fullmatch(name))
