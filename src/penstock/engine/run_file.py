"""The file that a running loader writes snapshots to: one JSON object per line, at most `MOST_LINES` of them.

A line is appended with one system call, after a line break if the file ends in the middle of a line, so a reader that
skips lines which are not JSON never takes a broken one for data. One writer holds a file, by a lock that ends with its
process: a second one (the loader of the validation set, another job) takes `run.2.jsonl`. When the file is full, lines
are thinned out evenly over time, except the newest ones: counters in a line are totals, so nothing is lost but detail.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from penstock.core.errors import UsageError
from penstock.storage import file_locks

FORMAT = 1
KEY = "penstock_run"  # in every line, with the number of the format
MOST_LINES = 3000
NEWEST = 600  # lines that are kept in full
MOST_FILES = 100  # names that are tried
STARTS, MOST_STARTS = "pipeline", 100  # the field of a line that begins a run, and how many of these are kept


def rank_path(path: str, rank: int, world: int) -> str:
    """The file of one rank.

    >>> rank_path("run.jsonl", 3, 8), rank_path("run.jsonl", 0, 1)
    ('run.rank3.jsonl', 'run.jsonl')
    """
    return path if world == 1 else _with(path, f"rank{rank}")


def _with(path: str, word: str) -> str:
    stem, end = os.path.splitext(path)
    return f"{stem}.{word}{end}"


def parse(line: bytes | str) -> dict[str, Any] | None:
    """The object of a line; None if it is none of this format.

    >>> parse('{"penstock_run": 1, "step": 3}')["step"], parse('{"penstock_run": 1, "st'), parse("[1]")
    (3, None, None)
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get(KEY) == FORMAT else None


def check_new(path: str) -> None:
    """Raises if there is another kind of file at this path, which would be thinned out."""
    try:
        with open(path, "rb") as file:
            first = file.readline(1 << 16)
    except OSError:
        return  # writing will say what is wrong with it
    if first.strip() and parse(first) is None:
        raise UsageError(
            "a new file, or one that snapshots were written to before",
            got="a file of something else",
            where=path,
            fix="choose another name, such as run.jsonl",
        )


class RunFile:
    """Appends lines to the first free file of `path`, `path` with a 2, ..."""

    def __init__(self, path: str) -> None:
        self._fd = -1
        for number in range(1, MOST_FILES):
            self.path = path if number == 1 else _with(path, str(number))
            check_new(self.path)
            if self._take():
                break
        if self._fd < 0:
            raise FileExistsError(f"{MOST_FILES} files are in use by other loaders: {path}")
        self._lines, self._broken = self._count()

    def _take(self) -> bool:
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            if _locked(fd) and os.fstat(fd).st_ino == os.stat(self.path).st_ino:
                self._fd = fd
        finally:
            if self._fd != fd:
                os.close(fd)
        return self._fd == fd

    def _count(self) -> tuple[int, bool]:
        with open(self.path, "rb") as file:
            lines, last = 0, b"\n"
            while chunk := file.read(1 << 20):
                lines, last = lines + chunk.count(b"\n"), chunk[-1:]
        return lines, last != b"\n"

    def append(self, facts: dict[str, Any]) -> None:
        """Writes one line; thins out the file first if it is full."""
        if self._lines >= MOST_LINES:
            self._thin()
        line = json.dumps({KEY: FORMAT, **facts}, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if self._broken:
            line = b"\n" + line
        self._broken = True  # unless all of it is written
        self._broken = os.write(self._fd, line) != len(line)
        self._lines += 1

    def _thin(self) -> None:
        with open(self.path, "rb") as file:
            read = [(line, parse(line)) for line in file.read().splitlines(keepends=True)]
        lines = [(line, facts) for line, facts in read if facts is not None]
        kept = [lines[number][0] for number in thinned([facts for _, facts in lines])]
        folder, name = os.path.split(self.path)
        fd, temporary = tempfile.mkstemp(prefix=f".{name[:64]}.", suffix=".tmp", dir=folder or ".")
        try:
            _locked(fd)
            if hasattr(os, "fchmod"):
                os.fchmod(fd, os.fstat(self._fd).st_mode & 0o777)
            with open(fd, "wb", closefd=False) as file:
                file.write(b"".join(kept))
            os.replace(temporary, self.path)
        except BaseException:
            os.close(fd)
            with suppress(OSError):
                os.unlink(temporary)
            raise
        os.close(self._fd)  # the new one stands at its end, and nobody else writes to it
        self._fd, self._lines, self._broken = fd, len(kept), False

    def close(self) -> None:
        """Releases the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def thinned(lines: Sequence[dict[str, Any]]) -> list[int]:
    """The numbers of the lines that stay: the newest, the beginnings of runs, and others evenly spaced in time.

    >>> kept = thinned([{"time": second} for second in range(3000)])
    >>> len(kept), kept[:3], kept[-2:]
    (1200, [0, 4, 8], [2998, 2999])
    """
    times = [float(facts.get("time", 0.0)) for facts in lines]
    old = max(0, len(lines) - NEWEST)
    apart = (times[-1] - times[0]) / (MOST_LINES // 4) if times else 0.0
    starts = [number for number in range(old) if STARTS in lines[number]][-MOST_STARTS:]
    kept, due = set(starts), -math.inf
    for number in range(old):
        if times[number] >= due:
            kept.add(number)
            due = times[number] + apart
    room = MOST_LINES // 2  # clocks may jump: never more than this many
    return [*sorted(kept)[-room:], *range(old, len(lines))]


def _locked(fd: int) -> bool:
    """Whether this process holds the file now; where files cannot be locked, True."""
    if not file_locks.SUPPORTED:
        return True
    try:
        return file_locks.lock(fd, 0)
    except OSError:  # a network file system without locks
        return True
