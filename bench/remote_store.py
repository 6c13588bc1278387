"""Windows from a token store on an S3 server: against bare requests, a local store, and other streaming libraries.

A SeaweedFS server on loopback, 50 M uint16 tokens, rows of 1,024, batches of 128. MosaicML Streaming and LitData need
environments of their own (`python -m bench.peers torch`); a library that is absent or fails is reported as not
measured, with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tests.storage.servers import KEY, SECRET, Server, seaweedfs

import penstock as ps
from bench._cold_epochs import BATCH, BEHIND, LANES, LENGTH, NETWORK, ORDERS, Remote, compare, epoch, necessary
from bench.common import judge, left_out, medians, rounds, save, table
from bench.peers import python_with
from penstock.core.columns import Ragged
from penstock.storage import metrics, objects
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardWriter

TOKENS = 50_000_000
SHARD_TOKENS = 12_500_000
LATENCY, STEP, STEPS, FIRST = 0.05, 0.1, 40, 10
ONE, LOCAL = "global shuffle, threads=1", "local store, global shuffle"
PEERS = ("streaming", "litdata")
READERS = Path(__file__).with_name("_remote_readers.py")
PROXY = """
import sys
from tests.storage.fault_proxy import FaultProxy, Faults
with FaultProxy(sys.argv[1], Faults(latency=float(sys.argv[2]), link=float(sys.argv[3]))) as proxy:
    print(proxy.endpoint, flush=True)
    sys.stdin.read()
"""


def write_store(folder: Path, count: int) -> np.ndarray:
    """Documents of LENGTH + 1 tokens, in shards."""
    folder.mkdir()
    count -= count % (LENGTH + 1)
    tokens = np.random.default_rng(0).integers(0, 50_257, count, np.uint16)
    shards = []
    each = SHARD_TOKENS // (LENGTH + 1) * (LENGTH + 1)
    for number, at in enumerate(range(0, count, each)):
        part = tokens[at : at + each]
        with ShardWriter(folder / f"{number:05d}.tokens", vocab_size=50_257) as shard:
            shard.add(Ragged(part, np.arange(0, len(part) + 1, LENGTH + 1)))
        shards.append(shard.finish())
    write_manifest(folder, shards)
    return tokens


def upload(folder: Path, server: Server, name: str) -> str:
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        objects.put_new(server.url(name, *path.relative_to(folder).parts), path, server.options)
    return server.url(name)


def local_pipeline(store: Path) -> ps.Pipeline:
    return ps.open_store(store).windows(LENGTH).shuffle(seed=1).batch(BATCH)


def rates(remote: Remote, local: Path, count: int) -> dict[str, float]:
    """Rows a second from a warm cache and from a local store."""
    here = local_pipeline(local)
    epoch(lambda: here)
    remote.cold()
    return medians(
        rounds(
            {
                "warm, global shuffle": lambda: epoch(remote.pipeline),
                "local store": lambda: epoch(lambda: here),
                "local store, just opened": lambda: epoch(lambda: local_pipeline(local)),
            },
            count,
        )
    )


def cold_epochs(server: Server, url: str, folder: Path, count: int) -> dict[str, dict[str, Any]]:
    """Cold epochs against bare requests of the same bytes: on loopback, and behind what is like a network."""
    found = {}
    with slow_proxy(server, **NETWORK) as endpoint:
        for where, options in (("loopback", {}), (BEHIND, {"endpoint": endpoint})):
            remote = Remote(url, server.options | options, folder / where.replace(" ", "-"))
            for name, order in ORDERS.items():
                found[f"{where}, {name}"] = compare(remote, server, order, count)
            remote.empty()
    return found


def requests(remote: Remote) -> dict[str, dict[str, float]]:
    """Requests of an epoch with an empty cache: planned, made step by step, and made by a `for` that fetches ahead."""
    found = {}
    for name, order in ORDERS.items():
        remote.empty()
        pipeline = remote.pipeline(**order)
        reading = pipeline.plan().reading
        assert reading is not None
        planned = reading.requests + reading.opening_requests_per_host - 1  # the manifest was read
        counts = {"rows": float(remote.rows), "planned": planned}
        before, loader = metrics.counters(), pipeline.to_numpy(threads=0)
        for step in range(len(loader)):
            loader.batch_at(step)
        used = metrics.since(before)["s3"]
        counts["step by step"] = used.requests - used.hedges - used.retries
        remote.empty()
        loader = remote.pipeline(**order).to_numpy()
        for _ in loader:
            pass
        counts["for"] = loader.stats()["storage"]["requests"]
        found[name] = counts
    return found


@contextmanager
def slow_proxy(server: Server, latency: float = LATENCY, link: float = 0.0) -> Iterator[str]:
    """The address of a proxy, in a process of its own, that delays each request; `link` bytes a second pass it."""
    command = [sys.executable, "-c", PROXY, server.endpoint, str(latency), str(link)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(20)


def waiting(pipeline: ps.Pipeline, threads: int | None = None) -> dict[str, float]:
    """The share of time that a trainer with steps of STEP seconds waits, after the first FIRST steps."""
    loader = pipeline.to_torch(threads=threads)
    waits, later, before = [], 0.0, metrics.counters()
    run = iter(loader)
    for _ in range(STEPS):
        asked = time.perf_counter()
        next(run)
        waits.append(time.perf_counter() - asked)
        time.sleep(STEP)
        if len(waits) == FIRST:
            later = time.perf_counter()
    took = time.perf_counter() - later
    run.close()
    storage = metrics.since(before).get("s3", metrics.Counters())
    return {
        "share": sum(waits[FIRST:]) / took,
        "first_batch": waits[0],
        "median_ms": 1e3 * float(np.median(waits[FIRST:])),
        "longest_ms": 1e3 * max(waits[FIRST:]),
        "requests": storage.requests,
        "megabytes": storage.bytes / 1e6,
    }


def waits_behind(slow: Remote, local: Path) -> dict[str, dict[str, float]]:
    """The waiting of a trainer behind a slow network, and with the same store on disk: what is not storage's."""
    found = {}
    for name, order, threads in (("global shuffle", {}, None), ("lanes", {"lanes": LANES}, None), (ONE, {}, 1)):
        slow.empty()
        found[name] = waiting(slow.pipeline(**order), threads)
    found[LOCAL] = waiting(local_pipeline(local))
    return found


