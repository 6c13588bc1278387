"""`"bytes"`: UTF-8 bytes are the ids 0-255, and 256 ends a document; vocabulary 257. Nothing to train or load.

The end token lies outside the bytes so that no document can contain it. Costs one UTF-8 encode and one widening copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Ragged
from penstock.tokenizers.base import BaseTokenizer, Specials, check_texts

EOS = 256


class ByteTokenizer(BaseTokenizer):
    """Bytes as tokens.

    >>> t = ByteTokenizer()
    >>> t.encode("hé").tolist(), t.decode([104, 195, 169, 256])
    ([104, 195, 169], 'hé')
    """

    kind = "bytes"
    special_tokens: dict[str, int] = {}  # noqa: RUF012  (never changed)
    _blob = b"utf-8 bytes, 256 ends a document"

    def __init__(self) -> None:
        super().__init__("bytes", 257, Specials(eos=EOS))

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        try:
            coded = [text.encode() for text in texts]
        except (UnicodeEncodeError, AttributeError):
            check_texts(texts)
            raise
        offsets = np.zeros(len(coded) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, coded), np.int64, len(coded)), out=offsets[1:])
        return Ragged(np.frombuffer(b"".join(coded), np.uint8).astype(np.uint32), offsets)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD, the end token is left out."""
        values = np.asarray(ids, np.int64)
        return values[values < EOS].astype(np.uint8).tobytes().decode(errors="replace")


def from_name(_: str) -> ByteTokenizer:
    """The tokenizer named "bytes"."""
    return ByteTokenizer()
