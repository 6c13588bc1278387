"""`jax.distributed` with 2 and 4 local CPU processes: global arrays, each sample once, resume on another number."""

from __future__ import annotations

import inspect
import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.facades.capibara.loader import CapibaraDataLoader

ROOT = Path(__file__).parents[2]
TEXTS = [f"{i:03d}" for i in range(64)]
BATCH, DEVICES = 8, 4  # devices over all processes


def packed() -> ps.Pipeline:
    """Also run by the worker, from its source."""
    lengths = np.random.default_rng(0).integers(20, 90, 200)
    edges = np.concatenate([[0], np.cumsum(lengths)])
    return ps.open_tokens(np.arange(edges[-1]).astype(np.uint16), edges).pack(128).shuffle(seed=1).batch(8)


def laned() -> ps.Pipeline:
    """The same, for lanes."""
    tokens = ps.open_tokens(np.arange(6000).astype(np.uint16))
    return tokens.windows(16).shuffle(seed=5, lanes=4, block=6, window=2).batch(8)


PACKED = "from __future__ import annotations\nimport numpy as np\nimport penstock as ps\n" + inspect.getsource(packed)
PACKED += inspect.getsource(laned)

WORKER = """
import json, sys
import jax
import numpy as np
address, world, rank, per, cache, state, steps, layout = sys.argv[1:]
world, rank = int(world), int(rank)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", int(per))
jax.distributed.initialize(address, world, rank)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from penstock.facades.capibara.loader import CapibaraDataLoader

assert jax.process_count() == world and len(jax.devices()) == world * int(per)
devices = np.array(jax.devices())
if layout == "rows":
    sharding = NamedSharding(Mesh(devices, ("data",)), P("data"))
elif layout == "backwards":
    sharding = NamedSharding(Mesh(devices[::-1], ("data",)), P("data"))
else:  # all processes hold the same rows, each a part of every row
    sharding = NamedSharding(Mesh(devices, ("model",)), P(None, "model"))
texts = [f"{i:03d}" for i in range(64)]
loader = CapibaraDataLoader(
    tokenizer="bytes", dataset_name=texts, batch_size=8, max_length=4, seed=11, eos=False, pad_id=0,
    cache_dir=cache, sharding=sharding,
)
if state != "-":
    loader.load_state_dict(json.loads(state))
total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(sharding.mesh, P()))
out = {"sums": [], "shards": []}
run = iter(loader)
for _ in range(int(steps)):
    batch = next(run)
    ids = batch["input_ids"]
    assert ids.shape == (8, 4) and ids.sharding == sharding, (ids.shape, ids.sharding)
    out["sums"].append(int(total(ids)))
    shards = ids.addressable_shards
    pieces = [(s.index[0].start or 0, s.index[1].start or 0, np.asarray(s.data).tolist()) for s in shards]
    out["shards"].append(pieces)
out["state"] = loader.state_dict()
if layout == "rows":
    batches = list(packed().to_jax(sharding=sharding))
    assert all("cu_seqlens" not in b and "max_seqlen" not in b for b in batches)
    out["packed"] = [[int(total(b["input_ids"])), int(total(b["labels"])), int(b["valid_labels"])] for b in batches]
    out["lanes"] = []
    run = laned().to_jax(sharding=sharding)
    for b in run:
        shards = b["input_ids"].addressable_shards
        out["lanes"].append([int(row[0]) for s in shards for row in np.asarray(s.data)])
        if run.step == 3:
            saved = run.state_dict()
    run.load_state_dict(saved)
    b = next(iter(run))
    again = [int(row[0]) for s in b["input_ids"].addressable_shards for row in np.asarray(s.data)]
    assert again == out["lanes"][3], "resumed"
print(json.dumps(out))
"""


def start(world: int, cache: Path, state: Any, steps: int, layout: str = "rows") -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    saved = "-" if state is None else json.dumps(state)
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    environ.pop("XLA_FLAGS", None)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PACKED + textwrap.dedent(WORKER), f"127.0.0.1:{port}", str(world), str(rank)]
            + [str(DEVICES // world), str(cache), saved, str(steps), layout],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = []
    try:
        for child in children:
            out, err = child.communicate(timeout=120)
            assert child.returncode == 0, err[-3000:]
            said.append(json.loads(out.strip().splitlines()[-1]))
    finally:
        for child in children:
            child.kill()
    return said


def whole(said: list[dict[str, Any]], step: int) -> np.ndarray:
    """The global array of a step, from the pieces that each process holds."""
    out = np.full((BATCH, 4), -1)
    for one in said:
        for row, column, data in one["shards"][step]:
            piece = np.array(data)
            out[row : row + piece.shape[0], column : column + piece.shape[1]] = piece
    return out


@pytest.fixture
def want(tmp_path: Path) -> list[np.ndarray]:
    """The batches of one process alone."""
    loader = CapibaraDataLoader(
        tokenizer="bytes", dataset_name=TEXTS, batch_size=BATCH, max_length=4, seed=11, eos=False, pad_id=0,
        cache_dir=str(tmp_path),
    )  # fmt: skip
    batches = [np.asarray(batch["input_ids"]) for batch in loader]
    assert len({bytes(row) for batch in batches for row in batch}) == len(TEXTS)
    return batches


def test_global_arrays_and_resume_on_another_number_of_processes(want: list[np.ndarray], tmp_path: Path) -> None:
    first = start(2, tmp_path, None, 3)
    assert all(one["state"] == first[0]["state"] for one in first), "the state is the same on every process"
    second = start(4, tmp_path, first[0]["state"], 3)
    third = start(2, tmp_path, second[0]["state"], 2)
    got = [whole(said, step) for said in (first, second, third) for step in range(len(said[0]["sums"]))]
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    sums = [s for said in (first, second, third) for s in said[0]["sums"]]
    assert sums == [int(batch.sum()) for batch in want], "a jitted step over the global array sees all rows"
    for said in (first, second):  # every row in exactly one process
        held = [[row for row, _, _ in one["shards"][0]] for one in said]
        assert sorted(row for rows in held for row in rows) == list(range(0, BATCH, BATCH // DEVICES))
    packs = [
        [int(b["input_ids"].sum()), int(b["labels"].sum()), int(b["valid_labels"])]
        for b in packed().to_numpy(threads=0)
    ]
    assert len(packs) > 3 and all(one["packed"] == packs for said in (first, second) for one in said)
    lanes = [sorted(int(row[0]) for row in b["input_ids"]) for b in laned().to_numpy(threads=0)]
    assert len(lanes) > 9
    for said in (first, second):  # a step has the same rows on any number of processes, each row in one of them
        assert [sorted(sum(step, [])) for step in zip(*(one["lanes"] for one in said), strict=True)] == lanes


@pytest.mark.parametrize("layout", [pytest.param("backwards", marks=pytest.mark.soak), "columns"])
def test_meshes_of_other_orders(want: list[np.ndarray], tmp_path: Path, layout: str) -> None:
    said = start(2, tmp_path, None, 2, layout)
    for step in range(2):
        assert np.array_equal(whole(said, step), want[step])
        assert said[0]["sums"][step] == int(want[step].sum())
