"""`field_numpy` in torch. Words are int64 tensors holding 32 bits, as torch has little arithmetic for uint32."""

from __future__ import annotations

from typing import Any

from penstock.augment.field_numpy import FAR, HALF, M1, M2, MIDDLE, STEP, horner
from penstock.core.optional import need

LOW = 0xFFFFFFFF


def _mix(x: Any) -> Any:
    x = ((x ^ (x >> 16)) * M1) & LOW
    x = ((x ^ (x >> 15)) * M2) & LOW  # the product wraps modulo 2**64, which leaves its low 32 bits right
    return x ^ (x >> 16)


def words(k0: Any, k1: Any, place: Any) -> Any:
    """32 random bits for each place, as int64."""
    return _mix(_mix((place * STEP + k0) & LOW) ^ k1)


def normal(k0: Any, k1: Any, size: int) -> Any:
    """Standard normal numbers (rows, size), float32."""
    torch = need("torch", extra="torch")
    place = torch.arange(size, dtype=torch.int64, device=k0.device)
    unit = words(k0[:, None], k1[:, None], place) >> 8
    x = (unit.to(torch.float32) - HALF) * (1 / (HALF + 0.5))
    w = -torch.log((1 - x) * (1 + x))
    far = horner(FAR, torch.sqrt(w) - 3)
    return torch.where(w < 5, horner(MIDDLE, w - 2.5), far) * x
