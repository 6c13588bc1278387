"""Documents of a Hugging Face stream, tokenised while it is read: what `engine.stream_loader` makes batches of.

Every rank reads all records and tokenises its own rows. Blank texts are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.collate.tokens import IGNORE
from penstock.core import hashing
from penstock.core.columns import Columns, Ragged
from penstock.core.errors import StateError, UsageError
from penstock.engine.output import Output
from penstock.engine.stream_loader import Made, StreamLoader
from penstock.facades.capibara.collate import Fill
from penstock.facades.capibara.config import DataLoaderConfig
from penstock.plan.stream_batches import Cut, Placed, Share
from penstock.preparation.encode import read_ahead
from penstock.sources.hf_stream import HFStream
from penstock.sources.token_stream import with_end
from penstock.steps.picks import Picks
from penstock.tokenizers import as_tokenizer


class DocumentStream:
    """The texts of an `HFStream`, and batches of their tokens."""

    def __init__(
        self, stream: HFStream, tokenizer: Any, settings: DataLoaderConfig, output: Output, pad: Fill | None
    ) -> None:
        self.stream, self.settings, self.output = stream, settings, output
        self._field = _field_of(stream, settings.text_field, tokenizer)
        self._tokenizer = None if self._field == "input_ids" else as_tokenizer(tokenizer)
        self._pad = pad

    def elements(self, start: int, epoch: int) -> Iterator[Placed]:
        for number, record in enumerate(self.stream.records(start, epoch), start):
            value = record[self._field]
            if not isinstance(value, str) or value.strip():
                yield number, value

    def make(self, share: Share, epoch: int) -> tuple[Any, int]:
        columns = self._columns(share.placed)
        padded = self.settings.remainder == "pad"
        kept = np.minimum(columns["input_ids"].lengths, self.settings.max_length)  # type: ignore[union-attr]
        if self._pad is not None:
            columns = self._pad.apply(columns, Picks(np.empty(0, np.int64), 0), 0)
            if padded:
                columns["labels"][~share.valid] = IGNORE  # type: ignore[index]
        if padded:
            columns["valid"] = share.valid
        return self.output.make(columns, frozenset(("input_ids", "labels"))), int(kept[share.valid].sum())

    def _columns(self, placed: list[Placed]) -> Columns:
        values = [value for _, value in placed]
        if self._tokenizer is None:
            return {"input_ids": Ragged.of(values)}
        for number, text in placed:
            if not isinstance(text, str):
                raise UsageError(
                    "text in the stream",
                    got=f"{type(text).__name__} in {self._field!r}",
                    where=f"record {number} of the epoch",
                    fix="text_field= the column that holds the text, or leave such records out with dataset.filter()",
                )
        eos = self._tokenizer.eos_id if self.settings.eos else None
        return {"input_ids": with_end(self._tokenizer.encode_batch(values), eos, np.dtype(np.uint32))}

    def locate(self, placed: Placed) -> dict[str, Any]:
        return {"source": "Hugging Face stream", "record_of_epoch": placed[0], "seed": self.stream.seed}

    def origin(self) -> dict[str, str]:
        return {"stream": hashing.content_id([self.stream.fingerprint()])}

    def check_origin(self, state: dict[str, Any]) -> None:
        full = self.stream.fingerprint()
        if state.get("stream") not in (self.origin()["stream"], full):  # the first states had all of it
            raise StateError(
                "a state of this very stream",
                got=str(state.get("stream"))[:200],
                where=full[:200],
                fix="restore with the dataset, seed and shuffle_buffer it was saved with",
            )


def stream_loader(
    stream: HFStream,
    tokenizer: Any,
    settings: DataLoaderConfig,
    output: Output,
    pad: Fill | None,
    rank: int,
    world: int,
) -> StreamLoader:
    """The loader over a stream; a thread tokenises `prefetch` batches ahead."""
    if settings.batch_size % world:
        raise UsageError(f"a global batch that {world} ranks can share equally", got=str(settings.batch_size))
    cut = Cut(settings.batch_size, settings.remainder, rank, world)

    def ahead(epoch: int, start: int) -> Iterator[Made]:
        return read_ahead(loader.batches(epoch, start), settings.prefetch)

    loader = StreamLoader(DocumentStream(stream, tokenizer, settings, output, pad), lambda: cut, ahead)
    return loader


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
