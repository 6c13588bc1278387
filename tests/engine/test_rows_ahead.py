"""Records of remote files are requested before they are read: the same batches, in few requests."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import threading
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import StorageError
from penstock.engine import rows_ahead
from penstock.engine.rows_ahead import ranges_of
from penstock.plan import ahead_groups
from penstock.storage import metrics, objects
from penstock.storage.ranges_ahead import RangesAhead
from tests.storage.fault_proxy import FaultProxy, Faults

RECORDS, BATCH = 1500, 16


@pytest.fixture(scope="module")
def places(s3, tmp_path_factory):
    """Folders with JSON lines and tar shards: on disk, and their URL."""
    folder, dice = tmp_path_factory.mktemp("rows"), np.random.default_rng(4)
    for file in range(3):
        texts = ["x" * int(n) + f" {file} {at}" for at, n in enumerate(dice.integers(10, 3000, RECORDS // 3))]
        (folder / f"{file}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        with tarfile.open(folder / f"{file}.tar", "w") as made:
            for at, text in enumerate(texts):
                info = tarfile.TarInfo(f"{file}-{at:05}.txt")
                info.size = len(text)
                made.addfile(info, io.BytesIO(text.encode()))
    for path in folder.iterdir():
        objects.put_new(f"{s3.url('rows')}/{path.name}", path, s3.options)
    return str(folder), s3.url("rows")


def rows(place: str, kind: str, options: Any = None) -> ps.Pipeline:
    read = {"jsonl": ps.read_jsonl, "tar": ps.read_tar}[kind]
    return read(f"{place}/*.{kind}", storage_options=options)


def taken(loader: Any) -> list[list[Any]]:
    return [[*batch.get("text", batch.get("txt"))] for batch in loader]


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_batches_are_those_of_local_files_in_no_more_requests(places, s3, kind):
    local, remote = rows(places[0], kind), rows(places[1], kind, s3.options)
    remote.definition.origin.fingerprint()
    for order in (lambda p: p, lambda p: p.shuffle(seed=3), lambda p: p.shuffle(seed=3).repeat(2)):
        expected = taken(order(local).batch(BATCH).to_numpy(threads=0))
        for threads in (0, 1, 2):
            loader = order(remote).batch(BATCH).to_numpy(threads=threads)
            before = metrics.counters()
            assert taken(loader) == expected
            assert metrics.since(before)["s3"].requests <= 1.2 * len(expected) * 3  # each batch has ranges of 3 files
            assert all(ranges.size == 0 for ranges in ranges_of(loader._plan))
    (ranges,) = ranges_of(remote.batch(BATCH).to_numpy()._plan)
    assert not ranges._held


def test_an_epoch_in_order_has_fewer_requests_than_batches(places, s3):
    remote = rows(places[1], "jsonl", s3.options)
    remote.definition.origin.fingerprint()
    before = metrics.counters()
    batches = len(taken(remote.batch(BATCH).to_numpy(threads=1)))
    assert metrics.since(before)["s3"].requests < batches / 2


def test_a_run_that_stops_and_jumps_reads_right(places, s3):
    local = rows(places[0], "jsonl").shuffle(seed=5).batch(BATCH).to_numpy()
    loader = rows(places[1], "jsonl", s3.options).shuffle(seed=5).batch(BATCH).to_numpy(threads=1)
    state = None
    for number, batch in enumerate(loader):
        assert [*batch["text"]] == [*local.batch_at(loader.step - 1)["text"]]
        if number == 3:
            state = loader.state_dict()
        if number == 9:
            loader.load_state_dict(state)
        if number == 20:
            break
    assert loader.step == 15
    del batch, loader
    assert not [t for t in threading.enumerate() if t.name == "penstock-rows-ahead" and not t.daemon]


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_under_faults_an_epoch_is_exact_and_only_what_failed_is_requested_again(places, s3, monkeypatch, kind):
    """Of few requests more than a third may fail by chance, so each is counted; those of all runs are at most 1.6."""
    monkeypatch.setattr(rows_ahead, "WAIT_SECONDS", 60.0)  # a reader on a machine that is held up requests by itself
    pauses = {"init_backoff": timedelta(seconds=0.01), "max_backoff": timedelta(seconds=0.05)}
    quick = {"client_options": {"read_timeout": timedelta(seconds=1)}, "retry_config": {"backoff": pauses}}
    local = taken(rows(places[0], kind).shuffle(seed=3).batch(BATCH).to_numpy(threads=0))
    made = planned = 0
    ranges: set[tuple[str, str, str]] = set()
    for seed in range(-1, 5):
        with FaultProxy(s3.endpoint) as proxy:
            remote = rows(places[1], kind, proxy.options | quick).shuffle(seed=3).batch(BATCH)
            plan = remote.plan().reading
            assert plan is not None
            proxy.clear(Faults(refuse=0.2, reset=0.05, stall=0.01, seed=seed) if seed >= 0 else Faults())
            before = metrics.counters()
            assert taken(remote.to_numpy(threads=1)) == local
            used = metrics.since(before)["s3"]
            assert proxy.requests == used.requests == round(plan.requests) + used.retries + used.hedges
            ranges = ranges or set(proxy.counts.log)
            assert set(proxy.counts.log) == ranges
            if seed >= 0:
                made, planned = made + proxy.requests, planned + plan.requests
    assert 1.1 * planned < made <= 1.6 * planned


def test_what_cannot_be_read_ahead_is_left_to_the_reader():
    ranges, waits = RangesAhead(), threading.Event()

    def fail(keys: Any) -> list[bytes]:
        waits.wait(10)
        raise StorageError("an answer", got="none")

    fetch = ranges.claim(np.array([(0, 0, 3), (1, 0, 3)]), 5, fail)
    thread = threading.Thread(target=fetch)
    thread.start()
    threading.Timer(0.2, waits.set).start()
    assert ranges.take(np.array([(1, 0, 3), (0, 0, 3)])) == [None, None]
    thread.join(10)
    assert ranges.size == 0 and not ranges._held


def test_ranges_are_kept_for_each_of_their_readers_and_dropped_when_their_steps_are_over():
    ranges = RangesAhead()
    assert ranges.claim(np.array([(0, 0, 2), (0, 0, 2)]), 4, lambda keys: [b"ab"] * len(keys))() == 2
    assert ranges.claim(np.array([(0, 0, 2), (0, 5, 6)]), 9, lambda keys: [b"c"] * len(keys))() == 1
    assert ranges.size == 3
    assert pickle.loads(pickle.dumps(ranges)).size == 0
    ranges.forget(9)
    assert ranges.take(np.array([(0, 0, 2), (0, 0, 2)])) == [b"ab", None]
    ranges.forget()
    assert ranges.size == 0


class Unwilling:
    """Records whose requests ahead fail; reading them works."""

    ahead = RangesAhead()

    def __len__(self) -> int:
        return 500

    def read(self, indices: Any) -> Any:
        return {"text": np.array([f"own {i}" for i in indices], object)}

    def fingerprint(self) -> str:
        return "unwilling"

    def describe(self) -> dict[str, Any]:
        return {"kind": "unwilling"}

    def locate(self, index: int) -> dict[str, Any]:
        return {"record": index}

    def claim_ahead(self, indices: Any, step: int) -> Any:
        raise StorageError("an answer", got="none")


def test_readers_do_not_wait_for_requests_of_a_plan_that_failed(places, s3):
    def mixed(first: ps.Pipeline) -> Any:
        return ps.mix([first, ps.Pipeline(Unwilling())], [1, 1], seed=1).take(600).batch(BATCH)

    local, remote = rows(places[0], "jsonl"), rows(places[1], "jsonl", s3.options)
    for threads in (0, 2):
        got = taken(mixed(remote).to_numpy(threads=threads))
        assert got == taken(mixed(local).to_numpy(threads=0))


def test_what_is_on_its_way_counts_as_held(places, s3, monkeypatch):
    ahead = 300_000
    monkeypatch.setattr(ahead_groups, "AHEAD_BYTES", ahead)
    monkeypatch.setattr(ahead_groups, "CHUNK_BYTES", ahead // ahead_groups.FETCHERS)
    loader = rows(places[1], "jsonl", s3.options).shuffle(seed=3).batch(BATCH).to_numpy(threads=1)
    (ranges,) = ranges_of(loader._plan)
    most, run = 0, iter(loader)
    for _ in range(40):
        next(run)
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            most = max(most, ranges.size)
            time.sleep(0.002)
    run.close()
    step = BATCH * 3100
    assert ahead // 2 < most < ahead + ahead // ahead_groups.FETCHERS + 2 * step
