"""SentencePiece models, from a processor or a `.model` file.

Penstock keeps its own processor built from the same model bytes: no sampling. The BOS and EOS that a processor was set
to add (`add_bos=True`) are added with `add_special_tokens=True`. Control pieces
(`<s>`) are never matched in text. Encoding releases the GIL; ids pass through one Python list per text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Ragged
from penstock.core.errors import UsageError
from penstock.core.optional import need
from penstock.tokenizers.base import PROBES, BaseTokenizer, Ids, Specials, check_texts, framed, join_rows


class SentencePieceTokenizer(BaseTokenizer):
    """A SentencePiece model as Penstock sees it; `model` is the serialized model."""

    kind = "sentencepiece"

    def __init__(
        self, model: bytes, *, name: str = "sentencepiece", ends: tuple[bool, bool] = (False, False), adds: bool = False
    ) -> None:
        library = need("sentencepiece", extra="sentencepiece", purpose="to read this tokenizer")
        processor = library.SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(model)
        except (RuntimeError, OSError) as error:
            raise UsageError(
                "a SentencePiece model",
                got=f"{len(model)} bytes that are not one",
                where=name,
                fix="pass the .model file that SentencePiece wrote; load a tiktoken rank file with tiktoken",
            ) from error
        self.model = model
        self.processor = processor
        self.ends = ends  # whether the original adds BOS and EOS
        self.adds = adds and any(ends)
        specials = Specials(*(_or_none(f()) for f in (processor.eos_id, processor.bos_id, processor.pad_id)))
        super().__init__(name, int(processor.GetPieceSize()), specials)

    @property
    def special_tokens(self) -> dict[str, int]:
        p = self.processor
        return {str(p.IdToPiece(i)): i for i in range(self.vocab_size) if p.IsControl(i)}

    @property
    def _blob(self) -> bytes:
        return self.model

    def fast_form(self) -> tuple[str, Any]:
        return "sentencepiece", self.model

    def adding(self, add: bool) -> SentencePieceTokenizer:
        if add == self.adds or not any(self.ends):
            return self
        return _rebuild(self.model, self.name, self.ends, add)

    @cached_property
    def frame(self) -> tuple[Ids, Ids]:
        marks = zip((self.processor.bos_id(), self.processor.eos_id()), self.ends, strict=True)
        before, after = (np.array([i] if self.adds and end else [], np.uint32) for i, end in marks)
        return before, after

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        run = self.processor.EncodeAsIds
        try:
            return framed(join_rows([np.array(run(text), np.uint32) for text in texts]), *self.frame)
        except (RuntimeError, TypeError, UnicodeEncodeError):
            check_texts(texts)
            raise

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        return str(self.processor.DecodeIds(np.asarray(ids, np.int64).tolist()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.model, self.name, self.ends, self.adds)


def _rebuild(
    model: bytes, name: str, ends: tuple[bool, bool] = (False, False), adds: bool = False
) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(model, name=name, ends=ends, adds=adds)


def _or_none(value: int) -> int | None:
    return None if value < 0 else int(value)


def from_object(processor: Any) -> SentencePieceTokenizer:
    """From a loaded `SentencePieceProcessor`."""
    model = processor.serialized_model_proto()
    if not model:
        raise UsageError("a SentencePieceProcessor with a model", got="an empty one", fix="call .Load(path) first")
    plain = SentencePieceTokenizer(bytes(model))
    full = processor.encode("a", out_type=int)
    ends = full[:1] == [processor.bos_id()], full[-1:] == [processor.eos_id()]
    made = SentencePieceTokenizer(bytes(model), ends=ends, adds=True)
    for text in PROBES:
        ids = processor.encode(text, out_type=int)
        if ids != made.encode(text).tolist():
            raise UsageError(
                "a SentencePieceProcessor that returns its model's ids, with or without BOS and EOS",
                got=f"other ids for {text[:40]!r}: {ids[:8]} where the model alone returns {plain.encode(text)[:8]}",
                fix="load it without reverse, sampling, a restricted vocabulary or other encode options",
            )
    return SentencePieceTokenizer(bytes(model), ends=ends)


def from_file(path: Path) -> SentencePieceTokenizer:
    """From a `.model` file."""
    return SentencePieceTokenizer(path.read_bytes(), name=str(path))


def from_folder(folder: Path) -> SentencePieceTokenizer:
    """The tokenizer of the one `.model` in a folder."""
    models = sorted(folder.glob("*.model"))
    if len(models) > 1:
        raise UsageError(
            "a folder with one SentencePiece model",
            got=", ".join(model.name for model in models),
            where=str(folder),
            fix=f"pass the path of one of them: {str(models[0])!r}",
        )
    return from_file(models[0])
