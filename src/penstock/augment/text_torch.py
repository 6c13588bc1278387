"""`text_numpy` in torch, batched (N, length): the same ids exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.augment import spec
from penstock.augment.field_numpy import SECOND
from penstock.augment.field_torch import words
from penstock.augment.image_torch import tensors
from penstock.augment.params import Drawn
from penstock.augment.text_numpy import BITS
from penstock.core.optional import need


def apply(ops: Sequence[spec.Op], tokens: Any, drawn: Sequence[Drawn]) -> Any:
    """All operations in turn on a batch tensor."""
    torch = need("torch", extra="torch", purpose="for Augment.torch()")
    place = torch.arange(tokens.shape[1], device=tokens.device)
    for op, one in zip(ops, drawn, strict=True):
        p = {name: values[:, None] for name, values in tensors(one, tokens.device).items()}
        tokens = torch.where(_chosen(op, tokens, p, place), _new(torch, op, p, place).to(tokens.dtype), tokens)
    return tokens


def _chosen(op: Any, tokens: Any, p: dict[str, Any], place: Any) -> Any:
    chosen = (words(p["k0"], p["k1"], place) >> (32 - BITS)) < round(op.rate * (1 << BITS))
    chosen = chosen & p["on"] & (tokens >= 0)
    for special in op.special:
        chosen = chosen & (tokens != special)
    return chosen


def _new(torch: Any, op: Any, p: dict[str, Any], place: Any) -> Any:
    if isinstance(op, spec.TokenMask):
        return torch.tensor(op.mask_id, device=place.device)
    ids = words(p["k0"] ^ SECOND, p["k1"], place) % op.choices
    for special in op.special:
        ids = ids + (ids >= special)
    return ids
