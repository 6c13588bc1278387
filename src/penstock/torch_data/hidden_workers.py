"""Iterates a stream that does not see the DataLoader worker around it. Changes a private variable of torch.

Why: `datasets.IterableDataset` and many user datasets call `torch.utils.data.get_worker_info()` and then yield only
this worker's part. Here every worker must see every record, because positions are counted over the full stream and
workers take turns; a part of a part would lose records without an error. There is no public way to say so: the
information is a module variable of torch, which is set to None while the stream computes its next element, and
restored before anyone else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.core.optional import need


def without_worker_info(begin: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """The elements of `begin()`, computed as if there were no DataLoader workers."""
    worker: Any = need("torch.utils.data._utils.worker", extra="torch")
    if worker._worker_info is None:
        yield from begin()
        return
    stream: Iterator[Any] | None = None
    while True:
        info, worker._worker_info = worker._worker_info, None
        try:
            stream = iter(begin()) if stream is None else stream
            element = next(stream)
        except StopIteration:
            return
        finally:
            worker._worker_info = info
        yield element
