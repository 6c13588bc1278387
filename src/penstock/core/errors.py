"""Every exception Penstock raises on purpose.

    PenstockError
    ├── UsageError        (ValueError)    a wrong argument or combination, raised while building
    │   ├── ArgumentError (TypeError)     an argument that a verb does not have, or too many, or too few
    │   └── NoSuchVerb    (AttributeError)  a method or function that there is not
    ├── MissingExtra      (ImportError)   an optional dependency is not installed
    ├── StateError        (ValueError)    a saved state does not fit this loader
    ├── StorageError      (OSError)       a file could not be read or written; its content is not at fault
    │   └── FileMissing   (FileNotFoundError)  it is not there
    ├── LimitError                        data asks for more than a limit allows
    ├── DataError                         data is not what it should be
    │   ├── RecordError                   one record is bad; carries which
    │   ├── BadRecords                    some rows of one read are bad; carries each
    │   └── StoreError                    a token store, index or manifest is damaged
    └── StageError                        a stage of a running loader failed
        ├── UserCodeError                 the user's own function raised
        └── WorkerDied                    a thread or process stopped without an answer

Each message has four parts: what was expected, what came, where, and what to do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


class PenstockError(Exception):
    """Base of the tree; formats the four parts.

    >>> print(PenstockError("a JSON object", got="'[1, 2'", where="a.jsonl, line 3", fix="repair the line"))
    expected a JSON object
      got:   '[1, 2'
      where: a.jsonl, line 3
      fix:   repair the line
    """

    def __init__(self, expected: str, *, got: str = "", where: str = "", fix: str = "") -> None:
        if sys.exception() is not None:
            from penstock.core.signals import surface_handled

            surface_handled()  # an exception of a signal handler is raised, never explained by an error of ours
        super().__init__(expected)
        self.expected, self.got, self.where, self.fix = expected, got, where, fix

    def __str__(self) -> str:
        parts = [("got:  ", self.got), ("where:", self.where), ("fix:  ", self.fix)]
        lines = [f"  {name} {text}" for name, text in parts if text]
        return "\n".join([self._first_line(), *lines])

    def _first_line(self) -> str:
        return f"expected {self.expected}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(kind: type[PenstockError], args: tuple[object, ...], state: dict[str, object]) -> PenstockError:
    """Makes an error again on the other side of a process boundary."""
    error = kind.__new__(kind, *args)
    error.args = args
    for name, value in state.items():
        setattr(error, name, value)
    return error


class UsageError(PenstockError, ValueError):
    """A wrong argument or combination of steps, raised while building, before any data is read."""


class ArgumentError(UsageError, TypeError):
    """A verb or reader was called with arguments that it does not have; the message says what to write."""


class NoSuchVerb(UsageError, AttributeError):
    """There is no method or function of this name; the message names the counterpart or the nearest one."""


class MissingExtra(PenstockError, ImportError):
    """An optional dependency is not installed; the message holds the exact `pip install` line."""


class StateError(PenstockError, ValueError):
    """A saved state does not fit this loader."""


class StorageError(PenstockError, OSError):
    """A file, folder or object could not be read or written: permissions, a full disk, a connection, a missing file.

    Never taken for a bad record: `on_error="skip"` skips data, not storage. `errno` is the system's, if any.
    """

    def __init__(
        self, expected: str, *, got: str = "", where: str = "", fix: str = "", errno: int | None = None
    ) -> None:
        super().__init__(expected, got=got, where=where, fix=fix)
        self.errno = errno

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, {**self.__dict__, "errno": self.errno})


class FileMissing(StorageError, FileNotFoundError):
    """A file, folder or object does not exist."""


class LimitError(PenstockError):
    """Data asks for more memory, pixels, depth or time than a limit in `_limits` allows."""


class DataError(PenstockError):
    """Data is not what it should be."""


class RecordError(DataError):
    """One record is bad. `row` is its number in the read that met it; `where` says which record it is.

    `place` is the same as plain facts (file, line, row), where the pipeline knows them.
    """

    def __init__(self, expected: str, *, got: str = "", where: str = "", fix: str = "", row: int = 0) -> None:
        super().__init__(expected, got=got, where=where, fix=fix)
        self.row = row
        self.place: dict[str, object] | None = None


class BadRecords(DataError):
    """Some rows of one read are bad. `errors` holds a `RecordError` for each, all of them."""

    def __init__(self, errors: Sequence[RecordError]) -> None:
        first = errors[0]
        more = f" (and {len(errors) - 1} more rows of this read)" if len(errors) > 1 else ""
        super().__init__(first.expected, got=first.got, where=first.where + more, fix=first.fix)
        self.errors = list(errors)


class StoreError(DataError):
    """A token store, index or manifest is damaged or not one."""


class StageError(PenstockError):
    """A stage of a running loader failed."""


class UserCodeError(StageError):
    """The user's own function raised; the original exception is `__cause__`. `row` is the row it raised on, if one."""

    row: int | None = None
    place: dict[str, object] | None = None
    more: tuple[UserCodeError, ...] = ()  # the same for the other rows of the block on which it raised
    raised: bool = False  # whether `expected` says which exception the function raised

    def _first_line(self) -> str:
        return self.expected if self.raised else super()._first_line()


class WorkerDied(StageError):
    """A thread or process of the engine stopped without an answer."""
