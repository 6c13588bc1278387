"""Ctrl-C and the exception of a signal handler surface while a store of an object store is awaited; see `engine`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from tests.storage import remote_stores
from tests.storage.fault_proxy import Faults

pytestmark = pytest.mark.soak  # each waits for requests that take long
AWAITED = 8.0  # seconds until the server answers


class Preempted(Exception):
    pass


def _raise(*_: Any) -> None:
    raise Preempted


@pytest.fixture
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, _raise)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture(scope="module")
def store(s3: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = remote_stores.make(tmp_path_factory.mktemp("signals") / "store")
    remote_stores.upload(folder, s3.url("signals"), s3.options)
    return folder


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("mode", [{"threads": 0}, {}, {"threads": 2}, {"isolate": True}], ids=str)
@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGUSR1, Preempted)])
def test_a_signal_while_a_request_is_awaited(
    s3: Any, fault_proxy: Any, store: Path, tmp_path: Path, mode: dict[str, Any], number: int, kind: type
) -> None:
    """It is raised before the server answers, and the loader continues with the batch that was not given."""
    fault_proxy.clear(Faults())
    remote = ps.open_store(s3.url("signals"), storage_options=fault_proxy.options, cache_dir=tmp_path / "cache")
    loader, seen = _batches(remote).to_numpy(**mode), list[Any]()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), number))
    began = time.monotonic()
    with pytest.raises(kind):
        for batch in loader:
            seen.append(batch["input_ids"].tolist())
            if len(seen) == 3:
                fault_proxy.clear(Faults(latency=AWAITED))
                began = time.monotonic()
                timer.start()
    assert time.monotonic() - began < AWAITED / 2, "raised while the request was awaited"
    fault_proxy.clear(Faults())
    seen += [batch["input_ids"].tolist() for batch in loader]
    assert seen == [batch["input_ids"].tolist() for batch in _batches(ps.open_store(store)).to_numpy(threads=0)]


def _batches(store: ps.Pipeline) -> ps.Pipeline:
    return store.windows(64).shuffle(seed=5).batch(8)
