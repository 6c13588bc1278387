"""Reads of objects under faults: complete and exact, or a StorageError; few extra requests; never a hang."""

import os
import random
import threading
import time
from datetime import timedelta

import pytest

import penstock as ps
from penstock.core.errors import DataError, FileMissing, StorageError
from penstock.storage import filesystem, hedge, metrics, object_reader, objects
from penstock.storage.hedge import Hedger
from penstock.storage.object_requests import Read, read_many
from tests.storage.fault_proxy import Faults

DATA = os.urandom(1 << 20)
QUICK = {
    "retry_config": {"backoff": {"init_backoff": timedelta(seconds=0.01), "max_backoff": timedelta(seconds=0.05)}},
    "client_options": {"read_timeout": timedelta(seconds=0.3)},
}


@pytest.fixture
def data_url(s3, tmp_path):
    url = s3.url(tmp_path.name, "data")
    assert objects.put_new(url, DATA, s3.options)
    return url


def _ranges(count):
    return [(2000 * n, 2000 * n + 1000) for n in range(count)]


def _expected(count):
    return [DATA[a:b] for a, b in _ranges(count)]


def test_all_faults_at_once_are_survived_with_few_extra_requests(fault_proxy, data_url):
    fault_proxy.clear(Faults(refuse=0.2, reset=0.05, stall=0.02, short=0.02, full=0.02, seed=3))
    before = metrics.counters()
    assert filesystem.read_ranges(data_url, _ranges(500), fault_proxy.options | QUICK) == _expected(500)
    assert fault_proxy.requests <= 1.6 * 500
    assert set(fault_proxy.made) == {"refuse", "reset", "stall", "short", "full"}
    counted = metrics.since(before)["s3"]
    assert counted.requests == fault_proxy.requests == 500 + counted.retries + counted.hedges
    assert counted.bytes >= 500_000 and counted.failures == 0 and counted.wait_seconds > 0


@pytest.mark.parametrize("fault", ["refuse", "reset", "stall", "short"])
def test_one_fault_for_ever_is_a_storage_error_that_names_the_object(fault_proxy, data_url, fault):
    fault_proxy.clear(Faults(**{fault: 1.0}))
    options = fault_proxy.options | QUICK | {"retry_config": QUICK["retry_config"] | {"max_retries": 2}}
    before = metrics.counters()
    with pytest.raises(StorageError, match="data, bytes 0 to 1000(.|\n)*") as caught:
        filesystem.read_ranges(data_url, [(0, 1000)], options)
    assert "tried 3 times" in str(caught.value)
    assert fault_proxy.requests == 3
    assert metrics.since(before)["s3"].failures == 1


def test_a_server_that_ignores_ranges_is_asked_for_small_objects_and_refused_for_large_ones(fault_proxy, s3, tmp_path):
    data = os.urandom((8 << 20) + 1)
    fault_proxy.clear(Faults(full=1.0))
    for size in (1000, 8 << 20):
        url = s3.url(tmp_path.name, str(size))
        objects.put_new(url, data[:size], s3.options)
        assert filesystem.read_ranges(url, [(10, 900)], fault_proxy.options) == [data[10:900]]
    assert fault_proxy.requests == 4
    objects.put_new(url := s3.url(tmp_path.name, "large"), data, s3.options)
    with pytest.raises(StorageError, match="a server that answers requests for byte ranges(.|\n)*all 8,388,609 bytes"):
        filesystem.read_ranges(url, [(10, 900)], fault_proxy.options)
    assert fault_proxy.requests == 6


