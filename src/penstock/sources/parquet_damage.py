"""Damage of Parquet files: which error it is, and whether it is that of one row group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.errors import DataError, PenstockError
from penstock.core.os_errors import storage_error
from penstock.core.signals import surface


class DamagedGroup(DataError):
    """A row group that cannot be decoded, of a file that is there and unchanged: its rows are bad records."""


class BadRows:
    """Rows of a damaged group, in place of their text column."""

    def __init__(self, error: DamagedGroup, rows: int) -> None:
        self.error, self.rows = error, rows

    def __len__(self) -> int:
        return self.rows

    def slice(self, first: int) -> BadRows:
        return BadRows(self.error, self.rows - first)


@contextmanager
def naming(path: str, group: int | None = None) -> Iterator[None]:
    """Whatever pyarrow raises inside becomes an error that names the file, and the row group."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:  # OSError, ArrowInvalid, UnicodeDecodeError of a name, OverflowError, MemoryError...
        surface(error)
        raise damaged(path, error, group) from error


def damaged(path: str, error: Exception, group: int | None = None) -> PenstockError:
    """The error of a file, or of a row group; a failing disk, a full memory and encryption do not damage a group."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, OSError) and error.errno:  # Arrow says damage with OSErrors too, without a number
        return storage_error(error, path)
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    fix = "fetch or write the file again"
    kind = DataError if group is None or isinstance(error, MemoryError) else DamagedGroup
    if "crypt" in reason:
        kind = DataError
        fix = "columns that are encrypted cannot be read: decrypt the file, or read other columns with columns=[...]"
    where = path if group is None else f"{path}, row group {group}"
    return kind("a readable Parquet file", got=reason, where=where, fix=fix)
