"""The dtype of token ids: set by `ids=`, checked when the loader is made: all values must fit it.

Inputs and labels of a step share one type, so it must be signed wherever labels can be -100: a loss looks for -100,
not for 65436, and torch computes with hardly any unsigned type. The largest id comes from the source's vocabulary size,
or without one from the dtype they are stored in; 32 bits are always enough: no vocabulary is larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.core.errors import UsageError
from penstock.steps.node import Node


def check_ids(kind: np.dtype[Any], root: Node, padding: Sequence[int] = (), *, changed: bool = False) -> None:
    """Raises unless the ids of the rows of `root` and the values of their padding fit `kind`.

    With `changed` a user's function comes after them, so their largest value is unknown.
    """
    if kind.kind not in "iu":
        raise UsageError("a type of integers for ids=", got=kind.name, fix='ids="int32" or "int64"')
    bounds, held = root.facts.bounds, np.iinfo(kind)
    least = min([bounds.least, *padding])
    if least < held.min:
        raise UsageError(
            f"a signed type for ids=, which labels share: they are {least} at positions without loss",
            got=kind.name,
            fix=f'ids="{_wide_enough(least, bounds.most)}"',
        )
    most = max([0 if changed else bounds.most, *padding])
    if most > held.max:
        raise UsageError(
            f"ids= of a type that holds token ids up to {most}",
            got=f"{kind.name}, which ends at {held.max}",
            fix=f'ids="{_wide_enough(least, most)}", or pass vocab_size where the tokens are opened',
        )


def _wide_enough(least: int, most: int) -> str:
    kinds = ("int8", "int16", "int32", "int64")
    return next((k for k in kinds if np.iinfo(k).min <= least and most <= np.iinfo(k).max), "int64")
