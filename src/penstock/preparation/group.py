"""One group of a preparation: a range of the input, and the shards made from it.

A group depends on no other one: its shards are cut by its own documents, and its lines are counted from its own
beginning. So groups can be made in any order, by any process, and again after one was lost: the bytes are the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, Ragged, cut
from penstock.core.ledger import Ledger
from penstock.preparation.journal import MANIFEST, Done, Journal
from penstock.preparation.maker import Maker
from penstock.preparation.output import Output
from penstock.sources.base import RangeSource, TextSource
from penstock.sources.lines import Chunk
from penstock.sources.ranges import Range
from penstock.store.writer import ShardInfo, ShardWriter

_IDS = " ids"  # beside the other columns, which have names of their own
_WITHIN = "within"  # in a cursor: documents of the next chunk that are written
OnChunk = Callable[[Chunk, int, int], None]


@dataclass(frozen=True)
class Job:
    """What a process needs to make any group. Can be pickled."""

    source: TextSource
    maker: Maker
    output: Output
    parts: tuple[Range, ...]
    """The groups; none for a source that cannot be cut, which is one group."""
    shard_tokens: int
    on_error: str
    budget: int | float | Fraction | None
    ident: str

    @property
    def groups(self) -> int:
        return max(1, len(self.parts))

    def part(self, number: int) -> Range | None:
        return self.parts[number] if self.groups > 1 else None

    def journal(self) -> Journal:
        return Journal(self.output, self.ident)

    def shard_name(self, group: int, number: int, root: str) -> str:
        """With the hash of its content, so that another content never has this name."""
        return f"{number:05d}.tokens" if self.groups == 1 else f"g{group:06d}-{number:03d}-{root}.tokens"

    def group_budget(self) -> int | float | Fraction | None:
        """What a group can check alone: a share of all records is known to the one that sums up."""
        return self.budget if self.groups == 1 or isinstance(self.budget, int) else None


def make_group(
    job: Job, number: int, on_chunk: OnChunk | None = None, *, manifest_next: bool = False
) -> list[Done] | None:
    """Writes the shards of a group that are not there yet; returns the records of all of them.

    None if the store is finished: another run of the job was faster, and has swept its records. With `manifest_next`
    the last shard has no record: the manifest follows, and a run that is killed in between writes that shard again.
    """
    journal = job.journal()
    if job.output.remote and job.output.exists(MANIFEST):
        return None
    done = journal.group(number)
    if done and done[-1].last:
        return done
    for record in _Group(job, number, done, on_chunk).records():
        if not (manifest_next and record.last):
            journal.add(number, len(done), record)
        done.append(record)
    return done


class _Piece(NamedTuple):
    """Documents of a chunk, the place that comes next, and the chunk, if this is its first piece."""

    chunk: Chunk | None
    documents: Ragged
    columns: Columns
    cursor: dict[str, int]


def _cuts(lengths: NDArray[np.int64], most: int) -> list[int]:
    """Where documents are cut into pieces of at least `most` tokens; the last one is smaller. Not at all below that.

    >>> _cuts(np.array([3, 3, 3, 3, 1]), 5), _cuts(np.array([3, 3]), 6), _cuts(np.array([], int), 6)
    ([0, 2, 4, 5], [0, 2], [0, 0])
    """
    ends = np.cumsum(lengths)
    cuts = [0]
    if len(ends) and int(ends[-1]) > most:
        done = 0
        while done + most < int(ends[-1]):
            cuts.append(int(np.searchsorted(ends, done + most)) + 1)
            done = int(ends[cuts[-1] - 1])
    return cuts if len(ends) and cuts[-1] == len(ends) else [*cuts, len(ends)]


class _Group:
    def __init__(self, job: Job, number: int, done: list[Done], on_chunk: OnChunk | None) -> None:
        self.job, self.number, self.on_chunk = job, number, on_chunk
        self.part = job.part(number)
        cursor = dict(done[-1].cursor) if done else {}
        self.within = cursor.pop(_WITHIN, 0)  # documents of the next chunk that are written
        self.cursor: Any = cursor or None
        self.shards = sum(record.shard is not None for record in done)
        self.lines_before = self.part.start["line"] if self.part is not None else 0
        self.ledger = Ledger(job.group_budget())
        for record in done:
            record.recall(self.ledger)

    def _chunks(self) -> Iterator[Chunk]:
        if self.part is None:
            return self.job.source.iterate(self.cursor)
        assert isinstance(self.job.source, RangeSource)
        return self.job.source.iterate(self.cursor, self.part)

    def records(self) -> Iterator[Done]:
        """One for each shard, after it has its final name. Each waits for the next chunk: the last one says so."""
        finished: Done | None = None
        shard: _Shard | None = None
        with ExitStack() as open_shard:
            for piece in self._pieces():
                if finished is not None:
                    yield finished
                    finished = None
                if shard is None:
                    shard = open_shard.enter_context(_Shard(self.job, self.number))
                if piece.chunk is not None:
                    self._skip(piece.chunk, shard)
                shard.writer.add(piece.documents, piece.columns)
                shard.done.cursor = piece.cursor
                if self.on_chunk is not None and piece.chunk is not None:
                    self.on_chunk(piece.chunk, self.shards, shard.writer.tokens)
                if shard.writer.tokens >= self.job.shard_tokens:
                    finished, shard = self._finish(shard), None
                    open_shard.close()
            if shard is not None:
                finished = self._finish(shard)
        end = Done(None, dict(self.cursor or {})) if finished is None else finished
        end.last = True
        yield end

    def _pieces(self) -> Iterator[_Piece]:
        """The documents of all chunks, those of a chunk with more tokens than a shard in several pieces."""
        for chunk, documents, beside in self.job.maker.documents(self._chunks()):
            columns: Columns = {_IDS: documents, **self._origin(chunk), **beside}
            cuts = _cuts(documents.lengths, self.job.shard_tokens)
            before, self.cursor = dict(self.cursor or {}), chunk.cursor
            first_piece: Chunk | None = chunk
            if self.within:  # an earlier run wrote a part of this chunk, and listed what was skipped in it
                self.ledger.see(len(documents) - self.within)
                first_piece = None
            for first, stop in pairwise(at for at in cuts if at >= self.within):
                some = dict(columns) if len(cuts) == 2 else cut(columns, first, stop)
                ids = some.pop(_IDS)
                assert isinstance(ids, Ragged)
                yield _Piece(
                    first_piece, ids, some, chunk.cursor if stop == len(documents) else before | {_WITHIN: stop}
                )
                first_piece = None
            self.within = 0

    def _origin(self, chunk: Chunk) -> Columns:
        places = np.array(chunk.positions, np.uint64).reshape(-1, 3)
        lines = places[:, 1] - np.uint64(self.lines_before)
        return {"_file": places[:, 0].astype(np.uint32), "_line": lines.astype(np.uint32)}

    def _finish(self, shard: _Shard) -> Done:
        shard.done.shard = shard.publish(self.shards)
        self.shards += shard.done.shard is not None
        return shard.done

    def _skip(self, chunk: Chunk, shard: _Shard) -> None:
        # Count the records first: a budget may be a fraction of them.
        self.ledger.see(len(chunk.texts) + len(chunk.errors) + len(chunk.skipped))
        if chunk.errors and self.job.on_error == "raise":
            raise chunk.errors[0]
        done, before = shard.done, len(self.ledger.entries)
        for entry in chunk.skipped:
            self.ledger.add(entry.file, entry.record, entry.reason, entry.detail)
        for error, (_, line, _) in zip(chunk.errors, chunk.error_positions, strict=True):
            self.ledger.skip(error, {"file": re.split(", (?:line|row) ", error.where)[0], "line": line})
        done.skipped += [asdict(entry) for entry in self.ledger.entries[before:]]
        reasons = Counter(done.reasons)
        reasons.update([*(entry.reason for entry in chunk.skipped), *(error.expected for error in chunk.errors)])
        done.reasons = dict(reasons)
        done.filtered += chunk.filtered
        done.text_bytes += chunk.file_bytes


class _Shard:
    """A shard being written under a temporary name, and the record of it."""

    def __init__(self, job: Job, group: int) -> None:
        self.job, self.group = job, group
        self.done = Done(None, {})

    def __enter__(self) -> _Shard:
        self._scratch = self.job.output.scratch()
        self.path = self._scratch.__enter__() / "shard.tokens"
        self.writer = ShardWriter(self.path, vocab_size=self.job.maker.vocab_size, sync_name=False)
        return self

    def publish(self, number: int) -> ShardInfo | None:
        """Gives the shard its name; None if it has no documents and others have."""
        if self.job.groups > 1 and not self.writer.documents:
            return None
        info = self.writer.finish()
        name = self.job.shard_name(self.group, number, info.root)
        self.job.output.put_same(name, self.path)
        return replace(info, name=name)

    def __exit__(self, *error: Any) -> None:
        self.writer.abort()
        self._scratch.__exit__(*error)
