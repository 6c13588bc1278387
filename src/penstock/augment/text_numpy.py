"""Token operations on the host, in NumPy: (N, length) or ragged rows, special and negative ids never touched.

Whole numbers throughout, so `text_torch` and `text_jax` give the very same ids. A token's fate is a hash of its
row's key and its place in the row: padding a row changes nothing for its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.augment import spec
from penstock.augment.field_numpy import SECOND, words
from penstock.augment.params import Drawn
from penstock.core.columns import Ragged

BITS = 24
"""A share is compared as an integer of this many bits, so that all executions decide alike."""


def apply(ops: Sequence[spec.Op], tokens: Any, drawn: Sequence[Drawn]) -> Any:
    """All operations in turn on a batch."""
    if isinstance(tokens, Ragged):
        return Ragged(_ragged(ops, tokens, drawn), tokens.offsets)
    place = np.arange(tokens.shape[1], dtype=np.uint32)
    for op, one in zip(ops, drawn, strict=True):
        tokens = change(op, tokens, {name: values[:, None] for name, values in one.items()}, place)
    return tokens


def _ragged(ops: Sequence[spec.Op], tokens: Ragged, drawn: Sequence[Drawn]) -> NDArray[Any]:
    values = tokens.values[tokens.offsets[0] : tokens.offsets[-1]]
    offsets, lengths = tokens.offsets - tokens.offsets[0], tokens.lengths
    place = (np.arange(len(values)) - np.repeat(offsets[:-1], lengths)).astype(np.uint32)
    for op, one in zip(ops, drawn, strict=True):
        values = change(op, values, {name: np.repeat(v, lengths) for name, v in one.items()}, place)
    return values


def change(op: Any, tokens: NDArray[Any], p: Drawn, place: NDArray[np.uint32]) -> NDArray[Any]:
    """One operation; parameters and places broadcast against tokens."""
    chosen = (words(p["k0"], p["k1"], place) >> np.uint32(32 - BITS)) < np.uint32(round(op.rate * (1 << BITS)))
    chosen = chosen & p["on"] & (tokens >= 0)
    for special in op.special:
        chosen &= tokens != special
    return np.where(chosen, _new(op, p, place), tokens).astype(tokens.dtype, copy=False)


def _new(op: Any, p: Drawn, place: NDArray[np.uint32]) -> Any:
    if isinstance(op, spec.TokenMask):
        return np.int64(op.mask_id)
    ids = (words(p["k0"] ^ np.uint32(SECOND), p["k1"], place) % np.uint32(op.choices)).astype(np.int64)
    for special in op.special:  # ascending, so each id steps over the special ones below it
        ids += ids >= special
    return ids
