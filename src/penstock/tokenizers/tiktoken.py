"""tiktoken encodings, always as `encode_ordinary`: text that looks like a special token is ordinary text.

Ids come out as NumPy arrays without the GIL. The ranks are kept, so a copy needs neither a registry nor a download.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Ragged
from penstock.core.optional import need
from penstock.tokenizers.base import BaseTokenizer, canonical, check_texts, find_specials, join_rows


class TiktokenTokenizer(BaseTokenizer):
    """A `tiktoken.Encoding` as Penstock sees it."""

    kind = "tiktoken"

    def __init__(self, original: Any) -> None:
        self.original = original
        super().__init__(str(original.name), int(original.max_token_value) + 1, find_specials(self.special_tokens))

    @property
    def special_tokens(self) -> dict[str, int]:
        return dict(self.original._special_tokens)

    @property
    def ranks(self) -> dict[bytes, int]:
        return dict(self.original._mergeable_ranks)

    @property
    def pattern(self) -> str:
        return str(self.original._pat_str)

    def fast_form(self) -> tuple[str, Any]:
        return "tiktoken", (self.ranks, self.pattern)

    @cached_property
    def _blob(self) -> bytes:
        ranks = sorted((rank, token.hex()) for token, rank in self.ranks.items())
        return canonical({"pattern": self.pattern, "ranks": ranks, "special": self.special_tokens})

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        run = self.original.encode_to_numpy
        try:
            return join_rows([run(text, disallowed_special=()) for text in texts])
        except (UnicodeEncodeError, TypeError):
            check_texts(texts)
            raise

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        return str(self.original.decode(np.asarray(ids, np.int64).tolist()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.name, self.pattern, self.ranks, self.special_tokens)


def _rebuild(name: str, pattern: str, ranks: dict[bytes, int], special: dict[str, int]) -> TiktokenTokenizer:
    library = need("tiktoken", extra="tiktoken", purpose="to read this tokenizer")
    encoding = library.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    return TiktokenTokenizer(encoding)
