"""Columns of Python objects: texts beside the arrays, dicts of numbers stacked, unequal arrays refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import cv2
import jax
import ml_dtypes
import numpy as np
import pytest
import torch

import penstock as ps
from penstock.codecs.audio import wav
from penstock.outputs.jax_batch import JaxBatch
from penstock.sources.record_source import RecordSource

TOKENS = np.random.default_rng(0).integers(1, 250, 6000)
LENGTHS = np.random.default_rng(1).integers(3, 60, 300)
OFFSETS = np.minimum(np.concatenate([[0], np.cumsum(LENGTHS)]), len(TOKENS))


def images(folder: Path, count: int = 12) -> ps.Pipeline:
    for i in range(count):
        (folder / "ab"[i % 2]).mkdir(exist_ok=True)
        cv2.imwrite(str(folder / "ab"[i % 2] / f"{i}.png"), np.full((9 + i, 12, 3), i, np.uint8))
    return ps.read_images(str(folder)).decode_images(8)


def sounds() -> ps.Pipeline:
    clips = [wav.encode(np.sin(np.arange(800 + 10 * i)), 8000) for i in range(12)]
    return ps.from_arrays({"audio": clips, "name": [f"clip {i}" for i in range(12)]}).decode_audio(
        8000, duration=0.05, offset="start"
    )


def records(rows: list[dict[str, Any]]) -> ps.Pipeline:
    return ps.Pipeline(RecordSource(rows))


def documents() -> ps.Pipeline:
    return ps.open_tokens(TOKENS, OFFSETS)


PIPELINES: dict[str, Any] = {
    "windows": lambda folder: ps.open_tokens(TOKENS).windows(32).shuffle(seed=1).batch(8),
    "pack": lambda folder: documents().pack(128).shuffle(seed=1).batch(3),
    "pack, static": lambda folder: documents().pack(128, static=True, max_docs=40).shuffle(seed=1).batch(3),
    "pad": lambda folder: documents().shuffle(seed=1).batch(8).pad(to=32, truncate=True),
    "images": lambda folder: images(folder).shuffle(seed=1).batch(4),
    "audio": lambda folder: sounds().shuffle(seed=1).batch(4),
    "nested": lambda folder: records([{"obs": {"a": np.ones(3) * i, "n": i}, "t": "x" * i} for i in range(12)])
    .shuffle(seed=1)
    .batch(4),
    "mix": lambda folder: ps.mix([documents().pack(128), documents().pack(128)], [0.5, 0.5], stop="first").batch(3),
}  # fmt: skip


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("name", PIPELINES)
def test_a_jitted_step_is_compiled_once_in_an_epoch(name: str, sharded: bool, tmp_path: Path) -> None:
    traced = 0

    @jax.jit
    def step(batch: Any) -> Any:
        nonlocal traced
        traced += 1
        return sum(leaf.sum() for leaf in jax.tree.leaves(batch))

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")) if sharded else None
    steps = 0
    loader = PIPELINES[name](tmp_path).to_jax(sharding=sharding)
    for _, batch in zip(range(2 * len(loader)), [*loader, *loader], strict=True):
        step(batch)
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(batch))
        steps += 1
    assert (traced, steps > 2) == (1, True)


def test_texts_are_beside_the_batch_of_jax(tmp_path: Path) -> None:
    pipeline = images(tmp_path).batch(4)
    batch = pipeline.to_jax().batch_at(0)
    assert "path" not in list(batch)
    assert batch["path"].tolist() == pipeline.to_numpy().batch_at(0)["path"].tolist() == batch.side["path"].tolist()
    assert all(isinstance(value, jax.Array) for value in {**batch}.values())
    with pytest.raises(KeyError, match="nothing"):
        batch["nothing"]
    seen = jax.jit(lambda b: b)(batch)
    with pytest.raises(ps.UsageError, match="arrays inside a jitted function(.|\n)*'path'"):
        seen["path"]
    with pytest.raises(KeyError, match="arrays inside a jitted function"):
        jax.jit(lambda b: b["path"])(batch)
    doubled = jax.tree.map(lambda x: 2 * x, batch)
    assert isinstance(doubled, JaxBatch)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(batch)]
    assert names == [f"['{name}']" for name in sorted(batch)]
    copy = pickle.loads(pickle.dumps(batch))
    assert copy["path"].tolist() == batch["path"].tolist()
    assert type(ps.from_arrays({"x": range(4)}).batch(2).to_jax().batch_at(0)) is dict


def test_packed_rows_have_their_sequences_beside_the_batch() -> None:
    packs = documents().pack(128).batch(3)
    batch, plain = packs.to_jax().batch_at(1), packs.to_numpy().batch_at(1)
    assert batch["cu_seqlens"].tolist() == plain["cu_seqlens"].tolist()
    assert "cu_seqlens" not in list(batch)
    with pytest.raises(KeyError, match="segment_ids"):
        jax.jit(lambda b: b["cu_seqlens"])(batch)
    static = documents().pack(128, static=True, max_docs=40).batch(3).to_jax().batch_at(1)
    assert isinstance(static["cu_seqlens"], jax.Array)


def test_micro_batches_of_texts_and_nested_dicts() -> None:
    rows = [{"obs": {"a": np.full(2, i)}, "t": f"t{i}"} for i in range(8)]
    batch = records(rows).batch(8).to_jax(micro_batches=2).batch_at(0)
    assert batch["obs"]["a"].shape == (2, 4, 2)
    assert batch["obs"]["a"][0, :, 0].tolist() == [0, 2, 4, 6]
    assert batch["t"].tolist() == [["t0", "t2", "t4", "t6"], ["t1", "t3", "t5", "t7"]]


@pytest.mark.parametrize("output", ["to_jax", "to_torch"])
def test_nested_dicts_of_numbers_are_stacked(output: str) -> None:
    rows = [{"obs": {"a": np.ones(3), "in": {"n": i, "v": [i, 2.5]}}} for i in range(4)]
    batch = getattr(records(rows).batch(2), output)().batch_at(1)
    assert tuple(batch["obs"]["a"].shape) == (2, 3)
    assert batch["obs"]["in"]["n"].tolist() == [2, 3]
    assert batch["obs"]["in"]["v"].tolist() == [[2, 2.5], [3, 2.5]]
    if output == "to_torch":
        assert isinstance(batch["obs"]["in"]["n"], torch.Tensor)
    else:
        assert batch["obs"]["in"]["n"].dtype == np.int32
    loader = getattr(records(rows).batch(2), output)(threads=2)
    assert len(list(loader)) == 2


@pytest.mark.parametrize(("output", "name"), [("to_jax", "JAX"), ("to_torch", "torch")])
@pytest.mark.parametrize(
    ("rows", "column", "got"),
    [
        ([{"x": np.ones((2, 3, 3))}, {"x": np.ones((4, 3, 3))}], "x", r"\(2, 3, 3\), \(4, 3, 3\)"),
        ([{"x": {"a": np.ones(2)}}, {"x": {"a": np.ones(3)}}], "x.a", r"\(2,\), \(3,\)"),
        ([{"x": {"a": np.ones(2)}}, {"x": {"b": np.ones(2)}}], "x", "others"),
        ([{"x": {"a": np.ones(2), "t": "s"}}] * 2, "x", "arrays and text together"),
        ([{"x": None}, {"x": np.ones((2, 3))}], "x", r"\(2, 3\)"),
    ],
)
def test_what_cannot_be_stacked_is_refused_with_the_way_out(
    output: str, name: str, rows: Any, column: str, got: str
) -> None:
    with pytest.raises(ps.UsageError, match=f"column '{column}' for {name}\n.*{got}") as caught:
        getattr(records(rows).batch(2), output)().batch_at(0)
    assert ".map(" in str(caught.value)


def test_texts_and_other_objects_are_lists_in_torch_and_beside_in_jax() -> None:
    rows = [{"x": i, "meta": {"url": "u", "n": i}, "tags": ["a"] * i, "none": None, "t": b"b"} for i in range(2)]
    pipeline = records(rows).batch(2)
    torch_batch, jax_batch = pipeline.to_torch().batch_at(0), pipeline.to_jax().batch_at(0)
    for name in ("meta", "tags", "none", "t"):
        assert torch_batch[name] == jax_batch[name].tolist() == [row[name] for row in rows]
    assert list(jax_batch) == ["x"]
    words = ps.from_arrays({"w": np.array(["a", "bc"]), "x": [1, 2]}).batch(2)
    assert words.to_torch().batch_at(0)["w"] == ["a", "bc"]
    assert words.to_jax().batch_at(0)["w"].tolist() == ["a", "bc"]


def test_small_floats_stay_arrays() -> None:
    half = ps.from_arrays({"x": np.ones((4, 2), np.float32)}).map_batches(
        lambda c: {"x": c["x"].astype(ml_dtypes.bfloat16)}
    )
    assert half.batch(2).to_jax().batch_at(0)["x"].dtype == jax.numpy.bfloat16


def test_ragged_columns_name_the_shortest_row() -> None:
    ragged = ps.from_arrays({"x": ps.Ragged.of([[1, 2, 3], [1, 2]])}).batch(2)
    for output in (ragged.to_jax(), ragged.to_torch()):
        with pytest.raises(ps.UsageError, match="lengths from 2 to 3"):
            output.batch_at(0)
