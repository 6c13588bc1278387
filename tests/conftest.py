"""For all tests: Ctrl-C can be sent, and worker processes come from a fork server, never from a fork of a process that
runs JAX's threads.
"""

from __future__ import annotations

import multiprocessing
import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a shell: tests send Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

multiprocessing.set_start_method("forkserver", force=True)
# Every worker runs the main module again, which imports pytest, and the module of its test: 0.1 s and more each.
multiprocessing.set_forkserver_preload([
    "pytest", "hypothesis.strategies", "torch", "torchdata.stateful_dataloader", "datasets",
    "penstock.facades.preprocessed.streaming", "penstock.facades.preprocessed.dataset",
    "penstock.facades.preprocessed.builder",
])  # fmt: skip


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """A real S3 server with conditional puts: `s3.url(name)`, `s3.options`."""
    from tests.storage.servers import seaweedfs

    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def fault_proxy(s3):
    """A proxy before `s3` that makes no fault until `fault_proxy.clear(Faults(...))` says which; counts requests."""
    from tests.storage.fault_proxy import FaultProxy

    with FaultProxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def unconditional(tmp_path_factory):
    """A real S3 server that ignores conditional puts."""
    from tests.storage.servers import rclone

    with rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield server
