"""The finished shards of a preparation, so that it can resume after being killed at any moment.

`job.json` identifies the job; `done/<group>/<number>.json` is written for each finished shard, after the shard has its
final name: its facts, the place in the source that comes next, and what was skipped in it. All are removed when the
manifest is written. Any process of the job can write them, in any order of groups; resuming is listing them.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from penstock.core.errors import UsageError
from penstock.core.ledger import Entry, Ledger
from penstock.preparation.output import SCRATCH, Output
from penstock.store.layout import ColumnSpec
from penstock.store.shard_groups import INDEX_PREFIX, is_index
from penstock.store.writer import ShardInfo

JOB, DONE, SKIPPED, MANIFEST = "job.json", "done", "skipped.jsonl", "manifest.json"
_OLD = "journal.jsonl"  # of earlier versions: their unfinished preparations start over
_AT_ONCE = 16


@dataclass
class Done:
    """One finished shard of a group; without a shard, the end of a group that had no more documents."""

    shard: ShardInfo | None
    cursor: dict[str, int]
    skipped: list[dict[str, Any]] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    """How often each reason came in this shard, also beyond the entries that are kept."""
    last: bool = False
    """Whether the group ends here."""
    filtered: int = 0
    text_bytes: int = 0

    def recall(self, ledger: Ledger, lines: int = 0) -> None:
        """Adds what was seen and skipped to a ledger; `lines` come before those that the entries count."""
        documents = 0 if self.shard is None else self.shard.documents
        ledger.see(documents + sum(self.reasons.values()))
        unlisted = Counter(self.reasons)
        for entry in self.skipped:
            known = Entry(**entry)
            unlisted[known.reason] -= 1
            ledger.add(known.file, known.record and known.record + lines, known.reason, known.detail)
        for reason, count in unlisted.items():
            if count:
                ledger.count(reason, count)  # the list was full


class Journal:
    """The journal of one job in one output."""

    def __init__(self, output: Output, ident: str) -> None:
        self.output, self.ident = output, ident

    def exists(self) -> bool:
        """Whether an unfinished preparation, or a kill right after its end, left files here."""
        return any(self.output.exists(name) for name in (JOB, _OLD))

    def begin(self, job: dict[str, Any], restart: bool) -> dict[int, list[Done]]:
        """The shards that an earlier run of the same job finished; refuses to mix two jobs in one place."""
        if restart:
            wipe(self.output)
        if not self.output.remote:
            self.output.remove_folder(SCRATCH)
            sweep_temporary(self.output)
            Path(self.output.path(DONE)).mkdir(exist_ok=True)  # says that this is no store yet
        files = self.output.sizes()
        records = [name for name in files if name.startswith(f"{DONE}/") and name.endswith(".json")]
        known = _settings(self.output.read(JOB)) if JOB in files else None
        if known is not None and known != job:
            # In a folder, which is locked, a job without a finished shard is replaced.
            if self.output.remote or records:
                raise self._another()
            known = None
        # Nothing waits for the disk: each record names its job, so that after a power cut this file may be missing.
        if known is None and not self.output.put(JOB, orjson.dumps(job), synced=False):
            found = _settings(self.output.read(JOB))
            if found is not None and found != job:
                raise self._another()
        return self._sound(records, files)

    def _another(self) -> UsageError:
        return UsageError(
            "an empty folder, or an unfinished preparation of the same job",
            got="an unfinished preparation of other files or with other settings",
            where=self.output.place,
            fix="choose another folder, or pass restart=True (--restart) to start over",
        )

    def _sound(self, names: list[str], files: dict[str, int]) -> dict[int, list[Done]]:
        """The records whose shards are there, up to the first that is not; the others are deleted."""
        groups: dict[int, list[Done]] = {}
        bad: list[str] = []
        ended: set[int] = set()
        for name, done in zip(names, self._read(names), strict=True):
            group, number = _numbers(name)
            found = groups.setdefault(group, [])
            there = done is not None and (done.shard is None or files.get(done.shard.name) == done.shard.bytes)
            if done is None or not there or number != len(found) or group in ended:
                ended.add(group)
                bad.append(name)
            else:
                found.append(done)
        self.output.delete(bad)
        return {group: found for group, found in groups.items() if found}

    def group(self, number: int) -> list[Done]:
        """The finished shards of one group."""
        found: list[Done] = []
        names = [name for name in self.output.sizes(f"{DONE}/{number:06d}") if name.endswith(".json")]
        for name, done in zip(names, self._read(names), strict=True):
            if done is None or _numbers(name)[1] != len(found):
                break
            found.append(done)
        return found

    def _read(self, names: list[str]) -> list[Done | None]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return [self._parse(data) for data in pool.map(self.output.read, names)]

    def _parse(self, data: bytes | None) -> Done | None:
        try:
            entry = orjson.loads(data or b"")
            if entry.pop("job") != self.ident:
                return None
            facts = entry.pop("shard")
            if facts is not None:
                facts["columns"] = tuple(ColumnSpec(**{**c, "shape": tuple(c["shape"])}) for c in facts["columns"])
                facts = ShardInfo(**facts)
            return Done(facts, **entry)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return None

    def add(self, group: int, number: int, done: Done) -> None:
        """Commits a finished shard."""
        facts = {"job": self.ident} | asdict(done)
        self.output.put_same(f"{DONE}/{group:06d}/{number:04d}.json", orjson.dumps(facts))

    def end(self) -> None:
        """Removes the journal, once the manifest is written."""
        self.output.remove_folder(DONE)
        self.output.delete([JOB, _OLD])
        if not self.output.remote:
            self.output.remove_folder(SCRATCH)
            sweep_temporary(self.output)


def written(output: Output) -> int:
    """How many shards an unfinished preparation has written."""
    return sum(name.endswith(".json") for name in output.sizes(DONE))


def _settings(data: bytes | None) -> Any:
    """The job that a file names; None for one that a power cut left empty."""
    try:
        return orjson.loads(data or b"null")
    except orjson.JSONDecodeError:
        return None


def _numbers(name: str) -> tuple[int, int]:
    try:
        _, group, number = name.removesuffix(".json").split("/")
        return int(group), int(number)
    except ValueError:
        return -1, -1


def sweep_temporary(output: Output) -> None:
    """Removes temporary files that a kill in the middle of a write left in a folder."""
    ours = (*(f".{name}." for name in (JOB, _OLD, SKIPPED, MANIFEST)), f".{INDEX_PREFIX}")
    left = [name for name in output.sizes() if name.startswith(ours) and name.endswith(".tmp")]
    output.delete([*left, *(n for n in output.sizes() if n.endswith(".tokens.partial") and n.startswith("."))])


def wipe(output: Output) -> None:
    """Removes only the files that a preparation writes, the manifest first."""
    output.delete([MANIFEST])
    ours = [name for name in output.sizes() if (name.endswith(".tokens") and "/" not in name) or is_index(name)]
    output.delete(ours)
    output.remove_folder(DONE)
    output.delete([SKIPPED, JOB, _OLD])
