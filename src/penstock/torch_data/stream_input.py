"""Streams that can be begun again: the elements of anything, from any place on, and the record behind an element.

What can be read by number is never read through: its elements are numbers and a record is read when it is wanted. Of
an iterable the elements are the records, and to begin in the middle is to read what comes before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from penstock.core.errors import PenstockError, UsageError, UserCodeError
from penstock.core.pickling import Portable
from penstock.sources.records import Records, data_kind, read_each, records_of
from penstock.torch_data.hidden_workers import without_worker_info

_HF_ROWS = 32  # rows that an HF stream hands over at a time


class Feed(Protocol):
    """Elements in a fixed order. `split` says whether somebody else has already given each rank its share."""

    split: bool

    def begin(self, at: int) -> Iterator[Any]: ...

    def records(self, elements: Sequence[Any]) -> list[Any]: ...

    def name(self, position: int, element: Any) -> str: ...

    def set_epoch(self, epoch: int) -> None: ...

    def fingerprint(self) -> str:
        """Identity of the records; nothing where it cannot be known without reading the stream through."""
        ...


class Numbered:
    """Records that are read by number."""

    split = False

    def __init__(self, records: Records) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def begin(self, at: int) -> Iterator[int]:
        return iter(range(at, len(self._records)))

    def records(self, elements: Sequence[int]) -> list[Any]:
        return read_each(self._records, elements)

    def name(self, position: int, element: int) -> str:
        return self._records.name(element)

    def set_epoch(self, epoch: int) -> None:
        """The order of records by number does not change."""

    def fingerprint(self) -> str:
        return self._records.fingerprint()


class Repeatable(Portable):
    """An iterable that can be begun again, or a function that gives a new iterator each time."""

    def __init__(self, source: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        self.source = source
        self.split = getattr(source, "_distributed", None) is not None  # datasets.distributed.split_dataset_by_node

    def begin(self, at: int) -> Iterator[Any]:
        return islice(self._counted(), at, None)

    def _counted(self) -> Iterator[Any]:
        count = 0
        try:
            for element in without_worker_info(self._open):
                yield element
                count += 1
        except PenstockError:
            raise
        except Exception as error:
            raise UserCodeError(
                "the stream of records to go on",
                got=f"{type(error).__name__}: {str(error)[:300]}",
                where=f"record {count} of the stream",
                fix="mend the stream; skip_errors is for records that the prompt engine cannot take",
            ) from error

    def _open(self) -> Iterable[Any]:
        if data_kind(self.source) == "hf stream":
            # Whole batches of rows, which costs less than one by one.
            return _hf_rows(self.source)
        return self.source() if callable(self.source) else self.source

    def records(self, elements: Sequence[Any]) -> list[Any]:
        return list(elements)

    def name(self, position: int, element: Any) -> str:
        return f"position {position} of the stream"

    def set_epoch(self, epoch: int) -> None:
        """Told to streams that reshuffle themselves."""
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)

    def fingerprint(self) -> str:
        return ""


def _hf_rows(stream: Any) -> Iterator[dict[str, Any]]:
    for batch in stream.iter(batch_size=_HF_ROWS):
        names = list(batch)
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(names, values, strict=True))


def feed_of(data: Any) -> Feed:
    """The feed of whatever holds records.

    >>> feed = feed_of([{"a": 1}, {"a": 2}])
    >>> feed.records(list(feed.begin(1)))
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
        return Repeatable(data)
    if kind != "other":
        return Numbered(records_of(data))
    raise UsageError(
        "hf_iterable= a datasets.IterableDataset, an iterable of dicts, a list, a JSON-lines path, "
        "or a function that gives an iterator",
        got=type(data).__name__,
        fix="pass one of these",
    )
