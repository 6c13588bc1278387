"""What the sources of text and JSON lines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core import hashing
from penstock.core.errors import BadRecords, RecordError
from penstock.sources.line_errors import bare, place_of
from penstock.sources.lines import LineFiles
from penstock.sources.ranges import Range
from penstock.storage import filesystem

if TYPE_CHECKING:
    from penstock.sources.whole_files import WholeFiles
    from penstock.storage.ranges_ahead import RangesAhead


class LineSource(ABC):
    """Everything but how a record's bytes are parsed."""

    files: LineFiles | WholeFiles

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their records."""
        return self.files.paths

    def __len__(self) -> int:
        return len(self.files)

    def ranges(self, most: int) -> list[Range]:
        """Parts that can be read independently, see `sources.ranges`."""
        return self.files.ranges(most)

    @property
    def ahead(self) -> RangesAhead | None:
        """Records that were requested before they are read; None if no file is remote."""
        return self.files.ahead

    def claim_ahead(self, indices: NDArray[np.int64], step: int) -> Callable[[], int]:
        """Requests these records before they are read, see `sources.base.RowsAheadSource`."""
        return self.files.claim_ahead(indices, step)

    @property
    def range_unit(self) -> int:
        """Remote records are read in multiples of this many bytes, see `sources.base.RecordRanges`."""
        return self.files.range_unit

    scanned: bool = True  # the files are read once, to find where records begin

    @property
    def held(self) -> bool:
        """Whether reads request nothing, because the files are compressed and were decompressed."""
        return not self.files.range_unit

    def file_sizes(self) -> NDArray[np.int64]:
        """Bytes of each file."""
        return np.array([stamp.size for stamp in self.files.stamps], np.int64)

    def record_ranges(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """File, first byte and end of each of these records."""
        return self.files.record_ranges(indices)

    def largest_row(self) -> int | None:
        """See `sources.base.SizedRows`."""
        return self.files._indexed().largest if isinstance(self.files, LineFiles) else None

    def bytes_of_rows(self, indices: NDArray[np.int64]) -> int:
        """See `sources.base.SizedRows`."""
        if not isinstance(self.files, LineFiles):
            return self.files.bytes_of_rows(indices)
        ranges = self.files.record_ranges(indices)
        return int((ranges[:, 2] - ranges[:, 1]).sum())

    def locate(self, index: int) -> dict[str, Any]:
        return self.files.locate(index)

    def close(self) -> None:
        """Frees the temporary disk space of compressed files."""
        self.files.close()

    @abstractmethod
    def settings(self) -> tuple[Any, ...]:
        """What decides how the bytes of the files are read."""

    def fingerprint(self) -> str:
        """Hash of the settings and of every file's bytes; reads all files once."""
        return self._id(self.files.file_ids())

    def stamp_id(self) -> str:
        """Hash of the settings and of every file's size and tag; reads nothing."""
        return self._id(f"{stamp.size} {stamp.tag}" for stamp in self.files.stamps)

    @property
    def stamps(self) -> Sequence[filesystem.Stamp]:
        """Sizes and tags of the files when they were opened."""
        return self.files.stamps

    def _id(self, files: Iterable[str]) -> str:
        changed = self.files.limits.changed("record_bytes", "line_bytes", "json_depth")
        return hashing.content_id([*self.settings(), *changed, *files])

    def _parsed(self, indices: NDArray[np.int64], parse: Callable[[bytes, str], list[Any]]) -> list[list[Any]]:
        """What `parse(record, where)` makes of each record. Raises `BadRecords` if some cannot be read or parsed."""
        indices = np.asarray(indices, np.int64)
        data, bad = self.files.fetch(indices)
        failed = {error.row for error in bad}
        made: list[list[Any]] = []
        for row, record in enumerate(data):
            if row in failed:
                continue
            try:
                made.append(parse(record, ""))
            except RecordError as error:
                error.where, error.row = place_of(self.files.locate(int(indices[row]))), row
                bad.append(bare(error))
        if bad:
            raise BadRecords(sorted(bad, key=lambda e: e.row))
        return made
