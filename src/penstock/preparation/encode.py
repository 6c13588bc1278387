"""Texts to documents of tokens, several chunks at once, in order.

One thread reads ahead, the encoder's threads work on two chunks at a time so that none waits for the end of another,
and the caller writes. Of every chunk two short documents, or pieces of a long one, are encoded a second time by the
reference tokenizer and compared.
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
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.columns import Ragged, take
from penstock.core.errors import BadRecords, DataError, RecordError
from penstock.core.signals import start_thread
from penstock.sources.line_errors import bare, place
from penstock.sources.lines import Chunk, Position
from penstock.tokenizers.bulk import BulkEncoder, pieces

AT_ONCE = 3  # chunks being encoded
SPOT_DOCUMENTS = 256  # among which a short one is looked for
SPOT_CHARACTERS = 4000
SPOT_PIECES = 1000  # characters of a long one: the reference takes 0.2 ms for them, the engine 15 for a chunk

T = TypeVar("T")


def read_ahead(chunks: Iterable[T], depth: int = 2) -> Iterator[T]:
    """The same chunks, read in another thread a little ahead of use."""
    ready, room = queue.SimpleQueue[Any](), queue.SimpleQueue[None]()
    wanted = True
    for _ in range(depth):
        room.put(None)

    def run() -> None:
        try:
            for chunk in chunks:
                room.get()
                if not wanted:
                    return
                ready.put(chunk)
        except BaseException as error:
            ready.put(error)
        else:
            ready.put(None)

    thread = threading.Thread(target=run, name="penstock-read", daemon=True)
    start_thread(thread)
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            room.put(None)
            yield item
    finally:
        wanted = False
        room.put(None)
        thread.join()


def encoded(chunks: Iterable[Chunk], encoder: BulkEncoder, paths: Sequence[str] = ()) -> Iterator[tuple[Chunk, Ragged]]:
    """Each chunk with its documents, in order. Texts that the tokenizer refuses become errors of their chunk.

    `paths` are the files that positions count, to name a bad record.
    """
    encoder.callers = AT_ONCE
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
    spots = _spots(chunk) if encoder.engine != encoder.tokenizer.kind else []
    beside = [text for row, text in spots if text is not chunk.texts[row]]
    try:
        rows = encoder.encode([*chunk.texts, *beside])
    except BadRecords as refused:
        if not (errors := [error for error in refused.errors if error.row < len(chunk.texts)]):
            raise
        return _encode(without(chunk, errors, paths), encoder, paths)
    documents, others = rows.slice(0, len(chunk.texts)), iter(rows.slice(len(chunk.texts), len(rows)))
    for row, text in spots:
        _compare(encoder, text, documents[row] if text is chunk.texts[row] else next(others), chunk.positions[row])
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


def _spots(chunk: Chunk) -> list[tuple[int, str]]:
    """Two short documents of the chunk, chosen by their position: one of all, and one that is not plain ASCII.

    Where all are long, pieces of one of them: see `pieces`.
    """
    texts = chunk.texts
    first = randomness.key("spot", *chunk.positions[0]) % len(texts)
    window = range(first, min(first + SPOT_DOCUMENTS, len(texts)))
    short = [i for i in window if len(texts[i]) <= SPOT_CHARACTERS]
    if short:
        return [(i, texts[i]) for i in {*short[:1], *[i for i in short if not texts[i].isascii()][:1]}]
    long = next((i for i in window if not texts[i].isascii()), first)
    return [(long, piece) for piece in pieces(texts[long], SPOT_PIECES)]


def _compare(encoder: BulkEncoder, text: str, ids: NDArray[np.uint32], at: Position) -> None:
    if not np.array_equal(np.asarray(encoder.tokenizer.encode(text)), ids):
        raise DataError(
            f"the same ids from {encoder.engine} and {encoder.tokenizer.kind}",
            got=f"other ids for {text[:60]!r}",
            where=f"file {at[0]}, line {at[1]}",
            fix="prepare again with engine='reference' (--engine reference), from the beginning",
        )
