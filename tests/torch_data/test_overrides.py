"""Subclasses of the datasets for torch: loaders, ours and torch's, call the methods that they override."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

import penstock as ps

RECORDS = [{"n": i} for i in range(12)]


class Doubled(ps.GPTDatasetV1):
    def __getitem__(self, index):
        inputs, targets = super().__getitem__(index)
        return inputs + 1000, targets


class Half(ps.GPTDatasetV1):
    def __len__(self):
        return super().__len__() // 2


class Tens(ps.PreprocessedDataset):
    def __getitem__(self, index):
        row = super().__getitem__(index)
        return {"x": row["x"] * 10} if isinstance(row, dict) else row


class Flipped(ps.StreamingPreprocessedDataset):
    def __iter__(self):
        return ({"x": -row["x"]} for row in super().__iter__())


def row_of(record):
    return {"x": record["n"]}


@pytest.mark.parametrize("make", [ps.create_dataloader, DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_windows(make, workers):
    text = "".join(map(chr, range(33, 126)))
    plain = ps.GPTDatasetV1(text, "bytes", 8, 8)
    for cls, add, count in ((Doubled, 1000, len(plain)), (Half, 0, len(plain) // 2)):
        loader = make(cls(text, "bytes", 8, 8), batch_size=2, shuffle=False, drop_last=False, num_workers=workers)
        found = [row for inputs, _ in loader for row in inputs.tolist()]
        assert found == [[token + add for token in plain[i][0].tolist()] for i in range(count)]


def test_windows_of_ranks_are_shuffled_anew_and_resume():
    text = "".join(map(chr, range(33, 126))) * 4

    def loader(rank):
        return ps.create_dataloader(Doubled(text, "bytes", 8, 4), 3, seed=5, rank=rank, world=2)

    ranks = [loader(0), loader(1)]
    epochs = [[[batch.tolist() for batch, _ in one] for one in ranks] for _ in range(2)]
    assert epochs[0] != epochs[1]
    first = [str(row) for rank in epochs[0] for batch in rank for row in batch]
    assert len(first) == len(ranks[0]) * 6
    one = loader(0)
    next(iter(one))
    again = loader(0)
    again.load_state_dict(one.state_dict())
    assert [batch.tolist() for batch, _ in again] == epochs[0][0][1:]


def test_rows_of_a_prompt_engine():
    dataset = Tens(RECORDS, row_of)
    expected = [n * 10 for n in range(12)]
    loaders = [
        ps.DataLoaderBuilder().with_dataset(dataset).with_batch_size(5).build(),
        ps.DataLoaderBuilder().with_dataset(dataset).with_batch_size(5).with_workers(2).build(),
        DataLoader(dataset, batch_size=5),
    ]
    for loader in loaders:
        assert [x for batch in loader for x in batch["x"].tolist()] == expected
    assert [row["x"] for row in dataset] == expected
    assert [row["x"] for row in dataset.select([3, 1])] == [30, 10]


def test_rows_of_a_stream():
    for workers in (0, 2):
        builder = ps.DataLoaderBuilder().with_dataset(Flipped(RECORDS, row_of)).with_batch_size(4)
        loader = builder.with_workers(workers).build()
        assert sorted(x for batch in loader for x in batch["x"].tolist()) == [-n for n in range(11, -1, -1)]
    ranks = [
        ps.DataLoaderBuilder().with_dataset(Flipped(RECORDS, row_of)).with_batch_size(4).with_distributed(rank, 2)
        for rank in (0, 1)
    ]
    found = [x for rank in ranks for batch in rank.build() for x in batch["x"].tolist()]
    assert sorted(found) == [-n for n in range(11, -1, -1)]
