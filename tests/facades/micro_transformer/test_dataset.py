"""Document 002: the micro-transformer's data, under its names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import penstock as ps
from penstock import MicroTransformerTokenizer, TransformerDataset, create_dataloaders

LINES = [f"the {word} brown fox number {i} jumps over the lazy dog" for i, word in enumerate(["quick", "slow"] * 20)]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    train, val = tmp_path / "train.jsonl", tmp_path / "val.jsonl"
    train.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES))
    val.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES[:10]))
    return train, val


@pytest.fixture
def tokenizer(tmp_path: Path) -> MicroTransformerTokenizer:
    MicroTransformerTokenizer().train(LINES, vocab_size=300).save(tmp_path / "tokenizer")
    return MicroTransformerTokenizer.from_pretrained(tmp_path / "tokenizer")


def stream(tokenizer: MicroTransformerTokenizer, lines: list[str]) -> list[int]:
    return [token for line in lines for token in tokenizer.encode(line)["input_ids"]]


def test_index_i_starts_at_token_i(files, tokenizer) -> None:
    dataset = TransformerDataset(files[0], tokenizer, seq_length=16)
    tokens = stream(tokenizer, LINES)
    assert isinstance(dataset, Dataset)
    assert len(dataset) == len(tokens) - 16
    for i in (0, 1, 7, len(dataset) - 1):
        assert dataset[i]["input_ids"].tolist() == tokens[i : i + 16]
        assert dataset[i]["labels"].tolist() == tokens[i + 1 : i + 17]
    assert dataset[-1]["labels"][-1] == tokens[-1]


def test_train_is_shuffled_and_drops_the_tail_and_validation_does_neither(files, tokenizer) -> None:
    train, val = create_dataloaders(files[0], files[1], tokenizer, batch_size=16, seq_length=32, num_workers=2)
    assert isinstance(train, DataLoader)
    assert isinstance(val, DataLoader)
    tokens = stream(tokenizer, LINES[:10])
    shown = [row for batch in val for row in batch["input_ids"].tolist()]
    assert shown == [tokens[i : i + 32] for i in range(len(tokens) - 32)]
    batches = list(train)
    assert {b["input_ids"].shape for b in batches} == {torch.Size([16, 32])}
    assert len(batches) == len(train) == len(train.dataset) // 16
    seen = [row for b in batches for row in b["input_ids"].tolist()]
    tokens = stream(tokenizer, LINES)
    in_order = [tokens[i : i + 32] for i in range(len(tokens) - 32)]
    assert seen != in_order[: len(seen)]
    assert all(row in in_order for row in seen[:50])
    for batch in batches:
        assert torch.equal(batch["input_ids"][:, 1:], batch["labels"][:, :-1])
        assert batch["input_ids"].is_contiguous()


def test_plain_text_is_one_sample_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n\n  two\nthree")
    dataset = TransformerDataset(path, "bytes", seq_length=4)
    assert bytes(dataset[i]["input_ids"][0].item() for i in range(len(dataset))).decode() == "one\n\n  two\nt"


def test_the_name_decides_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "records.txt"
    path.write_text('{"body": "hello there"}\n{"body": "general"}\n')
    as_text = TransformerDataset(path, "bytes", seq_length=4)
    as_json = TransformerDataset(path, "bytes", seq_length=4, is_jsonl=True, field="body")
    assert len(as_text) > len(as_json) == len("hello theregeneral") - 4


def test_state_resumes_in_the_middle(files, tokenizer) -> None:
    make = lambda: create_dataloaders(*files, tokenizer, batch_size=8, seq_length=16, seed=4)[0]  # noqa: E731
    loader = make()
    whole = [b["input_ids"] for b in make()]
    run = iter(loader)
    for _ in range(5):
        next(run)
    fresh = make()
    fresh.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    rest = [b["input_ids"] for b in fresh]
    assert len(rest) == len(whole) - 5
    assert all(torch.equal(a, b) for a, b in zip(whole[5:], rest, strict=True))


def test_tensor_and_pipeline_ranks_see_the_same_data_and_data_ranks_others(files, tokenizer) -> None:
    def batch(rank: int) -> list:
        return next(iter(create_dataloaders(*files, tokenizer, batch_size=4, seq_length=8, rank=rank, world=2)[0]))[
            "input_ids"
        ].tolist()

    assert batch(0) == batch(0)
    assert batch(0) != batch(1)


def test_errors(files, tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ps.UsageError, match="a tokenizer"):
        create_dataloaders(*files, tokenizer=None)
    with pytest.raises(ps.PenstockError, match="nothing.jsonl"):
        create_dataloaders(tmp_path / "nothing.jsonl", files[1], tokenizer)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "fine"}\n{"text": broken}\n')
    with pytest.raises(ps.RecordError, match="line 2"):
        create_dataloaders(bad, files[1], tokenizer)
    with pytest.raises(ps.UsageError, match="at least 5001 tokens"):
        create_dataloaders(*files, tokenizer, seq_length=5000)


class OnlyEncode:
    """No vocabulary size, no decode; a dict with `input_ids`, as document 002 describes."""

    def encode(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [700] * add_special_tokens + [ord(c) for c in text] + [701] * add_special_tokens}


def test_an_object_that_only_encodes(files) -> None:
    dataset = TransformerDataset(files[0], OnlyEncode(), seq_length=8)
    assert dataset[0]["input_ids"].tolist() == [700, *map(ord, LINES[0][:7])], "what encode adds stays"
    assert dataset.pipeline.definition.origin.vocab_size == 702
    train, val = create_dataloaders(*files, OnlyEncode(), batch_size=4, seq_length=8)
    assert len(next(iter(train))["labels"]) == len(next(iter(val))["labels"]) == 4


@pytest.mark.filterwarnings("ignore:gigatoken does not take this tokenizer")
def test_special_tokens_that_the_tokenizer_adds_stay(files) -> None:
    """As document 002 reads files: `tokenizer.encode(sample)`, one sample after another."""
    import tokenizers

    words = sorted({word for line in LINES for word in line.split()})
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(["[UNK]", "[CLS]", "[SEP]", *words])}, "[UNK]")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    dataset = TransformerDataset(files[1], backend, seq_length=4)
    tokens = [token for line in LINES[:10] for token in backend.encode(line).ids]
    assert tokens[0] == 1 and tokens[-1] == 2
    shown = [dataset[i]["input_ids"][0].item() for i in range(len(dataset))] + dataset[-1]["labels"].tolist()
    assert shown == tokens
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    assert fast.encode(LINES[0])[0] == 1
    again = TransformerDataset(files[1], fast, seq_length=4)
    assert [again[i]["input_ids"].tolist() for i in range(9)] == [dataset[i]["input_ids"].tolist() for i in range(9)]


def test_lists_of_paths(files, tokenizer, tmp_path: Path) -> None:
    both = TransformerDataset([files[0], str(files[1])], tokenizer, seq_length=16)
    tokens = stream(tokenizer, LINES + LINES[:10])
    assert len(both) == len(tokens) - 16 and both[-1]["labels"].tolist() == tokens[-16:]
    train, val = create_dataloaders(list(files), [files[1]], tokenizer, batch_size=4, seq_length=16)
    assert (len(train.dataset), len(val.dataset)) == (len(both), len(stream(tokenizer, LINES[:10])) - 16)


def test_an_error_names_the_file_of_the_two(files, tokenizer, tmp_path: Path) -> None:
    empty, short = tmp_path / "empty.jsonl", tmp_path / "short.txt"
    empty.write_text("")
    short.write_text("ab")
    for bad in (empty, short):
        for pair in ((files[0], bad), (bad, files[1])):
            with pytest.raises(ps.PenstockError, match=bad.name):
                create_dataloaders(*pair, tokenizer, seq_length=16)
    with pytest.raises(FileNotFoundError, match="nothing"):
        create_dataloaders(files[0], tmp_path / "nothing.jsonl", tokenizer)


def test_lengths_that_were_divided_and_other_arguments(files, tokenizer) -> None:
    train, val = create_dataloaders(
        *files, tokenizer, batch_size=4, seq_length=128 / 4, persistent_workers=True, num_workers=2, prefetch_factor=4
    )
    assert next(iter(train))["input_ids"].shape == next(iter(val))["input_ids"].shape == (4, 32)
    with pytest.raises(TypeError, match="there are no worker processes"):
        create_dataloaders(*files, tokenizer, seq_length=8, worker_init_fn=print)


@pytest.mark.parametrize("name", ["a.json", "A.JSONL", "a.ndjson"])
def test_json_lines_under_any_of_their_names_are_not_read_as_text(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES[:2]))
    dataset = TransformerDataset(tmp_path / name, "bytes", seq_length=4)
    assert bytes(dataset[0]["input_ids"].tolist()).decode() == LINES[0][:4]
    raw = TransformerDataset(tmp_path / name, "bytes", seq_length=4, is_jsonl=False)
    assert bytes(raw[0]["input_ids"].tolist()).decode() == '{"te'


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(b"bytes that could be text")
    with pytest.raises(ps.UsageError, match=r"a file of text or JSON lines(.|\n)*bare tokens(.|\n)*open_nanogpt"):
        TransformerDataset(tmp_path / "train.bin", "bytes", seq_length=4)
