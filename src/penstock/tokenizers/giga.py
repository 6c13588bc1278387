"""gigatoken as a pool of engines, one per thread.

One engine serialises its callers behind a lock and its built-in parallel mode shares work over a process-wide pool, so
each thread borrows an engine of its own: threads then scale, and their number is ours to choose. An engine remembers
every distinct word it has met and never forgets (measured: 5 bytes kept per byte of random letters), so it is replaced
after some seconds of work. Words in its cache cost almost no time, so time is a fair measure of what the cache holds.
Two engines built from the same file can differ, so each is compared with the reference before it is used.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.core.columns import Ragged
from penstock.core.optional import need
from penstock.core.os_errors import temporary_errors
from penstock.tokenizers.ambiguous import ambiguity
from penstock.tokenizers.base import first_difference

# Measured: building one costs 0.1 s and a cold start as much again; 4 s of misses grow one by about 0.4 GB.
ENGINE_SECONDS = 4.0

# The split patterns gigatoken implements for tiktoken vocabularies, as the encodings spell them.
_CAPITALS, _SMALLS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TIKTOKEN_SCHEMES = {
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s": "gpt4",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": "gpt4",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALLS}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALLS}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": "o200k",
}


class Unsupported(Exception):
    """This tokenizer has no gigatoken form; the text says why."""


class Disagreement(Exception):
    """An engine returned other ids than the reference; the text says for what."""


class GigaPool:
    """Up to `size` engines; `encode` borrows one for the call, on the calling thread, without the GIL."""

    def __init__(self, form: tuple[str, Any], size: int) -> None:
        self._build = builder(form)
        self._probes: list[str] = []
        self._expected = Ragged(np.empty(0, np.uint32), np.zeros(1, np.int64))
        self._early: dict[int, Any] = {}  # by id: engines that were used before the comparison was known
        self.deferred = False
        self._confirming = threading.Lock()
        self._free: queue.LifoQueue[_Slot] = queue.LifoQueue()
        for _ in range(size - 1):
            self._free.put(_Slot())  # built when first needed; last in, first out keeps warm ones busy
        self._free.put(_Slot(self._build()))

    def expect(self, texts: Sequence[str], expected: Ragged) -> None:
        """Every engine, also one built later, must return these ids for these texts before it is used for others.

        Raises `Disagreement` if one does not. Engines built from the same file may differ.
        """
        self._probes, self._expected = list(texts), expected
        self.deferred = False
        self.encode([])

    def confirm(self) -> None:
        """Compares the engines that were used while `deferred` was set: call it before their ids are used.

        Raises `Disagreement` if one differs.
        """
        with self._confirming:  # whoever comes second waits for the comparisons of the first
            while waiting := list(self._early.items()):
                for key, engine in waiting:
                    self._check(engine)
                    self._early.pop(key, None)

    def encode(self, texts: Sequence[str]) -> Ragged:
        slot = self._free.get()
        back = _Slot()  # an engine that failed is not used again
        try:
            if slot.engine is None or slot.worked > ENGINE_SECONDS:
                slot = _Slot(self._build())
            expected = None if self.deferred else self._expected
            if expected is None:
                self._early[id(slot.engine)] = slot.engine
            elif slot.checked is not expected:
                self._check(slot.engine)
            start = time.thread_time()
            rows = _ids(slot.engine, texts)
            back = _Slot(slot.engine, slot.worked + time.thread_time() - start, expected)
        finally:
            self._free.put(back)
        return rows

    def _check(self, engine: Any) -> None:
        row = first_difference(self._expected, _ids(engine, self._probes))
        if row is not None:
            raise Disagreement(f"an engine of gigatoken returns other ids for {self._probes[row][:60]!r}")


class _Slot(NamedTuple):
    """An engine, the seconds it has worked, and what it was last compared with."""

    engine: Any = None
    worked: float = 0.0
    checked: Ragged | None = None


def _ids(engine: Any, texts: Sequence[str]) -> Ragged:
    if not texts:
        return Ragged(np.empty(0, np.uint32), np.zeros(1, np.int64))
    layout = engine.encode_batch(list(texts), parallel=False).layout
    return Ragged(np.asarray(layout.content.data), np.asarray(layout.offsets.data))


def builder(form: tuple[str, Any]) -> Callable[[], Any]:
    """A function that builds a new engine each time it is called; raises `Unsupported` where it cannot be right."""
    library = need("gigatoken", extra="tokenizers", purpose="for fast bulk encoding")
    kind, data = form
    if kind in ("json", "sentencepiece"):
        text, ambiguous = data if kind == "json" else _sentencepiece_json(library, data)
        if ambiguous is not None:
            raise Unsupported(ambiguous)
        return lambda: library.Tokenizer.from_json(text)
    if kind == "tiktoken":
        ranks, pattern, special = data
        scheme = _TIKTOKEN_SCHEMES.get(pattern)
        if scheme is None:
            raise Unsupported(f"gigatoken has no splitter for the pattern {pattern[:60]!r}")
        return lambda: _from_ranks(library, ranks, scheme, special)
    raise Unsupported(f"gigatoken does not read {kind} tokenizers")


def _sentencepiece_json(library: Any, model: bytes) -> tuple[str, str | None]:
    """The model as JSON, without its control pieces, which SentencePiece never matches in text; see `ambiguity`."""
    text = getattr(library.Tokenizer.from_sentencepiece(model), "_hf_json", None)
    if text is None:
        raise Unsupported("this version of gigatoken does not show how it read the SentencePiece model")
    config = json.loads(text)
    config["added_tokens"] = [t for t in config["added_tokens"] if not t["special"]]
    return json.dumps(config), ambiguity(config)


def _from_ranks(library: Any, ranks: dict[bytes, int], scheme: str, special: dict[str, int]) -> Any:
    lines = [base64.b64encode(t) + b" %d\n" % r for t, r in sorted(ranks.items(), key=lambda pair: pair[1])]
    with temporary_errors("the vocabulary of a tokenizer"), tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ranks.tiktoken")
        with open(path, "wb") as file:
            file.writelines(lines)
        return library.Tokenizer.from_tiktoken(path, scheme, special)
