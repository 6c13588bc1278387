"""Which rows an exact filter keeps, and which part of a split each row is in: found in one pass, and cached.

Costs one pass over the rows, in several threads, and one byte of memory per row while it runs; one bit afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core import randomness
from penstock.core.errors import UsageError
from penstock.core.function_globals import globals_id
from penstock.core.function_id import code_id
from penstock.order.row_set import RowSet
from penstock.order.shuffle import permute
from penstock.plan.build import build
from penstock.plan.definition import Definition
from penstock.plan.row_source import KeptBlock, KeptRows
from penstock.preparation.dedup import value_digest
from penstock.preparation.row_index import cached_array, scan
from penstock.steps.chosen_rows import ExactFilter, SplitPart
from penstock.steps.filter import Filter
from penstock.steps.limit import Skip, Take
from penstock.steps.renumbered import refuse_moved, refuse_rejected
from penstock.steps.sample import Sample

Sizes = Mapping[str, float | int | None]
_NO_PART = 255


def filtered_exactly(definition: Definition, step: Filter, cache_dir: Any, show: bool | None) -> Definition:
    """The rows that `step` and all steps before it keep; they are found now unless the cache knows them."""
    verb = ".filter(exact=True)"
    refuse_moved(build(definition).root, verb)
    rows = KeptRows(definition, verb, (step,))

    def find() -> NDArray[Any]:
        flags = np.zeros(rows.size, np.bool_)

        def mark(block: KeptBlock) -> None:
            flags[block.positions] = True

        scan(rows, mark, "filtering", show)
        return np.packbits(flags)

    code = [code_id(step.function), globals_id(step.function, opaque=True) if step.version is None else step.version]
    bits = cached_array("filter", definition, [*code, step.batched], cache_dir, find)
    kept = RowSet(bits.tobytes(), int(np.bitwise_count(bits).sum()))
    return definition.then(ExactFilter(step.function, step.batched, step.version, kept))


def split_rows(
    definition: Definition, sizes: Sizes, seed: int, shuffle: bool, key: str | None, stratify: str | None,
    cache_dir: Any, show: bool | None,
) -> dict[str, Definition]:  # fmt: skip
    """Disjoint parts of the rows, by name."""
    root = build(definition).root
    refuse_moved(root, ".split()")
    if root.size is None:
        raise UsageError("a pipeline with an end before .split()", got="an endless one", fix="add .take(n) before it")
    if key is not None or stratify is not None:
        return _by_column(definition, sizes, seed, key, stratify, cache_dir, show)
    refuse_rejected(root, ".split()", "steps before it: a rejected row would be refilled from another part")
    edges = _edges(sizes, root.size)
    for name, (start, stop) in zip(sizes, pairwise(edges), strict=True):
        _check_rows(name, stop - start)
    made = {}
    for name, (start, stop) in zip(sizes, pairwise(edges), strict=True):
        if shuffle:
            made[name] = definition.then(Sample(stop - start, seed, start))
        else:
            made[name] = definition.then(Skip(start)).then(Take(stop - start))
    return made


def _by_column(
    definition: Definition, sizes: Sizes, seed: int, key: str | None, stratify: str | None, cache_dir: Any,
    show: bool | None,
) -> dict[str, Definition]:  # fmt: skip
    column = key if key is not None else stratify
    if (key is not None and stratify is not None) or not isinstance(column, str):
        raise UsageError(
            "the name of one column for key= or stratify= in .split()", got=f"key={key!r}, stratify={stratify!r}",
            fix='key="id" keeps equal values in one part; stratify="label" spreads them evenly',
        )  # fmt: skip
    bounds = _bounds(sizes)
    rows = KeptRows(definition, ".split()")

    def find() -> NDArray[Any]:
        digests = np.zeros((rows.size, 2), np.uint64)
        known = np.zeros(rows.size, np.bool_)

        def note(block: KeptBlock) -> None:
            if not len(block.positions):
                return
            if column not in block.columns:
                names = ", ".join(sorted(block.columns))
                raise UsageError(f"a column {column!r} for .split()", got=f"columns {names}", fix="name one of these")
            made = b"".join(value_digest(value, ".split()") for value in block.columns[column])
            digests[block.positions] = np.frombuffer(made, "<u8").reshape(-1, 2)
            known[block.positions] = True

        scan(rows, note, "splitting", show)
        parts = _hashed(digests, bounds, seed) if key is not None else _stratified(digests, known, bounds, seed)
        parts[~known] = _NO_PART
        return parts

    how = "key" if key is not None else "stratify, 2"  # 1 rounded each value's parts on their own
    arguments = [how, column, seed, *(f"{bound.numerator}/{bound.denominator}" for bound in bounds)]
    part_of = cached_array("split", definition, arguments, cache_dir, find)
    made = {}
    for number, name in enumerate(sizes):
        flags = part_of == number
        _check_rows(name, int(np.count_nonzero(flags)))
        made[name] = definition.then(SplitPart(name, column, RowSet.of(flags)))
    return made


def _hashed(digests: NDArray[np.uint64], bounds: Sequence[Fraction], seed: int) -> NDArray[np.uint8]:
    """By the hash of the value alone: a record stays in its part whatever is added, and equal values stay together."""
    salt = np.uint64(randomness.key(seed, "split"))
    place = randomness.mix64(digests[:, 0] ^ randomness.mix64(digests[:, 1] ^ salt))
    edges = np.array([min(math.floor(bound * 2**64), 2**64 - 1) for bound in bounds], np.uint64)
    parts = np.searchsorted(edges, place, "right")
    if bounds[-1] == 1:
        parts = np.minimum(parts, len(bounds) - 1)
    return np.where(parts < len(bounds), parts, _NO_PART).astype(np.uint8)


def _stratified(
    digests: NDArray[np.uint64], known: NDArray[np.bool_], bounds: Sequence[Fraction], seed: int
) -> NDArray[np.uint8]:
    """Each value's rows in the same proportions, as near as whole rows allow, at random."""
    parts = np.full(len(digests), _NO_PART, np.uint8)
    rows = np.flatnonzero(known)
    values, which = np.unique(digests[rows], axis=0, return_inverse=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    counts = np.bincount(which.reshape(-1), minlength=len(values))
    ends = np.cumsum(counts)
    sizes = _even_sizes(counts, bounds)
    for value, (start, stop), each in zip(values, pairwise([0, *ends.tolist()]), sizes, strict=True):
        mine = rows[order[start:stop]]
        salt = xxhash.xxh3_64_intdigest(value.tobytes())
        shuffled = mine[permute(np.arange(len(mine)), len(mine), randomness.key(seed, "split", salt))]
        for number, (low, high) in enumerate(pairwise(np.cumsum([0, *each]).tolist())):
            parts[shuffled[low:high]] = number
    return parts


def _even_sizes(counts: NDArray[np.int64], bounds: Sequence[Fraction]) -> NDArray[np.int64]:
    """How many rows of each value each part gets: about its share, and of all rows together what was asked for.

    What rounding adds to a part of one value is taken from that part of the next: else every value would be rounded
    the same way, and of 7 values with 14 rows each a part of 0.1 would get 14 of 98 rows.

    >>> _even_sizes(np.array([3, 3, 4]), [Fraction(4, 5), Fraction(9, 10), Fraction(1)]).tolist()
    [[2, 1, 0], [3, 0, 0], [3, 0, 1]]
    """
    made = np.zeros((len(counts), len(bounds)), np.int64)
    left, rest = counts.copy(), Fraction(1)
    for part, (low, high) in enumerate(pairwise([Fraction(0), *bounds])):
        share = (high - low) / rest if rest else Fraction(0)
        ends = [math.floor(share * int(end) + Fraction(1, 2)) for end in np.cumsum(left)]
        made[:, part] = np.diff([0, *ends])
        left, rest = left - made[:, part], rest - (high - low)
    return made


def _check_sizes(sizes: Sizes) -> None:
    fix = '.split({"train": 0.9, "val": 0.1}), or counts: {"val": 1000, "train": None}'
    if not isinstance(sizes, Mapping) or not sizes or not all(isinstance(name, str) for name in sizes):
        raise UsageError("a dict of names and sizes in .split()", got=repr(sizes), fix=fix)
    known = [size for size in sizes.values() if size is not None]
    kinds = {float if isinstance(size, float) else int for size in known}
    plain = all(isinstance(size, int | float | np.integer) and not isinstance(size, bool) for size in known)
    if not plain or len(kinds) > 1:
        raise UsageError("sizes of one kind in .split(): fractions, or counts", got=repr(dict(sizes)), fix=fix)
    if len(known) < len(sizes) - 1:
        raise UsageError("at most one None in .split(): the rest", got=repr(dict(sizes)), fix=fix)
    if any(size <= 0 for size in known):
        raise UsageError("sizes above 0 in .split()", got=repr(dict(sizes)), fix=fix)
    if len(sizes) >= _NO_PART:
        raise UsageError(f"fewer than {_NO_PART} parts in .split()", got=str(len(sizes)))


def _bounds(sizes: Sizes) -> list[Fraction]:
    """The upper bound of each part, as a fraction of all rows."""
    _check_sizes(sizes)
    shares = [None if size is None else Fraction(size).limit_denominator(10**9) for size in sizes.values()]
    total = sum((size for size in shares if size is not None), Fraction(0))
    if any(isinstance(size, int | np.integer) for size in sizes.values()) and total != 1:
        raise UsageError(
            "fractions in .split() by a column",
            got=repr(dict(sizes)),
            fix='{"train": 0.9, "val": 0.1}, or None for one',
        )
    if abs(total - 1) < Fraction(1, 10**6) and None not in shares:
        shares[-1] = 1 - sum((size for size in shares[:-1] if size is not None), Fraction(0))
    elif total > 1 or (total == 1 and None in shares):
        raise UsageError(
            "fractions of at most 1 together in .split()", got=f"{float(total):g}", fix="make them smaller"
        )
    filled = [1 - total if size is None else size for size in shares]
    return [sum(filled[: n + 1], Fraction(0)) for n in range(len(filled))]


def _edges(sizes: Sizes, rows: int) -> list[int]:
    """Where each part begins and ends among all rows."""
    _check_sizes(sizes)
    if any(isinstance(size, float) for size in sizes.values()):
        return [0, *(math.floor(bound * rows + Fraction(1, 2)) for bound in _bounds(sizes))]
    counts = [size for size in sizes.values() if size is not None]
    if sum(counts) > rows or (sum(counts) == rows and None in sizes.values()):
        raise UsageError(
            f"at most {rows} rows together in .split()", got=str(int(sum(counts))), fix="make them smaller"
        )
    rest = rows - int(sum(counts))
    edges = [0]
    for size in sizes.values():
        edges.append(edges[-1] + (rest if size is None else int(size)))
    return edges


def _check_rows(name: str, rows: int) -> None:
    if rows < 1:
        raise UsageError("at least one row in every part of .split()", got=f"none in {name!r}", fix="make it larger")
