"""An exception of a signal handler that comes while a library decodes a record surfaces; the record is not bad."""

from __future__ import annotations

import ast
import io
import json
import os
import signal
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.signals import undisturbed
from penstock.facades.capibara.resolve import resolve_dataset
from penstock.storage import retry


class Preempted(Exception):
    pass


class Stop(TimeoutError, ValueError, KeyError, RuntimeError):
    """Anything that an `except` of a reader may expect of its data or files."""


@contextmanager
def signal_in(where: Callable[[FrameType], bool], kind: type[Exception] = Preempted) -> Iterator[list[str]]:
    """Sends this process one signal when a function for which `where` is true is called, in any thread begun inside."""
    sent, handled = list[str](), threading.Event()

    def handle(*_: Any) -> None:
        handled.set()
        raise kind

    before = signal.signal(signal.SIGUSR1, handle)

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not sent and where(frame):
            sent.append(frame.f_code.co_qualname)
            os.kill(os.getpid(), signal.SIGUSR1)
            if threading.current_thread() is not threading.main_thread():
                assert handled.wait(60)

    sys.setprofile(look)
    threading.setprofile(look)
    try:
        yield sent
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        signal.signal(signal.SIGUSR1, before)


def _of(package: str) -> Callable[[FrameType], bool]:
    return lambda frame: str(frame.f_globals.get("__name__", "")).startswith(package)


def _gif() -> bytes:
    image, file = pytest.importorskip("PIL.Image"), io.BytesIO()
    image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(file, "GIF")
    return file.getvalue()


class Rows:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> dict:
        return {"x": _number(i)}


def _number(i: int) -> int:
    return i


def test_while_the_thread_of_a_decoder_is_started_and_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(*_: Any) -> None:
        raise Preempted

    start, ended = threading._start_new_thread, threading.Event()  # type: ignore[attr-defined]

    def late(*args: Any) -> None:  # as if this thread were paused until the other has ended
        start(*args)
        assert ended.wait(60)
        while any(thread.name == "penstock-undisturbed" for thread in threading.enumerate()):
            time.sleep(0.001)
        signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(threading, "_start_new_thread", late)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(Preempted):
            undisturbed(ended.set)()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("function", ["_open", "load", "getexif"])
