"""What a plan assumes of storage, prices and hardware. Every value can be changed; none was measured by Penstock.

Defaults are of November 2026: prices of S3 standard storage in one region, and latencies and sizes that AWS documents
as typical. Reports print them, so that a figure is never read without its assumption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from penstock.core.errors import ArgumentError, UsageError
from penstock.storage import sizes

AS_OF = "2026-11"


@dataclass(frozen=True)
class Assumptions:
    """Sizes in bytes, times in seconds, prices in US dollars."""

    latency: float = 0.030  # from a request to its first byte, median
    bandwidth: float = 1.25e9  # bytes per second and host: a 10 Gbit/s link
    in_flight: int = 32  # concurrent requests of a host
    get_price: float = 0.0004  # for 1,000 GET requests
    egress_price: float = 0.0  # for 1 GB that leaves the region; about 0.02 to another region
    page_bytes: int = sizes.PAGE  # fetched and verified at once; a store has its own
    gap_bytes: int = sizes.GAP  # unused bytes that one request may read over
    get_bytes: int = sizes.LARGEST  # the longest request
    cache_bytes: int = 64 << 30  # of a host
    fetch_steps: int = 1  # whose pages are merged into requests together: more where storage is slower than training
    lookahead_steps: int = 16  # fetched ahead: these steps, or `lookahead_seconds` if that is more
    lookahead_seconds: float = 10.0
    block_bytes: int = 4 << 20  # of consecutive records, for shuffles of blocks and lanes
    window_blocks: int = 64  # blocks that are shuffled together, of each lane
    shard_bytes: int = 64 << 20  # of an object, where no store says it
    sample_bytes: int = 0  # of a record, where no source says it
    fleet_gets: float = 2500.0  # GET/s of the fleet above which lanes are advised; S3 allows 5,500 per prefix
    cost_share: float = 0.01  # share of the GPU price above which lanes are advised

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), int if isinstance(field.default, int) else float
            least = 0 if field.name in _MAY_BE_ZERO else 1 if kind is int else 1e-12
            try:
                number = None if isinstance(value, bool) else kind(value)
            except (TypeError, ValueError, OverflowError):
                number = None
            if number is None or not least <= number < 1e30 or number != value:
                what = "an integer" if kind is int else "a number"
                raise UsageError(f"{what} of at least {least:g} for {field.name}", got=repr(value), where="plan")
            object.__setattr__(self, field.name, number)

    @classmethod
    def of(cls, changes: Mapping[str, Any] | None) -> Assumptions:
        """The defaults with these changes.

        >>> Assumptions.of({"latency": 0.05}).latency
        0.05
        """
        known = [field.name for field in fields(cls)]
        for name in changes or {}:
            if name not in known:
                near = get_close_matches(str(name), known, 1)
                raise ArgumentError(
                    f"an assumption of a plan: {', '.join(known)}", got=repr(name), fix=f"{near[0]!r}" if near else ""
                )
        return replace(cls(), **dict(changes or {}))

    def changed(self) -> set[str]:
        """The names of those that are not the defaults."""
        return {field.name for field in fields(self) if getattr(self, field.name) != field.default}


_MAY_BE_ZERO = ("latency", "get_price", "egress_price", "gap_bytes", "cache_bytes", "sample_bytes", "lookahead_seconds")
