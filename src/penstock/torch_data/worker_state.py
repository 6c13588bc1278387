"""State that a dataset shares with its DataLoader workers: a few numbers in shared memory.

Workers hold a copy of the dataset. torch does not notify them when an iteration starts, nor the main process when they
start one. So the epoch, and which iteration resumes from a restored position, are kept in shared memory. The iteration
that resumes is recognised by torch's worker seed and the number of workers, and by a mark of each worker: it resumes
only a worker that has not started another iteration since the restore.
"""

from __future__ import annotations

from typing import Any

import orjson

from penstock.core.errors import UsageError
from penstock.core.ledger import Ledger
from penstock.torch_data.framework import torch, worker

MAX_WORKERS = 1024
_EPOCH, _RESTORES, _RESUMING, _LATEST, _RECORDS, _LANES, _EVEN, _FIELDS = range(8)
# Values of _RESUMING besides the key of the iteration that resumes: none has started yet; a later one has started.
_WAITING, _OVER = 0, -1
_NO_GAP = 1 << 62


class WorkerState:
    """Numbers shared with all workers, also with those that were started before a change."""

    def __init__(self) -> None:
        self._shared = torch.zeros(_FIELDS + 1 + MAX_WORKERS, dtype=torch.int64).share_memory_()
        self._shared[_RESUMING], self._shared[_EVEN] = _OVER, _NO_GAP

    def copy(self) -> WorkerState:
        """An independent copy."""
        other = WorkerState()
        other._shared.copy_(self._shared)
        return other

    def start_iteration(self) -> bool:
        """Called when this process or worker starts an iteration; returns whether it resumes from a restored state."""
        number, workers, seed = worker()
        if workers > MAX_WORKERS:
            raise UsageError(f"at most {MAX_WORKERS} workers", got=f"{workers}", fix="lower num_workers")
        mark = _FIELDS + (0 if not workers else 1 + number)
        key = 1 + (seed - number) % (1 << 50) * (MAX_WORKERS + 1) + workers
        resumes = int(self._shared[_RESUMING]) in (_WAITING, key) and not int(self._shared[mark])
        self._shared[mark] = 1
        self._shared[_RESUMING] = key if resumes else _OVER
        self._shared[_LATEST] = workers
        return resumes

    def restore(self, epoch: int) -> int:
        """Called after a state was loaded: the next iteration resumes from it. Returns the number of this restore."""
        self._shared[_FIELDS:] = 0
        self._shared[_EPOCH], self._shared[_RESUMING], self._shared[_LATEST] = epoch, _WAITING, 0
        self._shared[_EVEN] = _NO_GAP
        self._shared[_RESTORES] += 1
        return self.restores

    def start_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch and forgets a restored position."""
        self._shared[_EPOCH], self._shared[_RESUMING], self._shared[_LATEST] = epoch, _OVER, 0
        self._shared[_EVEN] = _NO_GAP

    def gap(self, turns: int) -> None:
        """Called when a reader finds no record at one of its positions, after `turns` turns: a lane has ended."""
        self._shared[_EVEN] = min(int(self._shared[_EVEN]), turns)

    @property
    def even_turns(self) -> int:
        """The number of turns in which every reader found a record, as far as they have read."""
        return int(self._shared[_EVEN])

    @property
    def restores(self) -> int:
        """The number of states loaded so far."""
        return int(self._shared[_RESTORES])

    @property
    def restored(self) -> bool:
        """Whether the current iteration, or the next if none is running, resumes from a restored state."""
        return int(self._shared[_RESUMING]) != _OVER

    @property
    def epoch(self) -> int:
        return int(self._shared[_EPOCH])

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._shared[_EPOCH] = epoch

    @property
    def lanes(self) -> int:
        """The number of lanes in which the stream is read, also by workers that were started before."""
        return int(self._shared[_LANES])

    @lanes.setter
    def lanes(self, lanes: int) -> None:
        self._shared[_LANES] = lanes

    @property
    def workers(self) -> int:
        """The number of workers of the latest iteration; 0 if it ran in this process."""
        return int(self._shared[_LATEST])

    @property
    def records(self) -> int:
        """Identity of the records, computed once for all workers; 0 before that."""
        return int(self._shared[_RECORDS])

    @records.setter
    def records(self, number: int) -> None:
        self._shared[_RECORDS] = number


_READERS = 64  # pages of a `SkipLog`, so that worker processes do not write to the same one
_PAGE = 1 << 14  # bytes for the entries of one page; only used ones take memory
_HEADER = 16  # bytes: the number of skipped records, and of bytes written


class SkipLog:
    """Skipped records of a dataset and of the DataLoader workers that hold copies of it, in shared memory.

    Page 0 is this process's, worker w writes to page 1 + w % 63. All are counted; the first ones of each are listed.
    """

    def __init__(self) -> None:
        self._shared = torch.zeros(_READERS * _PAGE, dtype=torch.uint8).share_memory_()

    def add(self, name: str, position: int, reason: str, detail: str) -> None:
        """Adds a record that this process or worker skipped."""
        number, workers, _ = worker()
        header, body = self._page(0 if not workers else 1 + number % (_READERS - 1))
        line = orjson.dumps([name[:200], position, reason[:200], detail[:200]]) + b"\n"
        used = int(header[1])
        if used + len(line) <= len(body):
            body[used : used + len(line)] = torch.frombuffer(bytearray(line), dtype=torch.uint8)
            header[1] = used + len(line)
        header[0] += 1

    def _page(self, number: int) -> tuple[Any, Any]:
        page = self._shared[number * _PAGE : (number + 1) * _PAGE]
        return page[:_HEADER].view(torch.int64), page[_HEADER:]

    @property
    def total(self) -> int:
        """Records skipped so far, in all processes."""
        return int(self._shared.view(_READERS, _PAGE)[:, :8].contiguous().view(torch.int64).sum())

    def ledger(self) -> Ledger:
        """The skipped records of all processes, in the order of their positions; those not listed are counted."""
        entries, total = [], self.total
        for number in range(_READERS):
            header, body = self._page(number)
            entries += [orjson.loads(line) for line in bytes(body[: int(header[1])].numpy()).splitlines()]
        made = Ledger()
        for name, position, reason, detail in sorted(entries, key=lambda entry: int(entry[1])):
            made.add(name, position, reason, detail)
        if total > made.total:
            made.count("not listed: too many, or skipped by a worker at this moment", total - made.total)
        return made
