"""Finding, opening, writing and locking files; limits, hashes and the progress bar."""

from __future__ import annotations

import functools
import http.server
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.core import hashing, local_files
from penstock.core.errors import DataError, FileMissing, StorageError, UsageError
from penstock.core.limits import LIMITS, Limits
from penstock.core.progress import Lines, progress
from penstock.sources.jsonl import JsonlFiles
from penstock.storage import filesystem
from penstock.storage.file_ids import file_id


def names(paths: list[str]) -> list[str]:
    return [os.path.basename(p) for p in paths]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/d.md", ".hidden", ".git/e.txt", "x [1].txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_expand(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(filesystem.expand(tree / "*.txt")) == ["a.txt", "b.txt", "x [1].txt"]
    assert names(filesystem.expand(f"{tree}/**/*.txt")) == ["a.txt", "b.txt", "c.txt", "x [1].txt"]
    assert names(filesystem.expand(tree)) == ["a.txt", "b.txt", "c.txt", "d.md", "x [1].txt"]
    assert names(filesystem.expand(tree, suffixes=[".md"])) == ["d.md"]
    assert names(filesystem.expand([tree / "b.txt", tree / "*.txt"])) == ["b.txt", "a.txt", "x [1].txt"]
    assert names(filesystem.expand(tree / "x [1].txt")) == ["x [1].txt"]
    assert filesystem.expand(f"file://{tree}/a.txt") == [f"{tree}/a.txt"]
    assert names(filesystem.expand(tree / "sub/../a.txt")) == ["a.txt"]
    monkeypatch.setenv("HOME", str(tree))
    assert filesystem.expand("~/a.txt") == [f"{tree}/a.txt"]


def test_nothing_found_says_what_was_looked_for(tree: Path) -> None:
    with pytest.raises(FileMissing) as caught:
        filesystem.expand([tree / "a.txt", tree / "sub/*.jsonl"])
    assert str(caught.value) == (
        f"expected files at '{tree}/sub/*.jsonl'\n  got:   nothing matches\n  where: looked in {tree}/sub\n"
        "  fix:   check the spelling and the current folder; ** in a glob includes subfolders"
    )
    with pytest.raises(FileMissing, match=r"no \(which does not exist\)"):
        filesystem.expand(tree / "no/a.txt")
    with pytest.raises(UsageError, match="at least one path"):
        filesystem.expand([])


@pytest.mark.parametrize("path", ["pipe:cat x", "zip://a::s3://b/c", "simplecache::http://x/y", "memory://a::b"])
def test_commands_and_chained_urls_are_refused(path: str) -> None:
    for call in (filesystem.expand, filesystem.open_read, filesystem.size):
        with pytest.raises(UsageError, match=r"a plain path or URL(.|\n)*are not supported"):
            call(path)


@pytest.mark.parametrize("path", ["ftp://a/b", "ssh://a/b", "zip://a", "github://a", "reference://x", "dask://x"])
def test_other_schemes_are_refused(path: str) -> None:
    with pytest.raises(UsageError, match="a path or a URL with a known scheme"):
        filesystem.expand(path)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    for path in (str(tmp_path / "pipe.txt"), "/dev/zero"):
        with pytest.raises(DataError, match="a regular file\n  got:   a pipe, device or socket"):
            filesystem.expand(path)
        with pytest.raises(DataError, match="a regular file"):
            filesystem.open_read(path)
    with pytest.raises(DataError, match="a folder"):
        filesystem.open_read(str(tmp_path))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(StorageError, match="a file that can be read"):
        filesystem.expand(tmp_path / "loop")
    with pytest.raises(StorageError, match="it does not exist"):
        filesystem.size(str(tmp_path / "no"))


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "secret.jsonl"
    path.write_text('{"text": "a"}\n')
    path.chmod(0)
    for folder in [tmp_path, *tmp_path.parents]:
        if "pytest-of-" in str(folder):  # private folders of the test runner, one more of them per worker
            folder.chmod(0o755)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)  # root may read everything
    try:
        with pytest.raises(
            StorageError, match=r"a file that can be read\n  got:   Permission denied\n  where: .*secret"
        ):
            JsonlFiles(path)
    finally:
        os.seteuid(was)


