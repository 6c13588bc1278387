"""Torch DataLoaders with spawned and forkserver workers over our datasets give the rows of this process.

Document 002 allows only these two start methods.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import penstock as ps

STARTS = ("spawn", "forkserver")


def _gpt(root: Path) -> Any:
    return ps.GPTDatasetV1("the quick brown fox jumps over the lazy dog " * 3, "bytes", max_length=8, stride=5)


def _transformer(root: Path) -> Any:
    (root / "train.jsonl").write_text("\n".join(json.dumps({"text": f"sample number {i}"}) for i in range(4)))
    return ps.TransformerDataset(root / "train.jsonl", "bytes", seq_length=16)


def _preprocessed(root: Path) -> Any:
    offset = 3
    return ps.PreprocessedDataset([{"n": i} for i in range(30)], lambda record: {"x": record["n"] + offset})


def _streaming(root: Path) -> Any:
    offset = 4
    records = [{"n": i} for i in range(30)]
    return ps.StreamingPreprocessedDataset(lambda: iter(records), lambda record: {"x": record["n"] + offset})


DATASETS: dict[str, Callable[[Path], Any]] = {
    "GPTDatasetV1": _gpt,
    "TransformerDataset": _transformer,
    "PreprocessedDataset": _preprocessed,
    "StreamingPreprocessedDataset": _streaming,
}


def rows(loader: Any) -> list[Any]:
    """Every row of a loader without its batches, as plain numbers."""
    out: list[Any] = []
    for batch in loader:
        columns = list(batch.values()) if isinstance(batch, dict) else list(batch)
        out += [[column[i].tolist() for column in columns] for i in range(len(columns[0]))]
    return out


@pytest.mark.parametrize(
    ("name", "start"), [*((name, "spawn") for name in DATASETS), ("GPTDatasetV1", "forkserver"),
                        *(pytest.param(name, "forkserver", marks=pytest.mark.soak) for name in list(DATASETS)[1:])]
)  # fmt: skip
def test_workers_give_the_rows_of_this_process(name: str, start: str, tmp_path: Path) -> None:
    dataset = DATASETS[name](tmp_path)
    expected = rows(DataLoader(dataset, batch_size=4))
    assert len(expected) > 8
    made = rows(DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=start))
    in_turn = name == "StreamingPreprocessedDataset"  # torch takes a stream's batches from its workers in turn
    assert (sorted(made) if in_turn else made) == expected


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("how", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_have_the_same_rows(name: str, how: Callable[[Any], Any], tmp_path: Path) -> None:
    dataset = DATASETS[name](tmp_path)
    assert rows(DataLoader(how(dataset), batch_size=4)) == rows(DataLoader(dataset, batch_size=4))


def add_one(batch: list[dict[str, int]]) -> torch.Tensor:
    return torch.tensor([row["x"] + 1 for row in batch])


@pytest.mark.parametrize("start", STARTS)
def test_builder_loaders_with_lambdas_in_spawned_processes(start: str, tmp_path: Path) -> None:
    for dataset in (_preprocessed(tmp_path), _streaming(tmp_path)):
        builder = ps.DataLoaderBuilder().with_dataset(dataset).with_batch_size(4)
        builder = builder.with_collate(lambda batch: add_one(batch) * 2)
        expected = [batch.tolist() for batch in builder.build()]
        is_map = isinstance(dataset, ps.PreprocessedDataset)
        loader = builder.with_workers(2, pin_memory=False, processes=is_map).build()
        loader.multiprocessing_context = start
        assert [batch.tolist() for batch in loader] == expected


def test_built_loaders_pickle_with_their_position(tmp_path: Path) -> None:
    gpt = ps.create_dataloader(_gpt(tmp_path), batch_size=4)
    built = ps.DataLoaderBuilder().with_dataset(_preprocessed(tmp_path)).with_batch_size(4).with_shuffle()
    built = built.with_collate(lambda batch: [row["x"] for row in batch]).build()
    for loader in (gpt, built):
        running = iter(loader)
        next(running)
        state, others = loader.state_dict(), (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader))
        rest = str(list(running))
        for other in others:
            assert other.state_dict() == state
            other.load_state_dict(state)
            assert str(list(other)) == rest
