"""Operations on token ids: `TokenMask`, `TokenReplace`. Special and negative ids are never changed.

Integers throughout, so every framework returns the same ids. What happens to a token is a hash of its row's key and its
position in the row: padding a row changes nothing for its tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.augment.arrays import Arrays
from penstock.augment.arrays_numpy import NUMPY
from penstock.augment.field import SECOND, words
from penstock.augment.operations.base import Op, Shape
from penstock.augment.params import Drawn, field_keys
from penstock.core.columns import Ragged
from penstock.core.errors import UsageError
from penstock.core.randomness import U64

BITS = 24
"""A share is compared as an integer of this many bits, so that all frameworks decide alike."""


class TokenOp(Op):
    """What `TokenMask` and `TokenReplace` share."""

    kind: ClassVar[str] = "tokens"
    exact: ClassVar[bool] = True
    special: tuple[int, ...]
    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        special = tuple(sorted({int(v) for v in self.special}))
        if any(not 0 <= v < 2**31 for v in special):
            raise self._wrong("special, ids of 0 or more,", self.special, "special=(pad_id, bos_id, eos_id)")
        self._set("special", special)
        if not 0 <= self.rate <= 1:
            raise self._wrong("rate, a share from 0 to 1,", self.rate)

    @property
    @abstractmethod
    def largest_id(self) -> int:
        """The largest id that it writes."""

    def check_dtype(self, dtype: Any) -> None:
        kind = np.dtype(str(dtype).removeprefix("torch."))
        if kind.kind not in "ui" or self.largest_id > np.iinfo(kind).max:
            raise UsageError(
                f"integer tokens that hold ids up to {self.largest_id}",
                got=f"{kind}",
                where=f"augment operation {type(self).__name__}",
                fix="pass token ids as int32, or use a smaller id",
            )

    def draw(self, keys: U64, shape: Shape) -> Drawn:
        return field_keys(keys)

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return self.change(xp, x, p["k0"][:, None], p["k1"][:, None], xp.counters(x.shape[1], x))

    def change(self, xp: Arrays, tokens: Any, k0: Any, k1: Any, positions: Any) -> Any:
        """The operation on tokens; keys and positions in the row broadcast against them."""
        chosen = picked(xp, k0, k1, positions, self.rate) & ordinary(xp, tokens, self.special)
        return xp.where(chosen, xp.astype(self.new(xp, tokens, k0, k1, positions), tokens.dtype), tokens)

    @abstractmethod
    def new(self, xp: Arrays, tokens: Any, k0: Any, k1: Any, positions: Any) -> Any:
        """What takes the place of chosen tokens."""


@dataclass(frozen=True)
class TokenMask(TokenOp):
    """Sets a share `rate` of tokens to `mask_id`. Ids in `special` and negative ids are never changed."""

    mask_id: int
    special: tuple[int, ...]
    rate: float = 0.15
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mask_id < 2**31:
            raise self._wrong("mask_id, an id of 0 or more,", self.mask_id, "mask_id=tokenizer.mask_token_id")

    @property
    def largest_id(self) -> int:
        return self.mask_id

    def new(self, xp: Arrays, tokens: Any, k0: Any, k1: Any, positions: Any) -> Any:
        return xp.constant(self.mask_id, tokens)


@dataclass(frozen=True)
class TokenReplace(TokenOp):
    """Sets a share `rate` of tokens to random ids below `vocab_size`, never to or from one in `special`."""

    vocab_size: int
    special: tuple[int, ...]
    rate: float = 0.05
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.vocab_size < 2**31 or self.choices < 1:
            raise self._wrong(
                "vocab_size with at least one id that is not special", self.vocab_size, "vocab_size=50257"
            )

    @property
    def choices(self) -> int:
        """How many ids are not special."""
        return self.vocab_size - sum(1 for v in self.special if v < self.vocab_size)

    @property
    def largest_id(self) -> int:
        return self.vocab_size - 1

    def new(self, xp: Arrays, tokens: Any, k0: Any, k1: Any, positions: Any) -> Any:
        return random_ids(xp, k0, k1, positions, xp.word(self.choices), self.special)


def picked(xp: Arrays, k0: Any, k1: Any, positions: Any, rate: float) -> Any:
    """True at a share `rate` of the positions."""
    return (words(xp, k0, k1, positions) >> (32 - BITS)) < round(rate * (1 << BITS))


def ordinary(xp: Arrays, tokens: Any, special: tuple[int, ...]) -> Any:
    """True for tokens that are neither special nor negative."""
    chosen = tokens >= 0
    most = xp.iinfo(tokens.dtype).max
    for one in special:
        if one <= most:  # JAX cannot compare with a number that its dtype does not hold
            chosen &= tokens != one
    return chosen


def random_ids(xp: Arrays, k0: Any, k1: Any, positions: Any, choices: Any, special: tuple[int, ...]) -> Any:
    """Random ids that are not special, one per position; `choices` is a word and may be traced."""
    ids = xp.astype(words(xp, k0 ^ xp.word(SECOND), k1, positions) % choices, xp.int32)
    for one in special:  # ascending, so each id steps over the special ones below it
        ids += ids >= one
    return ids


def change_ragged(ops: tuple[TokenOp, ...], tokens: Ragged, drawn: tuple[Drawn, ...]) -> Ragged:
    """Operations in order on rows of different lengths, on the host."""
    values = tokens.values[tokens.offsets[0] : tokens.offsets[-1]]
    offsets, lengths = tokens.offsets - tokens.offsets[0], tokens.lengths
    positions = (np.arange(len(values)) - np.repeat(offsets[:-1], lengths)).astype(np.uint32)
    for op, p in zip(ops, drawn, strict=True):
        touched, k0, k1 = (np.repeat(p[name], lengths) for name in ("on", "k0", "k1"))
        values = np.where(touched, op.change(NUMPY, values, k0, k1, positions), values)
    return Ragged(values, offsets)
