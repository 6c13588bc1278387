"""Texts to documents of tokens, several chunks at once, in order.

One thread reads ahead, the encoder's threads work on two chunks at a time so that none waits for the end of another,
and the caller writes. In every chunk two documents are encoded a second time by the reference tokenizer and compared.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from penstock.core import randomness
from penstock.core.columns import Ragged, take
from penstock.core.errors import BadRecords, DataError, RecordError
from penstock.sources.line_errors import bare, place
from penstock.sources.lines import Chunk
from penstock.tokenizers.bulk import BulkEncoder

AT_ONCE = 3  # chunks being encoded
SPOT_CHARACTERS = 4000

T = TypeVar("T")


def read_ahead(chunks: Iterable[T], depth: int = 2) -> Iterator[T]:
    """The same chunks, read in another thread a little ahead of use."""
    ready: queue.Queue[Any] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def run() -> None:
        try:
            for chunk in chunks:
                if not put(chunk):
                    return
        except BaseException as error:
            put(error)
        else:
            put(None)

    thread = threading.Thread(target=run, name="penstock-read", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()


def encoded(chunks: Iterable[Chunk], encoder: BulkEncoder, paths: Sequence[str] = ()) -> Iterator[tuple[Chunk, Ragged]]:
    """Each chunk with its documents, in order. Texts that the tokenizer refuses become errors of their chunk.

    `paths` are the files that positions count, to name a bad record.
    """
    for _, (chunk, documents) in in_order(chunks, lambda chunk: _encode(chunk, encoder, paths)):
        yield chunk, documents


def in_order(chunks: Iterable[Chunk], work: Callable[[Chunk], T]) -> Iterator[tuple[Chunk, T]]:
    """Each chunk with the result of `work`, in order, a few at once."""
    pending: deque[tuple[Chunk, Future[T]]] = deque()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="penstock-encode") as pool:
        try:
            for chunk in read_ahead(chunks):
                pending.append((chunk, pool.submit(work, chunk)))
                if len(pending) > AT_ONCE:
                    yield _first(pending)
            while pending:
                yield _first(pending)
        finally:
            for _, future in pending:
                future.cancel()


def _first(pending: deque[tuple[Chunk, Future[T]]]) -> tuple[Chunk, T]:
    chunk, future = pending.popleft()
    return chunk, future.result()


def _encode(chunk: Chunk, encoder: BulkEncoder, paths: Sequence[str] = ()) -> tuple[Chunk, Ragged]:
    if not chunk.texts:
        return chunk, Ragged(np.empty(0, np.uint32), np.zeros(1, np.int64))
    try:
        documents = encoder.encode(chunk.texts)
    except BadRecords as refused:
        chunk = without(chunk, refused.errors, paths)
        return _encode(chunk, encoder, paths)
    _spot_check(chunk, documents, encoder)
    return chunk, documents


def without(chunk: Chunk, refused: Sequence[RecordError], paths: Sequence[str]) -> Chunk:
    """The chunk with the texts of these rows as errors that name their place."""
    errors, places = list(chunk.errors), list(chunk.error_positions)
    for error in refused:
        file, line, offset = position = chunk.positions[error.row]
        error.where = place(paths[file], line, offset) if file < len(paths) else f"record {offset}"
        error.fix += ', or on_error="skip"'
        errors.append(bare(error))
        places.append(position)
    order = sorted(range(len(errors)), key=lambda i: places[i])
    bad = {error.row for error in refused}
    kept = [i for i in range(len(chunk.texts)) if i not in bad]
    return replace(
        chunk, texts=[chunk.texts[i] for i in kept], positions=[chunk.positions[i] for i in kept],
        errors=[errors[i] for i in order], error_positions=[places[i] for i in order],
        columns=take(chunk.columns, np.array(kept, np.int64)),
    )  # fmt: skip


def _spot_check(chunk: Chunk, documents: Ragged, encoder: BulkEncoder) -> None:
    """Two short documents of the chunk, chosen by their position, must have the same ids as the reference: one of all,
    and one that is not plain ASCII."""
    if encoder.engine == encoder.tokenizer.kind or not chunk.texts:
        return
    first = randomness.key("spot", *chunk.positions[0]) % len(chunk.texts)
    short = [i for i in range(first, min(first + 256, len(chunk.texts))) if len(chunk.texts[i]) <= SPOT_CHARACTERS]
    for row in {*short[:1], *[i for i in short if not chunk.texts[i].isascii()][:1]}:
        _compare(chunk, documents, encoder, row)


def _compare(chunk: Chunk, documents: Ragged, encoder: BulkEncoder, row: int) -> None:
    want = encoder.tokenizer.encode(chunk.texts[row])
    if not np.array_equal(np.asarray(want), documents[row]):
        raise DataError(
            f"the same ids from {encoder.engine} and {encoder.tokenizer.kind}",
            got=f"other ids for {chunk.texts[row][:60]!r}",
            where=f"file {chunk.positions[row][0]}, line {chunk.positions[row][1]}",
            fix="prepare again with engine='reference' (--engine reference), from the beginning",
        )
