"""Full disks, read-only folders, and limits on threads: the work goes on, or a PenstockError says what to do."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.core.errors import StorageError

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux")


def run(script: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False,
        **options,  # type: ignore[call-overload]
    )  # fmt: skip


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


TEXTS = [f"document {i} " * 50 for i in range(2000)]


def full(caught: pytest.ExceptionInfo[StorageError], folder: Path) -> None:
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert str(folder) in caught.value.where
    assert "free some space" in caught.value.fix


def test_a_full_disk_is_an_error_that_names_the_folder(small_disk: Path) -> None:
    with pytest.raises(StorageError) as caught:
        ps.prepare(ps.from_texts(TEXTS), "bytes", small_disk / "out")
    full(caught, small_disk)
    with pytest.raises(StorageError) as caught:
        ps.from_texts(TEXTS).tokenize("bytes", cache_dir=small_disk / "cache").windows(8).batch(2).to_numpy()
    full(caught, small_disk)
    assert not list(small_disk.rglob("*.tokens"))
    with pytest.raises(StorageError) as caught:
        from penstock.core.local_files import atomic_write

        atomic_write(str(small_disk / "state.json"), b"x" * 100_000)
    full(caught, small_disk)


def test_a_full_cache_of_hugging_face(small_disk: Path) -> None:
    with pytest.raises(StorageError) as caught:
        ps.from_texts(TEXTS).to_hf(cache_dir=small_disk)
    full(caught, small_disk)


@LINUX
def test_a_full_folder_of_temporary_files(small_disk: Path, tmp_path: Path) -> None:
    import gzip

    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a long line of text"}\n' * 9000))
    done = run(
        f"""
        import penstock as ps
        try:
            len(ps.read_jsonl({str(tmp_path / "a.jsonl.gz")!r}, field="text").batch(4).to_numpy())
        except ps.LimitError as error:
            print(error.where, "TMPDIR" in error.fix)
        """,
        env=os.environ | {"TMPDIR": str(small_disk)},
    )
    assert done.stdout == f"{small_disk} True\n", done.stderr


@pytest.fixture
def two_views(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A folder, and a read-only view of it."""
    folder, view = tmp_path / "disk", tmp_path / "view"
    folder.mkdir()
    view.mkdir()
    if subprocess.run(["mount", "--bind", str(folder), str(view)], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    subprocess.run(["mount", "-o", "remount,bind,ro", str(view)], check=True)
    yield folder, view
    subprocess.run(["umount", "-l", str(view)], check=True)


def test_what_a_read_only_folder_holds_is_used(two_views: tuple[Path, Path]) -> None:
    folder, view = two_views

    def cached(root: Path, texts: list[str]) -> list[int]:
        pipeline = ps.from_texts(texts).tokenize("bytes", cache_dir=root / "cache")
        return next(iter(pipeline.windows(8).batch(2).to_numpy()))["input_ids"].ravel().tolist()

    before = cached(folder, TEXTS[:50])
    made = ps.prepare(ps.from_texts(TEXTS[:50]), "bytes", folder / "out")
    assert cached(view, TEXTS[:50]) == before
    again = ps.prepare(ps.from_texts(TEXTS[:50]), "bytes", view / "out")
    assert again.already
    assert again.id == made.id
    with pytest.raises(StorageError, match="can write to") as caught:
        ps.prepare(ps.from_texts(TEXTS[:50]), "bytes", view / "new")
    assert caught.value.errno == errno.EROFS
    with pytest.raises(StorageError, match="can write to"):
        cached(view, TEXTS[50:60])


@LINUX
@pytest.mark.parametrize("options", ["threads=8", "threads=None", "workers=2"])
def test_a_limit_on_threads_and_processes(options: str, tmp_path: Path) -> None:
    script = f"""
        import os, resource, sys, time
        import numpy as np
        import penstock as ps
        from penstock.engine import loader as engine
        import penstock.engine.processes.isolated
        sys.path[:] = [os.path.abspath(p) for p in sys.path]
        numbers = ps.from_arrays({{"x": np.arange(60)}}).map(lambda r: (time.sleep(0.002), r)[1])
        loader = numbers.batch(2).to_numpy({options})
        for before in ("threads", "workers"):  # imports all that is needed: the other user may not read the library
            next(iter(numbers.batch(2).to_numpy(**{{before: 1}})))
        engine.usable_cores = lambda: 8
        if os.getuid() == 0:
            os.setgid(54321)
            os.setuid(54321)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        try:
            print(sum(len(batch["x"]) for batch in loader))
        except ps.PenstockError as error:
            print(type(error).__name__, "ulimit -u" in error.fix)
    """
    done = run(script)
    want = {"threads=8": "LimitError True\n", "threads=None": "60\n", "workers=2": "WorkerDied True\n"}
    assert done.stdout == want[options], done.stderr


EACH_LIMIT = """
    import os, resource, sys
    import numpy as np
    import penstock as ps

    def once():
        return sum(len(next(iter(batch.values()))) for batch in {loader})

    want, used = once(), len(os.listdir("/proc/self/fd"))  # imports all that is needed
    few = [used + k for k in range(14)]
    for kind, values in {{"RLIMIT_NOFILE": few, "RLIMIT_FSIZE": [0, 100, 5000, 70_000, 1 << 24]}}.items():
        limit = getattr(resource, kind)
        old = resource.getrlimit(limit)
        for value in values:
            resource.setrlimit(limit, (value, old[1]))
            try:
                found = str(once() == want)
            except ps.PenstockError as error:
                found = "named" if "ulimit" in error.fix or "TMPDIR" in error.fix else repr(str(error))
            except BaseException as error:
                found = repr(error)
            resource.setrlimit(limit, old)
            print(found)
"""


@LINUX
@pytest.mark.parametrize("options", ["threads=0", "threads=2", "isolate=True"])
@pytest.mark.parametrize("kind", ["store", "parquet", "texts", "gzip"])
def test_limits_on_descriptors_and_file_sizes(kind: str, options: str, tmp_path: Path) -> None:
    """Whatever is left to open: the same rows, or an error that says which limit to raise."""
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

    path = str(tmp_path / kind)
    if kind == "store":
        ps.prepare(ps.from_texts(TEXTS[:40]), "bytes", path, shard_tokens=2048, show_progress=False)
    elif kind == "parquet":
        os.mkdir(path)
        for number in range(6):
            pq.write_table(pa.table({"text": TEXTS[:5]}), f"{path}/{number}.parquet")
    elif kind == "gzip":
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a line of text"}\n' * 4000))
    source = {
        "store": f"ps.open_store({path!r}).windows(64)",
        "parquet": f"ps.read_parquet({path!r})",
        "texts": "ps.from_texts(['a text'] * 60)",
        "gzip": f"ps.read_jsonl({path[:-4] + 'a.jsonl.gz'!r})",
    }[kind]
    done = run(EACH_LIMIT.format(loader=f"{source}.shuffle(seed=1).batch(5).to_numpy({options})"))
    found = done.stdout.splitlines()
    assert len(found) == 19, done.stderr
    assert set(found) <= {"True", "named"}, found
    assert "True" in found


@LINUX
@pytest.mark.parametrize("limit", ["disk", "no folder"])
def test_signatures_of_near_duplicates_do_not_fit(small_disk: Path, limit: str) -> None:
    script = f"""
        import resource
        import penstock as ps
        if {limit == "no folder"}:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        texts = [f"document {{i}} of some words" for i in range(400)]
        try:
            ps.from_texts(texts).dedup(method="minhash", cache_dir={str(small_disk.parent / "cache")!r})
        except ps.StorageError as error:
            print(error.where, "set TMPDIR" in error.fix)
    """
    done = run(script, env=os.environ | {"TMPDIR": str(small_disk)})
    where = str(small_disk) if limit == "disk" else "TMPDIR, /tmp, /var/tmp"
    assert done.stdout == f"{where} True\n", done.stderr