def test_objects_of_a_server_that_answers_some_ranges_in_full_are_read(unconditional, tmp_path):
    """rclone answers so where a range is all of an object."""
    url = unconditional.url(tmp_path.name, "a b", "50%+ü.jsonl")
    objects.put_new(url, b'{"text": "one"}\n', unconditional.options)
    assert [row["text"] for row in ps.read_jsonl(url, storage_options=unconditional.options).rows()] == ["one"]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_answers_that_ask_for_patience_are_tried_again(fault_proxy, data_url, status):
    fault_proxy.clear(Faults(refuse=1.0, status=status, times=2))
    options = fault_proxy.options | QUICK
    assert filesystem.read_ranges(data_url, [(0, 1000)], options) == [DATA[:1000]]
    assert filesystem.stamp(data_url, options).size == len(DATA)
    folder = data_url.rpartition("/")[0]
    assert [one.size for one in objects.list_files(folder, options)] == [len(DATA)]
    assert objects.put_new(folder + "/new", b"1", options) and not objects.put_new(folder + "/new", b"1", options)
    objects.delete([folder + "/new"], options)


def test_a_deadline_ends_retries(fault_proxy, data_url):
    fault_proxy.clear(Faults(refuse=1.0))
    retries = {"max_retries": 1000, "retry_timeout": timedelta(seconds=0.3)} | QUICK["retry_config"]
    with pytest.raises(StorageError, match="SlowDown"):
        filesystem.read_ranges(data_url, [(0, 10)], fault_proxy.options | {"retry_config": retries})
    assert fault_proxy.requests < 50


def test_final_answers_are_not_tried_again(fault_proxy, data_url):
    with pytest.raises(FileMissing):
        filesystem.read_ranges(data_url + "x", [(0, 10)], fault_proxy.options)
    with pytest.raises(StorageError, match="credentials"):
        filesystem.read_ranges(data_url, [(0, 10)], fault_proxy.options | {"secret_access_key": "wrong"})
    with pytest.raises(StorageError, match="it is shorter now"):
        filesystem.read_ranges(data_url, [(2 << 20, 3 << 20)], fault_proxy.options)
    assert fault_proxy.requests == 3


def test_a_range_past_the_end_is_an_error_not_a_short_answer(fault_proxy, data_url):
    options = fault_proxy.options | QUICK | {"retry_config": {"max_retries": 1}}
    with pytest.raises(StorageError, match="it is shorter now"):
        filesystem.read_ranges(data_url, [(len(DATA) - 10, len(DATA) + 10)], options)


def test_a_replaced_object_is_noticed(s3, tmp_path):
    url = s3.url(tmp_path.name, "replaced")
    assert objects.put_new(url, b"first version", s3.options)
    stamp = filesystem.stamp(url, s3.options)
    assert filesystem.read_ranges(url, [(0, 5)], s3.options, expected=stamp) == [b"first"]
    objects.delete([url], s3.options)
    assert objects.put_new(url, b"other version", s3.options)
    with pytest.raises(StorageError, match="replaced"):
        filesystem.read_ranges(url, [(0, 5)], s3.options, expected=stamp)
    with filesystem.open_read(url, s3.options, expected=stamp) as file, pytest.raises(StorageError, match="replaced"):
        file.read(5)


def test_an_object_that_is_shorter_now_has_changed(s3, tmp_path):
    url = s3.url(tmp_path.name, "cut")
    objects.put_new(url, b"0123456789", s3.options)
    for start, stop in [(5, 30), (20, 30)]:  # the server answers with less, or with 416
        with pytest.raises(StorageError, match="it changed while it was read: it is shorter now") as caught:
            filesystem.read_ranges(url, [(start, stop)], s3.options)
        assert url in str(caught.value)


def test_wrong_bytes_are_read_again_when_a_check_notices_them(fault_proxy, data_url):
    fault_proxy.clear(Faults(wrong=0.1, seed=2))
    expected = _expected(50)
    reads = [Read(data_url, a, b) for a, b in _ranges(50)]

    def check(number, data):
        return "" if data == expected[number] else "another hash"

    assert read_many(reads, fault_proxy.options, check=check) == expected
    assert fault_proxy.made["wrong"] > 2
    fault_proxy.clear(Faults())
    with pytest.raises(StorageError, match="another hash"):
        read_many(reads[:1], fault_proxy.options, check=lambda *_: "another hash")
    assert fault_proxy.requests == 3


