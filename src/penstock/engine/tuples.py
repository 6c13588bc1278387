"""Batches as tuples of columns, for loops and trainers that unpack them: `loader.as_tuples("image", "label")`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.core.columns import Columns, Compact
from penstock.core.errors import UsageError
from penstock.engine.output import Output


class TupleOutput(Output):
    """The columns `names` of what another output delivers, in that order. A name may occur twice."""

    def __init__(self, dicts: Output, names: tuple[str, ...]) -> None:
        if not names or not all(isinstance(name, str) for name in names):
            raise UsageError("names of columns in as_tuples()", got=repr(names), fix='.as_tuples("image", "label")')
        self.dicts, self.names = dicts, names
        self.name = dicts.name  # type: ignore[misc]
        self.memory = dicts.memory

    @property
    def converter(self) -> Output:
        return self.dicts

    @property
    def expands(self) -> bool:  # type: ignore[override]
        return self.dicts.expands

    def convert(self, columns: Columns, ids: frozenset[str]) -> Columns:
        return self.dicts.convert(columns, ids)

    def deliver(self, columns: Columns) -> tuple[Any, ...]:
        return self._tuple(self.dicts.deliver(columns))

    def make(self, columns: Columns, ids: frozenset[str]) -> tuple[Any, ...]:
        return self._tuple(self.dicts.make(columns, ids))

    def expand(self, small: Compact) -> tuple[Any, ...]:
        return self._tuple(self.dicts.expand(small))

    def nbytes(self, batch: tuple[Any, ...]) -> int:
        return self.dicts.nbytes(dict(zip(self.names, batch, strict=True)))

    def _tuple(self, batch: Mapping[str, Any]) -> tuple[Any, ...]:
        try:
            return tuple(batch[name] for name in self.names)
        except KeyError as missing:
            raise UsageError(
                "names of columns of the batch in as_tuples()",
                got=f"{missing}, and a batch of {', '.join(map(repr, batch))}",
                fix=f".as_tuples{tuple(batch)!r}, for example",
            ) from None
