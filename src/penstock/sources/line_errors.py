"""What readers of files say about records: where they are, that there are none, that one is too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from penstock.core.errors import DataError, RecordError

E = TypeVar("E", bound=DataError)


def place(path: str, line: int, offset: int) -> str:
    """How messages name a record."""
    return f"{path}, line {line}, byte {offset}"


def place_of(at: Mapping[str, Any]) -> str:
    """How messages name the record that a source's `locate` found."""
    number = f"line {at['line']}" if "line" in at else f"record {at['record']}"
    return f"{at['file']}, {number}, byte {at['offset']}"


def bare(error: E) -> E:
    """The error without its traceback, which would keep the source and its data alive as long as the error."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def no_records(paths: Sequence[str], header: bool = False) -> DataError:
    """The error for files without content, or with nothing but a header."""
    empty = "only empty files" if len(paths) > 1 else "an empty file"
    return DataError(
        "at least one record", got="only a header" if header else empty,
        where=", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else ""),
        fix="pass files with content; blank lines are not records",
    )  # fmt: skip


def too_long(path: str, line: int, offset: int, limit: int, what: str = "line") -> RecordError:
    """The error for a record beyond the limit."""
    return RecordError(
        f"a {what} of at most {limit} bytes", got="a longer one", where=place(path, line, offset),
        fix=f"split it, or raise limits.{'line' if what in ('line', 'record') else 'record'}_bytes",
    )  # fmt: skip
