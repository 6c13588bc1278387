"""Which steps' records are requested together: one rule for a run that requests them ahead, and for its plan.

The first step alone, since the trainer waits for it; then twice as many steps each time, up to about `CHUNK_BYTES`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.sources.base import RowsAheadSource, ScannedSource, SizedRows

AHEAD_BYTES = 32 << 20  # requested and not read yet
FETCHERS = 3
MOST_STEPS = 256
# About what one thread requests at a time. In random order a request reads over what lies between its records, so the
# more of them come together, the fewer bytes an epoch takes.
CHUNK_BYTES = AHEAD_BYTES // FETCHERS


def bytes_ahead(source: object, records: NDArray[np.int64]) -> int:
    """The bytes of these records that count for the size of a group."""
    if not isinstance(source, RowsAheadSource) or not isinstance(source, SizedRows):
        return 0
    held = isinstance(source, ScannedSource) and source.held
    return 0 if held else source.bytes_of_rows(records)


def steps_after(steps: int, size: int) -> int:
    """The number of steps that are requested together after `steps` of `size` bytes.

    >>> steps_after(1, 100), steps_after(200, 100), steps_after(8, CHUNK_BYTES * 4)
    (2, 256, 2)
    """
    return max(1, min(MOST_STEPS, 2 * steps, CHUNK_BYTES * steps // max(1, size)))
