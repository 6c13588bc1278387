"""tiktoken encodings, and their policy for text that spells a special token: the one of `Encoding.encode`.

By default such text is an error, as in tiktoken. `allowed_special` lets it become the special token, and
`disallowed_special=()` makes it ordinary text. Ids come out as NumPy arrays without the GIL. The ranks are kept, so
a copy needs neither a registry nor a download.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Ragged
from penstock.core.errors import BadRecords, RecordError, UsageError
from penstock.core.optional import need
from penstock.tokenizers.base import BaseTokenizer, Special, check_texts, find_specials, join_rows
from penstock.tokenizers.canonical import canonical


class TiktokenTokenizer(BaseTokenizer):
    """A `tiktoken.Encoding` as Penstock sees it.

    `allowed` special tokens are matched in text, `disallowed` ones are refused, others are ordinary text.
    """

    kind = "tiktoken"

    def __init__(
        self, original: Any, allowed: frozenset[str] = frozenset(), disallowed: frozenset[str] | None = None
    ) -> None:
        self.original = original
        super().__init__(str(original.name), int(original.max_token_value) + 1, find_specials(self.special_tokens))
        self.allowed = allowed
        self.disallowed = frozenset(self.special_tokens) - allowed if disallowed is None else disallowed
        # How all of them begin, such as "<|": looked for first, since that is much faster than the pattern.
        ends = min(self.disallowed, default=""), max(self.disallowed, default="")
        self._mark = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False)))
        self._pattern = re.compile("|".join(map(re.escape, sorted(self.disallowed, key=len, reverse=True))))

    def allowing(self, allowed: Special | None, disallowed: Special | None) -> TiktokenTokenizer:
        """The same encoding with tiktoken's `allowed_special` and `disallowed_special`."""
        every = frozenset(self.special_tokens)
        chosen = every if allowed == "all" else _names("allowed_special", allowed or (), every)
        if disallowed is None or disallowed == "all":
            return TiktokenTokenizer(self.original, chosen)
        # tiktoken itself refuses what is in both.
        return TiktokenTokenizer(self.original, chosen, _names("disallowed_special", disallowed, every))

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
        matched = {text: number for text, number in self.special_tokens.items() if text in self.allowed}
        return "tiktoken", (self.ranks, self.pattern, matched)

    @cached_property
    def _blob(self) -> bytes:
        ranks = sorted((rank, token.hex()) for token, rank in self.ranks.items())
        return canonical({"pattern": self.pattern, "ranks": ranks, "special": self.special_tokens})

    def identity(self) -> dict[str, Any]:
        return super().identity() | ({"allowed_special": sorted(self.allowed)} if self.allowed else {})

    def policy(self) -> dict[str, Any]:
        return {"disallowed_special": sorted(self.disallowed)} if self.disallowed else {}

    def check(self, texts: Sequence[str]) -> None:
        if not self.disallowed:
            return
        bad = []
        for row, text in enumerate(texts):
            found = self._pattern.search(text) if isinstance(text, str) and self._mark in text else None
            if found is not None:
                bad.append(self._spelled(found[0], row))
        if bad:
            raise BadRecords(bad)

    def _spelled(self, token: str, row: int) -> RecordError:
        return RecordError(
            "text that spells no special token of the tiktoken encoding",
            got=repr(token),
            where=f"row {row} of this call",
            fix=f"pass penstock.as_tokenizer(encoding, allowed_special={{{token!r}}}) to make it the special token "
            f"{self.special_tokens[token]}, or as_tokenizer(encoding, disallowed_special=()) to make it ordinary "
            "text; .tokenize(), prepare() and the command line take these arguments themselves",
            row=row,
        )

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        self.check(texts)
        run = self.original.encode_to_numpy
        try:
            return join_rows([run(text, allowed_special=self.allowed, disallowed_special=()) for text in texts])
        except (UnicodeEncodeError, TypeError):
            check_texts(texts)
            raise

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        return str(self.original.decode(np.asarray(ids, np.int64).tolist()))

    def __reduce__(self) -> tuple[Any, ...]:
        encoding = self.name, self.pattern, self.ranks, self.special_tokens
        return _rebuild, (*encoding, self.allowed, self.disallowed)


def from_name(name: str) -> TiktokenTokenizer:
    """From the name of an encoding, whose files tiktoken finds in its cache or downloads."""
    library = need("tiktoken", extra="tiktoken", purpose=f"to read the encoding {name!r}")
    try:
        return TiktokenTokenizer(library.get_encoding(name))
    except Exception as error:  # of requests, blobfile, the operating system or tiktoken
        raise UsageError(
            f"the files of the tiktoken encoding {name!r}, in its cache or downloaded",
            got=f"{type(error).__name__}: {str(error)[:200]}",
            fix=f"call tiktoken.get_encoding({name!r}) once with a network and TIKTOKEN_CACHE_DIR set to a folder that "
            "stays; or pass the path of a tokenizer.json",
        ) from error


def _names(argument: str, value: Special, every: frozenset[str]) -> frozenset[str]:
    """A set of special tokens as an argument; a name that the encoding does not have is refused."""
    names = frozenset([value] if isinstance(value, str) else value)
    unknown = sorted(map(repr, names - every))
    if unknown:
        raise UsageError(
            f'`{argument}`: special tokens of the encoding, or "all"',
            got=", ".join(unknown[:5]),
            fix=f"its special tokens are {', '.join(map(repr, sorted(every)[:8])) or 'none'}",
        )
    return names


def _rebuild(
    name: str, pattern: str, ranks: dict[bytes, int], special: dict[str, int],
    allowed: frozenset[str] = frozenset(), disallowed: frozenset[str] | None = None,
) -> TiktokenTokenizer:  # fmt: skip
    library = need("tiktoken", extra="tiktoken", purpose="to read this tokenizer")
    encoding = library.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    return TiktokenTokenizer(encoding, allowed, disallowed)
