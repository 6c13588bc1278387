"""ArrayRecord files, as Grain and TFDS write them: a record is bytes, read by number through `array_record`.

Opening reads each file's footer. The package checks its own hashes, so a damaged record is a bad record.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.columns import Columns, strings
from penstock.core.errors import BadRecords, DataError, RecordError
from penstock.core.limits import LIMITS, Limits
from penstock.core.optional import need
from penstock.core.read_budget import pieces, spend
from penstock.core.signals import surface
from penstock.sources import splits
from penstock.sources.formats import FORMATS, Options
from penstock.storage import filesystem
from penstock.storage.file_ids import file_ids
from penstock.store.doctable import check_range


def open_path(paths: filesystem.Paths, _: Options) -> ArrayRecordFiles:
    """The opener of the registry."""
    return ArrayRecordFiles(paths)


class ArrayRecordFiles:
    """The records of ArrayRecord files, column `bytes`."""

    columns = ("bytes",)

    def __init__(self, paths: filesystem.Paths, *, limits: Limits = LIMITS) -> None:
        for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
            filesystem.local_only(path, "an ArrayRecord file")
        found = filesystem.expand_stamped(paths, None, FORMATS["array_record"].suffixes)
        self.paths = list(found)
        splits.refuse_several(paths, self.paths)
        self.stamps, self.limits = filesystem.stamps(found), limits
        self._fresh()
        self._firsts = np.cumsum([0] + [len(self._file(i)) for i in range(len(self.paths))]).astype(np.int64)
        if not len(self):
            raise DataError("at least one record", got="none", where=self.paths[0], fix="pass files with records")

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._opened: dict[int, Any] = {}

    def _file(self, file: int) -> Any:
        with self._lock:
            if file not in self._opened:
                source = need(
                    "array_record.python.array_record_data_source", extra="tfds", purpose="to read ArrayRecord files"
                )
                path = self.paths[file]
                filesystem.check_unchanged(path, self.stamps[file])
                try:
                    opened = source.ArrayRecordDataSource([path])
                    len(opened)
                except Exception as error:
                    surface(error)
                    raise DataError(
                        "an ArrayRecord file", got=f"{type(error).__name__}: {str(error)[:200]}", where=path,
                        fix="fetch or write it again",
                    ) from error  # fmt: skip
                self._opened[file] = opened
            return self._opened[file]

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def read(self, indices: NDArray[np.int64]) -> Columns:
        """The bytes of these records."""
        numbers = check_range(indices, len(self)).tolist()
        out: list[Any] = [b""] * len(numbers)
        errors: list[RecordError] = []
        by_file: dict[int, list[int]] = {}
        for row, number in enumerate(numbers):
            by_file.setdefault(self._place(number)[0], []).append(row)
        for file, rows in by_file.items():
            filesystem.check_unchanged(self.paths[file], self.stamps[file])
            places = [self._place(numbers[row])[1] for row in rows]
            found = self._records(file, places)
            filesystem.check_unchanged(self.paths[file], self.stamps[file])  # of a file cut meanwhile records are empty
            for row, data in zip(rows, found, strict=True):
                if isinstance(data, bytes) and len(data) <= self.limits.record_bytes:
                    out[row] = data
                else:
                    errors.append(self._bad(numbers[row], row, data))
        if errors:
            raise BadRecords(sorted(errors, key=lambda error: error.row))
        return {"bytes": strings(out)}

    def _records(self, file: int, places: list[int]) -> list[Any]:
        """The records, or the error in the place of one that cannot be read."""
        try:
            opened, found = self._file(file), list[Any]()
            for some in pieces(places):
                records = opened.__getitems__(some)
                spend(sum(map(len, records)))
                found += records
            return found
        except Exception as error:
            surface(error)
            if len(places) == 1:
                return [error]
        return [record for place in places for record in self._records(file, [place])]

    def _bad(self, number: int, row: int, found: Any) -> RecordError:
        at = self.locate(number)
        got = f"{len(found):,} bytes" if isinstance(found, bytes) else f"{type(found).__name__}: {str(found)[:200]}"
        return RecordError(
            f"a sound record of at most {self.limits.record_bytes:,} bytes", got=got,
            where=f"{at['file']}, record {at['record']}", fix="fetch or write the file again", row=row,
        )  # fmt: skip

    def _place(self, number: int) -> tuple[int, int]:
        file = int(np.searchsorted(self._firsts, number, side="right")) - 1
        return file, number - int(self._firsts[file])

    def fingerprint(self) -> str:
        """Hash of every file's bytes; reads all files once."""
        return hashing.content_id(["array_record", *file_ids(self.paths, self.stamps)])

    def describe(self) -> dict[str, Any]:
        total = sum(stamp.size for stamp in self.stamps)
        return {"kind": "ArrayRecord", "files": len(self.paths), "records": len(self), "bytes": total}

    def locate(self, index: int) -> dict[str, Any]:
        file, record = self._place(int(index))
        return {"file": self.paths[file], "record": record}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_opened")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fresh()

    def __repr__(self) -> str:
        return f"ArrayRecordFiles({len(self.paths)} files, {len(self)} records)"
