"""Through the builder, collate functions that draw random numbers know the epoch and the row."""

from __future__ import annotations

import json

import pytest
import torch

from penstock import create_collate_fn, create_fim_collate, create_mlm_collate
from penstock.facades.preprocessed.builder import DataLoaderBuilder
from penstock.facades.preprocessed.dataset import PreprocessedDataset
from penstock.facades.preprocessed.streaming import StreamingPreprocessedDataset

# Worker counts are tested on machines with fewer cores than that, of which torch warns.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

N, WIDTH = 12, 400
EQUAL = [{"input_ids": list(range(10, 10 + WIDTH))} for _ in range(N)]  # rows that only their numbers tell apart
NUMBERED = [{"index": 100 + i, **row} for i, row in enumerate(EQUAL)]
COLLATES = {
    "mlm": (create_mlm_collate(0, mask_token_id=3, vocab_size=1000, seed=5), "labels"),
    "fim": (create_fim_collate(0, 1001, 1002, 1003, rate=1.0, seed=5), "input_ids"),
}


def same(record):
    return dict(record)


DATASETS = {
    "rows": lambda rows: rows,
    "preprocessed": lambda rows: PreprocessedDataset(rows, same),
    "stream": lambda rows: StreamingPreprocessedDataset(rows, same, buffer_size=5),
}
datasets = pytest.mark.parametrize("kind", DATASETS)
collates = pytest.mark.parametrize("collate", COLLATES)


def build(kind, collate, batch=4, rows=EQUAL, rank=None, **workers):
    builder = DataLoaderBuilder().with_dataset(DATASETS[kind](rows)).with_batch_size(batch)
    builder.with_collate(COLLATES[collate][0]).with_workers(**({"num": 0} | workers))
    if rank is not None:
        builder.with_distributed(rank, 2)
    return (builder if kind == "stream" else builder.with_shuffle().with_seed(2)).build()


def drawn(batches, collate):
    return [row for batch in batches for row in batch[COLLATES[collate][1]].tolist()]


@datasets
@collates
def test_other_draws_in_every_epoch_and_row(kind, collate):
    loader = build(kind, collate)
    epochs = [drawn(loader, collate) for _ in range(3)]
    assert len({tuple(row) for epoch in epochs for row in epoch}) == 3 * N
    assert [len(epoch) for epoch in epochs] == [N] * 3


@datasets
@collates
@pytest.mark.parametrize("workers", [{"num": 3}, {"num": 2, "processes": True}])
def test_the_same_draws_for_any_workers(kind, collate, workers):
    alone, many = build(kind, collate), build(kind, collate, **workers)
    for _ in range(2):
        assert drawn(many, collate) == drawn(alone, collate)


@datasets
def test_the_same_draws_for_any_batch_size_and_world(kind):
    whole = build(kind, "mlm")
    wide = build(kind, "mlm", batch=3)
    ranks = [build(kind, "mlm", batch=2, rank=rank) for rank in range(2)]
    for _ in range(2):
        want = drawn(whole, "mlm")
        assert drawn(wide, "mlm") == want
        steps = zip(*ranks, strict=True)
        assert [row for step in steps for row in drawn(step, "mlm")] == want


@datasets
@pytest.mark.parametrize("workers", [{"num": 0}, {"num": 2, "processes": True}])
def test_the_same_draws_after_a_resume(kind, workers):
    loader = build(kind, "mlm")
    want = [drawn(loader, "mlm") for _ in range(2)][1]
    loader = build(kind, "mlm", **workers)
    list(loader)
    run = iter(loader)
    next(run)
    state = json.loads(json.dumps(loader.state_dict()))
    fresh = build(kind, "mlm", **workers)
    fresh.load_state_dict(state)
    assert drawn(fresh, "mlm") == want[4:]


def test_any_batch_can_be_looked_at():
    loader = build("preprocessed", "mlm")
    run = [batch for _ in range(2) for batch in loader]
    for step in (4, 1, 5, 0):
        assert torch.equal(loader.batch_at(step)["labels"], run[step]["labels"])


@datasets
def test_rows_that_have_an_index_keep_it(kind):
    loader = build(kind, "mlm", rows=NUMBERED)
    for batch in loader:
        want = COLLATES["mlm"][0].at_epoch(0)([NUMBERED[i - 100] for i in batch["index"].tolist()])
        assert torch.equal(batch["labels"], want["labels"])


@datasets
def test_the_number_is_not_in_the_batch(kind):
    assert set(next(iter(build(kind, "mlm")))) == {"input_ids", "attention_mask", "labels"}


def test_trainers_that_build_a_loader_again_get_the_same_draws():
    loader = build("preprocessed", "mlm")
    want = [drawn(loader, "mlm") for _ in range(2)]
    loader.set_epoch(0)
    again = torch.utils.data.DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )
    for epoch in range(2):
        loader.batch_sampler.set_epoch(epoch)
        assert drawn(again, "mlm") == want[epoch]
    stream = build("stream", "mlm")
    again = torch.utils.data.DataLoader(stream.dataset, batch_size=4, collate_fn=stream.collate_fn)
    stream.dataset.set_epoch(0)
    first = drawn(again, "mlm")
    stream.dataset.set_epoch(1)
    assert first != drawn(again, "mlm")


def test_functions_without_an_epoch_are_called_as_they_are():
    rows = [{"input_ids": [i + 1]} for i in range(4)]
    loader = DataLoaderBuilder().with_dataset(rows).with_batch_size(2).with_collate(create_collate_fn(0)).build()
    assert loader.dataset is rows
    assert [batch["input_ids"].flatten().tolist() for batch in loader] == [[1, 2], [3, 4]]