class Fates(Faults):
    """The first requests of a range fail in these ways, one after the other."""

    def fate(self, request, attempt):
        names = ("stall", "refuse", "refuse", "")
        return names[attempt] if request.startswith("GET") and attempt < len(names) else "", random.Random(attempt)


def test_a_lost_request_whose_second_one_fails_is_made_again_at_once(fault_proxy, data_url, monkeypatch):
    """Not when the client gives the first one up, which holds up everything that waits for it."""
    monkeypatch.setattr(hedge, "UNKNOWN", 0.2)
    fault_proxy.clear(Fates())
    options = fault_proxy.options | {"client_options": {"read_timeout": timedelta(seconds=20)}}
    began, before = time.monotonic(), metrics.counters()
    assert filesystem.read_ranges(data_url, [(0, 1000)], options) == [DATA[:1000]]
    assert time.monotonic() - began < 10
    counted = metrics.since(before)["s3"]
    assert (counted.requests, counted.retries, counted.hedges) == (fault_proxy.requests, 2, 1) == (4, 2, 1)


def test_a_request_that_is_tried_again_is_not_taken_for_a_slow_one(fault_proxy, data_url, monkeypatch):
    """How long it takes counts from the last try on."""
    monkeypatch.setattr(hedge, "UNKNOWN", 0.4)
    fault_proxy.clear(Faults(refuse=1.0, times=1, latency=0.25))
    before = metrics.counters()
    options = fault_proxy.options | QUICK | {"client_options": {}}
    assert filesystem.read_ranges(data_url, [(0, 1000)], options) == [DATA[:1000]]
    counted = metrics.since(before)["s3"]
    assert (counted.requests, counted.retries, counted.hedges) == (2, 1, 0)


def test_slow_requests_are_hedged_within_the_stated_share(fault_proxy, data_url, monkeypatch):
    fault_proxy.clear(Faults(stall=0.01, seed=5, stall_seconds=30))
    options = fault_proxy.options | {"client_options": {"read_timeout": timedelta(seconds=3)}}
    before = metrics.counters()
    for _ in range(4):
        assert filesystem.read_ranges(data_url, _ranges(200), options) == _expected(200)
    counted = metrics.since(before)["s3"]
    assert fault_proxy.made["stall"] >= 1
    assert 1 <= counted.hedges <= 0.02 * 800 and counted.hedges_won >= 1


def test_hedging_is_suspended_when_much_is_late():
    hedger = Hedger()
    for _ in range(1000):
        hedger.started()
        hedger.answered(1000, 0.01)
    made = sum(hedger.allow() for _ in range(500))
    assert 0 < made <= 20
    for _ in range(10_000):
        hedger.started()
    assert not hedger.allow()  # half of the recent requests were late: the share would allow it, but not the suspension
    for _ in range(1000):
        hedger.answered(1000, 0.01)
    assert hedger.allow()


def test_an_object_as_a_file_is_read_in_few_large_requests(fault_proxy, s3, tmp_path):
    data = os.urandom(20 << 20)
    url = s3.url(tmp_path.name, "large")
    assert objects.put_new(url, data, s3.options)
    stamp = filesystem.stamp(url, s3.options)
    with filesystem.open_read(url, fault_proxy.options, expected=stamp) as file:
        parts = []
        while part := file.read(100_000):
            parts.append(part)
    assert b"".join(parts) == data
    assert fault_proxy.requests <= 2 + len(data) / (8 << 20) + 2
    with filesystem.open_read(url, fault_proxy.options, expected=stamp) as file:
        assert file.read(4) == data[:4]
    fault_proxy.clear()
    with filesystem.open_read(url, fault_proxy.options, expected=stamp) as file:
        assert file.read(10) == data[:10]  # kept from before
        file.seek(-10, 2)
        assert file.read(100) == data[-10:]
        file.seek(5_000_000)
        assert file.read(1000) == data[5_000_000:5_001_000]
        file.seek(0)
        assert file.read() == data
    assert fault_proxy.counts.log[0][2] != "0-65535"


