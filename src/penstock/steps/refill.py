"""Holes keep their position: what a filter or a bad record leaves is filled from a spare permutation.

The spare records for a hole are a permutation of the child's rows keyed by the hole's own slot, so which record
fills it depends on nothing else, and no other row moves. A refused record costs one more read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from penstock.core import randomness
from penstock.core.columns import Columns, scatter
from penstock.core.errors import DataError
from penstock.core.ledger import Ledger
from penstock.order.shuffle import permute
from penstock.steps.node import I64, Fetched, Node, Picks, rows_at

MOST_TRIES = 10_000
MOST_KNOWN = 1_000_000  # rows remembered so that they are not counted twice
ENDLESS = 2**40  # an endless child lends its first rows as spares


class Kept(NamedTuple):
    """The rows of an attempt that may stay: their places in it, their columns and the picks that made them."""

    places: I64
    columns: Columns
    picks: Picks


class Noted:
    """Writes refused records in a ledger, each row of the run once however often its batch is computed."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.known: set[tuple[int, int]] = set()

    def __call__(self, picks: Picks, row: int, reason: str, child: Node, detail: str = "") -> None:
        identity = (int(picks.column("slot")[row]), int(picks.record[row]))
        if identity in self.known:
            return
        if len(self.known) < MOST_KNOWN:
            self.known.add(identity)
        place = child.explain(picks.rows(slice(row, row + 1))) if len(self.ledger.entries) < self.ledger.keep else {}
        file = str(place.get("file", place.get("path", place.get("source", ""))))
        number = place.get("line", place.get("row", identity[1]))
        self.ledger.add(file, int(number), reason, detail)


def refill(attempt: Callable[[Picks], Kept], child: Node, picks: Picks, base: int, what: str) -> Fetched:
    """Rows for all of `picks`: those that `attempt` keeps, and spares where it keeps none."""
    kept = attempt(picks)
    if len(kept.places) == len(picks):
        return Fetched(kept.columns, kept.picks)
    size = ENDLESS if child.size is None else child.size
    slot, epoch = picks.column("slot"), picks.column("epoch")
    holes = np.setdiff1d(np.arange(len(picks)), kept.places)
    parts, used = [(kept.places, kept.columns)] if len(kept.places) else [], picks.put(kept.places, kept.picks)
    spare_keys = randomness.keys(base, slot)
    for turn in range(min(size, MOST_TRIES)):
        position = permute(np.full(len(holes), turn, np.int64), size, spare_keys[holes])
        spares = replace(child.pick(position, epoch[holes]), slot=slot[holes], tries=np.full(len(holes), turn + 1))
        with rows_at(holes):
            kept = attempt(spares)
        if len(kept.places):
            parts.append((holes[kept.places], kept.columns))
            used = used.put(holes[kept.places], replace(kept.picks, tries=spares.column("tries")[kept.places]))
            holes = np.delete(holes, kept.places)
        if not len(holes):
            return Fetched(scatter(parts, len(picks)), used)
    raise DataError(
        f"a record that {what} keeps",
        got=f"none among {min(size, MOST_TRIES)} tried for one row",
        where=f"row {int(slot[holes[0]])} of the run",
        fix=f"loosen {what}, or check that the data is what it expects",
    )
