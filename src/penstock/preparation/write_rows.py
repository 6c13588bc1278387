"""`write`: the rows of a pipeline as shards of files, in a folder or an object store; resumable.

Shard i holds the kept rows of positions [i * shard_rows, (i + 1) * shard_rows) of the first epoch, so what it holds
depends on the pipeline alone. A shard appears complete under its name, then its record below `.penstock-write`; a run
that was killed makes the shards again that have no record. `.penstock.json` comes last: without it the dataset is
incomplete. Holds one shard in memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import xxhash

from penstock.core import local_files
from penstock.core.columns import concat, rows_of
from penstock.core.errors import StorageError, UsageError
from penstock.core.function_globals import globals_id
from penstock.core.ledger import Ledger
from penstock.core.progress import progress
from penstock.plan.definition import Definition
from penstock.plan.row_source import KeptRows, nothing_kept
from penstock.preparation.commit import find_conditional
from penstock.preparation.output import Output, checked_place
from penstock.preparation.row_formats import FORMATS, RowFormat, row_format

RECORDS, JOB, DONE = ".penstock-write", ".penstock-write/job.json", ".penstock.json"
STORE = "store"
SHARD_ROWS = 10_000
_BLOCK = 256


@dataclass(frozen=True)
class Written:
    """What `write` has written. `skipped` counts bad records, `filtered` those that filters rejected."""

    path: str
    format: str
    rows: int
    files: int
    bytes: int
    skipped: int = 0
    filtered: int = 0


@dataclass(frozen=True)
class _Shard:
    name: str
    rows: int
    bytes: int
    xxh3: str
    skipped: int
    filtered: int
    schema: str


def write(
    definition: Definition, out: str | os.PathLike[str], format: str, *, shard_rows: int = SHARD_ROWS,  # noqa: A002
    compression: str | None = None, parts: Mapping[str, str] | None = None, restart: bool = False,
    show_progress: bool | None = None, storage_options: Mapping[str, Any] | None = None, single_writer: bool = False,
    vocab_size: int | None = None,
) -> Written:  # fmt: skip
    """Writes all rows; see `Pipeline.write`."""
    definition.refuse_shard(".write()")
    if format == STORE:
        if compression is not None or parts is not None or shard_rows != SHARD_ROWS:
            got = f"shard_rows={shard_rows!r}, compression={compression!r}, parts={parts!r}"
            raise UsageError("no argument about files of rows for a token store", got=got, fix="leave them out")
        return _store(definition, out, vocab_size, restart, show_progress, storage_options, single_writer)
    if format not in FORMATS:
        names = ", ".join([*FORMATS, STORE])
        raise UsageError(f"format= one of {names}", got=repr(format), fix="convert() writes other formats of tokens")
    if vocab_size is not None:
        raise UsageError("vocab_size= only for token stores", got=f"format={format!r}", fix="leave it out")
    if isinstance(shard_rows, bool) or not isinstance(shard_rows, int) or shard_rows < 1:
        raise UsageError("shard_rows= of at least 1", got=repr(shard_rows), fix="shard_rows=10_000")
    kind = row_format(format, compression, parts)
    rows = KeptRows(definition, ".write()")
    output = Output(checked_place(out), storage_options)
    job = {
        "pipeline": definition.fingerprint(), "code": [one for f in definition.functions() if (one := globals_id(f))],
        "format": format, "shard_rows": shard_rows, "compression": compression, "parts": dict(parts or {}),
        "version": 1,
    }  # fmt: skip
    if output.remote:
        find_conditional(output, single_writer=single_writer)
        return _run(rows, output, kind, job, restart, show_progress)
    with local_files.writing(output.place):
        Path(output.place).mkdir(parents=True, exist_ok=True)
    with local_files.lock(output.path(".penstock-lock"), "writing rows"):
        return _run(rows, output, kind, job, restart, show_progress)


def _store(
    definition: Definition, out: str | os.PathLike[str], vocab_size: int | None, restart: bool, show: bool | None,
    storage_options: Mapping[str, Any] | None, single_writer: bool,
) -> Written:  # fmt: skip
    from penstock.preparation.write_tokens import write_tokens

    made = write_tokens(
        definition, out, vocab_size=vocab_size, restart=restart, show_progress=show, storage_options=storage_options,
        single_writer=single_writer,
    )  # fmt: skip
    rows = KeptRows(definition, ".write()").size
    return Written(
        made.path, STORE, made.documents, made.shards, made.bytes, made.skipped, rows - made.documents - made.skipped
    )


def _run(
    rows: KeptRows, output: Output, kind: RowFormat, job: dict[str, Any], restart: bool, show: bool | None
) -> Written:
    wanted = orjson.dumps(job, option=orjson.OPT_SORT_KEYS)
    _begin(output, wanted, restart)
    size = int(job["shard_rows"])
    shards = -(-rows.size // size)
    known = {name: _read(output, name) for name in output.sizes(RECORDS) if name != JOB}
    there = output.sizes()
    made: list[_Shard] = []
    ledger = Ledger(rows.budget)
    done = sum(1 for number in range(shards) if _record(number) in known)
    with progress(rows.size, "rows", "writing", show, done=min(rows.size, done * size)) as bar:
        for number in range(shards):
            found = known.get(_record(number))
            if found is None or (found.rows and there.get(found.name) != found.bytes):
                found = _make(rows, output, kind, number, size, made[0].schema if made else "")
                bar.update(min(size, rows.size - number * size))
            made.append(found)
            ledger.see(min(size, rows.size - number * size))
            if found.skipped:
                ledger.count("bad records", found.skipped)
    result = Written(
        output.place, str(job["format"]), sum(s.rows for s in made), sum(1 for s in made if s.rows),
        sum(s.bytes for s in made), sum(s.skipped for s in made), sum(s.filtered for s in made),
    )  # fmt: skip
    if not result.rows:
        output.delete([JOB])
        output.remove_folder(RECORDS)
        raise nothing_kept("write", result.skipped, result.filtered)
    output.put_same(DONE, orjson.dumps({**asdict(result), "path": "", "job": job}, option=orjson.OPT_SORT_KEYS))
    return result


def _begin(output: Output, job: bytes, restart: bool) -> None:
    """Records the job; what another job wrote is refused, or with `restart` deleted."""
    held = output.read(JOB)
    if held is not None and held != job:
        if not restart:
            raise UsageError(
                "a new place, or what the same call wrote before", got="rows of another pipeline or other arguments",
                where=output.place, fix="write somewhere else, or pass restart=True to delete them first",
            )  # fmt: skip
        names = [_read(output, name).name for name in output.sizes(RECORDS) if name != JOB]
        output.delete([name for name in [*names, DONE] if name and output.exists(name)])
        output.remove_folder(RECORDS)
        held = None
    if held is None:
        foreign = [name for name in output.sizes() if not name.startswith(".")]
        if foreign:
            raise UsageError(
                "an empty folder, or what the same call wrote before",
                got=f"{len(foreign)} files, such as {foreign[0]}", where=output.place, fix="write into a new folder",
            )  # fmt: skip
        output.put_same(JOB, job)


def _record(number: int) -> str:
    return f"{RECORDS}/{number:06d}.json"


def _read(output: Output, name: str) -> _Shard:
    data = output.read(name)
    try:
        return _Shard(**orjson.loads(data or b""))
    except (ValueError, TypeError) as error:
        raise StorageError(
            "the record of a shard", got=str(error)[:120], where=output.path(name), fix="delete it: it is made again"
        ) from error


def _make(rows: KeptRows, output: Output, kind: RowFormat, number: int, size: int, schema: str) -> _Shard:
    first, stop = number * size, min((number + 1) * size, rows.size)
    blocks = list(rows.blocks(first, _BLOCK, stop))
    kept = [block.columns for block in blocks if len(block.positions)]
    facts = {"skipped": sum(len(b.skipped) for b in blocks), "filtered": sum(b.filtered for b in blocks)}
    name, data = "", b""
    if kept:
        name = kind.name(number)
        columns = concat(kept)
        data, schema = kind.encode(columns, first, schema)
        output.put_same(name, data)
    count = rows_of(columns) if kept else 0
    shard = _Shard(name, count, len(data), xxhash.xxh3_128(data).hexdigest(), schema=schema, **facts)
    output.put_same(_record(number), orjson.dumps(asdict(shard), option=orjson.OPT_SORT_KEYS))
    return shard
