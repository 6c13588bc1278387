"""Which scripts a text is written in: Latin, Cyrillic, Han, ... by the Unicode names of its letters.

It says what can be known without guessing: English and French are both Latin. Languages that a column names are
counted besides (`survey`).
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from functools import lru_cache

_LETTERS = 2000  # of a text that are counted
_CALLED = {"CJK": "Han", "IDEOGRAPHIC": "Han", "FULLWIDTH": "Latin", "HALFWIDTH": "Katakana", "MODIFIER": ""}


def scripts_of(text: str) -> Counter[str]:
    """How many of the first letters of a text are of which script.

    >>> scripts_of("Mill, мир, 水車"), scripts_of("3 + 4")
    (Counter({'Latin': 4, 'Cyrillic': 3, 'Han': 2}), Counter())
    """
    found: Counter[str] = Counter()
    for character, times in Counter(text[:_LETTERS]).items():
        if character.isalpha() and (script := _script(character)):
            found[script] += times
    return found


@lru_cache(1 << 14)
def _script(character: str) -> str:
    """The script of a letter: the first word of its Unicode name, or "" for one of none."""
    if character.isascii():
        return "Latin"
    first = unicodedata.name(character, "").partition(" ")[0]
    return _CALLED.get(first, first.capitalize())