def test_a_put_whose_answer_is_lost_is_recognised_as_ours(fault_proxy, s3, tmp_path):
    made = []
    for seed in range(8):
        fault_proxy.clear(Faults(reset=1.0, seed=seed, times=1, methods=("PUT",)))
        url = s3.url(tmp_path.name, f"put-{seed}")
        assert objects.put_new(url, b"ours", fault_proxy.options | QUICK)
        assert not objects.put_new(url, b"ours", s3.options)
        fault_proxy.clear(Faults(reset=1.0, seed=seed, times=1, methods=("PUT",)))
        assert not objects.put_new(url, b"another", fault_proxy.options | QUICK)
        made.append(objects.read_all(url, s3.options))
    assert made == [b"ours"] * 8


def test_a_conflict_between_creates_is_tried_again(fault_proxy, s3, tmp_path):
    fault_proxy.clear(Faults(refuse=1.0, status=409, times=2, methods=("PUT",)))
    url = s3.url(tmp_path.name, "conflict")
    assert objects.put_new(url, b"1", fault_proxy.options | QUICK)
    assert objects.read_all(url, s3.options) == b"1"


def test_a_listing_survives_faults(fault_proxy, s3, tmp_path):
    names = [f"{n:03}" for n in range(30)]
    for name in names:
        assert objects.put_new(s3.url(tmp_path.name, name), b"x", s3.options)
    fault_proxy.clear(Faults(refuse=0.5, reset=0.1, seed=1))
    for _ in range(5):
        listed = objects.list_files(s3.url(tmp_path.name), fault_proxy.options | QUICK)
        assert [one.url.rpartition("/")[2] for one in listed] == names


def test_threads_share_buckets_and_stay_exact(fault_proxy, data_url):
    fault_proxy.clear(Faults(refuse=0.1, seed=4))
    wrong = []

    def work():
        for _ in range(5):
            wrong.append(filesystem.read_ranges(data_url, _ranges(20), fault_proxy.options | QUICK) != _expected(20))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(wrong) == 40 and not any(wrong)


def test_objects_of_any_size_are_read_completely(s3, tmp_path):
    for size in (0, 1, object_reader.FIRST - 1, object_reader.FIRST, object_reader.FIRST + 1):
        url = s3.url(tmp_path.name, f"of-{size}")
        data = os.urandom(size)
        assert objects.put_new(url, data, s3.options)
        assert objects.read_all(url, s3.options) == data
        with filesystem.open_read(url, s3.options) as file:
            assert file.read() == data
    with pytest.raises(DataError, match="at most 10 bytes"):
        objects.read_all(url, s3.options, limit=10)


def test_answers_that_came_while_others_were_taken_are_taken_together(fault_proxy, data_url):
    reads = [Read(data_url, start, stop) for start, stop in _ranges(30)]
    taken: list[list[tuple[int, bytes]]] = []

    def take(came):
        taken.append([(number, bytes(data)) for number, data in came])
        until = time.monotonic() + 20
        while fault_proxy.requests < 30 and time.monotonic() < until:
            time.sleep(0.01)
        if len(taken) == 1:
            time.sleep(0.5)

    fault_proxy.clear(Faults())
    assert read_many(reads, fault_proxy.options, take=take) == []
    assert dict(sum(taken, [])) == dict(enumerate(_expected(30)))
    assert len(taken) < 30


def test_new_requests_are_made_before_answers_are_taken(fault_proxy, data_url):
    reads = [Read(data_url, start, stop) for start, stop in _ranges(4)]
    asked = []

    def take(came):
        wanted = min(4, 2 + len(asked))
        until = time.monotonic() + 10
        while fault_proxy.requests < wanted and time.monotonic() < until:
            time.sleep(0.01)
        asked.append(fault_proxy.requests)

    fault_proxy.clear(Faults())
    read_many(reads, fault_proxy.options | {"in_flight": 1}, take=take)
    assert asked == [2, 3, 4, 4]
