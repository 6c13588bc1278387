"""Records of many plain files: no file is opened again and again, none is kept open, and changes are noticed."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from penstock.core import mapped_copy
from penstock.core.errors import DataError
from penstock.core.limits import LIMITS
from penstock.core.mapped import map_file
from penstock.sources import mapped_lines
from penstock.sources.lines import LineFiles

pytestmark = pytest.mark.skipif(not mapped_copy.available(), reason="this system does not copy its own memory")


def write(folder: Path, files: int) -> tuple[list[Path], list[bytes]]:
    """Files of 3 records; some are too small to be mapped, or end in zeros, or with a blank line."""
    paths, records = [], []
    for number in range(files):
        lines = [f"file {number} record {row}".encode() for row in range(3)]
        if number % 10 == 3:
            lines = [b"a", b"", b"b"]
        if number % 10 == 4:
            lines[2] = b"\0" * 20
        path = folder / f"{number:04d}.txt"
        path.write_bytes(b"\n".join(lines) + (b"\r\n\n" if number % 10 == 5 else b""))
        paths.append(path)
        records += [line for line in lines if line]
    return paths, records


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are opened for reading."""
    names: list[str] = []
    os_open = os.open

    def counted(path, *args, **kwargs):  # type: ignore[no-untyped-def]
        names.append(str(path))
        return os_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", counted)
    return names


def opens(names: list[str]) -> int:
    return sum(name.endswith(".txt") for name in names)


def test_a_file_is_opened_a_few_times_however_often_it_is_read(tmp_path: Path, opened: list[str]) -> None:
    paths, records = write(tmp_path, 300)
    files = LineFiles(paths, limits=LIMITS)
    order = np.random.default_rng(0).permutation(len(records))
    small = 30 + 30  # those that are too small, or end in zeros
    counts = []
    for _ in range(6):
        before = opens(opened)
        for at in range(0, len(order), 32):
            some = order[at : at + 32]
            found, errors = files.fetch(some)
            assert found == [records[i] for i in some] and not errors
        counts.append(opens(opened) - before)
    assert counts[3:] == [counts[3]] * 3
    assert counts[3] <= small * 3  # each of their records, as before


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    paths, records = write(tmp_path, 100)
    files = LineFiles(paths, limits=LIMITS)
    everything = np.arange(len(records))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert files.fetch(everything)[0] == records
    assert files._mapped is not None and len(files._mapped._maps) == 80
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the file that checks write to


def test_few_files_are_looked_at_before_every_read(tmp_path: Path) -> None:
    paths, records = write(tmp_path, mapped_lines.FEWEST - 1)
    files = LineFiles(paths, limits=LIMITS)
    for _ in range(3):
        assert files.fetch(np.arange(len(records)))[0] == records
    os.utime(paths[0], ns=(0, 0))
    with pytest.raises(DataError, match="the file as it was when it was opened"):
        files.fetch(np.arange(len(records)))


def mapped(folder: Path) -> tuple[LineFiles, Path, list[bytes]]:
    paths, records = write(folder, 40)
    files = LineFiles(paths, limits=LIMITS)
    for _ in range(3):
        assert files.fetch(np.arange(len(records)))[0] == records
    return files, paths[0], records


@pytest.mark.parametrize("content", [b"", b"file 0 record 0\n", b"x" * 47, b"\0" * 47])
def test_a_mapped_file_that_is_written_again_is_an_error_at_once(tmp_path: Path, content: bytes) -> None:
    files, path, records = mapped(tmp_path)
    assert path.stat().st_size == 47
    path.write_bytes(content)
    with pytest.raises(DataError, match="as it was when it was opened") as caught:
        files.fetch(np.arange(len(records)))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("change", ["edit", "longer", "deleted"])
def test_other_changes_are_noticed_a_little_later(tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files, path, records = mapped(tmp_path)
    if change == "deleted":
        path.unlink()
    else:
        with path.open("r+b") as file:
            file.seek(0, os.SEEK_SET if change == "edit" else os.SEEK_END)
            file.write(b"FILE")
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    files.fetch(np.arange(len(records)))  # within the time
    monkeypatch.setattr(mapped_lines, "LOOK_SECONDS", 0.0)
    with pytest.raises((DataError, FileNotFoundError), match="as it was when it was opened|does not exist"):
        files.fetch(np.arange(len(records)))


def test_a_replaced_file_is_an_error_or_what_it_was(tmp_path: Path) -> None:
    files, path, records = mapped(tmp_path)
    (tmp_path / "new").write_bytes(b"another")
    os.replace(tmp_path / "new", path)
    assert files.fetch(np.arange(len(records)))[0] == records


@pytest.mark.parametrize("refused", ["maps", "system"])
def test_without_maps_files_are_opened(tmp_path: Path, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_lines, {"maps": "maps_left", "system": "available"}[refused], lambda: 0)
    files, _, _ = mapped(tmp_path)
    assert files._mapped is not None and not files._mapped._maps


def test_a_copy_in_another_process_maps_for_itself(tmp_path: Path) -> None:
    files, _, records = mapped(tmp_path)
    again = pickle.loads(pickle.dumps(files))
    assert again._mapped._maps == {}
    assert again.fetch(np.arange(len(records)))[0] == records


def test_ranges_beyond_one_call_are_copied() -> None:
    memory = np.arange(5000, dtype=np.uint16)
    at = np.random.default_rng(0).integers(0, 4990, 3000)
    lengths = np.arange(3000) % 4
    found = mapped_copy.copy_ranges(at * 2 + memory.ctypes.data, lengths * 2)
    assert found == [memory[a : a + n].tobytes() for a, n in zip(at.tolist(), lengths.tolist(), strict=True)]


def test_memory_of_a_file_that_was_cut_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100_000)
    with path.open("r+b") as file:
        found = map_file(str(path), file.fileno())
        os.ftruncate(file.fileno(), 10)
    base = found.array.__array_interface__["data"][0]
    ranges = np.array([base, base + 90_000]), np.array([5, 5])
    assert mapped_copy.copy_ranges(ranges[0][:1], ranges[1][:1]) == [b"xxxxx"]
    assert mapped_copy.copy_ranges(*ranges) is None  # SIGBUS, if this process had read it


def test_threads_that_meet_a_file_at_the_same_time_agree_on_its_map(tmp_path: Path) -> None:
    paths, records = write(tmp_path, 300)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for seed in range(10):
            files, wrong = LineFiles(paths, limits=LIMITS), list[object]()

            def read(of: int, files: LineFiles = files, wrong: list[object] = wrong) -> None:
                random = np.random.default_rng(of)
                try:
                    for _ in range(20):
                        some = random.permutation(len(records))[:200]
                        data, bad = files.fetch(some)
                        wrong += [*bad, *(row for row, got in zip(some, data, strict=True) if got != records[row])]
                except DataError as error:
                    wrong.append(error)

            threads = [threading.Thread(target=read, args=(8 * seed + number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not wrong
    finally:
        sys.setswitchinterval(interval)
