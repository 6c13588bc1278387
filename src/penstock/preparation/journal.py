"""The finished shards of a preparation, so that it can resume after being killed at any moment.

`job.json` identifies the job; `journal.jsonl` gets one line for each finished shard, after the shard has its
final name: its facts, the place in the source that comes next, and what was skipped in it. Both are removed when the
manifest is written. A line that was cut by a kill is ignored, and its shard is written again.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from penstock.core import local_files
from penstock.core.errors import UsageError
from penstock.store.layout import ColumnSpec
from penstock.store.writer import ShardInfo

JOB, JOURNAL = "job.json", "journal.jsonl"


@dataclass
class Done:
    """One finished shard."""

    shard: ShardInfo
    cursor: dict[str, int]
    skipped: list[dict[str, Any]] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    """How often each reason came in this shard, also beyond the entries that are kept."""


class Journal:
    """The journal of one output folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def exists(self) -> bool:
        """Whether an unfinished preparation, or a kill right after its end, left files here."""
        return (self.folder / JOB).exists() or (self.folder / JOURNAL).exists()

    def begin(self, job: dict[str, Any], restart: bool) -> list[Done]:
        """The shards that an earlier run of the same job finished; refuses to mix two jobs in one folder."""
        job_path, journal = self.folder / JOB, self.folder / JOURNAL
        if restart:
            self.wipe()
        self._sweep()
        begun = journal.exists() and b"\n" in journal.read_bytes()
        if not begun:  # no shard is finished, so other settings cannot mix with it
            job_path.unlink(missing_ok=True)
        if job_path.exists() and orjson.loads(job_path.read_bytes()) != job:
            raise UsageError(
                "an empty folder, or an unfinished preparation of the same job",
                got="an unfinished preparation of other files or with other settings",
                where=str(self.folder),
                fix="choose another folder, or pass restart=True (--restart) to start over",
            )
        if not job_path.exists():
            local_files.atomic_write(str(job_path), orjson.dumps(job))
        done: list[Done] = []
        whole = b""
        for line in journal.read_bytes().splitlines(keepends=True) if journal.exists() else ():
            entry = _read(line)
            if entry is None or not self._is_there(entry.shard):
                break
            done.append(entry)
            whole += line
        local_files.atomic_write(str(journal), whole)
        return done

    def _is_there(self, shard: ShardInfo) -> bool:
        path = self.folder / shard.name
        return path.exists() and path.stat().st_size == shard.bytes

    def add(self, done: Done) -> None:
        """Writes a finished shard durably into the journal."""
        facts = {"shard": asdict(done.shard), "cursor": done.cursor, "skipped": done.skipped, "reasons": done.reasons}
        line = orjson.dumps(facts) + b"\n"
        with open(self.folder / JOURNAL, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def end(self) -> None:
        """Removes the journal, once the manifest is written."""
        for name in (JOURNAL, JOB):
            (self.folder / name).unlink(missing_ok=True)
        self._sweep()

    def _sweep(self) -> None:
        """Removes temporary files left by a kill in the middle of a write."""
        for name in (JOURNAL, JOB, "skipped.jsonl", "manifest.json"):
            for path in self.folder.glob(f".{name}.*.tmp"):
                path.unlink(missing_ok=True)

    def wipe(self) -> None:
        """Removes only the files that a preparation writes."""
        for path in [*self.folder.glob("*.tokens"), *self.folder.glob(".*.tokens.partial")]:
            path.unlink()
        for name in ("manifest.json", "skipped.jsonl", JOURNAL, JOB):
            (self.folder / name).unlink(missing_ok=True)


def _read(line: bytes) -> Done | None:
    try:
        entry = orjson.loads(line)
        facts = entry["shard"]
        facts["columns"] = tuple(ColumnSpec(**{**c, "shape": tuple(c["shape"])}) for c in facts["columns"])
        return Done(ShardInfo(**facts), entry["cursor"], entry["skipped"], entry["reasons"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
