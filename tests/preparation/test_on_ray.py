"""`prepare(..., cluster="ray")` on a real cluster: the bytes of a local run, whatever the cluster loses."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.preparation.clean import clean
from penstock.storage import objects
from tests.storage.servers import free_ports

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's own start

SETTINGS: dict[str, Any] = {"group_bytes": 60_000, "show_progress": False}
N = 3000


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for name, count in (("a", N), ("b", 20), ("c", 20)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for i in range(count):
                record = {"text": f"{name} {i} " + "word " * (i % 23), "n": i, "q": str(i), "a": str(i * i)}
                file.write("broken\n" if i % 97 == 50 else json.dumps(record) + "\n")
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Any]:
    """A head with one processor. Two clusters at once mix up their ports, so workers of pytest-xdist take turns."""
    shared = tmp_path_factory.getbasetemp() / "ray.lock"
    with (shared if worker_id == "master" else shared.parent.parent / "ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield from _cluster()


def _cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}
    (port,) = free_ports(1)
    made = Cluster(initialize_head=True, head_node_args=small | {"gcs_server_port": port, "node_manager_port": 0})
    try:
        made.small = small
        yield made
    finally:
        made.shutdown()


@pytest.fixture
def ray(cluster: Any) -> Iterator[Any]:
    import ray

    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    try:
        yield ray
    finally:
        ray.shutdown()


def odd(record: dict[str, Any]) -> bool:
    return bool(record["n"] % 2)


def jobs(corpus: Path) -> dict[str, Callable[..., Any]]:
    engine = ps.PromptEngine("bytes", "Q: {q} A: {a}", eos=0)
    fields = ["text", "n"]
    return {
        "lines": lambda out, **more: ps.prepare(ps.read_jsonl(corpus), "bytes", out, on_error="skip", **more),
        "pipeline": lambda out, **more: ps.prepare(
            ps.read_jsonl(corpus, fields=fields).skip_errors().filter(odd).map(lambda r: {"text": f"<{r['text']}>"}),
            "bytes", out, **more,
        ),
        "prompts": lambda out, **more: ps.prepare_prompts(str(corpus), engine, out, on_error="skip", **more),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["lines", "pipeline", "prompts"])
def test_the_bytes_are_those_of_a_local_run(ray: Any, corpus: Path, tmp_path: Path, name: str) -> None:
    run = jobs(corpus)[name]
    here = run(tmp_path / "here", **SETTINGS)
    there = run(tmp_path / "there", **SETTINGS, cluster="ray")
    assert here.shards > 3 and here.skipped == there.skipped > 0
    assert (here.id, here.documents, here.reasons) == (there.id, there.documents, there.reasons)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    assert run(tmp_path / "there", **SETTINGS, cluster="ray").already
    run(tmp_path / "again", **SETTINGS, cluster="ray")  # the same job in another place, in the same worker processes
    assert contents(tmp_path / "here") == contents(tmp_path / "again")


def test_errors_and_budgets_are_those_of_a_local_run(ray: Any, corpus: Path, tmp_path: Path) -> None:
    def error(out: str, **more: Any) -> str:
        with pytest.raises(ps.DataError) as caught:
            ps.prepare(ps.read_jsonl(corpus), "bytes", tmp_path / out, **SETTINGS, **more)
        return str(caught.value)

    assert "line 51, byte" in error("a")
    assert error("b", cluster="ray") == error("a")
    for budget in (3, 0.001):
        local = error("c", on_error="skip", budget=budget)
        assert f"at most {budget}" in local
        assert error("d", on_error="skip", budget=budget, cluster="ray").splitlines()[0] == local.splitlines()[0]
    lines = [json.dumps({"text": f"record {i}"}) for i in range(9000)]
    lines[7000] = lines[8000] = "broken"
    (tmp_path / "late.jsonl").write_text("\n".join(lines))
    with pytest.raises(ps.RecordError, match="line 7001, byte"):
        ps.prepare(ps.read_jsonl(tmp_path / "late.jsonl"), "bytes", tmp_path / "late", **SETTINGS, cluster="ray")


def test_relative_paths_are_those_of_the_driver(
    cluster: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_bytes(
        corpus.read_bytes() if corpus.is_file() else sorted(corpus.iterdir())[0].read_bytes()
    )
    rows = ps.read_jsonl("rows.jsonl", on_error="skip")
    made = ps.prepare(rows, "bytes", "store", **SETTINGS, cluster="ray", address=cluster.address)
    assert made.id == ps.prepare(rows, "bytes", "local", **SETTINGS).id


def test_a_node_is_lost_while_a_task_runs_on_it(cluster: Any, ray: Any, corpus: Path, tmp_path: Path) -> None:
    marks, go = tmp_path / "marks", tmp_path / "go"
    marks.mkdir()
    doomed = cluster.add_node(**{key: value for key, value in cluster.small.items() if key != "include_dashboard"})
    local, driver = str(tmp_path / "local"), os.getpid()

    def slow(record: dict[str, Any]) -> dict[str, Any]:
        import ray

        if os.getpid() != driver:  # a task: held until a node is gone, and on that node for ever
            node = ray.get_runtime_context().get_node_id()
            Path(marks, f"{node} {record['text']}").touch()
            while not go.exists() or go.read_text() in ("", node):
                time.sleep(0.01)
        return {"text": record["text"].upper()}

    def run(out: str, **more: Any) -> Any:
        rows = ps.read_jsonl(corpus, fields=["text", "n"]).skip_errors().map(slow)
        return ps.prepare(rows, "bytes", out, **SETTINGS, **more)

    answer: list[Any] = []
    thread = threading.Thread(target=lambda: answer.append(run(str(tmp_path / "out"), cluster="ray")))
    thread.start()
    for _ in range(15_000):  # minutes, on a machine with much else to do
        running = [path.name for path in marks.iterdir() if path.name.startswith(doomed.node_id)]
        if running:
            break
        time.sleep(0.01)
    assert running, "a task is in flight on the node"
    held = running[0].removeprefix(doomed.node_id)
    cluster.remove_node(doomed, allow_graceful=False)
    go.write_text(doomed.node_id)
    thread.join(240)
    assert not thread.is_alive() and answer
    assert len([path for path in marks.iterdir() if path.name.endswith(held)]) == 2, "it ran again on another node"
    ray.shutdown()
    assert run(local).id == answer[0].id
    assert contents(tmp_path / "out") == contents(Path(local))


SCRIPT = """
import sys, json
import penstock as ps
corpus, out, address, options = sys.argv[1:]
made = ps.prepare(ps.read_jsonl(corpus), "bytes", out, on_error="skip", group_bytes=60_000, show_progress=False,
    storage_options=json.loads(options), cluster="ray", address=address)