def reader(python: str, name: str, job: dict[str, Any], environment: dict[str, str]) -> list[dict[str, float]] | str:
    """Runs a library in a process of its own; the reason if it cannot."""
    command = [python, "-P", str(READERS), name, json.dumps(job)]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=120, env=os.environ | environment
        )
    except subprocess.TimeoutExpired:
        return "did not end in 120 s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines else []


def libraries(
    server: Server, url: str, tokens: np.ndarray, store: Path, folder: Path, count: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Rows per second of processor time, cold and warm, imports not counted; and why a library was not measured."""
    environment = {
        "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1",
        "S3_ENDPOINT_URL": server.endpoint, "AWS_ENDPOINT_URL": server.endpoint, "TMPDIR": str(folder),
        "LITDATA_DISABLE_VERSION_CHECK": "1",
    }  # fmt: skip
    shared = {"length": LENGTH, "batch": BATCH}
    jobs: dict[str, tuple[str, dict[str, Any]]] = {
        "penstock": (sys.executable, {"url": url, "options": server.options})
    }
    found_in = {name: python_with(name) for name in PEERS}
    absent = {name: "no environment has it" for name, python in found_in.items() if python is None}
    if python := found_in["streaming"]:
        ps.convert(str(store), folder / "mds", to="mds")
        jobs["streaming"] = (python, {"url": upload(folder / "mds", server, "mds")})
    if python := found_in["litdata"]:
        tokens.tofile(folder / "raw.bin")
        written = {"raw": str(folder / "raw.bin"), "out": str(folder / "litdata"), "chunk_bytes": 1 << 26}
        if isinstance(wrote := reader(python, "write_litdata", shared | written, environment), str):
            absent["litdata"] = wrote
            left_out("litdata", wrote)
        else:
            boto = {"endpoint_url": server.endpoint, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
            boto["region_name"] = "us-east-1"
            jobs["litdata"] = (python, {"url": upload(folder / "litdata", server, "litdata"), "boto": boto})
    found: dict[str, Any] = {}
    for number in range(count):
        for name, (program, job) in list(jobs.items()):
            cache = folder / f"{name}-{number}"
            ran = reader(program, name, shared | job | {"cache": str(cache)}, environment)
            shutil.rmtree(cache, ignore_errors=True)
            if isinstance(ran, str):
                absent[name] = ran
                left_out(name, ran)
                del jobs[name]
                continue
            for state, facts in zip(("cold", "warm"), ran, strict=True):
                rows = facts["rows"]
                found.setdefault(f"{name}, {state}", []).append((rows / facts["processor"], rows / facts["seconds"]))
    measured = {name: {"per_processor_second": _median(v, 0), "per_second": _median(v, 1)} for name, v in found.items()}
    return measured, absent


def _median(values: list[tuple[float, float]], place: int) -> float:
    return float(np.median([value[place] for value in values]))


def run(count: int = 3, size: int = TOKENS) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, seaweedfs(Path(name, "server")) as server:
        folder = Path(name)
        store = folder / "store"
        tokens = write_store(store, size)
        url = upload(store, server, "store")
        remote = Remote(url, server.options, folder)
        cold = cold_epochs(server, url, folder, max(5, count))
        parts = necessary(tokens, folder)
        speed = rates(remote, store, count)
        made = requests(remote)
        rows, absent = libraries(server, url, tokens, store, folder, max(1, count // 3))
        write_store(folder / "large", 2 * size)
        far = upload(folder / "large", server, "large")
        with slow_proxy(server) as endpoint:
            slow = Remote(far, server.options | {"endpoint": endpoint}, folder / "slow")
            waits = waits_behind(slow, folder / "large")
    return report(cold, parts, speed, made, rows, absent, waits)


def report(
    cold: Any, parts: dict[str, float], speed: Any, made: Any, rows: Any, absent: dict[str, str], waits: Any
) -> dict[str, Any]:
    timed = [f"{who} {what}" for who in ("cold", "bare") for what in ("clock", "ours", "server")]
    table(
        "Milliseconds of an epoch with an empty cache, opening included: clock, processor time here and in the server",
        [
            (name, f"{facts['requests']}", *(f"{facts[what]:.0f}" for what in timed), f"{facts['ratio']:.2f}")
            for name, facts in cold.items()
        ],
        ("where", "requests", *timed, "rate of cold / of bare"),
    )
    each = ", ".join(f"{what} {value:.0f}" for what, value in parts.items())
    print(f"  necessary besides the requests, ms of processor time: {each}")
    for name, facts in cold.items():
        if name.startswith("loopback"):
            bare = facts["bare ours"] + facts["bare server"]
            print(f"  {name}: at most {bare / (bare + sum(parts.values())):.2f} where all processors are busy")
    mega = {name: value * 2 * LENGTH / 1e6 for name, value in speed.items()}
    table(
        f"Epochs of rows of {LENGTH} tokens, batches of {BATCH}, opening included",
        [(name, f"{value:,.0f}", f"{mega[name]:,.0f}") for name, value in speed.items()],
        ("what", "rows/s", "MB/s"),
    )
    counted = ("planned", "step by step", "for")
    table(
        "Requests per row of an epoch with an empty cache",
        [(name, *(f"{facts[what] / facts['rows']:.5f}" for what in counted)) for name, facts in made.items()],
        ("order", *counted),
    )
    table(
        "Rows per second of processor time, in processes of their own",
        [(name, f"{v['per_processor_second']:,.0f}", f"{v['per_second']:,.0f}") for name, v in rows.items()],
        ("library", "rows/processor-s", "rows/s"),
    )
    table(
        f"A trainer with steps of {STEP * 1e3:.0f} ms, {LATENCY * 1e3:.0f} ms more for each request",
        [
            (
                name,
                f"{v['share']:.2%}",
                f"{v['median_ms']:.2f}",
                f"{v['longest_ms']:.1f}",
                f"{v['first_batch']:.2f}",
                f"{v['requests']:.0f}",
                f"{v['megabytes']:.0f}",
            )
            for name, v in waits.items()
        ],
        ("order", f"waited after {FIRST} steps", "median ms", "longest ms", "first batch, s", "requests", "MB"),
    )
    targets = [judge(f"cold, {name}: of bare requests", facts["ratio"], 0.8) for name, facts in cold.items()]
    targets += [
        judge(
            "warm: of a local store that was just opened, too",
            speed["warm, global shuffle"] / speed["local store, just opened"],
            0.8,
        ),
    ]
    for name, facts in made.items():
        exact, ahead = (facts[what] / facts["planned"] for what in counted[1:])
        targets += [
            judge(f"requests, {name}: times the plan, step by step", exact, 1, most=True),
            judge(f"requests, {name}: times the plan, fetching ahead", ahead, 1.05, most=True),
        ]
    for peer in PEERS:
        for state in ("cold", "warm"):
            what = f"{state}: times {peer}, rows per processor-second"
            if peer in absent:
                targets.append((what, "-", ">= 3", f"NOT MEASURED: {absent[peer]}"))
            else:
                ours, theirs = (rows[f"{who}, {state}"]["per_processor_second"] for who in ("penstock", peer))
                targets.append(judge(what, ours / theirs, 3))
    for name, facts in waits.items():
        if name == LOCAL:
            continue
        targets.append(judge(f"50 ms latency, {name}: % of time waiting", 100 * facts["share"], 1, most=True))
    table("Targets", targets, ("what", "measured", "target", ""))
    facts = {
        "cold": cold,
        "necessary_ms": parts,
        "rows_per_second": speed,
        "requests": made,
        "libraries": rows,
        "absent": absent,
        "waiting": waits,
        "targets": targets,
    }
    save("remote_store", facts)
    return facts


if __name__ == "__main__":
    run()
