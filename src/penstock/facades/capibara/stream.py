"""Batches of a stream: tokenised on the way, nothing prepared, nothing known of what comes.

The promise is that of streams. The batch of step n is the same every time and for any number of ranks: every rank reads
all records and tokenises its own rows. Going to a place reads over all records before it in that epoch. The length is
not known. Blank texts are passed over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from penstock.collate.tokens import IGNORE
from penstock.core.columns import Columns, Ragged
from penstock.core.errors import StateError, UsageError
from penstock.engine.batches import Output
from penstock.engine.stats import Stats
from penstock.facades.capibara.config import DataLoaderConfig
from penstock.facades.capibara.fill import Fill
from penstock.order.shard import rows_of_rank
from penstock.preparation.encode import read_ahead
from penstock.sources.hf_stream import HFStream
from penstock.sources.token_stream import with_end
from penstock.steps.node import Picks
from penstock.tokenizers import as_tokenizer

FORMAT = "stream 1"


class Cut(NamedTuple):
    """The records of one global batch: their texts, their numbers in the epoch, and the number that comes next."""

    texts: list[Any]
    numbers: list[int]
    next: int


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
        self._step = self._epoch = self._n = 0  # _n: records of the epoch that were read

    @property
    def step(self) -> int:
        return self._step

    @property
    def epoch(self) -> int:
        return self._epoch

    def __len__(self) -> int:
        raise TypeError("a stream has no length: leave streaming=True out, or count batches yourself")

    def __iter__(self) -> Iterator[Any]:
        """To the end of the epoch; the next `for` is the next epoch."""
        made = (self._made(cut) for cut in self._cuts(self._epoch, self._n))
        run = read_ahead(made, self.settings.prefetch)  # type: ignore[arg-type]
        while True:
            began = time.perf_counter()
            item: Any = next(run, None)
            if item is None:
                break
            batch, after, tokens = item
            self._step, self._n, self.tokens = self._step + 1, after, self.tokens + tokens
            now = time.perf_counter()
            self._stats.took(now - began, now)
            yield batch
        if not self._n:
            raise UsageError("at least one batch in the stream", got="none", fix="a smaller batch, or another split")
        self._epoch, self._n = self._epoch + 1, 0

    def _cuts(self, epoch: int, start: int) -> Iterator[Cut]:
        """Records in groups of a global batch; the rest of an epoch as `remainder` says."""
        rows, drop = self.settings.batch_size, self.settings.remainder == "drop"
        texts: list[Any] = []
        numbers: list[int] = []
        for number, record in enumerate(self.stream.records(start, epoch), start):
            value = record[self._field]
            if isinstance(value, str) and not value.strip():
                continue
            texts.append(value)
            numbers.append(number)
            if len(texts) == rows:
                yield Cut(texts, numbers, number + 1)
                texts, numbers = [], []
        if texts and not drop:
            yield Cut(texts, numbers, numbers[-1] + 1)

    def _made(self, cut: Cut) -> tuple[Any, int, int]:
        began = time.perf_counter()
        short, rows = len(cut.texts), self.settings.batch_size
        padded = self.settings.remainder == "pad"
        texts = [*cut.texts, *cut.texts[-1:] * (rows - short)] if padded else cut.texts
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
        return self.output.batch(self.output.block(columns, frozenset(("input_ids", "labels")))), cut.next, tokens

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
        return self._made(self._cut_at(step)[1])[0]

    def why(self, step: int, row: int = 0) -> dict[str, Any]:
        """Which record made a row of this rank's batch `step`."""
        epoch, cut = self._cut_at(step)
        first, last = rows_of_rank(len(cut.numbers), self._rank, self._world)
        if not 0 <= row < last - first:
            raise UsageError("a row of the batch", got=f"row {row} of step {step}", fix="rows count from 0")
        where = {"source": "Hugging Face stream", "record_of_epoch": cut.numbers[first + row]}
        return {"step": step, "row": row, "epoch": epoch, "seed": self.stream.seed, "from": where}

    def _cut_at(self, step: int) -> tuple[int, Cut]:
        left, epoch = step, 0
        while True:
            count = 0
            for cut in islice(self._cuts(epoch, 0), left + 1):
                count += 1
                if count > left:
                    return epoch, cut
            if not count:
                raise UsageError("a step of the stream", got=str(step))
            left, epoch = left - count, epoch + 1

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, as plain JSON, the same on every rank."""
        place = {"step": self._step, "epoch": self._epoch, "n": self._n}
        return {"penstock": FORMAT, "stream": self.stream.fingerprint(), **place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a saved state: the next `for` first reads over what was given."""
        if not isinstance(state, dict) or state.get("penstock") != FORMAT:
            raise StateError("a state that a stream saved", got=str(state)[:80], fix="pass what state_dict() gave")
        if state.get("stream") != self.stream.fingerprint():
            raise StateError(
                "a state of this very stream",
                got=str(state.get("stream"))[:200],
                where=self.stream.fingerprint()[:200],
                fix="restore with the dataset, seed and shuffle_buffer it was saved with",
            )
        self._step, self._epoch, self._n = (int(state[name]) for name in ("step", "epoch", "n"))

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
