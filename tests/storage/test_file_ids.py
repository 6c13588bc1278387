"""Ids of files: the same for the same bytes, another after a change."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.storage.file_ids import file_id


def test_file_id_sees_changes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one")
    first = file_id(str(path))
    assert first == file_id(str(path))
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert file_id(str(path)) != first
