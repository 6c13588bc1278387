"""Batches of a Hugging Face stream, tokenised while it is read.

`plan.stream_batches` cuts the stream and keeps the position; here records become rows. The batch of step n is the same
for any number of ranks: every rank reads all records and tokenises its own rows. Resuming reads over the records of the
epoch that come before. The length is unknown. Blank texts are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from penstock.collate.tokens import IGNORE
from penstock.core import hashing
from penstock.core.columns import Columns, Ragged
from penstock.core.errors import StateError, UsageError
from penstock.engine.output import Output
from penstock.engine.stats import Stats
from penstock.facades.capibara.collate import Fill
from penstock.facades.capibara.config import DataLoaderConfig
from penstock.order.shard import rows_of_rank
from penstock.plan.stream_batches import Placed, Round, StreamPosition, rounds
from penstock.preparation.encode import read_ahead
from penstock.sources.hf_stream import HFStream
from penstock.sources.token_stream import with_end
from penstock.steps.picks import Picks
from penstock.tokenizers import as_tokenizer


class StreamLoader:
    """Iterates, saves and restores like `Loader`, over an `HFStream`."""

    def __init__(
        self,
        stream: HFStream,
        tokenizer: Any,
        settings: DataLoaderConfig,
        output: Output,
        pad: Fill | None,
        rank: int,
        world: int,
    ) -> None:
        if settings.batch_size % world:
            raise UsageError(f"a global batch that {world} ranks can share equally", got=str(settings.batch_size))
        self.stream, self.settings, self.output = stream, settings, output
        self._field = _field_of(stream, settings.text_field, tokenizer)
        self._tokenizer = None if self._field == "input_ids" else as_tokenizer(tokenizer)
        self._pad, self._rank, self._world = pad, rank, world
        self._stats = Stats()
        self.tokens = 0
        self._position = StreamPosition(0, self._identity)

    @property
    def step(self) -> int:
        return self._position.step

    @property
    def epoch(self) -> int:
        return self._position.epoch

    def __len__(self) -> int:
        raise TypeError("a stream has no length: leave streaming=True out, or count batches yourself")

    def __iter__(self) -> Iterator[Any]:
        """To the end of the epoch; the next `for` is the next epoch."""
        position = self._position
        epoch, from_start = position.epoch, not position.n
        made = (self._made(each) for each in self._rounds(epoch, position.n))
        run = read_ahead(made, self.settings.prefetch)  # type: ignore[arg-type]
        while True:
            began = time.perf_counter()
            item: Any = next(run, None)
            if item is None:
                break
            batch, each, tokens = item
            position.take(each.next, each.last)
            from_start, self.tokens = False, self.tokens + tokens
            now = time.perf_counter()
            self._stats.took(now - began, now)
            yield batch
        if from_start:
            raise UsageError("at least one batch in the stream", got="none", fix="a smaller batch, or another split")
        if position.epoch == epoch:  # a saved position at the end of its epoch
            position.next_epoch()

    def _rounds(self, epoch: int, start: int) -> Iterator[Round]:
        """Global batches of an epoch from a position on; `remainder` decides about the last one."""
        return rounds(self._elements(epoch, start), self.settings.batch_size, self.settings.remainder == "drop")

    def _elements(self, epoch: int, start: int) -> Iterator[Placed]:
        for number, record in enumerate(self.stream.records(start, epoch), start):
            value = record[self._field]
            if not isinstance(value, str) or value.strip():
                yield number, value

    def _made(self, each: Round) -> tuple[Any, Round, int]:
        began = time.perf_counter()
        short, rows = len(each.placed), self.settings.batch_size
        padded = self.settings.remainder == "pad"
        texts = [value for _, value in each.placed]
        texts += texts[-1:] * (rows - short if padded else 0)
        first, last = rows_of_rank(len(texts), self._rank, self._world)
        columns = self._columns(texts[first:last])
        valid = np.arange(first, last) < short
        tokens = int(np.minimum(columns["input_ids"].lengths, self.settings.max_length)[valid].sum())  # type: ignore[union-attr]
        if self._pad is not None:
            columns = self._pad.apply(columns, Picks(np.empty(0, np.int64), 0), 0)
            if padded:
                columns["labels"][~valid] = IGNORE  # type: ignore[index]
        if padded:
            columns["valid"] = valid
        self._stats.add(1, last - first, 0.0, time.perf_counter() - began, 0.0)
        return self.output.make(columns, frozenset(("input_ids", "labels"))), each, tokens

    def _columns(self, texts: list[Any]) -> Columns:
        if self._tokenizer is None:
            return {"input_ids": Ragged.of(texts)}
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise UsageError("text in the stream", got=f"{type(text).__name__} in {self._field!r}, row {row}")
        eos = self._tokenizer.eos_id if self.settings.eos else None
        return {"input_ids": with_end(self._tokenizer.encode_batch(texts), eos, np.dtype(np.uint32))}

    def batch_at(self, step: int) -> Any:
        """The batch of a step, found by reading the stream from its beginning."""
        return self._made(self._round_at(step)[1])[0]

    def why(self, step: int, row: int = 0) -> dict[str, Any]:
        """Which record made a row of this rank's batch `step`."""
        epoch, each = self._round_at(step)
        first, last = rows_of_rank(len(each.placed), self._rank, self._world)
        if not 0 <= row < last - first:
            raise UsageError("a row of the batch", got=f"row {row} of step {step}", fix="rows count from 0")
        where = {"source": "Hugging Face stream", "record_of_epoch": each.placed[first + row][0]}
        return {"step": step, "row": row, "epoch": epoch, "seed": self.stream.seed, "from": where}

    def _round_at(self, step: int) -> tuple[int, Round]:
        left, epoch = step, 0
        while True:
            count = 0
            for each in islice(self._rounds(epoch, 0), left + 1):
                count += 1
                if count > left:
                    return epoch, each
            if not count:
                raise UsageError("a step of the stream", got=str(step))
            left, epoch = left - count, epoch + 1

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, as plain JSON, the same on every rank."""
        return self._position.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved state: the next `for` first reads over the records before it."""
        self._position.load_state_dict(state, self._check)

    def _identity(self) -> dict[str, str]:
        return {"stream": hashing.content_id([self.stream.fingerprint()])}

    def _check(self, saved: dict[str, Any]) -> None:
        full = self.stream.fingerprint()
        if saved.get("stream") not in (self._identity()["stream"], full):  # the first states had all of it
            raise StateError(
                "a state of this very stream",
                got=str(saved.get("stream"))[:200],
                where=full[:200],
                fix="restore with the dataset, seed and shuffle_buffer it was saved with",
            )

    def stats(self) -> dict[str, Any]:
        return self._stats.summary()


def _field_of(stream: HFStream, asked: str | None, tokenizer: Any) -> str:
    columns = stream.columns
    if asked is None and "input_ids" in columns:
        return "input_ids"
    field = asked or ("text" if "text" in columns or len(columns) != 1 else columns[0])
    if field not in columns:
        raise UsageError(f"a column {field!r} in the stream", got=f"columns {sorted(columns)}", fix="text_field=")
    if tokenizer is None:
        raise UsageError("a tokenizer for text", got="none", fix='tokenizer="bytes", for example')
    return field
