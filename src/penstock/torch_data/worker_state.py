"""What a process and its DataLoader workers must know of each other: a few numbers in shared memory.

Workers have a copy of the dataset and nobody tells them that a pass has begun, or the process that they have begun one.
So the epoch, and who has taken up a restored place, are kept where all of them look. The first pass after a restore is
told from later ones by torch's seed of its workers and their number, and by each worker's own mark: it is the first
only for a worker that has not begun another.
"""

from __future__ import annotations

from penstock.core.errors import UsageError
from penstock.torch_data.framework import torch, worker

MOST_WORKERS = 1024
_EPOCH, _LOADS, _FIRST, _LATEST, _RECORDS, _FIELDS = range(6)
_NOBODY, _OVER = 0, -1  # of _FIRST: the restored place waits; it was taken, and other passes have begun since


class Passes:
    """Numbers shared with workers, whether they were started before or after a change."""

    def __init__(self) -> None:
        self._shared = torch.zeros(_FIELDS + 1 + MOST_WORKERS, dtype=torch.int64).share_memory_()
        self._shared[_FIRST] = _OVER

    def apart(self) -> Passes:
        """A copy that goes its own way."""
        other = Passes()
        other._shared.copy_(self._shared)
        return other

    def begin(self) -> bool:
        """A pass begins, here or in this worker: whether it is the first since a restore."""
        number, workers, seed = worker()
        if workers > MOST_WORKERS:
            raise UsageError(f"at most {MOST_WORKERS} workers", got=f"{workers}", fix="lower num_workers")
        mark = _FIELDS + (0 if not workers else 1 + number)
        key = 1 + (seed - number) % (1 << 50) * (MOST_WORKERS + 1) + workers
        first = int(self._shared[_FIRST]) in (_NOBODY, key) and not int(self._shared[mark])
        self._shared[mark] = 1
        self._shared[_FIRST] = key if first else _OVER
        self._shared[_LATEST] = workers
        return first

    def restore(self, epoch: int) -> int:
        """A place was restored: the next pass is the first again. Gives the number of this restore."""
        self._shared[_FIELDS:] = 0
        self._shared[_EPOCH], self._shared[_FIRST], self._shared[_LATEST] = epoch, _NOBODY, 0
        self._shared[_LOADS] += 1
        return self.restores

    def renew(self, epoch: int) -> None:
        """Another epoch: a restored place no longer counts."""
        self._shared[_EPOCH], self._shared[_FIRST], self._shared[_LATEST] = epoch, _OVER, 0

    @property
    def restores(self) -> int:
        return int(self._shared[_LOADS])

    @property
    def restored(self) -> bool:
        """Whether the pass under way, or the next if none is, is the one that begins at the restored place."""
        return int(self._shared[_FIRST]) != _OVER

    @property
    def epoch(self) -> int:
        return int(self._shared[_EPOCH])

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._shared[_EPOCH] = epoch

    @property
    def workers(self) -> int:
        """How many workers read in the latest pass; 0 if it is this process itself."""
        return int(self._shared[_LATEST])

    @property
    def records(self) -> int:
        """The records' identity, found once for all workers; 0 as long as nobody has."""
        return int(self._shared[_RECORDS])

    @records.setter
    def records(self, number: int) -> None:
        self._shared[_RECORDS] = number