def test_ranges(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    local_files.atomic_write(path, bytes(range(100)))
    assert filesystem.read_ranges(path, [(10, 13)]) == [bytes([10, 11, 12])]
    assert filesystem.read_ranges(path, [(0, 1), (99, 100), (5, 5)]) == [b"\0", b"c", b""]
    with pytest.raises(DataError, match="bytes 90 to 110\n  got:   10 of 20 bytes"):
        filesystem.read_ranges(path, [(90, 110)])


def test_memory_urls() -> None:
    fs = filesystem.filesystem("memory://x")
    for name in "ba":
        fs.pipe_file(f"/box/{name}.jsonl", b'{"text": "%s"}\n{"text": "2"}\n' % name.encode())
    try:
        assert filesystem.expand("memory://box/*.jsonl") == ["memory:///box/a.jsonl", "memory:///box/b.jsonl"]
        assert filesystem.expand("memory://box") == ["memory:///box/a.jsonl", "memory:///box/b.jsonl"]
        with pytest.raises(FileMissing, match="nothing matches"):
            filesystem.expand("memory://none/*.x")
        source = JsonlFiles("memory://box")
        assert source.read(np.array([3, 2, 0]))["text"].tolist() == ["2", "b", "a"]
        assert [t for c in source.iterate() for t in c.texts] == ["a", "2", "b", "2"]
        assert len(source.fingerprint()) == 32
        fs.pipe_file("/box/a.jsonl", b'{"text": "changed"}\n')
        with pytest.raises(DataError, match="the file as it was when it was opened"):
            list(source.iterate())
    finally:
        fs.rm("/box", recursive=True)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        return None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


def test_http(tmp_path: Path, server: str) -> None:
    body = b"".join(b'{"text": "line %d"}\n' % i for i in range(500))
    (tmp_path / "a.jsonl").write_bytes(body)
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "b"}')
    url = f"{server}/a.jsonl"
    assert filesystem.expand(f"{server}/*.jsonl") == [url, f"{server}/b.jsonl"]
    assert filesystem.size(url) == len(body)
    assert filesystem.read_ranges(url, [(10, 20)]) == [body[10:20]]  # this server does not support ranges
    source = JsonlFiles([url, f"{server}/b.jsonl"])
    assert len(source) == 501
    assert source.read(np.array([500, 7]))["text"].tolist() == ["b", "line 7"]
    assert sum(len(c.texts) for c in source.iterate()) == 501
    assert file_id(url) == file_id(str(tmp_path / "a.jsonl"))
    with pytest.raises(FileMissing, match="nothing matches"):
        filesystem.expand(f"{server}/none.jsonl")
    (tmp_path / "b.jsonl").unlink()
    with pytest.raises(StorageError, match="it does not exist"):
        list(source.iterate())


