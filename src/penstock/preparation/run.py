"""`prepare`: raw text to a verified token store, once.

Memory is bounded whatever the corpus: a few chunks of 4 MB and one open shard. The result depends on the source, the
tokenizer and the settings alone: a run that was killed and begun again, any number of times, writes the same bytes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import orjson

from penstock.core import local_files
from penstock.core.columns import Columns, Ragged
from penstock.core.errors import DataError, UsageError
from penstock.core.hashing import content_id
from penstock.core.ledger import Entry, Ledger
from penstock.core.progress import progress
from penstock.preparation.encode import encoded
from penstock.preparation.journal import Done, Journal
from penstock.sources.base import FileSource, TextColumnSource, TextSource
from penstock.sources.lines import Chunk
from penstock.sources.token_stream import with_end
from penstock.storage.filesystem import local_only
from penstock.store.layout import token_dtype
from penstock.store.manifest import Manifest, read_manifest, write_manifest
from penstock.store.writer import ShardInfo, ShardWriter
from penstock.tokenizers import as_tokenizer
from penstock.tokenizers.base import BaseTokenizer, Special, Tokenizer
from penstock.tokenizers.bulk import BulkEncoder

SHARD_TOKENS = 1 << 25
SAMPLED_FILES = 4
MOST_NAMES = 100_000


class Made(NamedTuple):
    """The documents of a chunk, with columns beside those of their provenance."""

    chunk: Chunk
    documents: Ragged
    columns: Columns


class Maker(Protocol):
    """Turns the chunks of a source into documents of tokens, in order."""

    vocab_size: int
    eos: int | None

    @property
    def engine(self) -> str: ...

    def job(self) -> dict[str, Any]:
        """All settings that affect the documents, in plain JSON, including `tokenizer`."""
        ...

    def check(self, source: TextSource) -> None:
        """Checks the source before anything is written."""
        ...

    def documents(self, chunks: Iterable[Chunk]) -> Iterator[Made]: ...

    def close(self) -> None: ...


@dataclass
class Prepared:
    """The result of `prepare`."""

    path: str
    id: str
    documents: int
    tokens: int
    bytes: int
    shards: int
    skipped: int
    engine: str
    seconds: float
    text_bytes: int
    resumed: bool = False
    already: bool = False
    reasons: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def prepare(
    source: TextSource,
    tokenizer: Any,
    out: str | os.PathLike[str],
    *,
    eos: bool | int = True,
    engine: Literal["auto", "reference"] = "auto",
    shard_tokens: int = SHARD_TOKENS,
    on_error: Literal["raise", "skip"] = "raise",
    budget: int | float | None = None,
    threads: int | None = None,
    show_progress: bool | None = None,
    restart: bool = False,
    add_special_tokens: bool | None = None,
    allowed_special: Special | None = None,
    disallowed_special: Special | None = None,
) -> Prepared:
    """Tokenises `source` into the folder `out`. Run it again after an interruption to resume.

    `eos=True` appends the tokenizer's end token to every document if it has one and does not add it itself; an int
    appends that id. The last three arguments are those of `as_tokenizer`.
    """
    out = local_only(out, "out")
    if engine not in ("auto", "reference"):
        raise UsageError('engine="auto" or "reference"', got=repr(engine))
    _check_settings(shard_tokens, on_error)
    chosen = as_tokenizer(
        tokenizer, add_special_tokens=add_special_tokens, allowed_special=allowed_special,
        disallowed_special=disallowed_special,
    )  # fmt: skip
    encoder = BulkEncoder(chosen, threads=threads, reference=engine == "reference")
    paths = list(source.paths) if isinstance(source, FileSource) else []
    return make_store(
        source, _Texts(encoder, eos, paths), out, shard_tokens=shard_tokens, on_error=on_error,
        budget=budget, show_progress=show_progress, restart=restart,
    )  # fmt: skip


def _check_settings(shard_tokens: int, on_error: str) -> None:
    if on_error not in ("raise", "skip"):
        raise UsageError('on_error="raise" or "skip"', got=repr(on_error))
    if shard_tokens < 1:
        raise UsageError("shard_tokens of at least 1", got=repr(shard_tokens))


def make_store(
    source: TextSource,
    maker: Maker,
    out: str | os.PathLike[str],
    *,
    shard_tokens: int = SHARD_TOKENS,
    on_error: Literal["raise", "skip"] = "raise",
    budget: int | float | None = None,
    show_progress: bool | None = None,
    restart: bool = False,
) -> Prepared:
    """Writes the documents of `source`, made by `maker`, into the folder `out`; resumes an interrupted run."""
    _check_settings(shard_tokens, on_error)
    began = time.perf_counter()
    folder = Path(local_only(out, "out"))
    run = _Run(source, maker, folder, shard_tokens, on_error, budget)
    if not restart and not run.journal.exists() and (finished := run.finished()) is not None:
        return run.report(finished, began, already=True)  # nothing is written: the folder may be read-only
    with local_files.writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    with (
        local_files.writing(str(folder)),
        local_files.lock(str(folder / ".lock"), "preparing a token store"),
    ):
        finished = None if restart else run.finished()
        if finished is not None:
            return run.report(finished, began, already=True)
        return run.report(run.write(restart, show_progress), began)


def _end_of(tokenizer: Tokenizer, eos: bool | int) -> int | None:
    if eos is False:
        return None
    if eos is True:
        return tokenizer.eos_id
    if not 0 <= eos < tokenizer.vocab_size:
        raise UsageError(f"an end token below the vocabulary size {tokenizer.vocab_size}", got=str(eos))
    return int(eos)


class _Texts:
    """Texts as they are, tokenised, each followed by the end token if there is one."""

    def __init__(self, encoder: BulkEncoder, eos: bool | int, paths: Sequence[str]) -> None:
        self.encoder, self.paths = encoder, paths
        self.tokenizer = encoder.tokenizer
        self.eos = _end_of(self.tokenizer, eos)
        ended = eos is True and isinstance(self.tokenizer, BaseTokenizer) and self.tokenizer.ends_texts
        self.appended = None if ended else self.eos
        self.vocab_size = self.tokenizer.vocab_size

    @property
    def engine(self) -> str:
        return self.encoder.engine

    def job(self) -> dict[str, Any]:
        policy = self.tokenizer.policy() if isinstance(self.tokenizer, BaseTokenizer) else {}
        return {"tokenizer": self.tokenizer.identity(), "eos": self.eos} | policy

    def check(self, source: TextSource) -> None:
        """The fast engine is compared with the reference on texts from several files before it is used."""
        texts: list[str] = []
        files = int(source.describe().get("files", 1) or 1)
        for file in sorted({i * (files - 1) // max(1, SAMPLED_FILES - 1) for i in range(SAMPLED_FILES)}):
            start = {"file": file, "offset": 0, "line": 0} if file else None
            chunk = next(iter(source.iterate(start)), None)
            texts += chunk.texts if chunk else []
        self.encoder.check(texts)

    def documents(self, chunks: Iterable[Chunk]) -> Iterator[Made]:
        for chunk, documents in encoded(chunks, self.encoder, self.paths):
            yield Made(chunk, with_end(documents, self.appended, token_dtype(self.vocab_size)), {})

    def close(self) -> None:
        self.encoder.close()


class _Run:
    def __init__(
        self,
        source: TextSource,
        maker: Maker,
        folder: Path,
        shard_tokens: int,
        on_error: str,
        budget: int | float | None,
    ) -> None:
        self.source, self.maker, self.folder = source, maker, folder
        self.shard_tokens, self.on_error = shard_tokens, on_error
        self.ledger = Ledger(budget)
        self.journal = Journal(folder)
        self.resumed = False
        self.text_bytes = self.filtered = 0
        self.job = maker.job() | {
            "shard_tokens": shard_tokens,
            "on_error": on_error,
            "source": "|".join(source_id(source)),
        }

    def finished(self) -> Manifest | None:
        """The manifest, if the same job is already finished in this folder."""
        if not (self.folder / "manifest.json").exists():
            return None
        manifest = read_manifest(self.folder)
        if manifest.metadata.get("job") != content_id([orjson.dumps(self.job)]):
            raise UsageError(
                "an empty folder, or the store of the same job",
                got="a store of other data or settings",
                where=str(self.folder),
                fix="choose another folder, or pass restart=True (--restart) to replace it",
            )
        check_budget(manifest, self.ledger.budget)
        if self.journal.exists():
            self.journal.end()  # a kill right after the manifest was written leaves the journal behind
        return manifest

    def write(self, restart: bool, show: bool | None) -> Manifest:
        done = self.journal.begin(self.job, restart)
        self.resumed = bool(done)
        for entry in done:
            self._recall(entry)
        shards = [entry.shard for entry in done]
        cursor = done[-1].cursor if done else None
        self.maker.check(self.source)
        total = self.source.describe().get("bytes")
        with progress(total, "B", "preparing", show) as bar:
            for made in self._shards(cursor, len(shards), bar):
                self.journal.add(made)
                shards.append(made.shard)
        self.ledger.check()
        if self.ledger.total:
            self.ledger.write(str(self.folder / "skipped.jsonl"))
        if not any(shard.documents for shard in shards):
            raise self._nothing()
        manifest = write_manifest(
            self.folder,
            shards,
            tokenizer=self.job["tokenizer"],
            eos_id=self.maker.eos,
            metadata={
                "job": content_id([orjson.dumps(self.job)]),
                "skipped": self.ledger.total,
                "files": _short_names(self.source.paths if isinstance(self.source, FileSource) else []),
            },
        )
        self.journal.end()
        return manifest

    def _nothing(self) -> DataError:
        lost = [f"all {self.ledger.total:,} were skipped"] if self.ledger.total else []
        lost += [f"{self.filtered:,} records were rejected by .filter()"] if self.filtered else []
        skipped = self.folder / "skipped.jsonl"
        return DataError(
            "at least one record that can be prepared",
            got=", ".join(lost) or "none",
            where=str(skipped if self.ledger.total else self.source.describe()),
            fix="look at the records listed there; the template or the field's name may be wrong"
            if self.ledger.total
            else "check the filters and the data",
        )

    def _shards(self, cursor: dict[str, int] | None, number: int, bar: Any) -> Iterator[Done]:
        """Writes shard after shard; each is cut at the first chunk that fills it."""
        writer: ShardWriter | None = None
        skipped: list[dict[str, Any]] = []
        reasons: Counter[str] = Counter()
        at = cursor or {}
        try:
            for chunk, documents, beside in self.maker.documents(self.source.iterate(cursor)):
                if writer is None:
                    writer = self._open(number)
                # Count the records first: a budget may be a fraction of them.
                self.ledger.see(len(chunk.texts) + len(chunk.errors) + len(chunk.skipped))
                self.filtered += chunk.filtered
                skipped += self._skip(chunk)
                reasons.update([*(entry.reason for entry in chunk.skipped), *(e.expected for e in chunk.errors)])
                places = np.array(chunk.positions, np.uint64).reshape(-1, 3)
                origin: Columns = {"_file": places[:, 0].astype(np.uint32), "_line": places[:, 1].astype(np.uint32)}
                writer.add(documents, origin | beside)
                self.text_bytes += chunk.file_bytes
                at = chunk.cursor
                bar.update(chunk.file_bytes)
                bar.note(f"{self.maker.engine}, shard {number}, {writer.tokens:,} tokens")
                if writer.tokens >= self.shard_tokens:
                    info, writer = self._close(writer), None
                    yield Done(info, at, skipped, dict(reasons))
                    number, skipped, reasons = number + 1, [], Counter()
            if writer is not None:
                info, writer = self._close(writer), None
                yield Done(info, at, skipped, dict(reasons))
        finally:
            if writer is not None:
                writer.abort()

    def _open(self, number: int) -> ShardWriter:
        return ShardWriter(self.folder / f"{number:05d}.tokens", vocab_size=self.maker.vocab_size, overwrite=True)

    def _close(self, writer: ShardWriter) -> ShardInfo:
        return writer.finish()

    def _skip(self, chunk: Chunk) -> list[dict[str, Any]]:
        if chunk.errors and self.on_error == "raise":
            raise chunk.errors[0]
        before = len(self.ledger.entries)
        for entry in chunk.skipped:
            self.ledger.add(entry.file, entry.record, entry.reason, entry.detail)
        for error, (_, line, _) in zip(chunk.errors, chunk.error_positions, strict=True):
            self.ledger.skip(error, {"file": error.where.split(", line ")[0], "line": line})
        return [asdict(entry) for entry in self.ledger.entries[before:]]

    def _recall(self, done: Done) -> None:
        self.ledger.see(done.shard.documents + sum(done.reasons.values()))
        unlisted = Counter(done.reasons)
        for entry in done.skipped:
            known = Entry(**entry)
            unlisted[known.reason] -= 1
            self.ledger.add(known.file, known.record, known.reason, known.detail)
        for reason in unlisted.elements():  # only counted: the list was full
            self.ledger.add("", None, reason)

    def report(self, manifest: Manifest, began: float, already: bool = False) -> Prepared:
        self.maker.close()
        return Prepared(
            path=str(self.folder),
            id=manifest.id,
            documents=manifest.documents,
            tokens=manifest.tokens,
            bytes=manifest.bytes,
            shards=len(manifest.shards),
            skipped=int(manifest.metadata.get("skipped", 0)),
            engine=self.maker.engine,
            seconds=time.perf_counter() - began,
            text_bytes=self.text_bytes,
            resumed=self.resumed,
            already=already,
            reasons=dict(self.ledger.by_reason),
        )


def source_id(source: TextSource) -> list[str]:
    """The identity of the texts: the source's fingerprint, and the column they come from unless it is "text"."""
    column = source.text_column if isinstance(source, TextColumnSource) else None
    return [source.fingerprint(), *([] if column in (None, "text") else [column])]


def check_budget(manifest: Manifest, budget: int | float | Fraction | None) -> None:
    """Raises if an earlier run, with another budget, skipped more records than this budget allows."""
    skipped = int(manifest.metadata.get("skipped", 0))
    ledger = Ledger(budget)
    ledger.see(manifest.documents + skipped)
    if skipped:
        ledger.count("skipped when this store was made, listed in its skipped.jsonl", skipped)
        ledger.check()


def _short_names(paths: Sequence[str]) -> list[str]:
    """File names below the folder they share, so that a store does not contain the path where it was made."""
    if not paths or len(paths) > MOST_NAMES:
        return []
    shared = os.path.commonpath([os.path.dirname(p) for p in paths]) if all("://" not in p for p in paths) else ""
    return [os.path.relpath(p, shared) if shared else p for p in paths]
