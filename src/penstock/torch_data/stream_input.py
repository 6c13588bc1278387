"""Input of a stream: elements in a fixed order that can be read again from any position, and the record of an element.

Data with random access (lists, datasets, JSON lines) is never read through: its elements are record numbers, and a
record is read when it is needed. The elements of an iterable are the records themselves; starting at a position costs
reading everything before it. A Hugging Face stream of several shards has lanes, which can be read one without another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from penstock.core.errors import PenstockError, UsageError, UserCodeError
from penstock.core.pickling import Portable
from penstock.sources.hf_stream import lane_of, lanes_of
from penstock.sources.records import Records, data_kind, read_each, records_of
from penstock.torch_data.hidden_workers import without_worker_info
from penstock.torch_data.user_objects import is_sharded, set_stream_epoch

_HF_ROWS = 32  # rows read from an HF stream per call
_LANE_ROWS = 128  # the same for all lanes together


class StreamInput(Protocol):
    """Elements in a fixed order. `sharded`: each rank's input already holds only this rank's records.

    `lanes`: the number of parts that can be read one without another.
    """

    sharded: bool
    lanes: int

    def elements(self, start: int, epoch: int, lane: int = 0, lanes: int = 1) -> Iterator[Any]:
        """The elements of an epoch from a number on, of one of `lanes` lanes."""
        ...

    def records(self, elements: Sequence[Any]) -> list[Any]: ...

    def name(self, position: int, element: Any) -> str: ...

    def fingerprint(self) -> str:
        """Identity of the records; empty if it cannot be computed without reading the full stream."""
        ...


class NumberedInput:
    """Records with random access."""

    sharded, lanes = False, 1

    def __init__(self, records: Records) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def elements(self, start: int, epoch: int, lane: int = 0, lanes: int = 1) -> Iterator[int]:
        return iter(range(start, len(self._records)))

    def records(self, elements: Sequence[int]) -> list[Any]:
        return read_each(self._records, elements)

    def name(self, position: int, element: int) -> str:
        return self._records.name(element)

    def fingerprint(self) -> str:
        return self._records.fingerprint()


class IterableInput(Portable):
    """An iterable that can be iterated again, or a function that returns a new iterator on each call."""

    def __init__(self, source: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        self.source, self.sharded = source, is_sharded(source)
        self.lanes = lanes_of(source) if data_kind(source) == "hf stream" else 1

    def elements(self, start: int, epoch: int, lane: int = 0, lanes: int = 1) -> Iterator[Any]:
        return islice(self._checked(epoch, lane, lanes), start, None)

    def _checked(self, epoch: int, lane: int, lanes: int) -> Iterator[Any]:
        """All elements of a lane; an error of the user's iterator names the record where it happened."""
        count = 0
        try:
            for element in without_worker_info(lambda: self._iterate(epoch, lane, lanes)):
                yield element
                count += 1
        except PenstockError:
            raise
        except Exception as error:
            raise UserCodeError(
                "the next record from the stream",
                got=f"{type(error).__name__}: {str(error)[:300]}",
                where=f"record {count} of the stream" + (f", lane {lane} of {lanes}" if lanes > 1 else ""),
                fix="fix the iterable; skip_errors only skips records that the prompt engine rejects",
            ) from error

    def _iterate(self, epoch: int, lane: int, lanes: int) -> Iterable[Any]:
        if lanes > 1:
            return _hf_rows(lane_of(self.source, lane, lanes, epoch), max(1, _LANE_ROWS // lanes))
        set_stream_epoch(self.source, epoch)
        if data_kind(self.source) == "hf stream":
            return _hf_rows(self.source, _HF_ROWS)
        return self.source() if callable(self.source) else self.source

    def records(self, elements: Sequence[Any]) -> list[Any]:
        return list(elements)

    def name(self, position: int, element: Any) -> str:
        return f"position {position} of the stream"

    def fingerprint(self) -> str:
        return ""


def _hf_rows(stream: Any, rows: int) -> Iterator[dict[str, Any]]:
    """Rows of an HF stream, read in batches, which is cheaper than one by one."""
    for batch in stream.iter(batch_size=rows):
        names = list(batch)
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(names, values, strict=True))


def stream_input(data: Any, storage_options: Mapping[str, Any] | None = None) -> StreamInput:
    """Returns the stream input of any data that holds records. `storage_options` are for URLs.

    >>> numbered = stream_input([{"a": 1}, {"a": 2}])
    >>> numbered.records(list(numbered.elements(1, 0)))
    [{'a': 2}]
    """
    kind = data_kind(data)
    if kind == "iterator":
        raise UsageError(
            "a stream that can be read again, for further epochs, workers and resuming",
            got=f"a {type(data).__name__}, which can be read once",
            fix="pass the function that makes it (hf_iterable=make_records, not make_records()), or a list",
        )
    if kind in ("stream", "hf stream"):
        return IterableInput(data)
    if kind != "other":
        return NumberedInput(records_of(data, storage_options=storage_options))
    raise UsageError(
        "hf_iterable= a datasets.IterableDataset, an iterable of dicts, a list, a JSON-lines path, "
        "or a function that returns an iterator",
        got=type(data).__name__,
        fix="pass one of these",
    )
