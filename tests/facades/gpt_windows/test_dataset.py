"""Document 004: sliding windows, under its names."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, random_split

import penstock as ps
from penstock import GPTDatasetV1, create_dataloader, create_dataset


class Numbers:
    """A tokenizer whose tokens are written out: "1 2 3" is [1, 2, 3]."""

    vocab_size = 1000

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


TEXT = " ".join(str(i) for i in range(1, 15))


def test_the_documents_visual_example() -> None:
    dataset = create_dataset("gpt_v1", txt=TEXT, tokenizer=Numbers(), max_length=4, stride=2)
    pairs = [(x.tolist(), y.tolist()) for x, y in dataset]
    assert pairs[:3] == [
        ([1, 2, 3, 4], [2, 3, 4, 5]),
        ([3, 4, 5, 6], [4, 5, 6, 7]),
        ([5, 6, 7, 8], [6, 7, 8, 9]),
    ]
    loader = create_dataloader(dataset, batch_size=2, shuffle=False, drop_last=True)
    batches = [x.tolist() for x, _ in loader]
    assert batches[0] == [[1, 2, 3, 4], [3, 4, 5, 6]]
    assert batches[1] == [[5, 6, 7, 8], [7, 8, 9, 10]]


def test_any_object_with_encode_is_a_tokenizer() -> None:
    class OnlyEncode:
        def encode(self, text: str) -> list[int]:
            return [int(word) * 100_000 for word in text.split()]

    dataset = create_dataset("gpt_v1", txt=TEXT, tokenizer=OnlyEncode(), max_length=4, stride=2)
    assert dataset[1][0].tolist() == [300_000, 400_000, 500_000, 600_000]
    (inputs, targets), *_ = create_dataloader(dataset, batch_size=2, shuffle=False)
    assert inputs.dtype == torch.int64 and targets[0, 0] == 200_000
    assert dataset.pipeline.definition.origin.vocab_size == 1_400_001, "the largest id plus one"
    with pytest.raises(ps.UsageError, match="a tokenizer"):
        create_dataset("gpt_v1", txt=TEXT, tokenizer=object(), max_length=4, stride=2)


@pytest.mark.parametrize("length", [1, 3, 4, 7, 13])
@pytest.mark.parametrize("stride", [1, 2, 4, 9])
def test_windows_start_at_multiples_of_the_stride_while_a_full_target_exists(length: int, stride: int) -> None:
    dataset = GPTDatasetV1(TEXT, Numbers(), length, stride)
    tokens = list(range(1, 15))
    want = [(tokens[i : i + length], tokens[i + 1 : i + length + 1]) for i in range(0, len(tokens) - length, stride)]
    assert len(dataset) == len(want)
    assert [(x.tolist(), y.tolist()) for x, y in (dataset[i] for i in range(len(dataset)))] == want
    assert [t.tolist() for t in dataset.input_ids] == [x for x, _ in want]
    assert [t.tolist() for t in dataset.target_ids[:]] == [y for _, y in want]


def test_it_is_a_real_dataset_and_the_loader_a_real_dataloader() -> None:
    dataset = GPTDatasetV1(TEXT, Numbers(), 4, 1)
    loader = create_dataloader(dataset, batch_size=3)
    assert isinstance(dataset, Dataset)
    assert isinstance(loader, DataLoader)
    assert len(loader) == 3
    for inputs, targets in loader:
        assert inputs.shape == targets.shape == (3, 4)
        assert inputs.dtype == torch.int64
        assert inputs.is_contiguous()
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        inputs.view(-1)


def test_shuffle_gives_every_window_once_and_another_order_each_epoch() -> None:
    dataset = GPTDatasetV1(TEXT, Numbers(), 4, 1)
    loader = create_dataloader(dataset, batch_size=5, shuffle=True, drop_last=False, seed=3)
    first, second = ([x for batch, _ in loader for x in batch[:, 0].tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(1, 11))
    assert first != second


def test_torchs_own_loader_takes_the_dataset_on_the_batched_path() -> None:
    dataset = GPTDatasetV1(TEXT, Numbers(), 4, 2)
    plain = list(DataLoader(dataset, batch_size=3))
    assert [len(x) for x, _ in plain] == [3, 2]
    assert plain[0][0].tolist() == [dataset[i][0].tolist() for i in range(3)]
    part = Subset(dataset, [4, 0])
    assert next(iter(DataLoader(part, batch_size=2)))[0].tolist() == [dataset[4][0].tolist(), dataset[0][0].tolist()]
    train, val = random_split(dataset, [3, 2], generator=torch.Generator().manual_seed(0))
    assert sum(len(x) for x, _ in DataLoader(train, batch_size=2)) == 3
    assert sum(len(x) for x, _ in DataLoader(val, batch_size=2)) == 2
    stacked = DataLoader(dataset, batch_size=2, collate_fn=lambda rows: torch.stack([x for x, _ in rows]))
    assert next(iter(stacked)).shape == (2, 4)


def test_taken_apart_and_put_together_it_gives_the_same_batches() -> None:
    """As Accelerate and Lightning do: dataset, batch_sampler and collate_fn in a new DataLoader."""
    dataset = GPTDatasetV1(TEXT, Numbers(), 4, 1)
    loader = create_dataloader(dataset, batch_size=3, seed=5)
    again = DataLoader(dataset, batch_sampler=copy.copy(loader.batch_sampler), collate_fn=loader.collate_fn)
    assert [x.tolist() for x, _ in again] == [x.tolist() for x, _ in loader]


def test_the_state_of_a_loader_that_another_dataloader_reads_is_refused() -> None:
    loader = create_dataloader(GPTDatasetV1(TEXT, Numbers(), 4, 1), batch_size=3, seed=5)
    again = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
    loader.state_dict()
    next(iter(again))
    with pytest.raises(ps.UsageError, match="whose batches another DataLoader takes"):
        loader.state_dict()


def test_each_iter_begins_an_epoch_unless_restored() -> None:
    make = lambda: create_dataloader(GPTDatasetV1(TEXT, Numbers(), 4, 1), batch_size=2, seed=1)  # noqa: E731
    loader = make()
    epochs = [[x.tolist() for x, _ in loader] for _ in range(3)]
    loader = make()
    next(iter(loader))
    assert [x.tolist() for x, _ in loader] == epochs[1], "an epoch that was left is over"
    loader = make()
    run = iter(loader)
    next(run)
    next(run)
    state = loader.state_dict()
    fresh = make()
    fresh.load_state_dict(state)
    assert [x.tolist() for x, _ in fresh] == epochs[0][2:]
    assert [x.tolist() for x, _ in fresh] == epochs[1]


def test_workers_are_threads_and_ranks_share_each_batch() -> None:
    dataset = GPTDatasetV1(TEXT, Numbers(), 4, 1)
    whole = [x.tolist() for x, _ in create_dataloader(dataset, batch_size=4, seed=2)]
    threads = [x.tolist() for x, _ in create_dataloader(dataset, batch_size=4, seed=2, num_workers=3)]
    assert whole == threads
    ranks = [
        [x.tolist() for x, _ in create_dataloader(dataset, batch_size=2, seed=2, rank=r, world=2)] for r in range(2)
    ]
    assert [a + b for a, b in zip(*ranks, strict=True)] == whole


def test_other_datasets_get_torchs_own_loader() -> None:
    loader = create_dataloader(torch.utils.data.TensorDataset(torch.arange(6)), batch_size=2, shuffle=False)
    assert [b[0].tolist() for b in loader] == [[0, 1], [2, 3], [4, 5]]


def test_arguments_by_position_and_lengths_that_were_divided() -> None:
    want = create_dataset("gpt_v1", txt=TEXT, tokenizer=Numbers(), max_length=4, stride=2)
    same = create_dataset("gpt_v1", TEXT, Numbers(), 16 / 4, 4 / 2)
    assert (same.max_length, same.stride) == (4, 2) and isinstance(same.max_length, int)
    assert [x.tolist() for x, _ in same] == [x.tolist() for x, _ in want]
    with pytest.raises(ps.UsageError, match=r"2\.5"):
        create_dataset("gpt_v1", TEXT, Numbers(), 2.5, 1)


def test_a_batch_is_a_list_as_in_torch() -> None:
    dataset = GPTDatasetV1(TEXT, Numbers(), 4, 2)
    plain = torch.utils.data.TensorDataset(torch.zeros(4), torch.zeros(4))
    kinds = [
        type(next(iter(loader)))
        for loader in (DataLoader(plain, 2), DataLoader(dataset, 2), create_dataloader(dataset, 2))
    ]
    assert kinds == [list] * 3
    assert isinstance(create_dataloader(dataset, 2).batch_at(0), list)


def test_other_arguments_of_a_dataloader() -> None:
    dataset = GPTDatasetV1(TEXT, Numbers(), 4, 1)
    want = [x.tolist() for x, _ in create_dataloader(dataset, 2, seed=7)]
    same = create_dataloader(
        dataset, 2, generator=torch.Generator().manual_seed(7), persistent_workers=True, num_workers=2, timeout=0,
        prefetch_factor=2, multiprocessing_context="spawn", worker_init_fn=None, sampler=None,
    )  # fmt: skip
    assert [x.tolist() for x, _ in same] == want

    def first(samples: list) -> torch.Tensor:
        assert isinstance(samples[0], tuple) and len(samples) == 2
        return torch.stack([x[0] for x, _ in samples])

    collated = create_dataloader(dataset, 2, seed=7, collate_fn=first)
    assert [batch.tolist() for batch in collated] == [[row[0] for row in batch] for batch in want]
    assert collated.batch_at(1).tolist() == [row[0] for row in want[1]]
    again = DataLoader(dataset, batch_sampler=create_dataloader(dataset, 2, seed=7).batch_sampler, collate_fn=first)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in create_dataloader(
        dataset, 2, seed=7, collate_fn=first
    )]  # fmt: skip
    for name, value, reason in (
        ("worker_init_fn", print, "there are no worker processes"),
        ("sampler", [1, 2], "shuffle= and seed= decide the order"),
        ("in_order", False, "leave it out"),
        ("batchsize", 3, "leave it out"),
    ):
        with pytest.raises(TypeError, match=reason):
            create_dataloader(dataset, 2, **{name: value})
    plain = create_dataloader(torch.utils.data.TensorDataset(torch.arange(6)), 2, collate_fn=len)
    assert list(plain) == [2, 2, 2]
    with pytest.raises(ps.UsageError, match="with_distributed"):
        create_dataloader(torch.utils.data.TensorDataset(torch.arange(6)), 2, rank=0, world=2)


def test_the_seed_of_torch_does_not_matter_and_set_epoch_does() -> None:
    dataset = GPTDatasetV1(TEXT, Numbers(), 4, 1)
    orders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        loader = create_dataloader(dataset, 2)
        orders.append([[x.tolist() for x, _ in loader] for _ in range(2)])
    assert orders[0] == orders[1]
    loader = create_dataloader(dataset, 2)
    loader.set_epoch(1)
    assert [x.tolist() for x, _ in loader] == orders[0][1]
    loader.set_epoch(0)
    assert [x.tolist() for x, _ in loader] == orders[0][0]


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ps.UsageError, match=r"10 windows(.|\n)*a smaller batch_size, or drop_last=False"):
        create_dataloader(GPTDatasetV1(TEXT, Numbers(), 4, 1), batch_size=10**5)
    with pytest.raises(ps.UsageError, match="3 windows on each of 4 ranks"):
        create_dataloader(GPTDatasetV1(TEXT, Numbers(), 4, 1), batch_size=3, rank=0, world=4)
    with pytest.raises(ps.UsageError, match="a dataset_type among"):
        create_dataset("gpt_v2", txt="", tokenizer="bytes")
    with pytest.raises(ps.UsageError, match="at least 257 tokens for one window of 256"):
        GPTDatasetV1("short", "bytes")
    with pytest.raises(ps.UsageError, match="txt, a string"):
        GPTDatasetV1(["a", "b"], "bytes")
    with pytest.raises(IndexError, match="window 99 of"):
        GPTDatasetV1(TEXT, Numbers(), 4, 2)[99]
    with pytest.raises(ps.UsageError, match="num_workers of 0 or more"):
        create_dataloader(GPTDatasetV1(TEXT, Numbers(), 4, 2), num_workers=-1)


def test_a_misspelt_argument_and_a_text_in_the_place_of_the_type_are_answered_with_the_right_ones() -> None:
    dataset = GPTDatasetV1("abcdefgh" * 9, "bytes", 4, 4)
    with pytest.raises(ps.PenstockError, match="fix: +batch_size=4"):
        create_dataloader(dataset, batchsize=4)
    with pytest.raises(ps.UsageError, match=r"create_dataset\(\"gpt_v1\", txt, tokenizer") as caught:
        create_dataset("a long text " * 1000, "bytes", 4, 4)
    assert len(str(caught.value)) < 300
