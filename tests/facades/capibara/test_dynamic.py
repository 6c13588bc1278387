"""Token-budget batches compile a known number of times; the state is saved beside a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from penstock.facades.capibara.loader import CapibaraDataLoader

TEXTS = [f"{i:04d}" + "x" * int(n) for i, n in enumerate(np.random.default_rng(0).integers(0, 90, 300))]


def compilations(loader: CapibaraDataLoader, epochs: int = 1) -> tuple[int, set[tuple[int, ...]], int]:
    """How often a step is traced, the shapes it saw and the batches it took."""
    traced: list[tuple[int, ...]] = []

    @jax.jit
    def step(batch: dict[str, Any]) -> Any:
        traced.append(batch["input_ids"].shape)  # runs when JAX compiles, not when the step runs
        return jnp.where(batch["labels"] == -100, 0, batch["labels"]).sum()

    batches = 0
    for _ in range(epochs):
        for batch in loader:
            step(batch)
            batches += 1
    return len(traced), set(traced), batches


def test_static_rows_compile_once() -> None:
    loader = CapibaraDataLoader(tokenizer="bytes", dataset_name=TEXTS, batch_size=16, max_length=64)
    assert compilations(loader, 2) == (1, {(16, 64)}, 36)


def test_budget_batches_compile_once_for_each_declared_shape() -> None:
    settings = {"tokenizer": "bytes", "dataset_name": TEXTS, "max_length": 96, "eos": False}
    loader = CapibaraDataLoader(**settings, batch_tokens=1024, shapes=[32, 64, 96])
    count, shapes, batches = compilations(loader, 3)
    assert shapes == {(32, 32), (16, 64), (10, 96)}
    assert count == 3
    assert batches == 3 * len(loader) > 30
    # Every text once, whatever its shape; nothing but padding beside.
    seen = []
    for batch in loader:
        assert batch["input_ids"].size <= 1024
        for ids, mask, valid in zip(
            *(np.asarray(batch[n]) for n in ("input_ids", "attention_mask", "valid")), strict=True
        ):
            if valid:
                seen.append(bytes(ids[mask == 1].astype(np.uint8)).decode())
    assert sorted(seen) == sorted(TEXTS)
    usual = CapibaraDataLoader(**settings, batch_tokens=1024)
    assert len(compilations(usual)[1]) <= 4, "four shapes unless they are named"
    places = sum(b["input_ids"].size for b in loader)
    fixed = len(TEXTS) * 96
    assert places < 0.75 * fixed, "that is what budgets are for"


def test_budget_batches_resume_and_count() -> None:
    def make() -> CapibaraDataLoader:
        return CapibaraDataLoader(tokenizer="bytes", dataset_name=TEXTS, max_length=96, batch_tokens=1024, seed=4)

    loader = make()
    run = iter(loader)
    for _ in range(5):
        next(run)
    state = loader.state_dict()
    want = [np.asarray(b["input_ids"]) for b in run]
    other = make()
    other.load_state_dict(state)
    assert all(np.array_equal(a, b["input_ids"]) for a, b in zip(want, other, strict=True))
    held = make()
    one = next(iter(held))
    real = np.asarray(one["attention_mask"])[np.asarray(one["valid"])]
    assert held.stats()["tokens"] == {"all": int(real.sum())}


def test_gradient_accumulation_equals_the_whole_batch() -> None:
    table = jnp.linspace(-1.0, 1.0, 257)

    def loss(weight: Any, batch: dict[str, Any]) -> Any:
        known = batch["labels"] != -100
        guess = weight * table[batch["input_ids"]]
        return jnp.where(known, (guess - table[batch["labels"]]) ** 2, 0.0).sum()

    @jax.jit
    def accumulated(weight: Any, batch: dict[str, Any]) -> Any:
        def add(total: Any, micro: dict[str, Any]) -> Any:
            return total + jax.grad(loss)(weight, micro), None

        return jax.lax.scan(add, jnp.zeros(()), batch)[0]

    settings = {"tokenizer": "bytes", "dataset_name": TEXTS, "batch_size": 12, "max_length": 32}
    whole = next(iter(CapibaraDataLoader(**settings)))
    parts = next(iter(CapibaraDataLoader(**settings, micro_batches=4)))
    assert float(accumulated(0.3, parts)) == pytest.approx(float(jax.grad(loss)(0.3, whole)), rel=1e-4)


def test_orbax_saves_the_state_beside_the_model(tmp_path: Path) -> None:
    def make(batch_size: int = 10) -> CapibaraDataLoader:
        return CapibaraDataLoader(tokenizer="bytes", dataset_name=TEXTS, batch_size=batch_size, max_length=32, seed=2)

    loader = make()
    run = iter(loader)
    weight = jnp.zeros(3)
    for _ in range(4):
        weight = weight + next(run)["input_ids"].sum()
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        args = ocp.args.Composite(
            model=ocp.args.StandardSave({"w": weight}), data=ocp.args.JsonSave(loader.state_dict())
        )
        manager.save(4, args=args)
    want = [np.asarray(b["input_ids"]) for b in run]
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        found = manager.restore(
            manager.latest_step(),
            args=ocp.args.Composite(model=ocp.args.StandardRestore({"w": jnp.zeros(3)}), data=ocp.args.JsonRestore()),
        )
    assert np.array_equal(found["model"]["w"], weight)
    again = make()
    again.load_state_dict(found["data"])
    assert again.step == 4
    assert all(np.array_equal(a, b["input_ids"]) for a, b in zip(want, again, strict=True))
