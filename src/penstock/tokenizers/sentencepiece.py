"""SentencePiece models, from a processor or a `.model` file.

Penstock keeps its own processor built from the same model bytes: no sampling, no added BOS or EOS. Control pieces
(`<s>`) are never matched in text. Encoding releases the GIL; ids pass through one Python list per text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Ragged
from penstock.core.errors import UsageError
from penstock.core.optional import need
from penstock.tokenizers.base import Ids, Specials, check_texts, join_rows, make_identity


class SentencePieceTokenizer:
    """A SentencePiece model as Penstock sees it; `model` is the serialized model."""

    kind = "sentencepiece"
    concurrent = True

    def __init__(self, model: bytes, *, name: str = "sentencepiece") -> None:
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
        self.name = name
        self.model = model
        self.processor = processor
        self.vocab_size = int(processor.GetPieceSize())
        self._specials = Specials(*(_or_none(f()) for f in (processor.eos_id, processor.bos_id, processor.pad_id)))
        self.eos_id, self.bos_id, self.pad_id = (self._specials.eos, self._specials.bos, self._specials.pad)

    @property
    def special_tokens(self) -> dict[str, int]:
        p = self.processor
        return {str(p.IdToPiece(i)): i for i in range(self.vocab_size) if p.IsControl(i)}

    def fast_form(self) -> tuple[str, Any]:
        """What a bulk engine can be built from."""
        return "sentencepiece", self.model

    def identity(self) -> dict[str, Any]:
        return make_identity(self.kind, self.model, self.vocab_size, self._specials)

    def encode(self, text: str) -> Ids:
        return self.encode_batch([text]).values

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        run = self.processor.EncodeAsIds
        try:
            return join_rows([np.array(run(text), np.uint32) for text in texts])
        except (RuntimeError, TypeError, UnicodeEncodeError):
            check_texts(texts)
            raise

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        return str(self.processor.DecodeIds(np.asarray(ids, np.int64).tolist()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.model, self.name)

    def __repr__(self) -> str:
        return f"SentencePieceTokenizer({self.name!r}, vocab_size={self.vocab_size})"


def _rebuild(model: bytes, name: str) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(model, name=name)


def _or_none(value: int) -> int | None:
    return None if value < 0 else int(value)


def from_object(processor: Any) -> SentencePieceTokenizer:
    """From a loaded `SentencePieceProcessor`."""
    model = processor.serialized_model_proto()
    if not model:
        raise UsageError("a SentencePieceProcessor with a model", got="an empty one", fix="call .Load(path) first")
    return SentencePieceTokenizer(bytes(model))


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
