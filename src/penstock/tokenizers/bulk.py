"""`BulkEncoder`: a tokenizer over a corpus, as fast as it goes and never with other ids.

gigatoken does the work if it can read the tokenizer, if its vocabulary is not ambiguous for it, and if each of its
engines returns the reference's ids on a sample of the corpus and on texts made from the vocabulary; otherwise the
reference does, with a warning. Texts are cut into slices of bounded size and spread
over `threads` threads in order; memory is the answer plus a few slices. Both engines run without the GIL.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np

from penstock.core.arguments import explained_class
from penstock.core.columns import Ragged
from penstock.core.cpus import usable_cores
from penstock.core.errors import BadRecords, DataError, RecordError, UsageError
from penstock.core.signals import start_thread, surface
from penstock.tokenizers.base import (
    BaseTokenizer,
    Ids,
    Tokenizer,
    check_texts,
    first_difference,
    framed,
    is_text,
)
from penstock.tokenizers.giga import GigaPool
from penstock.tokenizers.probes import expected_ids
from penstock.tokenizers.resolve import as_tokenizer

Engine = Callable[[Sequence[str]], Ragged]

SAMPLE_DOCUMENTS = 64
_ODD = re.compile(r"[^\x00-\x7f]")
SAMPLE_CHARACTERS = 1 << 17


@explained_class
class BulkEncoder:
    """Encodes lists of texts; `engine` is what does it ("gigatoken" or the tokenizer's kind), `reason` is why.

    The first call of `encode` checks gigatoken on its texts, unless `check` has been called with a better sample.
    `encode` may be called from many threads at once. With `reference` the tokenizer itself does all the work.

    >>> bulk = BulkEncoder("bytes", threads=1)
    >>> bulk.engine, bulk.encode(["ab", "", "c"]).tolist()
    ('bytes', [[97, 98], [], [99]])
    """

    def __init__(
        self, tokenizer: Any, *, threads: int | None = None, slice_bytes: int = 4 << 20, reference: bool = False
    ) -> None:
        if threads is not None and threads < 1:
            raise UsageError("threads of 1 or more, or None for one per core", got=repr(threads), fix="threads=None")
        if slice_bytes < 1:
            raise UsageError("slice_bytes of 1 or more", got=repr(slice_bytes), fix="leave it out")
        self.tokenizer: Tokenizer = as_tokenizer(tokenizer)
        base = self.tokenizer if isinstance(self.tokenizer, BaseTokenizer) else None
        self.threads = (threads or usable_cores()) if base is not None and base.concurrent else 1
        self.slice_bytes = slice_bytes
        self.callers = 1  # threads that call `encode` at the same time, for how texts are cut into slices
        self.engine = self.tokenizer.kind
        self.reason = "the reference itself"
        self.checked = True
        self._run: Engine = self.tokenizer.encode_batch
        self._giga: GigaPool | None = None
        self._lock = threading.RLock()
        self._checking: Future[None] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._pool_lock = threading.Lock()  # not the other one, which a check holds for as long as it takes
        form = None if reference or base is None else base.fast_form()
        if base is not None and form is not None:
            self._try_giga(base, form)

    def _try_giga(self, base: BaseTokenizer, form: tuple[str, Any]) -> None:
        try:
            pool = GigaPool(form, self.threads)
        except BaseException as error:  # a panic in native code is a BaseException
            if _ours_to_obey(error):
                raise
            self._fall_back(f"gigatoken does not take this tokenizer: {_first_line(error)}")
            return
        self._giga, self._run = pool, partial(_framed, pool, base.frame)
        self.engine, self.checked = "gigatoken", False
        self.reason = "not yet checked on a sample of the corpus"

    def check(self, sample_texts: Sequence[str]) -> None:
        """Compares the fast engine with the reference; on any difference the reference takes over, with a warning.

        Compared are up to 64 documents of `sample_texts` (the long ones by pieces, see `spread`) and texts made from
        the vocabulary: see `vocabulary_probes`. Engines built later are compared on the same texts.
        """
        with self._lock:
            if self.engine != "gigatoken":
                return
            assert isinstance(self.tokenizer, BaseTokenizer)
            texts, expected = expected_ids(self.tokenizer, list(filter(is_text, spread(sample_texts))))
            try:
                row = first_difference(expected, self._run(texts))
                if row is None and self._giga is not None:
                    plain = self.tokenizer.adding(False)
                    self._giga.expect(texts, expected if plain is self.tokenizer else plain.encode_batch(texts))
            except BaseException as error:
                if _ours_to_obey(error):
                    raise
                self._fall_back(f"gigatoken failed on a sample: {_first_line(error)}")
                return
            if row is None:
                self.checked = True
                self.reason = f"identical ids on {len(texts)} texts, {sum(map(len, texts))} characters"
            else:
                self._fall_back(f"gigatoken returns other ids than {self.tokenizer.kind} for {texts[row][:60]!r}")

    def check_beside(self, sample: Callable[[], Sequence[str]]) -> None:
        """Starts `check(sample())` in another thread; `encode` works meanwhile and returns only what has passed it.

        A failure of `sample` is raised by `encode`.
        """
        with self._lock:
            if self.checked or self._checking is not None:
                return
            self._checking = Future()
            if self._giga is not None:
                self._giga.deferred = True
        start_thread(threading.Thread(target=self._check_beside, args=(sample,), name="penstock-check", daemon=True))

    def _check_beside(self, sample: Callable[[], Sequence[str]]) -> None:
        assert self._checking is not None
        try:
            self.check(sample())
        except BaseException as error:
            self._checking.set_exception(error)
        else:
            self._checking.set_result(None)

    def encode(self, texts: Sequence[str]) -> Ragged:
        """Ids of the texts, in order: uint32 values, int64 offsets.

        Several threads may call it at once; `callers` says how many usually do.
        """
        if self.checked:
            return self._encode(texts)
        checking, run = self._checking, self._run
        if checking is None:
            with self._lock:
                if not self.checked:
                    self.check(texts)
            return self._encode(texts)
        try:
            rows = self._encode(texts)
        except Exception:
            checking.result()
            if self._run == run:
                raise
            return self._encode(texts)  # it failed in an engine that did not pass
        checking.result()
        self._confirm(run)
        return rows if self._run == run else self._encode(texts)

    def _confirm(self, run: Engine) -> None:
        """Compares the engines that worked while the check was running."""
        if self._giga is None or self._run != run:
            return
        try:
            self._giga.confirm()
        except BaseException as error:
            if _ours_to_obey(error):
                raise
            with self._lock:
                if self._run == run:
                    self._fall_back(f"gigatoken failed on a sample: {_first_line(error)}")

    def _encode(self, texts: Sequence[str]) -> Ragged:
        slices = list(cut_slices(texts, self._slice_size(texts)))
        if self.threads == 1 or len(slices) < 2:
            done = [self._encode_slice(texts, *s) for s in slices]
        else:
            done = list(self._threads().map(lambda s: self._encode_slice(texts, *s), slices))
        parts = [part for part in done if isinstance(part, Ragged)]
        if bad := [error for part in done if isinstance(part, list) for error in part]:
            raise BadRecords(bad)
        if len(parts) == 1:
            return parts[0]
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.concatenate([p.lengths for p in parts]) if parts else [], out=offsets[1:])
        values = np.concatenate([p.values for p in parts]) if parts else np.empty(0, np.uint32)
        return Ragged(values, offsets)

    def _encode_slice(self, texts: Sequence[str], start: int, stop: int) -> Ragged | list[RecordError]:
        """Ids of some of the texts, or what is wrong with them; errors count rows over the full call."""
        try:
            out = self._ids(texts[start:stop])
        except BadRecords as refused:
            for error in refused.errors:
                error.row += start
                error.where = f"row {error.row} of this call"
            return refused.errors
        largest = int(out.values.max()) if len(out.values) else 0
        if largest >= self.tokenizer.vocab_size:
            raise DataError(
                f"ids below the vocabulary size {self.tokenizer.vocab_size}",
                got=f"id {largest}",
                where=f"tokenizer {self.tokenizer.name}, engine {self.engine}",
                fix="the tokenizer states a vocabulary smaller than it uses; correct its vocab_size",
            )
        return out

    def _ids(self, texts: Sequence[str]) -> Ragged:
        run = self._run
        if run == self.tokenizer.encode_batch:
            return run(texts)
        if isinstance(self.tokenizer, BaseTokenizer):
            self.tokenizer.check(texts)
        try:
            return run(texts)
        except BaseException as error:
            if _ours_to_obey(error):
                raise
            check_texts(texts)
            with self._lock:
                if self._run == run:
                    self._fall_back(f"gigatoken failed: {_first_line(error)}")
        return self.tokenizer.encode_batch(texts)

    def _slice_size(self, texts: Sequence[str]) -> int:
        """Small enough to keep every thread busy, large enough that a call costs nothing beside its work."""
        if self.threads == 1:
            return self.slice_bytes
        total = sum(len(t) for t in texts if isinstance(t, str))
        slices = self.threads * 4 if self.callers == 1 else -(-self.threads // (self.callers - 1))
        return max(1, min(self.slice_bytes, max(-(-total // slices), 1 << 18))) if slices > 1 else self.slice_bytes

    def _threads(self) -> ThreadPoolExecutor:
        with self._pool_lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="penstock-tokenize")
            return self._pool

    def close(self) -> None:
        """Ends the threads; a later `encode` starts new ones."""
        if self._checking is not None:
            wait([self._checking])
        with self._pool_lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _fall_back(self, reason: str) -> None:
        self._run, self.engine, self.checked = (self.tokenizer.encode_batch, self.tokenizer.kind, True)
        self.reason = reason
        message = f"{reason}; encoding with {self.tokenizer.kind} instead: same ids, slower"
        warnings.warn(message, RuntimeWarning, stacklevel=3)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.tokenizer, self.threads, self.slice_bytes, self.engine != "gigatoken")

    def __repr__(self) -> str:
        return f"BulkEncoder({self.tokenizer!r}, engine={self.engine!r}, threads={self.threads})"


def _framed(pool: GigaPool, frame: tuple[Ids, Ids], texts: Sequence[str]) -> Ragged:
    return framed(pool.encode(texts), *frame)


def _rebuild(tokenizer: Tokenizer, threads: int, slice_bytes: int, reference: bool) -> BulkEncoder:
    return BulkEncoder(tokenizer, threads=threads, slice_bytes=slice_bytes, reference=reference)


def cut_slices(texts: Sequence[str], size: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about `size` characters; a longer text is a slice of its own.

    >>> list(cut_slices(["aa", "b", "cccc", "d"], 3))
    [(0, 2), (2, 3), (3, 4)]
    """
    start = held = 0
    for row, text in enumerate(texts):
        length = len(text) if isinstance(text, str) else 0
        if row > start and held + length > size:
            yield start, row
            start, held = row, 0
        held += length
    if start < len(texts):
        yield start, len(texts)


def spread(texts: Sequence[str]) -> list[str]:
    """Up to 64 documents: half evenly over all, half over those that are not plain ASCII, where tokenizers differ most.

    Of long ones a piece of their start, middle and end, the middle one where they are not plain ASCII.

    >>> len(spread([str(i) for i in range(1000)])), spread([])
    (64, [])
    >>> spread([str(i) for i in range(1000)] + ["é"])[-1]
    'é'
    """
    odd = [row for row, text in enumerate(texts) if isinstance(text, str) and not text.isascii()]
    some = _evenly(odd, SAMPLE_DOCUMENTS // 2)
    rows = sorted({*some, *_evenly(range(len(texts)), SAMPLE_DOCUMENTS - len(some))})
    room = SAMPLE_CHARACTERS // SAMPLE_DOCUMENTS
    return [piece for row in rows for piece in pieces(texts[row], room)]


def _evenly(rows: Sequence[int], most: int) -> list[int]:
    """Up to `most` of the rows, the first and the last among them."""
    return [rows[i] for i in np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(np.int64).tolist()]


def pieces(text: str, room: int) -> list[str]:
    """The text, or of a long one its start, middle and end, the middle one where it is not plain ASCII.

    >>> pieces("abcdé fghijklmnopq", 6), pieces("abc", 6), pieces("abcdefghijkl", 6)
    (['ab', 'é ', 'pq'], ['abc'], ['ab', 'gh', 'kl'])
    """
    if not isinstance(text, str) or len(text) <= room:
        return [text]
    piece, odd = room // 3, None if text.isascii() else _ODD.search(text)
    middle = len(text) // 2 if odd is None else odd.start()
    return [text[:piece], text[middle : middle + piece], text[-piece:]]


def _ours_to_obey(error: BaseException) -> bool:
    surface(error)
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
