"""The text of each token of a row, so that the pieces joined are the decoded row.

A token's text depends on its neighbours: SentencePiece drops the first space of a text, and a character of several
bytes may be spread over several tokens. So a token is decoded together with the ones before it. A character that is
spread over several tokens is the text of the last of them; the others are empty.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.errors import PenstockError
from penstock.core.signals import surface
from penstock.tokenizers.base import Tokenizer

_BROKEN = "\ufffd"  # what decoders return for bytes that are no character (yet)
_CONTEXT = 6  # tokens decoded before the one in question
_LONGEST = 8  # tokens that a character may be spread over; joined emoji are several characters


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str] | None:
    """The text of each token; None if some id is not of this tokenizer, or the tokenizer cannot decode.

    >>> from penstock.tokenizers import as_tokenizer
    >>> pieces(as_tokenizer("bytes"), list("né!".encode()))
    ['n', '', 'é', '!']
    """
    numbers = [int(i) for i in ids]
    if numbers and not 0 <= min(numbers) <= max(numbers) < tokenizer.vocab_size:
        return None
    try:
        return _Decoder(tokenizer).row(numbers)
    except PenstockError:
        raise
    except Exception as error:  # a tokenizer of the user, which may not decode: ids are shown instead
        surface(error)
        return None


class _Decoder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.decode = tokenizer.decode
        self.known: dict[tuple[int, int], str | None] = {}

    def row(self, ids: list[int]) -> list[str]:
        found: list[str] = []
        start = 0  # of the tokens whose characters are not complete
        for at, number in enumerate(ids):
            text = None
            if start == at:
                text = self.pair(ids[at - 1] if at else -1, number)
            if text is None:
                text = self.after(ids, start, at)
            if text is None and at - start < _LONGEST and at + 1 < len(ids):
                found.append("")
                continue
            if text is None:  # bytes that are no character at all
                text = self.decode(ids[start : at + 1])
            found.append(text)
            start = at + 1
        return found

    def pair(self, before: int, number: int) -> str | None:
        """The text of a token after another one; None where these two do not decide it."""
        key = (before, number)
        if key not in self.known:
            if before < 0:
                alone = self.decode([number])
                self.known[key] = None if _BROKEN in alone else alone
            else:
                first, both = self.decode([before]), self.decode([before, number])
                clear = both.startswith(first) and _BROKEN not in both
                self.known[key] = both[len(first) :] if clear else None
        return self.known[key]

    def after(self, ids: list[int], start: int, at: int) -> str | None:
        """The text of tokens [start, at] after those before them; None if it ends within a character."""
        begin = max(0, start - _CONTEXT)
        first, both = self.decode(ids[begin:start]) if start > begin else "", self.decode(ids[begin : at + 1])
        if both.endswith(_BROKEN) or not both.startswith(first):
            return None
        return both[len(first) :]
