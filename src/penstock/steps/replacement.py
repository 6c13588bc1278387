"""How the position of a rejected record is handled: a loader refills it, a preparation drops it.

Refill: the replacement is taken from a permutation of the child's rows keyed by the position, so it depends on nothing
else and no other row moves. After a lane shuffle the first ones that are tried are in the same block, which is read
anyway. A rejected record costs one more read. Drop: `fetch` returns fewer rows than requested; `Fetched.picks` lists
them, and `places_of` finds their positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from penstock.core import randomness
from penstock.core.columns import Columns, scatter
from penstock.core.errors import BadRecords, DataError, RecordError, UserCodeError
from penstock.core.ledger import Ledger
from penstock.order.shuffle import permute, permute_each
from penstock.steps.base import OnReject
from penstock.steps.facts import Spares
from penstock.steps.node import Fetched, Node
from penstock.steps.picks import I64, Picks, rows_at

MOST_TRIES = 10_000
MOST_NEAR = 64  # of them in the same block
MOST_KNOWN = 1_000_000  # rejected rows that are remembered, so that they are not counted twice
RECENT = 1 << 14  # the same in a preparation, which reads each row once and in order
ENDLESS = 2**40  # the replacements of an endless child come from its first rows


class Kept(NamedTuple):
    """The rows of an attempt that are kept: their places in it, their columns and the picks that made them."""

    places: I64
    columns: Columns
    picks: Picks


class Rejection(NamedTuple):
    """Why a row was rejected; `place` is where its record is, if that is known already."""

    reason: str
    detail: str = ""
    place: Mapping[str, Any] | None = None


class RejectionLog:
    """Writes rejected records into a ledger. Each row of the run is counted once, however often it is computed."""

    def __init__(self, ledger: Ledger, on_reject: OnReject) -> None:
        self.ledger, self.on_reject = ledger, on_reject
        self.known: set[tuple[int, int, int]] = set()

    def add(self, picks: Picks, rows: Sequence[int], rejections: Sequence[Rejection], child: Node) -> None:
        """Adds the rejected rows of a block, each with its reason. Only entries that the ledger keeps are located."""
        slot, leaf = picks.column("slot"), picks.column("leaf")
        if self.on_reject == "drop" and len(self.known) >= RECENT:
            first = int(slot.min())
            self.known = {one for one in self.known if one[0] >= first}
        where = np.asarray(rows, np.int64)
        identities = list(zip(slot[where].tolist(), leaf[where].tolist(), picks.record[where].tolist(), strict=True))
        known = self.known
        fresh = [i for i, identity in enumerate(identities) if identity not in known]
        listed = max(0, self.ledger.keep - len(self.ledger.entries))
        for i in fresh[:listed]:
            if len(known) < MOST_KNOWN:
                known.add(identities[i])
            self._write(rejections[i], picks, rows[i], child)
        rest = fresh[listed:]
        if len(known) < MOST_KNOWN:
            known.update([identities[i] for i in rest])
        for reason, count in Counter([rejections[i].reason for i in rest]).items():
            self.ledger.count(reason, count)

    def _write(self, rejection: Rejection, picks: Picks, row: int, child: Node) -> None:
        reason, detail, place = rejection
        if place is None:
            place = child.explain(picks.rows(slice(row, row + 1)))
        file = str(place.get("file", place.get("path", place.get("source", ""))))
        number = place.get("line", place.get("row", int(picks.record[row])))
        self.ledger.add(file, int(number), reason, detail)


def places_of(picks: Picks, used: Picks) -> I64:
    """The places in `picks` of the rows that were kept, when some were dropped."""
    if len(used) == len(picks):
        return np.arange(len(picks))
    return np.flatnonzero(np.isin(picks.column("slot"), used.column("slot")))


@contextmanager
def rows_asked(picks: Picks, used: Picks) -> Iterator[None]:
    """Inside, rows are numbered as in `used`; errors that name a row leave with its number in `picks`."""
    if len(used) == len(picks):
        yield
        return
    with rows_at(places_of(picks, used)):
        yield


def locate(error: RecordError | UserCodeError, node: Node, picks: Picks) -> None:
    """Writes into an error about one row where `node` finds that row: as text and as facts."""
    if error.row is not None:
        error.place = node.explain(picks.rows(slice(error.row, error.row + 1)))
        error.where = ", ".join(f"{name} {value}" for name, value in error.place.items())


@contextmanager
def _located(child: Node, picks: Picks) -> Iterator[None]:
    """Inside, errors without a location name the rows of `picks`, not the rows that they replace."""
    try:
        yield
    except (BadRecords, UserCodeError) as error:
        for one in error.errors if isinstance(error, BadRecords) else (error, *error.more):
            if one.place is None and one.row is not None:
                one.place = child.explain(picks.rows(slice(one.row, one.row + 1)))
        raise


def keep_or_replace(
    attempt: Callable[[Picks], Kept],
    child: Node,
    picks: Picks,
    base: int,
    what: str,
    on_reject: OnReject,
    spares: Spares | None = None,
) -> Fetched:
    """The rows that `attempt` keeps of `picks`. Rejected ones are dropped, or replaced by rows that it keeps."""
    kept = attempt(picks)
    if on_reject == "drop" or len(kept.places) == len(picks):
        return Fetched(kept.columns, kept.picks)
    return _refilled(attempt, child, picks, kept, base, what, spares)


def _refilled(
    attempt: Callable[[Picks], Kept], child: Node, picks: Picks, kept: Kept, base: int, what: str, near: Spares | None
) -> Fetched:
    size = ENDLESS if child.size is None else child.size
    slot, epoch = picks.column("slot"), picks.column("epoch")
    holes = np.setdiff1d(np.arange(len(picks)), kept.places)
    parts, used = [(kept.places, kept.columns)] if len(kept.places) else [], picks.put(kept.places, kept.picks)
    spare_keys = randomness.keys(base, slot)
    first, count = (np.zeros(len(picks), np.int64),) * 2 if near is None else near.near(picks)
    tries_near = np.minimum(count, MOST_NEAR)
    for turn in range(min(size, MOST_TRIES) + int(tries_near.max(initial=0))):
        far = np.maximum(turn - tries_near[holes], 0)
        spares = child.pick(permute(np.minimum(far, size - 1), size, spare_keys[holes]), epoch[holes])
        if (close := np.flatnonzero(turn < tries_near[holes])).size:
            rows = holes[close]
            record = first[rows] + permute_each(np.full(len(rows), turn), count[rows], spare_keys[rows])
            spares = spares.put(close, replace(picks.rows(rows), record=record, layout=None))
        spares = replace(spares, slot=slot[holes], tries=np.full(len(holes), turn + 1))
        with rows_at(holes), _located(child, spares):
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
