"""What users' datasets, streams and collate functions can do: the only place in `torch_data` that looks for attributes.

These objects follow conventions of torch and Hugging Face datasets instead of deriving from a class of ours, and may
forward attributes to an object that they wrap. So they are asked with `getattr`, here, once for each convention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeGuard

Collate = Callable[[Any], Any]


class RandomCollate(Protocol):
    """A collate function whose batches depend on the epoch."""

    def at_epoch(self, epoch: int) -> Collate: ...


def is_random(collate: Any) -> TypeGuard[RandomCollate]:
    """Whether the batches of a collate function depend on the epoch: it has `at_epoch(epoch)`.

    >>> from penstock import create_collate_fn, create_mlm_collate
    >>> is_random(create_mlm_collate(0, 3, 99)), is_random(create_collate_fn(0))
    (True, False)
    """
    return callable(getattr(collate, "at_epoch", None))


def is_map_style(dataset: Any) -> bool:
    """Whether rows can be read by number: it has `len()` and `[i]`.

    >>> is_map_style([1]), is_map_style({0: 1}), is_map_style(iter([1]))
    (True, False, False)
    """
    by_number = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return by_number and not isinstance(dataset, dict | str | bytes)


def rows_of(dataset: Any, numbers: list[int]) -> Any:
    """Rows of a map-style dataset: in one call if it has torch's `__getitems__`."""
    many = getattr(dataset, "__getitems__", None)
    return many(numbers) if callable(many) else [dataset[n] for n in numbers]


def overrides(dataset: Any, base: type, *names: str) -> bool:
    """Whether the class of a dataset has methods of its own in place of those of `base`.

    >>> overrides(True, int, "__add__"), overrides(True, int, "__and__")
    (False, True)
    """
    return any(getattr(type(dataset), name) is not getattr(base, name) for name in names)


def collate_of(dataset: Any) -> Collate | None:
    """The dataset's own `collate_fn`, if it has one."""
    found: Collate | None = getattr(dataset, "collate_fn", None)
    return found


def set_stream_epoch(stream: Any, epoch: int) -> None:
    """Passes the epoch to a stream that shuffles itself, as a datasets.IterableDataset does."""
    if hasattr(stream, "set_epoch"):
        stream.set_epoch(epoch)


def is_sharded(stream: Any) -> bool:
    """Whether `datasets.distributed.split_dataset_by_node` made this stream: it then holds one rank's records."""
    return getattr(stream, "_distributed", None) is not None
