"""Accelerate on 2 and 3 real processes: every row once, another order each epoch, exact resume."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import penstock as ps
from tests.torch_data.trainers.ranks import on_ranks

ROWS, BATCH = 23, 6  # 4 batches, the last one short: 5 rows


class Numbers:
    """A tokenizer whose tokens are written out: "1 2 3" is [1, 2, 3]."""

    vocab_size = 1000

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]


def pipeline(**options: Any) -> ps.Pipeline:
    return ps.from_arrays({"x": range(ROWS)}).shuffle(seed=5).batch(BATCH, **options)


def windows() -> Any:
    """Window i starts with token i."""
    text = " ".join(map(str, range(ROWS + 2)))
    return ps.create_dataset("gpt_v1", txt=text, tokenizer=Numbers(), max_length=2, stride=1)


def _gathered(accelerator: Any, loader: Any) -> list[int]:
    """The rows of an epoch, as gather_for_metrics returns them."""
    found: list[int] = []
    for batch in loader:
        rows = batch["x"] if isinstance(batch, dict) and "x" in batch else _first(batch)
        found += accelerator.gather_for_metrics(rows).tolist()
    return found


def _first(batch: Any) -> Any:
    ids = batch["input_ids"] if isinstance(batch, dict) else batch[0]
    return ids[:, 0].contiguous()


def _accelerate(rank: int, world: int, folder: str) -> dict[Any, Any]:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    found: dict[Any, Any] = {}
    accelerator = Accelerator(cpu=True)
    for remainder in ("drop", "short", "pad"):
        loader = accelerator.prepare(pipeline(remainder=remainder).to_torch())
        epochs = [_gathered(accelerator, loader) for _ in range(2)]
        found["pipeline", remainder] = [len(loader), *epochs]
    loader = accelerator.prepare(pipeline(remainder="short").to_torch())
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        found.setdefault("set_epoch", []).append(_gathered(accelerator, loader))
    found["own shares"] = [batch["x"].tolist() for batch in accelerator.prepare(pipeline().to_torch())]
    found["whole"] = _gathered(
        accelerator, accelerator.prepare(pipeline(remainder="short").map_batches(dict, whole=True).to_torch())
    )
    explicit = accelerator.prepare(pipeline(remainder="drop").shard(rank, world).to_torch())
    found["sharded before"] = _gathered(accelerator, explicit)
    found["last"] = [accelerator.gradient_state.end_of_dataloader for _ in explicit]
    try:
        iter(pipeline().to_torch())
    except ps.UsageError as error:
        found["not prepared"] = str(error)

    # A state in the middle of an epoch, by hand and by save_state.
    loader = accelerator.prepare(pipeline(remainder="short").to_torch())
    taken = [batch["x"].tolist() for batch in islice(loader, 2)]
    state = loader.state_dict()
    accelerator.wait_for_everyone()
    other = Accelerator(cpu=True)
    saved = other.prepare(pipeline(remainder="short").to_torch())
    rest = [batch["x"].tolist() for batch in islice(saved, 2)]
    other.save_state(folder)
    rest = [batch["x"].tolist() for batch in saved]
    fresh = accelerator.prepare(pipeline(remainder="short").to_torch())
    fresh.load_state_dict(state)
    again = Accelerator(cpu=True)
    restored = again.prepare(pipeline(remainder="short").to_torch())
    again.load_state(folder)
    found["resumed"] = [taken, rest, [b["x"].tolist() for b in fresh], [b["x"].tolist() for b in restored]]
    found["state"] = state
    skipped = accelerator.skip_first_batches(accelerator.prepare(pipeline(remainder="short").to_torch()), 2)
    found["skipped"] = [batch["x"].tolist() for batch in skipped]

    # The loaders of documents 004 and 002 are sharded by Accelerate's own code.
    for split in (False, True):
        for dispatch in (False, True):
            config = DataLoaderConfiguration(split_batches=split, dispatch_batches=dispatch)
            accelerator = Accelerator(cpu=True, dataloader_config=config)
            for drop_last in (False, True):
                ours = accelerator.prepare(ps.create_dataloader(windows(), BATCH, drop_last=drop_last))
                plain = torch.utils.data.DataLoader(windows(), BATCH, shuffle=True, drop_last=drop_last)
                theirs = accelerator.prepare(plain)
                epochs = [_gathered(accelerator, ours) for _ in range(2)]
                found["windows", split, dispatch, drop_last] = [*epochs, len(_gathered(accelerator, theirs))]
    accelerator = Accelerator(cpu=True)
    path = Path(folder) / f"{rank}.txt"
    path.write_text(" ".join(map(str, range(ROWS + 2))))
    train, val = map(accelerator.prepare, ps.create_dataloaders(path, path, Numbers(), BATCH, 2))
    found["002"] = [[_gathered(accelerator, loader) for _ in range(2)] for loader in (train, val)]
    loader = accelerator.prepare(ps.create_dataloader(windows(), BATCH, drop_last=False))
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        found.setdefault("set_epoch of windows", []).append(_gathered(accelerator, loader))
    return found


@pytest.fixture(scope="module", params=[2, 3])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    world = request.param
    ranks = on_ranks(_accelerate, world, str(tmp_path_factory.mktemp("state")), world=world)
    assert [type(rank) for rank in ranks] == [dict] * world, "\n".join(map(str, ranks))
    return ranks


def once(rows: list[int]) -> bool:
    return sorted(rows) == list(range(ROWS))


@pytest.mark.parametrize("remainder", ["short", "pad"])
def test_a_prepared_pipeline_gives_every_row_once(runs: list[dict[Any, Any]], remainder: str) -> None:
    for run in runs:
        length, first, second = run["pipeline", remainder]
        assert length == 4
        assert once(first) and once(second) and first != second
    alone = [batch["x"].tolist() for batch in pipeline(remainder="short").to_torch()]
    assert [row for batch in alone for row in batch] == runs[0]["pipeline", remainder][1], "the same global batches"


def test_the_tail_is_dropped_where_asked_for(runs: list[dict[Any, Any]]) -> None:
    for run in runs:
        length, first, second = run["pipeline", "drop"]
        assert length == 3 and len(first) == len(set(first)) == 18 and first != second
        assert run["sharded before"] == first and run["last"] == [False, False, True]
    parts = [run["own shares"] for run in runs]
    assert [sum(rows, []) for rows in zip(*parts, strict=True)] == [
        batch["x"].tolist() for batch in pipeline().to_numpy()
    ]


def test_functions_of_the_global_batch(runs: list[dict[Any, Any]]) -> None:
    assert all(once(run["whole"]) for run in runs)


def test_set_epoch_of_a_prepared_pipeline(runs: list[dict[Any, Any]]) -> None:
    for run in runs:
        first, second, again = run["set_epoch"]
        assert first == again != second and once(first) and once(second)


def test_one_that_is_not_prepared_is_refused(runs: list[dict[Any, Any]]) -> None:
    for run in runs:
        assert ".shard() to the pipeline" in run["not prepared"]
        assert "prepare the loader with Accelerate" in run["not prepared"]


def test_a_prepared_pipeline_resumes_exactly(runs: list[dict[Any, Any]]) -> None:
    for run in runs:
        taken, rest, by_hand, by_accelerate = run["resumed"]
        assert rest == by_hand == by_accelerate == run["skipped"]
        assert len(taken) == len(rest) == 2 and taken != rest
        assert run["state"] == runs[0]["state"]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_create_dataloader(runs: list[dict[Any, Any]], split: bool, dispatch: bool, drop_last: bool) -> None:
    for run in runs:
        first, second, theirs = run["windows", split, dispatch, drop_last]
        assert len(first) == len(set(first)) == len(second) == len(set(second)) == theirs
        assert first != second
        assert drop_last or once(first)


def test_create_dataloaders(runs: list[dict[Any, Any]]) -> None:
    for run in runs:
        (first, second), (val, again) = run["002"]
        assert len(first) == len(set(first)) and first != second
        assert val == again == list(range(ROWS))


def test_set_epoch_of_windows(runs: list[dict[Any, Any]]) -> None:
    for run in runs:
        first, second, again = run["set_epoch of windows"]
        assert first == again != second and once(first)
