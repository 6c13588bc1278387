"""Batches from child processes: the same ones, lent and given back, from any kind of program."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.processes.child import HostOutput
from penstock.engine.processes.connection import LENT
from penstock.engine.processes.payload import ChildJob, read_payload, write_payload
from penstock.engine.processes.ring import Ring
from penstock.outputs.numpy import NumpyOutput
from penstock.testing import assert_same_batches
from tests.resume.pipelines import PIPELINES

MB = 1 << 20


def numbers(n: int = 60) -> ps.Pipeline:
    return ps.from_arrays({"x": np.arange(n)})


def wide(n: int = 40, width: int = 1000) -> ps.Pipeline:
    return ps.from_arrays({"x": np.arange(n * width).reshape(n, width)})


def first(loader: ps.Loader, count: int) -> list[Any]:
    run = iter(loader)
    got = list(islice(run, count))
    run.close()
    return got


# The law.

CHOSEN = [name for i, name in enumerate(PIPELINES) if i % 3 == 0]


@pytest.mark.parametrize("name", CHOSEN)
def test_batches_are_those_of_the_process_itself(name: str) -> None:
    workers = 1 + CHOSEN.index(name) % 3
    want = first(PIPELINES[name](12).to_numpy(threads=0), 9)
    got = first(PIPELINES[name](12).to_numpy(workers=workers), 9)
    assert_same_batches(want, got, f"{name}, workers={workers}")


def test_resumes_with_other_workers_threads_and_batch_size() -> None:
    def make(batch: int, **engine: Any) -> ps.Loader:
        return PIPELINES["shuffle"](batch).to_numpy(**engine)

    want = make(8, threads=0)
    loader = make(8, workers=2)
    assert_same_batches(first(want, 7), first(loader, 7))
    assert loader.state_dict() == want.state_dict()
    for batch, engine in ((8, {"isolate": True, "threads": 0}), (4, {"workers": 3, "threads": 1})):
        here, there = make(batch, threads=0), make(batch, **engine)
        for one in (here, there):
            one.load_state_dict(loader.state_dict())
        assert_same_batches(first(here, 20), first(there, 20))
        assert here.state_dict() == there.state_dict()


def test_every_for_is_the_next_epoch_and_more_workers_than_steps_are_fine() -> None:
    pipeline = numbers(10).shuffle(seed=5).batch(4, remainder="short")
    here, there = pipeline.to_numpy(threads=0), pipeline.to_numpy(workers=4)
    for _ in range(2):
        assert_same_batches(list(here), list(there))
    assert (here.epoch, here.step) == (there.epoch, there.step)


def test_torch_tensors_and_jax_arrays_are_made_in_the_parent() -> None:
    jnp = pytest.importorskip("jax").numpy
    torch = pytest.importorskip("torch")

    def frameworks(columns: dict) -> dict:
        loaded = int("torch" in sys.modules) + int("jax" in sys.modules)
        return {**columns, "loaded": np.full(len(columns["x"]), loaded)}

    pipeline = numbers(12).map_batches(frameworks).batch(4)
    got = list(pipeline.to_torch(device="cpu", isolate=True))
    assert all(isinstance(b["x"], torch.Tensor) for b in got)
    assert torch.cat([b["x"] for b in got]).tolist() == list(range(12))
    assert {int(n) for b in got for n in b["loaded"]} == {0}
    got = list(pipeline.to_jax(isolate=True))
    assert jnp.concatenate([b["x"] for b in got]).tolist() == list(range(12))
    assert {int(n) for b in got for n in b["loaded"]} == {0}


@dataclass
class Point:
    x: int


def test_every_kind_of_column_arrives_as_it_was() -> None:
    def columns(batch: dict) -> dict:
        x = batch["x"]
        made = np.zeros(len(x), [("a", "i4"), ("b", "f8")])
        made["a"] = x
        return {
            "x": x,
            "bool": x % 2 == 0,
            "half": x.astype("f2"),
            "big": x.astype(">i4"),
            "when": x.astype("M8[s]"),
            "fixed": x.astype("S3"),
            "complex": x * 1j,
            "made": made,
            "none": np.zeros((len(x), 0)),
            "grid": np.asfortranarray(np.arange(len(x) * 6.0).reshape(len(x), 2, 3)),
            "text": ["é" * int(i) for i in x],
            "points": ps_strings([Point(int(i)) for i in x]),
            "ragged": ps.Ragged.of([np.arange(i % 3) for i in x]),
        }

    from penstock.core.columns import strings as ps_strings

    pipeline = numbers(8).batch(4).map_batches(columns)
    want, got = list(pipeline.to_numpy(threads=0)), list(pipeline.to_numpy(isolate=True))
    assert_same_batches(want, got)
    assert type(got[0]["points"][0]) is Point
    for column in got[0].values():
        if isinstance(column, np.ndarray):
            assert column.flags.c_contiguous
            assert column.flags.writeable


# Slots.


def test_a_consumer_that_keeps_every_batch_gets_them_all_unharmed() -> None:
    kept = list(wide().batch(2).to_numpy(isolate=True, prefetch=2))
    assert_same_batches(list(wide().batch(2).to_numpy(threads=0)), kept)
    lent = [batch["x"].base is not None for batch in kept]
    assert lent == [True] * LENT + [False] * (20 - LENT), "the first few are views of slots, the rest copies"


def test_a_slot_is_used_again_only_when_the_last_view_is_gone() -> None:
    run = iter(wide(200).batch(2).to_numpy(isolate=True, prefetch=1))
    kept = next(run)["x"][1, 5:8]  # a small view of a batch that is otherwise dropped
    places = set()
    for batch in run:
        assert not np.shares_memory(batch["x"], kept)
        places.add(batch["x"].ctypes.data)
    assert kept.tolist() == [1005, 1006, 1007]
    assert len(places) <= 1 + 1 + LENT, "slots are used again"
    del batch
    assert kept.tolist() == [1005, 1006, 1007], "and outlive the run"


def test_a_prefetch_of_hundreds_is_fine() -> None:
    got = list(numbers(300).batch(1).to_numpy(isolate=True, prefetch=1000))
    assert [int(b["x"][0]) for b in got] == list(range(300))


def test_a_torch_tensor_keeps_its_slot() -> None:
    torch = pytest.importorskip("torch")
    run = iter(wide(60).batch(2).to_torch(isolate=True, prefetch=1))
    kept = next(run)["x"][0]
    gc.collect()
    assert sum(1 for _ in run) == 29
    assert torch.equal(kept, torch.arange(1000))


def test_a_batch_larger_than_a_slot_goes_another_way() -> None:
    pipeline = wide(6, width=3 * MB // 8).batch(1)
    got = list(pipeline.to_numpy(isolate=True, max_bytes=MB))
    assert_same_batches(list(pipeline.to_numpy(threads=0)), got)
    assert got[0]["x"].flags.writeable


def test_no_room_for_shared_memory_is_said_and_survived() -> None:
    def full(columns: dict) -> dict:
        for fd in os.listdir("/proc/self/fd"):  # from here on the ring's file is one that cannot grow
            if os.path.exists(f"/proc/self/fd/{fd}") and "penstock-ring" in os.readlink(f"/proc/self/fd/{fd}"):
                os.dup2(os.open("/dev/full", os.O_RDWR), int(fd))
        return columns

    pipeline = wide(8, width=MB // 8).map_batches(full).batch(2)
    with pytest.warns(RuntimeWarning, match="no shared memory for a batch of 2097152 bytes"):
        got = list(pipeline.to_numpy(isolate=True))
    assert_same_batches(list(wide(8, width=MB // 8).batch(2).to_numpy(threads=0)), got)


def test_limits_of_the_system_are_kept_or_named() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40 * MB, before[1]))
        ring = Ring.create(8, 512 * MB)
        os.close(ring.fd)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 * MB, before[1]))
        with pytest.raises(ps.LimitError, match="8 MB of shared memory") as caught:
            Ring.create(8, 512 * MB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert ring.shape.slots == 8
    assert MB <= ring.shape.extent < 5 * MB
    assert "ulimit -v, ulimit -f" in caught.value.fix


# What is sent.


def job_of(pipeline: ps.Pipeline) -> ChildJob:
    loader = pipeline.batch(2).to_numpy()
    return ChildJob(loader.definition, loader._ranges, HostOutput(NumpyOutput()), False, 1, 1, 1)


def test_memory_mapped_arrays_are_opened_again_and_large_ones_are_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(MB).reshape(1024, 1024))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for array in (mapped, mapped[100:900], np.asarray(mapped)[5:7]):
        payload = write_payload(job_of(ps.from_arrays({"x": np.concatenate([array]), "y": array})))
        fd = payload.fd
        whole = os.fstat(fd).st_size + sum(buffer.nbytes for buffer in payload.held)
        assert whole < array.nbytes + 20_000, "only the copy is sent"
        again = read_payload(fd).definition.origin.read(np.arange(2))
        assert np.array_equal(again["y"], array[:2])
        assert np.array_equal(again["x"], array[:2])


def test_an_object_that_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()

    def locked(record: dict) -> dict:
        with lock:
            return record

    with pytest.raises(ps.UsageError) as caught:
        iter(numbers().map(locked).batch(5).to_numpy(isolate=True))
    assert "steps and sources that can be sent to a child process" in str(caught.value)
    assert "lock" in caught.value.got
    assert caught.value.where == ".map()"
    assert "open files, locks and clients inside the function" in caught.value.fix


def test_without_cloudpickle_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ps.MissingExtra, match="cloudpickle"):
        iter(numbers().map(lambda record: record).batch(5).to_numpy(isolate=True))
    assert len(list(numbers().batch(5).to_numpy(isolate=True))) == 12, "needed for functions only"


def test_a_column_that_cannot_be_sent_back_is_named() -> None:
    def locks(columns: dict) -> dict:
        return {**columns, "lock": [threading.Lock() for _ in columns["x"]]}

    with pytest.raises(ps.StageError, match="columns that can be sent to another process") as caught:
        list(numbers().batch(5).map_batches(locks).to_numpy(isolate=True))
    assert caught.value.where == "columns ['lock']"
    assert "cannot pickle '_thread.lock'" in caught.value.got


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"workers": True}, {"isolate": 2}, {"on_worker_death": "ignore"}])
def test_wrong_arguments_are_refused(wrong: dict) -> None:
    with pytest.raises(ps.UsageError, match="workers" if "workers" in wrong else "isolate=True, False or None"):
        numbers().batch(5).to_numpy(**wrong)


# Programs.

PROGRAM = """
    import os
    import numpy as np
    import penstock as ps

    class Box:
        def __init__(self, n): self.n = n
    FACTOR = Box(3)

    def triple(record):
        return {"x": record["x"] * FACTOR.n, "pid": os.getpid(), "main": __name__}

    loader = ps.from_arrays({"x": np.arange(6)}).map(triple).batch(3).to_numpy(isolate=True)
    for batch in loader:
        print(batch["x"].tolist(), batch["pid"][0] != os.getpid())
