"""The fault proxy makes the faults that it was asked for, the same ones each time, and counts them."""

import http.client
import os
import time

import pytest

from penstock.storage import filesystem, objects
from tests.storage.fault_proxy import USUAL, Faults

DATA = os.urandom(100_000)


@pytest.fixture
def data_url(s3, tmp_path):
    url = s3.url(tmp_path.name, "data")
    assert objects.put_new(url, DATA, s3.options)
    return url


def _ranges(count):
    return [(20 * n, 20 * n + 10) for n in range(count)]  # apart: obstore joins adjacent ranges


def test_requests_go_through_and_are_counted(fault_proxy, data_url):
    assert objects.read_all(data_url, fault_proxy.options) == DATA
    assert fault_proxy.requests == 1 and fault_proxy.counts.bytes == len(DATA)
    assert filesystem.read_ranges(data_url, _ranges(20), fault_proxy.options) == [DATA[a:b] for a, b in _ranges(20)]
    assert fault_proxy.requests == 21 and fault_proxy.counts.methods == {"GET": 21}
    fresh = fault_proxy.url("fresh", os.urandom(8).hex())
    assert objects.put_new(fresh, b"1" * 200_000, fault_proxy.options)
    assert not objects.put_new(fresh, b"2", fault_proxy.options)
    assert len(objects.list_files(fault_proxy.url("fresh"), fault_proxy.options)) >= 1
    assert sum(fault_proxy.made.values()) == 0


def test_all_connections_share_a_link(fault_proxy, data_url):
    fault_proxy.clear(Faults(link=1e6))
    began = time.perf_counter()
    assert len(filesystem.read_ranges(data_url, [(0, 40_000), (50_000, 90_000)], fault_proxy.options)) == 2
    assert time.perf_counter() - began >= fault_proxy.counts.bytes / 1e6


def test_fates_are_repeated_and_have_the_stated_shares():
    fates = [USUAL.fate(f"GET /{n} 0-1", 0)[0] for n in range(20_000)]
    assert fates == [USUAL.fate(f"GET /{n} 0-1", 0)[0] for n in range(20_000)]
    assert fates != [Faults(**{**vars(USUAL), "seed": 2}).fate(f"GET /{n} 0-1", 0)[0] for n in range(20_000)]
    shares = {name: fates.count(name) / len(fates) for name in ("refuse", "reset", "stall", "wrong")}
    expected = {"refuse": 0.2, "reset": 0.05, "stall": 0.02, "wrong": 0.001}
    assert all(abs(shares[name] - share) < 0.1 * share + 0.001 for name, share in expected.items())


@pytest.mark.parametrize("name", ["refuse", "reset", "stall", "wrong", "short", "full", "slow"])
def test_each_fault_is_made(fault_proxy, s3, tmp_path, name):
    fault_proxy.clear(Faults(**{name: 1.0}, stall_seconds=0.2, slow_seconds=0.05, times=1))
    # SeaweedFS answers 403 without a signature, with a body: enough to see what the proxy does to an answer.
    address = fault_proxy.endpoint.removeprefix("http://")
    got: object = None
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", f"/bucket/{tmp_path.name}", headers={"Range": "bytes=0-9"})
        answer = connection.getresponse()
        got = answer.status
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        got = error
    finally:
        connection.close()
    assert fault_proxy.made == {name: 1}
    assert (got == 503) == (name == "refuse")
    assert isinstance(got, (OSError, http.client.HTTPException)) or name not in ("reset", "stall") or got == 403
