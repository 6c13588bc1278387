"""Sharded delivery on 8 virtual CPU devices, in a child process since JAX fixes its devices when it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import UsageError
from penstock.engine.loader import Loader
from penstock.outputs.jax import JaxOutput, share_of

ROOT = Path(__file__).parents[2]


def run(body: str, *arguments: str) -> str:
    """Runs a script that sees 8 CPU devices."""
    environ = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT / "src"),
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body), *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_sharded_batch_equals_the_unsharded_one() -> None:
    said = run(
        """
        import jax, numpy as np, penstock as ps
        from jax.sharding import NamedSharding, PartitionSpec as P
        from penstock.engine.loader import Loader
        from penstock.outputs.jax import JaxOutput
        assert len(jax.devices()) == 8
        pipeline = ps.open_tokens(np.arange(5000) % 997, vocab_size=997).windows(16).shuffle(seed=3).batch(16)
        plain = pipeline.to_numpy()
        mesh = jax.make_mesh((8,), ("data",))
        square = jax.make_mesh((4, 2), ("data", "model"))
        for sharding, rows in (
            (NamedSharding(mesh, P("data")), 2),
            (NamedSharding(square, P("data")), 4),
            (NamedSharding(square, P("data", "model")), 4),
            (NamedSharding(mesh, P()), 16),
        ):
            loader = pipeline.to_jax(sharding=sharding, threads=2)
            for want, got in zip(plain, loader, strict=True):
                for name in want:
                    assert got[name].sharding == sharding, got[name].sharding
                    assert np.array_equal(got[name], want[name])
                    for shard in got[name].addressable_shards:
                        assert shard.data.shape[0] == rows
                        assert np.array_equal(shard.data, want[name][shard.index])
            plain.seek_epoch(0)
        # Fewer axes than the sharding names, and none: masks and counts go along.
        table = ps.from_arrays({"x": np.ones((32, 4), np.float32), "valid": np.ones(32, bool)}).batch(8)
        batch = next(iter(table.to_jax(sharding=NamedSharding(square, P("data", "model")))))
        assert batch["valid"].sharding.spec == P("data")
        # Micro-batches: the same rows, one part after another.
        output = JaxOutput(NamedSharding(mesh, P("data")), micro_batches=2)
        small = Loader(pipeline.definition, output)
        for want, got in zip(plain, small, strict=True):
            for name in want:
                assert got[name].shape == (2, 8, 16)
                assert got[name].sharding.spec == P(None, "data")
                assert all(np.array_equal(got[name][j], want[name][j::2]) for j in range(2))
        # Under jit, and compiled once.
        traces = []
        @jax.jit
        def step(batch):
            traces.append(1)
            return batch["input_ids"].sum()
        total = sum(int(step(b)) for b in pipeline.to_jax(sharding=NamedSharding(mesh, P("data"))))
        plain.seek_epoch(0)
        assert total == sum(int(b["input_ids"].sum()) for b in plain)
        assert len(traces) == 1
        print("done")
        """
    )
    assert said.strip() == "done"


def test_transfers_are_begun_ahead_of_use() -> None:
    begun: list[int] = []
    changed = threading.Event()

    class Watched(JaxOutput):
        def deliver(self, columns: Any) -> dict[str, Any]:
            begun.append(threading.get_ident())
            if len(begun) >= 3:
                changed.set()
            return super().deliver(columns)

    pipeline = ps.from_arrays({"x": np.zeros((64, 1 << 16), np.float32)}).batch(4)
    run = iter(Loader(pipeline.definition, Watched(), threads=1, prefetch=3))
    next(run)
    assert changed.wait(10), "two more batches are placed while the first is used"
    assert threading.get_ident() not in begun
    run.close()


def test_64_bits_are_narrowed_or_refused() -> None:
    good = ps.from_arrays({"n": np.array([1, 2**31 - 1]), "f": np.array([0.5, 1.5])}).batch(2).to_jax()
    batch = next(iter(good))
    assert batch["n"].dtype == jax.numpy.int32
    assert batch["f"].dtype == jax.numpy.float32
    for value in (2**31, -(2**31) - 1):
        bad = ps.from_arrays({"n": np.array([1, value])}).batch(2).to_jax(threads=0)
        with pytest.raises(UsageError, match=f"{value}.* in 'n'"):
            next(iter(bad))


def test_wrong_micro_batches() -> None:
    with pytest.raises(UsageError, match="micro_batches of at least 1"):
        JaxOutput(micro_batches=0)
    pipeline = ps.from_arrays({"n": np.arange(9)}).batch(3)
    with pytest.raises(UsageError, match="2 micro-batches can share equally"):
        next(iter(Loader(pipeline.definition, JaxOutput(micro_batches=2), threads=0)))


def test_one_process_has_all_rows() -> None:
    mesh = jax.make_mesh((1,), ("data",))
    assert share_of(jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))) == (0, 1)


def test_packs_can_be_sharded_and_cut_into_micro_batches() -> None:
    said = run(
        """
        import jax, numpy as np, penstock as ps
        from jax.sharding import NamedSharding, PartitionSpec as P
        lengths = np.random.default_rng(0).integers(20, 90, 400)
        edges = np.concatenate([[0], np.cumsum(lengths)])
        packed = ps.open_tokens(np.arange(edges[-1]).astype(np.uint16), edges).pack(128).shuffle(seed=1).batch(16)
        want = list(packed.to_numpy(threads=0))
        mesh = jax.make_mesh((8,), ("data",))
        over, every = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
        rows = ("input_ids", "labels", "segment_ids", "position_ids")
        ways = {"sharded": {"sharding": over}, "micro": {"micro_batches": 2}}
        for name, how in (ways | {"both": {"sharding": over, "micro_batches": 2}}).items():
            for a, b in zip(want, packed.to_jax(**how), strict=True):
                assert set(b) == {*rows, "max_seqlen", "valid_labels"}, sorted(b)
                for k in rows:
                    cut = a[k] if name == "sharded" else a[k].reshape(8, 2, -1).swapaxes(0, 1)
                    assert np.array_equal(cut, b[k]), (name, k)
                assert int(b["valid_labels"]) == a["valid_labels"] and int(b["max_seqlen"]) == a["max_seqlen"]
        whole = next(iter(packed.to_jax(sharding=every)))
        assert np.array_equal(whole["cu_seqlens"], want[0]["cu_seqlens"])
        print("same")
        """
    )
    assert said.strip() == "same"