"""


@pytest.mark.parametrize("how", ["script", "stdin", "exec"])
def test_works_from_any_program_without_a_guard(how: str, tmp_path: Path) -> None:
    text = textwrap.dedent(PROGRAM)
    if how == "exec":  # as notebooks do
        text = f"import __main__\nexec(compile({text!r}, '<cell 1>', 'exec'), __main__.__dict__)"
    script = tmp_path / "program.py"
    script.write_text(text)
    command = [sys.executable, "-" if how == "stdin" else str(script)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout == "[0, 3, 6] True\n[9, 12, 15] True\n"


def test_what_the_child_prints_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    def loud(record: dict) -> dict:
        if record["x"] == 0:
            sys.stdout.write("to out\n")
            sys.stderr.write("to err\n")
        return record

    assert len(list(numbers(10).map(loud).batch(5).to_numpy(isolate=True))) == 2
    out, err = capfd.readouterr()
    assert out == "to out\n"
    assert err == "to err\n"


def test_stats_and_ledger_know_what_the_children_did() -> None:
    def picky(record: dict) -> dict:
        if record["x"] % 10 == 3:
            raise ValueError("three")
        return record

    pipeline = numbers(60).map(picky).skip_errors().batch(6)
    here, there = pipeline.to_numpy(threads=0), pipeline.to_numpy(workers=2)
    assert_same_batches(list(here), list(there))
    for one in (here, there):
        facts = one.stats()
        assert facts["batches_taken"] == facts["batches_computed"] == 10
        assert one.ledger.total == facts["skipped"] >= 6
    assert sorted(map(str, there.ledger.entries)) == sorted(map(str, here.ledger.entries))
    assert there.ledger.by_reason == here.ledger.by_reason
    assert there.stats()["stage_seconds"]["read"] > 0
    with pytest.raises(ps.DataError, match="at most 4 skipped"):
        list(numbers(60).map(picky).skip_errors(4).batch(6).to_numpy(workers=2))


def test_files_in_this_process_memory_are_refused_before_a_child_starts() -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe("/own/a.jsonl", b'{"text": "one"}\n' * 8)
    files.pipe("/own/a.txt", b"one\n" * 8)
    try:
        lines, text = ps.read_jsonl("memory://own/a.jsonl"), ps.read_text("memory://own/a.txt", by="line")
        for pipeline in (lines, text, ps.mix([lines, text]), ps.Pipeline(lines.filter(lambda row: True).rows())):
            assert len(list(pipeline.take(8).batch(4).to_numpy())) == 2
            with pytest.raises(ps.UsageError, match=r"memory:///?own/a\.\w+: memory of this process") as caught:
                next(iter(pipeline.take(8).batch(4).to_numpy(workers=2)))
            assert "threads see the same memory" in str(caught.value)
    finally:
        files.rm("/own", recursive=True)
