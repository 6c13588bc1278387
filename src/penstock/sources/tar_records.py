"""Which members of a tar archive make its records: neighbours with one key, each a part of the record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import DataError
from penstock.sources.names import Names

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class TarRecords(NamedTuple):
    """Records by number: `record` and `part` of each member, -1 for one without a key or a part (README, ._x)."""

    keys: Names
    part_names: list[str]
    record: I32
    part: I32

    def sound(self) -> bool:
        """Whether the numbers can be what `group` returns, so that one from a file leads nowhere else."""
        inside = self.record >= 0
        records, parts = self.record[inside].astype(np.int64), self.part[inside].astype(np.int64)
        offsets, count = self.keys.offsets, len(self.part_names)
        if len(self.record) != len(self.part) or bool(((self.part >= 0) != inside).any()):
            return False
        if offsets[0] != 0 or offsets[-1] != len(self.keys.blob) or bool((np.diff(offsets) < 0).any()):
            return False
        if not len(records):
            return len(self.keys) == 0
        steps = np.diff(records)
        in_order = records[0] == 0 and records[-1] == len(self.keys) - 1 and bool(((steps == 0) | (steps == 1)).all())
        if not in_order or int(parts.max()) >= count:
            return False
        pairs = records * count + parts
        few = len(self.keys) * count <= 8 * len(pairs) + 1024
        return int(np.bincount(pairs).max()) == 1 if few else len(np.unique(pairs)) == len(pairs)

    def first_parts(self) -> tuple[str, ...]:
        """The parts of the first record."""
        return tuple(sorted(self.part_names[p] for p in self.part[self.record == 0].tolist()))

    def table(self, wanted: tuple[str, ...], *, exact: bool, path: str) -> I64:
        """(records, parts): which member is this part; raises at the first record that lacks one, or has others."""
        column = np.array([wanted.index(name) if name in wanted else -1 for name in self.part_names], np.int64)
        members = np.flatnonzero(self.record >= 0)
        records, columns = self.record[members].astype(np.int64), column[self.part[members]]
        out = np.full((len(self.keys), len(wanted)), -1, np.int64)
        chosen = columns >= 0
        out[records[chosen], columns[chosen]] = members[chosen]
        odd: NDArray[np.bool_] = np.asarray((out < 0).any(axis=1))
        if exact:
            odd[records[~chosen]] = True
        if odd.any():
            row = int(np.argmax(odd))
            found = sorted(self.part_names[p] for p in self.part[self.record == row].tolist())
            raise DataError(
                f"the parts {', '.join(wanted)} in every record", got=f"key {self.keys[row]!r} with {', '.join(found)}",
                where=path, fix="name the parts that all records have: read_tar(..., parts=[...])",
            )  # fmt: skip
        return out


def group(names: Sequence[str], path: str) -> TarRecords:
    """Groups the names of members, in their order."""
    keys: list[str] = []
    seen: set[str] = set()
    numbers: dict[str, int] = {}
    record, part = np.full(len(names), -1, np.int32), np.full(len(names), -1, np.int32)
    mine: set[int] = set()
    current = ""
    for member, name in enumerate(names):
        folder, slash, base = name.removeprefix("./").rpartition("/")
        stem, _, ending = base.partition(".")
        if not stem or not ending:
            continue
        key, ending = folder + slash + stem, ending.lower()
        if not keys or key != current:
            if key in seen:
                raise DataError(
                    "the members of each record side by side, every key once", got=f"key {key!r} again at {name!r}",
                    where=path, fix="sort the names before writing the archive, and use each key once",
                )  # fmt: skip
            seen.add(key)
            keys.append(key)
            mine, current = set(), key
        number = numbers.setdefault(ending, len(numbers))
        if number in mine:
            raise DataError(
                "one member per key and part", got=f"{ending!r} of key {key!r} twice", where=path,
                fix="write the archive again without the double",
            )  # fmt: skip
        mine.add(number)
        record[member], part[member] = len(keys) - 1, number
    return TarRecords(Names(keys), list(numbers), record, part)


NO_RECORDS = group([], "")