def test_while_pillow_decodes(function: str) -> None:
    rows = [{"bytes": _gif(), "n": i} for i in range(8)]
    loader = resolve_dataset(rows).decode_images(4, column="bytes").skip_errors().batch(4).to_numpy(threads=0)
    pillow = _of("PIL.")
    with signal_in(lambda f: pillow(f) and f.f_code.co_name == function) as sent, pytest.raises(Preempted):
        list(loader)
    assert sent
    assert loader.ledger.total == 0
    assert [batch["n"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_while_a_dataset_of_the_user_reads() -> None:
    loader = resolve_dataset(Rows()).skip_errors().batch(4).to_numpy(threads=0)
    with signal_in(lambda frame: frame.f_code is _number.__code__) as sent, pytest.raises(Preempted):
        list(loader)
    assert sent
    assert loader.ledger.total == 0
    assert [batch["x"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_while_parquet_is_read(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": list(range(8))}), tmp_path / "a.parquet")
    loader = ps.read_parquet(str(tmp_path / "a.parquet"), on_error="skip").batch(4).to_numpy(threads=0)
    with signal_in(_of("pyarrow.parquet")) as sent, pytest.raises(Preempted):
        list(loader)
    assert sent
    assert loader.ledger.total == 0
    assert [batch["x"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_error_of_ours_does_not_explain_a_signal(tmp_path: Path) -> None:
    """Any damage of a footer is a ValueError, IndexError or the like, and becomes a DataError: not a handler's."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": list(range(8))}), tmp_path / "a.parquet")
    inside = _of("penstock.sources.parquet_footer")
    at = signal_in(lambda f: inside(f) and f.f_code.co_name == "_chunk", IndexError)
    with at as sent, pytest.raises(IndexError):
        list(ps.read_parquet(str(tmp_path / "a.parquet")).batch(4).to_numpy(threads=0))
    assert sent


def _files(folder: Path) -> dict[str, Callable[[], Any]]:
    """A pipeline over each kind of file."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    image, soundfile = pytest.importorskip("PIL.Image"), pytest.importorskip("soundfile")
    lines = "".join(f'{{"text": "text {i}"}}\n' for i in range(8))
    (folder / "a.jsonl").write_text(lines)
    (folder / "a.csv").write_text("x,text\n" + "".join(f"{i},text {i}\n" for i in range(8)))
    (folder / "a.json").write_text(json.dumps([{"x": i} for i in range(8)]))
    table = pa.table({"x": list(range(8)), "text": [f"text {i}" for i in range(8)]})
    pq.write_table(table, folder / "a.parquet", row_group_size=3)
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, 3)
    (folder / "pictures").mkdir()
    for i, suffix in enumerate(["png", "gif", "tiff", "jpg"] * 2):
        image.fromarray(np.full((8, 9, 3), 20 * i, np.uint8)).save(folder / "pictures" / f"{i}.{suffix}")
    (folder / "sounds").mkdir()
    for i, suffix in enumerate(["flac", "ogg", "wav", "mp3"] * 2):
        soundfile.write(folder / "sounds" / f"{i}.{suffix}", np.sin(np.arange(1600) / 9).astype("f4") / 2, 16000)
    with tarfile.open(folder / "a.tar", "w") as archive:
        for i in range(8):
            for suffix, data in (("jpg", (folder / "pictures" / "3.jpg").read_bytes()), ("cls", b"1")):
                member = tarfile.TarInfo(f"{i}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    store = str(folder / "store")
    ps.prepare(ps.read_jsonl(str(folder / "a.jsonl")), "bytes", store, show_progress=False)

    def path(name: str) -> str:
        return str(folder / name)

    return {
        "jsonl": lambda: ps.read_jsonl(path("a.jsonl"), on_error="skip"),
        "text": lambda: ps.read_text(path("a.csv"), by="line", on_error="skip"),
        "csv": lambda: ps.read_csv(path("a.csv"), on_error="skip"),
        "json": lambda: ps.read_json(path("a.json"), on_error="skip"),
        "parquet": lambda: ps.read_parquet(path("a.parquet"), on_error="skip"),
        "arrow": lambda: ps.read_arrow(path("a.arrow"), on_error="skip"),
        "pictures": lambda: ps.read_images(path("pictures"), labels=None).decode_images(8).skip_errors(),
        "sounds": lambda: ps.read_audio(path("sounds"), labels=None).decode_audio(8000, duration=0.05).skip_errors(),
        "tar": lambda: ps.read_tar(path("a.tar"), on_error="skip").decode_images(8, column="jpg").skip_errors(),
        "store": lambda: ps.open_store(store).windows(8).shuffle(seed=1),
    }


LIBRARIES = ("penstock.s", "penstock.codecs", "PIL", "soundfile", "pyarrow")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file that the handler left open
def test_at_calls_all_over_an_epoch_of_files(tmp_path: Path) -> None:
    """The signal comes at any call of a reader; what is raised then is the handler's, and no record is bad.

    The handler raises what is an OSError and a ValueError. Closing generators and `__del__` are left out: there Python
    itself ignores exceptions.
    """

    def stop(*_: Any) -> None:
        raise Stop("stop")

    def run(make: Callable[[], Any], at: int) -> tuple[Any, int, str]:
        calls, place = 0, ""

        def look(frame: FrameType, event: str, what: Any) -> None:
            nonlocal calls, place
            code = frame.f_code
            ignored = code.co_name in ("__del__", "<genexpr>") or getattr(what, "__name__", "") == "acquire"
            if event in ("call", "c_return") and not ignored:
                module = str(frame.f_globals.get("__name__", ""))
                if module.startswith(LIBRARIES) and not _ending(frame):
                    calls += 1
                    if calls == at:
                        place = f"{module}:{code.co_qualname}, {event}"
                        signal.raise_signal(signal.SIGUSR1)

        loader = None
        sys.setprofile(look)
        try:
            loader = make().batch(4).to_numpy(threads=0)
            for _ in loader:
                pass
        except Stop:
            return loader, calls, ""
        finally:
            sys.setprofile(None)
        return loader, calls, place

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        for name, make in _files(tmp_path).items():
            run(make, -1)
            total = run(make, -1)[1]
            assert total > 20, name
            for at in range(1, total, max(1, total // 25)):
                loader, _, lost = run(make, at)
                assert not lost, (name, lost)
                assert loader is None or loader.ledger.total == 0, (name, at)
    finally:
        signal.signal(signal.SIGUSR1, before)


READERS = ("codecs", "collate", "sources", "steps", "storage", "tokenizers")
ASKED = {"signature"}  # functions of the standard library on an object of the user, before anything is read


def test_an_except_that_continues_lets_signals_through() -> None:
    """Where data is read, an `except` of ValueError or Exception raises, or calls `surface` first."""
    found = []
    for path in sorted(p for package in READERS for p in (Path(ps.__file__).parent / package).rglob("*.py")):
        for tried in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Try)):
            if ASKED & _called(tried.body):
                continue
            for handler in tried.handlers:
                kinds = {getattr(node, "id", "") for node in ast.walk(handler.type)} if handler.type else {"Exception"}
                ends = any(isinstance(node, ast.Raise) for part in handler.body for node in ast.walk(part))
                if kinds & {"ValueError", "Exception"} and not ends and "surface" not in _called(handler.body):
                    found.append(f"{path.name}:{handler.lineno}")
    assert not found


def _called(body: list[ast.stmt]) -> set[str]:
    calls = (node.func for part in body for node in ast.walk(part) if isinstance(node, ast.Call))
    return {getattr(function, "id", getattr(function, "attr", "")) for function in calls}


def _ending(frame: FrameType | None) -> bool:
    """Whether a `__del__` is running, in which Python ignores exceptions."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def test_ctrl_c_while_libsndfile_reads_through_python(tmp_path: Path) -> None:
    """Callbacks from C ignore exceptions: there Ctrl-C was lost, and the data after it wrong."""
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.flac", np.sin(np.arange(16000) / 9).astype("f4") / 2, 16000)
    loader = ps.read_audio(str(tmp_path), labels=None).decode_audio(16000).batch(1).to_numpy(threads=0)
    expected = [batch["audio"].values.tobytes() for batch in loader]
    begun, stopped = threading.Event(), 0

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "readinto" and not begun.is_set():
            begun.set()
            os.kill(os.getpid(), signal.SIGINT)

    sys.setprofile(look)
    threading.setprofile(look)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(loader)
        stopped += 1
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert stopped == 1
    assert [batch["audio"].values.tobytes() for batch in loader] == expected


def test_an_exception_that_the_caller_is_handling_stays_his(tmp_path: Path) -> None:
    """An error of ours that is made while the caller saves a checkpoint, say, is not replaced by his."""

    def stop(*_: Any) -> None:
        raise Stop("stop")

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        signal.raise_signal(signal.SIGUSR1)
    except TimeoutError:
        with pytest.raises(ps.PenstockError):
            ps.read_jsonl(str(tmp_path / "none.jsonl"))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_request_is_not_repeated_for_a_signal() -> None:
    calls = 0

    def stop(*_: Any) -> None:
        raise Stop("stop")

    def ask() -> None:
        nonlocal calls
        calls += 1
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(TimeoutError) as raised:
            retry.call(ask, "s3://bucket/key", "read", retry.Policy())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == 1
    assert not isinstance(raised.value, ps.PenstockError)


def test_ctrl_c_while_the_helper_thread_starts() -> None:
    """The caller closes what the function uses: the function has ended by then, or never begins."""
    begun, running, sent = threading.Event(), [0], []

    def function() -> None:
        running[0] += 1
        begun.set()
        time.sleep(0.05)
        running[0] -= 1

    def look(frame: FrameType, event: str, _: object) -> None:
        inside = frame.f_back is not None and frame.f_back.f_code.co_name == "start"
        if event == "call" and frame.f_code.co_name == "wait" and inside and not sent:
            sent.append(begun.wait(5))
            os.kill(os.getpid(), signal.SIGINT)

    sys.setprofile(look)
    try:
        with pytest.raises(KeyboardInterrupt):
            undisturbed(function)()
    finally:
        sys.setprofile(None)
    assert sent == [True] and running == [0]
    sent = [None]  # and before the thread exists
    calls = []

    def earlier(frame: FrameType, event: str, what: object) -> None:
        if event == "c_call" and getattr(what, "__name__", "") == "start_new_thread" and not calls:
            calls.append(1)
            os.kill(os.getpid(), signal.SIGINT)

    sys.setprofile(earlier)
    try:
        with pytest.raises(KeyboardInterrupt):
            undisturbed(function)()
    finally:
        sys.setprofile(None)
    assert calls == [1] and running == [0]