print(made.id, made.resumed)
"""


def start(corpus: Path, out: str, cluster: Any, options: Any = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(corpus), out, cluster.address, json.dumps(options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.soak
def test_the_driver_is_killed_and_started_again(cluster: Any, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = start(corpus, str(out), cluster)
    for _ in range(15_000):  # minutes, on a machine with much else to do
        if len(list(out.glob("done/*/*.json"))) >= 2:
            os.kill(first.pid, signal.SIGKILL)
            break
        assert first.poll() is None
        time.sleep(0.01)
    first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL
    second = start(corpus, str(out), cluster)
    said, error = second.communicate(timeout=120)
    assert second.returncode == 0, error
    local = ps.prepare(ps.read_jsonl(corpus), "bytes", tmp_path / "local", on_error="skip", **SETTINGS)
    assert said.split() == [local.id, "True"]
    assert contents(out) == contents(tmp_path / "local")


@pytest.mark.soak
def test_two_drivers_at_once_end_with_one_store(cluster: Any, s3: Any, corpus: Path, tmp_path: Path) -> None:
    url = s3.url("two-drivers")
    children = [start(corpus, url, cluster, s3.options) for _ in range(2)]
    answers = [child.communicate(timeout=180) for child in children]
    assert [child.returncode for child in children] == [0, 0], answers
    local = ps.prepare(ps.read_jsonl(corpus), "bytes", tmp_path / "local", on_error="skip", **SETTINGS)
    assert [said.split()[0] for said, _ in answers] == [local.id, local.id]
    clean(url, storage_options=s3.options)
    listed = objects.list_files(url, s3.options)
    found = {file.url[len(url) + 1 :]: objects.read_all(file.url, s3.options) for file in listed}
    assert found == contents(tmp_path / "local")


def test_what_a_cluster_cannot_do_is_refused(ray: Any, unconditional: Any, corpus: Path, tmp_path: Path) -> None:
    def run(out: Any, **more: Any) -> None:
        ps.prepare(ps.read_jsonl(corpus), "bytes", out, on_error="skip", **SETTINGS, **more)

    with pytest.raises(ps.StorageError, match="a cluster has many writers"):
        options = {"storage_options": unconditional.options, "single_writer": True}
        run(unconditional.url("ray"), cluster="ray", **options)
    assert objects.list_files(unconditional.url("ray"), unconditional.options) == []
    with pytest.raises(ps.UsageError, match='cluster="ray"'):
        run(tmp_path / "a", cluster="slurm")
    with pytest.raises(ps.UsageError, match='cluster="ray"'):
        run(tmp_path / "a", address="auto")
    lock = threading.Lock()

    def locked(record: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return record

    rows = ps.read_jsonl(corpus, fields=["text"]).skip_errors().map(locked, version="1")
    with pytest.raises(ps.UsageError, match="that can be pickled"):
        ps.prepare(rows, "bytes", tmp_path / "b", **SETTINGS, cluster="ray")


def test_a_wrong_address_fails_at_once(corpus: Path, tmp_path: Path) -> None:
    """Ray itself would try for minutes."""

    def refused(address: str) -> str:
        with pytest.raises(ps.UsageError, match="a Ray cluster to connect to") as caught:
            ps.prepare(ps.read_jsonl(corpus), "bytes", tmp_path / "out", cluster="ray", address=address, **SETTINGS)
        assert f"where: {address}" in str(caught.value)
        return str(caught.value)

    began = time.monotonic()
    (free,) = free_ports(1)
    assert "refused" in refused(f"127.0.0.1:{free}")
    assert "not known" in refused("no-such-host.invalid:6379")
    with socket.create_server(("127.0.0.1", 0)) as other:  # a web server, say
        address = f"127.0.0.1:{other.getsockname()[1]}"
        thread = threading.Thread(target=_answer_once, args=(other,), daemon=True)
        thread.start()
        assert "something answers that is not Ray" in refused(address)
        thread.join(10)
    assert time.monotonic() - began < 30


def _answer_once(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