def test_atomic_write_leaves_old_or_new(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    local_files.atomic_write(str(path), b"old")

    def fail_halfway() -> None:
        with local_files.atomic_file(str(path)) as file:
            file.write(b"half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_halfway()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.json"]
    local_files.atomic_write(str(path), b"new")
    assert path.read_bytes() == b"new"
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    path = str(tmp_path / "store.lock")
    with local_files.lock(path, "preparing corpus"), pytest.raises(UsageError) as caught, local_files.lock(path):
        pytest.fail("two holders")
    assert f"locked by process {os.getpid()} on " in str(caught.value)
    assert "preparing corpus" in str(caught.value)
    assert f"where: {path}\n  fix:   wait for it to finish, or stop it" in str(caught.value)
    assert not os.path.exists(path)
    code = (
        "import sys, time; from penstock.core import local_files; from penstock.storage import filesystem\n"
        "with local_files.lock(sys.argv[1]): print(1, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"1\n"
    with pytest.raises(UsageError, match=f"locked by process {child.pid}"), local_files.lock(path):
        pytest.fail("two holders")
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with local_files.lock(path):
        pass


def test_lock_by_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "fcntl", None)
    path = str(tmp_path / "store.lock")
    gone = f"if that process is gone, delete {path}"
    with local_files.lock(path), pytest.raises(UsageError, match=gone), local_files.lock(path):
        pytest.fail("two holders")
    with local_files.lock(path):
        pass


def test_a_lock_on_a_name_that_just_went_away_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flock = str(tmp_path / "l"), local_files.fcntl.flock

    def former_holder_leaves_first(handle: int, how: int) -> None:
        monkeypatch.undo()
        os.unlink(path)
        flock(handle, how)

    monkeypatch.setattr(local_files.fcntl, "flock", former_holder_leaves_first)
    with local_files.lock(path), pytest.raises(UsageError, match="locked by"), local_files.lock(path):
        pytest.fail("two holders")


def test_many_takers_one_holder(tmp_path: Path) -> None:
    path, inside, most = str(tmp_path / "l"), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            try:
                with local_files.lock(path):
                    inside += 1
                    most = max(most, inside)
                    time.sleep(0)
                    inside -= 1
            except UsageError:
                time.sleep(0)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_content_id_is_fixed_and_separates() -> None:
    arrays = [np.arange(3), np.arange(3, dtype="i4"), np.arange(3).reshape(1, 3)]
    parts = [["a", "b"], ["ab"], ["a", b"b"], [1], ["1"], [1.0], [True], [None], [], *([a] for a in arrays)]
    assert len({hashing.content_id(p) for p in parts}) == len(parts)
    assert hashing.content_id(["penstock", 1]) == "c71fd10426d19f9c8d538c336388815e"
    assert hashing.content_id([np.arange(3, dtype=">i4")]) == hashing.content_id([np.arange(3, dtype="<i4")])
    with pytest.raises(TypeError, match="not object"):
        hashing.content_id([object()])


def test_limits_on_both_sides() -> None:
    assert Limits() == LIMITS
    assert (LIMITS.record_bytes, LIMITS.line_bytes, LIMITS.pixels) == (256 << 20, 64 << 20, 89_478_485)
    assert LIMITS.expansion_allowed(1, 64 << 20)
    assert not LIMITS.expansion_allowed(1, (64 << 20) + 1)
    assert LIMITS.expansion_allowed(1 << 20, 200 << 20)
    assert not LIMITS.expansion_allowed(1 << 20, (200 << 20) + 1)


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress(100, "B", "reading") as bar:
        bar.update(40)
    assert (bar.shown, bar.done, screen.getvalue()) == (False, 40, "")
    with progress(100, "B", "reading", enabled=True) as bar:
        bar.update(100)
        bar.note("fine")
    assert bar.shown
    assert "reading" in screen.getvalue()
    assert "B/s" in screen.getvalue()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    assert progress(1).shown
    monkeypatch.setenv("PENSTOCK_QUIET", "1")
    assert not progress(1).shown


def test_progress_in_a_log_is_a_line_for_each_tenth_or_interval() -> None:
    now, log = 0.0, io.StringIO()
    lines = Lines(1000, "rows", "writing", file=log, clock=lambda: now)
    for _ in range(1000):
        lines.update()
    lines.close()
    shown = log.getvalue().splitlines()
    assert len(shown) == 10 and all(line.startswith("writing: ") for line in shown) and "\r" not in log.getvalue()
    assert "100%" in shown[-1] and "left" not in shown[-1]

    log = io.StringIO()
    lines = Lines(None, "B", "verifying", file=log, clock=lambda: now)
    for second in range(1, 36):
        now = float(second)
        lines.update(2000)
    lines.set_postfix_str("shard 3")
    lines.close()
    assert log.getvalue().splitlines() == [
        "verifying: 20.0 kB, 2.0 kB/s", "verifying: 40.0 kB, 2.0 kB/s", "verifying: 60.0 kB, 2.0 kB/s",
        "verifying: 70.0 kB, 2.0 kB/s, shard 3",
    ]  # fmt: skip

    now, log = 0.0, io.StringIO()
    resumed = Lines(100, "rows", "writing", done=60, file=log, clock=lambda: now)
    now = 5.0
    resumed.update(20)
    assert log.getvalue() == "writing: 80%, 80 of 100 rows, 4 rows/s, 5 s left\n"
    log.close()
    resumed.update(20)  # nobody reads the log any more


def test_a_folder_lists_links_to_files_but_follows_no_links_to_folders(tmp_path: Path) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / ".hidden").mkdir()
    for name in ("b.txt", "deep/a.TXT", ".hidden/c.txt", ".d.txt", "e.jpg"):
        (tmp_path / "data" / name).write_text("x")
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data", target_is_directory=True)
    (tmp_path / "data" / "link.txt").symlink_to(tmp_path / "data" / "b.txt")
    (tmp_path / "data" / "broken.txt").symlink_to(tmp_path / "nothing")
    (tmp_path / "data" / "self.txt").symlink_to(tmp_path / "data" / "self.txt")
    found = filesystem.expand(str(tmp_path / "data"), suffixes=(".txt",))
    assert [Path(name).relative_to(tmp_path / "data").as_posix() for name in found] == [
        "b.txt", "deep/a.TXT", "link.txt",
    ]  # fmt: skip


def test_a_path_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    """It was read once: fewer rows than asked for."""
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"text": "one"}\n')
    one = str(tmp_path / "a.jsonl")
    for paths in ([one, one], [one, tmp_path / "a.jsonl"], [str(tmp_path / "{a,a,b}.jsonl")]):
        with pytest.raises(UsageError, match=r"(?s)each path of a list once.*a.jsonl' 2 times.*concat"):
            filesystem.expand(paths)
    assert len(filesystem.expand([one, tmp_path])) == 2
