"""`penstock check`: real loaders pass; each kind of broken loader is caught by the check that is meant for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import MicroTransformerTokenizer
from penstock.cli.checks import Subject, run_checks
from penstock.facades.micro_transformer.dataset import TransformerDataset
from penstock.torch_data.windows import core_dataloader

NAMES = ["batches", "shapes", "labels", "tokens", "dtype", "contiguous", "order", "resume"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": f"sample {i} of many"}) + "\n" for i in range(40)))
    (folder / "val.txt").write_text("the validation text is not shuffled. " * 9)
    return folder / "train.jsonl", folder / "val.txt"


def test_real_loaders_hold(run: Any, files: tuple[Path, Path]) -> None:
    ran = run("check", *files, "--tokenizer", "bytes", "--batch-size", 4, "--seq-length", 16)
    assert ran.code == 0, ran.out
    lines = ran.out.splitlines()
    assert lines[-1] == "16 checks, all passed"
    assert all(line.startswith("ok ") for line in lines[:-1])
    assert lines[0].split(maxsplit=3) == ["ok", "train", "batches", "163 of 654 windows"]
    facts = run("check", *files, "--tokenizer", "bytes", "--json").json()
    assert facts["ok"] is True
    assert [c["check"] for c in facts["checks"]] == NAMES * 2


def test_with_the_documents_own_tokenizer(run: Any, files: tuple[Path, Path], tmp_path: Path) -> None:
    MicroTransformerTokenizer().train([files[1]], vocab_size=300).save(tmp_path / "tokenizer")
    ran = run("check", *files, "--tokenizer", tmp_path / "tokenizer", "--batch-size", 3, "--seq-length", 8)
    assert ran.code == 0, ran.out


@pytest.mark.parametrize("windows", [1, 2, 5, 16, 17])
def test_few_windows_are_no_failure(run: Any, tmp_path: Path, windows: int) -> None:
    (tmp_path / "a.txt").write_text("abcdefghijklmnopqrstuvwxyz"[: windows + 4])
    ran = run("check", tmp_path / "a.txt", tmp_path / "a.txt", "-t", "bytes", "--seq-length", 4, "--batch-size", 1)
    assert ran.code == 0, ran.out


def test_too_little_data_is_an_error(run: Any, files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("short")
    ran = run("check", tmp_path / "short.txt", files[1], "--tokenizer", "bytes")
    assert ran.code == 1
    assert "expected at least 129 tokens" in ran.err


class Broken:
    """A loader whose batches, length or state are spoiled."""

    def __init__(self, loader: Any, **spoil: Any) -> None:
        self._loader, self._spoil = loader, spoil

    def __getattr__(self, name: str) -> Any:
        return self._spoil.get(name) or getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader) + int(self._spoil.get("longer", 0))

    def __iter__(self) -> Iterator[Any]:
        change: Callable[[Any], Any] = self._spoil.get("change", lambda batch: batch)
        return (change(dict(batch)) for batch in self._loader)


def set_label(batch: Any) -> Any:
    return batch | {"labels": batch["input_ids"]}


def narrow(batch: Any) -> Any:
    return batch | {"input_ids": batch["input_ids"].int()}


def transpose(batch: Any) -> Any:
    return {name: tensor.t().contiguous().t() for name, tensor in batch.items()}


def cut(batch: Any) -> Any:
    return {name: tensor[:-1] for name, tensor in batch.items()}


def raise_ids(batch: Any) -> Any:
    return {name: tensor + 300 for name, tensor in batch.items()}


@pytest.mark.parametrize(
    ("spoil", "caught", "text"),
    [
        ({"change": set_label}, {"labels"}, "labels are not the inputs shifted by one token"),
        ({"change": narrow}, {"dtype"}, "expected torch.int64 input_ids, got torch.int32"),
        ({"change": transpose}, {"contiguous"}, "input_ids is not contiguous"),
        ({"change": cut}, {"shapes", "batches"}, "expected input_ids of [4, 8], got [3, 8]"),
        ({"change": raise_ids}, {"dtype"}, "expected ids below 257"),
        ({"longer": 1}, {"batches"}, "len() says"),
        ({"load_state_dict": lambda _: None}, {"batches", "resume"}, "after resuming"),
    ],
)
def test_each_kind_of_broken_loader_is_caught(
    files: tuple[Path, Path], spoil: dict[str, Any], caught: set[str], text: str
) -> None:
    results = list(run_checks(subject(files[0], shuffled=True, **spoil)))
    assert {r.check for r in results if not r.ok} == caught
    assert any(text in r.seen for r in results if not r.ok)


def subject(path: Path, *, shuffled: bool, really: bool | None = None, shift: int = 0, **spoil: Any) -> Subject:
    dataset = TransformerDataset(path, "bytes", 8)
    shuffle = shuffled if really is None else really

    def make() -> Any:
        loader = core_dataloader(dataset, batch_size=4, shuffle=shuffle, drop_last=shuffled)
        return Broken(loader, **spoil)

    lines = path.read_text().splitlines()
    text = "".join(json.loads(line)["text"] for line in lines)
    stream = np.frombuffer(text.encode(), np.uint8).astype(np.int64)[shift:]
    return Subject("train" if shuffled else "val", make(), make, stream, 257, 4, 8, 3, shuffled)


def test_order_and_content_are_caught(files: tuple[Path, Path]) -> None:
    def failed(**options: Any) -> dict[str, str]:
        return {r.check: r.seen for r in run_checks(subject(files[0], **options)) if not r.ok}

    assert failed(shuffled=True) == failed(shuffled=False) == {}
    assert failed(shuffled=True, really=False) == {"order": "training windows are in the order of the file"}
    assert failed(shuffled=False, really=True) == {"order": "validation windows are not in the order of the file"}
    assert failed(shuffled=True, shift=1) == {"tokens": "window 0 does not begin at token 0"}


def test_a_failure_is_exit_1(run: Any, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import penstock.facades.micro_transformer.dataset as module

    real = module.create_dataloaders

    def spoiled(*args: Any, **options: Any) -> Any:
        train, val = real(*args, **options)
        return Broken(train, longer=1), val

    monkeypatch.setattr(module, "create_dataloaders", spoiled)
    ran = run("check", *files, "--tokenizer", "bytes", "--batch-size", 4)
    assert ran.code == 1
    assert "FAILED  train  batches     expected" in ran.out
    assert ran.out.endswith("16 checks, 1 FAILED\n")
