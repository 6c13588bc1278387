"""What turns the chunks of a source into documents of tokens: `Maker`, and the one for plain texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from penstock.core.columns import Columns, Ragged
from penstock.core.errors import UsageError
from penstock.preparation.encode import encoded
from penstock.sources.base import TextSource
from penstock.sources.lines import Chunk
from penstock.sources.token_stream import with_end
from penstock.store.layout import token_dtype
from penstock.tokenizers.base import BaseTokenizer, Tokenizer
from penstock.tokenizers.bulk import BulkEncoder

SAMPLED_FILES = 4


class Made(NamedTuple):
    """The documents of a chunk, with columns beside those of their provenance."""

    chunk: Chunk
    documents: Ragged
    columns: Columns


class Maker(Protocol):
    """Turns the chunks of a source into documents of tokens, in order. Can be pickled."""

    vocab_size: int
    eos: int | None

    @property
    def engine(self) -> str: ...

    def job(self) -> dict[str, Any]:
        """All settings that affect the documents, in plain JSON, including `tokenizer`."""
        ...

    def check(self, source: TextSource, *, wait: bool = True) -> None:
        """Checks that the source is encoded as it should be.

        Without `wait` this may go on beside the first documents; none is returned before it has passed.
        """
        ...

    def documents(self, chunks: Iterable[Chunk]) -> Iterator[Made]: ...

    def close(self) -> None: ...


class TextMaker:
    """Texts as they are, tokenised, each followed by the end token if there is one."""

    def __init__(self, encoder: BulkEncoder, eos: bool | int, paths: Sequence[str]) -> None:
        self.encoder, self.paths = encoder, paths
        self.tokenizer = encoder.tokenizer
        self.eos = _end_of(self.tokenizer, eos)
        ended = eos is True and isinstance(self.tokenizer, BaseTokenizer) and self.tokenizer.ends_texts
        self.appended = None if ended else self.eos
        self.vocab_size = self.tokenizer.vocab_size
        self._unchecked: TextSource | None = None

    @property
    def engine(self) -> str:
        return self.encoder.engine

    def job(self) -> dict[str, Any]:
        policy = self.tokenizer.policy() if isinstance(self.tokenizer, BaseTokenizer) else {}
        return {"tokenizer": self.tokenizer.identity(), "eos": self.eos} | policy

    def check(self, source: TextSource, *, wait: bool = True) -> None:
        """The fast engine is compared with the reference on texts from several files before its ids are used."""
        if wait:
            self.encoder.check(_first_texts(source, first=0))
        else:
            self._unchecked = source

    def documents(self, chunks: Iterable[Chunk]) -> Iterator[Made]:
        for chunk, documents in encoded(self._started(chunks), self.encoder, self.paths):
            yield Made(chunk, with_end(documents, self.appended, token_dtype(self.vocab_size)), chunk.columns)

    def _started(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The same chunks; the first texts start the check."""
        for chunk in chunks:
            source = self._unchecked
            if source is not None and chunk.texts:
                self._unchecked = None
                self.encoder.check_beside(partial(_sample, chunk.texts, source))
            yield chunk

    def close(self) -> None:
        self.encoder.close()


def _sample(texts: list[str], source: TextSource) -> list[str]:
    return [*texts, *_first_texts(source, first=1)]


def _first_texts(source: TextSource, first: int) -> list[str]:
    """Texts of the beginning of up to four files, spread over all from file `first` on."""
    files = int(source.describe().get("files", 1) or 1)
    texts: list[str] = []
    for file in sorted({i * (files - 1) // max(1, SAMPLED_FILES - 1) for i in range(SAMPLED_FILES)}):
        if file >= first:
            start = {"file": file, "offset": 0, "line": 0} if file else None
            chunk = next(iter(source.iterate(start)), None)
            texts += chunk.texts if chunk else []
    return texts


def _end_of(tokenizer: Tokenizer, eos: bool | int) -> int | None:
    if eos is False:
        return None
    if eos is True:
        return tokenizer.eos_id
    if not 0 <= eos < tokenizer.vocab_size:
        raise UsageError(f"an end token below the vocabulary size {tokenizer.vocab_size}", got=str(eos))
    return int(eos)
