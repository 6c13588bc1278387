"""Errors of the system become StorageErrors that keep errno, name the path, and travel between processes."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path

import pytest

import penstock as ps
from penstock.core.os_errors import storage_error, storage_errors


def test_a_storage_error_is_an_oserror_with_errno_path_and_fix() -> None:
    error = storage_error(OSError(errno.ENOSPC, "No space left on device"), "/data/out", "written")
    assert isinstance(error, OSError) and isinstance(error, ps.PenstockError)
    assert error.errno == errno.ENOSPC and error.where == "/data/out" and "free some space" in error.fix


def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist") as caught, storage_errors(tmp_path):
        (tmp_path / "absent").read_bytes()
    assert isinstance(caught.value, ps.FileMissing) and caught.value.where == str(tmp_path / "absent")


def test_errno_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(storage_error(OSError(errno.EIO, "I/O error"), "a.bin")))
    assert type(error) is ps.StorageError and error.errno == errno.EIO and error.where == "a.bin"


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(ps.DataError, match="a record"), storage_errors(tmp_path):
        raise ps.DataError("a record")
