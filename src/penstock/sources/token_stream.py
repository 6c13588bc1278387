"""Documents as tokens: small corpora in memory, and the end token after each document."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.columns import Ragged
from penstock.core.errors import DataError
from penstock.sources.tokens import TokenArray
from penstock.tokenizers.base import BaseTokenizer
from penstock.tokenizers.bulk import BulkEncoder
from penstock.tokenizers.duck import ANY_IDS


def token_stream(source: Any, tokenizer: Any, *, eos: bool = False) -> TokenArray:
    """All texts of a source one after another, with the table of where each begins.

    For a tokenizer without a vocabulary size (`with_any_ids`) it is the largest id plus one.

    >>> from penstock.sources.arrays import Texts
    >>> token_stream(Texts(["ab", "c"]), "bytes").n_tokens
    3
    """
    return first_tokens(source, tokenizer, None, eos=eos)[0]


def first_tokens(source: Any, tokenizer: Any, most: int | None, *, eos: bool = False) -> tuple[TokenArray, bool]:
    """The tokens of the first `most` bytes of texts (None: of all), and whether those were all of them."""
    encoder = BulkEncoder(tokenizer)
    ended = isinstance(encoder.tokenizer, BaseTokenizer) and encoder.tokenizer.ends_texts
    end = encoder.tokenizer.eos_id if eos and not ended else None
    dtype = np.min_scalar_type(max(0, encoder.tokenizer.vocab_size - 1))
    parts, lengths, read, complete = [], [], 0, True
    for chunk in source.iterate():
        if most is not None and read >= most:
            complete = False
            break
        if chunk.errors:
            raise chunk.errors[0]
        documents = with_end(encoder.encode(chunk.texts), end, dtype)
        parts.append(documents.values)
        lengths.append(documents.lengths)
        read += chunk.file_bytes
    encoder.close()
    if not parts:
        raise DataError("at least one text", got="none", where=str(source.describe()))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    tokens, vocab_size = np.concatenate(parts), encoder.tokenizer.vocab_size
    if vocab_size == ANY_IDS:
        vocab_size = int(tokens.max(initial=0)) + 1
        tokens = tokens.astype(np.min_scalar_type(vocab_size - 1))
    return TokenArray(tokens, offsets, vocab_size), complete


def with_end(documents: Ragged, eos: int | None, dtype: np.dtype[Any]) -> Ragged:
    """The documents in their final type, each followed by `eos` if there is one.

    >>> with_end(Ragged.of([[1, 2], []]), 9, np.dtype(np.uint8)).tolist()
    [[1, 2, 9], [9]]
    """
    if eos is None:
        return Ragged(documents.values.astype(dtype), documents.offsets)
    offsets = documents.offsets + np.arange(len(documents) + 1)
    values = np.empty(int(offsets[-1]), dtype)
    text = np.ones(len(values), bool)
    text[offsets[1:] - 1] = False
    values[text] = documents.values
    values[offsets[1:] - 1] = eos
    return Ragged(values, offsets)
