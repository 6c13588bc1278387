"""`prepare`: raw text to a verified token store, once.

The input is cut into groups by names and sizes alone (`sources.ranges`), and each group is made into shards of its own
(`group`), here one after another. Memory is bounded whatever the corpus: a few chunks of 4 MB and one open shard. The
result depends on the source, the tokenizer and the settings alone: a run that was killed and begun again, any number of
times, anywhere, writes the same bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any, Literal, TypeGuard

import orjson

from penstock.core.errors import DataError, PenstockError, UsageError
from penstock.core.hashing import content_id
from penstock.core.ledger import Ledger
from penstock.core.progress import Progress, progress
from penstock.markup.visible import number_of
from penstock.preparation.commit import read_store, sweep, write_store, writing
from penstock.preparation.group import Job, make_group
from penstock.preparation.journal import MANIFEST, SKIPPED, Done
from penstock.preparation.maker import Maker, TextMaker
from penstock.preparation.merge import Merge
from penstock.preparation.on_ray import Answer, connected, made_groups
from penstock.preparation.output import Output, checked_place
from penstock.sources.base import FileSource, RangeSource, StampedSource, TextColumnSource, TextSource
from penstock.sources.lines import Chunk
from penstock.storage.filesystem import Options, scheme
from penstock.store.manifest import Manifest
from penstock.tokenizers import as_tokenizer
from penstock.tokenizers.base import Special
from penstock.tokenizers.bulk import BulkEncoder
from penstock.tokenizers.known import remember

SHARD_TOKENS = 1 << 25
GROUP_BYTES = 256 << 20
HASHED_BYTES = 64 << 30
HASHED_BESIDE = 1 << 30  # a tenth of a second: a tokenizer that is refused waits for it
MOST_NAMES = 100_000


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
    group_bytes: int = GROUP_BYTES,
    on_error: Literal["raise", "skip"] = "raise",
    budget: int | float | None = None,
    threads: int | None = None,
    show_progress: bool | None = None,
    restart: bool = False,
    add_special_tokens: bool | None = None,
    allowed_special: Special | None = None,
    disallowed_special: Special | None = None,
    storage_options: Options = None,
    single_writer: bool = False,
    cluster: Literal["ray"] | None = None,
    address: str | None = None,
) -> Prepared:
    """Tokenises `source` into the folder or URL `out`. Run it again after an interruption to resume.

    `eos=True` appends the tokenizer's end token to every document if it has one and does not add it itself; an int
    appends that id. The three arguments about special tokens are those of `as_tokenizer`.
    """
    out = checked_place(out)
    if engine not in ("auto", "reference"):
        raise UsageError('engine="auto" or "reference"', got=repr(engine))
    _check_settings(shard_tokens, on_error, group_bytes)
    if cluster is not None and threads is None:
        threads = 1  # one processor for each task, so that as many tasks run as there are processors
    with _fingerprint_beside(source):
        chosen = as_tokenizer(
            tokenizer, add_special_tokens=add_special_tokens, allowed_special=allowed_special,
            disallowed_special=disallowed_special,
        )  # fmt: skip
        remember(chosen)
        encoder = BulkEncoder(chosen, threads=threads, reference=engine == "reference")
    paths = list(source.paths) if isinstance(source, FileSource) else []
    return make_store(
        source, TextMaker(encoder, eos, paths), out, shard_tokens=shard_tokens, group_bytes=group_bytes,
        on_error=on_error, budget=budget, show_progress=show_progress, restart=restart,
        storage_options=storage_options, single_writer=single_writer, cluster=cluster, address=address,
        cpus=threads or 1,
    )  # fmt: skip


def _check_settings(shard_tokens: int, on_error: str, group_bytes: int) -> None:
    if on_error not in ("raise", "skip"):
        raise UsageError('on_error="raise" or "skip"', got=repr(on_error))
    if shard_tokens < 1:
        raise UsageError("shard_tokens of at least 1", got=repr(shard_tokens))
    if group_bytes < 1:
        raise UsageError("group_bytes of at least 1", got=repr(group_bytes))


def make_store(
    source: TextSource,
    maker: Maker,
    out: str | os.PathLike[str],
    *,
    shard_tokens: int = SHARD_TOKENS,
    group_bytes: int = GROUP_BYTES,
    on_error: Literal["raise", "skip"] = "raise",
    budget: int | float | None = None,
    show_progress: bool | None = None,
    restart: bool = False,
    storage_options: Options = None,
    single_writer: bool = False,
    cluster: Literal["ray"] | None = None,
    address: str | None = None,
    cpus: int = 1,
) -> Prepared:
    """Writes the documents of `source`, made by `maker`, into `out`; resumes an interrupted run.

    On a cluster each task has `cpus` processors.
    """
    _check_settings(shard_tokens, on_error, group_bytes)
    if cluster not in (None, "ray") or (address is not None and cluster is None):
        raise UsageError('cluster="ray", with or without address=', got=f"cluster={cluster!r}, address={address!r}")
    began = time.perf_counter()
    output = Output(checked_place(out), storage_options)
    run = _plan(source, maker, output, shard_tokens, on_error, budget, group_bytes, cluster, address, cpus)
    if not restart and not run.journal.exists() and (finished := run.finished()) is not None:
        return run.report(finished, began, already=True)  # nothing is written: the folder may be read-only
    with writing(output, single_writer=single_writer, many=cluster is not None):
        finished = None if restart else run.finished()
        if finished is not None:
            return run.report(finished, began, already=True)
        return run.report(run.write(restart, show_progress), began)


def _plan(
    source: TextSource,
    maker: Maker,
    output: Output,
    shard_tokens: int,
    on_error: str,
    budget: int | float | None,
    group_bytes: int,
    cluster: str | None,
    address: str | None,
    cpus: int,
) -> _Run:
    """The groups of a source, and the settings that identify the job."""
    parts = tuple(source.ranges(group_bytes)) if isinstance(source, RangeSource) else ()
    settings = maker.job() | {
        "shard_tokens": shard_tokens,
        "on_error": on_error,
        "source": "|".join(source_id(source, quick=len(parts) > 1)),
    }
    if len(parts) > 1:
        settings["groups"] = content_id(part.id() for part in parts)
    ident = content_id([orjson.dumps(settings)])
    job = Job(source, maker, output, parts, shard_tokens, on_error, Ledger(budget).budget, ident)
    return _Run(job, settings, budget, cluster, address, cpus)


class _Run:
    def __init__(
        self,
        job: Job,
        settings: dict[str, Any],
        budget: int | float | None,
        cluster: str | None,
        address: str | None,
        cpus: int,
    ) -> None:
        self.job, self.settings, self.cluster, self.address = job, settings, cluster, address
        self.cpus = cpus
        self.merge = Merge(job, budget)
        self.journal = job.journal()
        self.resumed = False

    def finished(self) -> Manifest | None:
        """The manifest, if the same job is already finished here."""
        output = self.job.output
        manifest = read_store(output)
        if manifest is None:
            return None
        if manifest.metadata.get("job") != self.job.ident:
            raise UsageError(
                "an empty folder, or the store of the same job",
                got="a store of other data or settings",
                where=output.place,
                fix="choose another folder, or pass restart=True (--restart) to replace it",
            )
        check_budget(manifest, self.merge.ledger.budget)
        if self.journal.exists():
            self._end(manifest)  # a kill right after the manifest was written leaves the journal behind
        return manifest

    def _end(self, manifest: Manifest) -> None:
        self.journal.end()
        if self.job.output.remote:
            sweep(self.job.output, manifest)

    def write(self, restart: bool, show: bool | None) -> Manifest:
        job = self.job
        done = self.journal.begin(self.settings, restart)
        if job.output.remote and (finished := self.finished()) is not None:
            return finished  # by another run, after we looked
        self.resumed = bool(done)
        job.maker.check(job.source, wait=self.cluster is not None)
        total = job.source.describe().get("bytes")
        with progress(total, "B", "preparing", show) as bar:
            complete = self._groups(done, bar)
        if not complete and (finished := self.finished()) is not None:
            return finished
        ledger = self.merge.ledger
        ledger.check()
        if ledger.total:
            job.output.put_same(SKIPPED, ledger.lines())
        if not any(shard.documents for shard in self.merge.shards):
            raise self._nothing()
        manifest = write_store(
            job.output,
            self.merge.shards,
            tokenizer=self.settings["tokenizer"],
            eos_id=job.maker.eos,
            metadata={
                "job": job.ident,
                "skipped": ledger.total,
                "files": _short_names(job.source.paths if isinstance(job.source, FileSource) else []),
            }
            | self.merge.metadata(),
        )
        self._end(manifest)
        return manifest

    def _here(self, missing: Sequence[int], bar: Progress) -> Generator[Answer]:
        """Makes the groups one after another."""
        maker = self.job.maker

        def on_chunk(chunk: Chunk, shard: int, tokens: int) -> None:
            bar.update(chunk.file_bytes)
            bar.note(f"{maker.engine}, shard {len(self.merge.shards) + shard}, {number_of(tokens, 'token')}")

        for number in missing:
            last = number == missing[-1] and not self.job.output.remote
            try:
                made = make_group(self.job, number, on_chunk, manifest_next=last)
                yield number, "finished" if made is None else made
            except PenstockError as error:
                yield number, error

    def _on_ray(self, missing: Sequence[int], bar: Progress) -> Generator[Answer]:
        """Makes the groups on a cluster."""
        job = self.job
        with connected(self.address) as ray:
            for number, answer in made_groups(ray, job, missing, self.cpus):
                bar.update(job.parts[number].bytes if job.parts else 0)
                bar.note(f"group {number} of {job.groups}, {len(ray.nodes())} nodes")
                yield number, answer

    def _groups(self, done: dict[int, list[Done]], bar: Progress) -> bool:
        """Makes all groups and joins them in their order; False if another run of the job finished the store first."""
        done = {number: records for number, records in done.items() if records[-1].last}
        bar.update(sum(record.text_bytes for records in done.values() for record in records))
        answers: dict[int, PenstockError | str | list[Done]] = dict.fromkeys(done, "made")
        missing = [number for number in range(self.job.groups) if number not in done]
        found = (self._here if self.cluster is None else self._on_ray)(missing, bar)
        with closing(found):
            for next_group in range(self.job.groups):
                while next_group not in answers:
                    number, answers[number] = next(found)
                answer = answers.pop(next_group)
                if isinstance(answer, PenstockError):
                    raise self.merge.with_line(answer) from answer.__cause__
                records = answer if isinstance(answer, list) else done.pop(next_group, [])
                if answer == "made" and not records:
                    records = self.journal.group(next_group)
                if answer == "finished" or not (records and records[-1].last):
                    self._not_committed(next_group, answer)
                    return False
                self.merge.add(records)
        return True

    def _not_committed(self, group: int, answer: str | list[Done]) -> None:
        """Raises unless another run has finished the store."""
        if self.job.output.remote and (answer == "finished" or self.job.output.exists(MANIFEST)):
            return
        raise UsageError(
            "an output that every node of the cluster sees",
            got=f"no record of group {group}, which was made on a node",
            where=self.job.output.place,
            fix="use a folder that all nodes share under the same path, or a URL such as s3://bucket/corpus",
        )

    def _nothing(self) -> DataError:
        ledger, filtered = self.merge.ledger, self.merge.filtered
        lost = [f"all {ledger.total:,} were skipped"] if ledger.total else []
        lost += [f"{filtered:,} records were rejected by .filter()"] if filtered else []
        return DataError(
            "at least one record that can be prepared",
            got=", ".join(lost) or "none",
            where=str(self.job.output.path(SKIPPED) if ledger.total else self.job.source.describe()),
            fix="look at the records listed there; the template or the field's name may be wrong"
            if ledger.total
            else "check the filters and the data",
        )

    def report(self, manifest: Manifest, began: float, already: bool = False) -> Prepared:
        self.job.maker.close()
        return Prepared(
            path=self.job.output.place,
            id=manifest.id,
            documents=manifest.documents,
            tokens=manifest.tokens,
            bytes=manifest.bytes,
            shards=len(manifest.shards),
            skipped=int(manifest.metadata.get("skipped", 0)),
            engine=self.job.maker.engine,
            seconds=time.perf_counter() - began,
            text_bytes=self.merge.text_bytes,
            resumed=self.resumed,
            already=already,
            reasons=dict(self.merge.ledger.by_reason),
        )


def source_id(source: TextSource, *, quick: bool = False) -> list[str]:
    """The identity of the texts: the source's fingerprint, and the column they come from unless it is "text".

    `quick`: files that are remote, or 64 GiB and more, are recognised by size and ETag or modification time. Reading
    them all would take longer than to prepare them on many machines.
    """
    column = source.text_column if isinstance(source, TextColumnSource) else None
    identity = source.stamp_id() if quick and _is_large(source) else source.fingerprint()
    return [identity, *([] if column in (None, "text") else [column])]


@contextmanager
def _fingerprint_beside(source: TextSource) -> Iterator[None]:
    """Hashes the files of a small source while the tokenizer is loaded, for `source_id`: it needs no GIL."""
    with ExitStack() as stack:
        if isinstance(source, StampedSource) and _is_small(source):
            pool = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="penstock-fingerprint"))
            pool.submit(source.fingerprint)  # what it raises, `source_id` raises again
        yield


def _is_small(source: StampedSource) -> bool:
    return not any(map(scheme, source.paths)) and sum(stamp.size for stamp in source.stamps) <= HASHED_BESIDE


def _is_large(source: TextSource) -> TypeGuard[StampedSource]:
    if not isinstance(source, StampedSource) or not all(stamp.tag for stamp in source.stamps):
        return False
    return any(map(scheme, source.paths)) or sum(stamp.size for stamp in source.stamps) >= HASHED_BYTES


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
