"""What users get wrong first, and what the error tells them to write."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cli.main import main


def rows() -> Any:
    return ps.from_arrays({"x": np.arange(8)})


@pytest.mark.parametrize(("wrong", "kind", "answer"), [
    (lambda _: rows().batch(4).to_numpy().shuffle(), AttributeError, "verbs of a pipeline come before .to_numpy()"),
    (lambda _: rows().batch(4).to_torch().batch_size_at(3), AttributeError, "before .to_torch()"),
    (lambda _: rows().batch(4).to_numpy().stat(), ps.PenstockError, "fix:   .stats"),
    (lambda _: rows().batch(4).to_numpy().why(0, 4), ValueError, "a row of the batch, from 0 to 3"),
    (lambda _: rows().batch(4).to_numpy().why(0, -1), ValueError, "got:   row -1 of step 0"),
    (lambda _: ps.read_images("no-such-folder"), FileNotFoundError, "files at 'no-such-folder'"),
    (lambda path: ps.read_csv(path / "a.jsonl"), ps.DataError, "read_jsonl(path)"),
    (lambda path: rows().write(path / "a.jsonl"), ValueError, "a path at which there is nothing yet"),
    (lambda path: ps.prepare(path / "a.jsonl", "bytes", path / "out"), ValueError, "or read_jsonl(paths)"),
    (lambda _: rows().augment(), AttributeError, ".map_batches(Augment(...))"),
    (lambda _: rows().first(), AttributeError, "pipeline.rows()[0]"),
    (lambda _: ps.create_preprocessed_dataset([]), TypeError, "streaming=False, **options"),
])  # fmt: skip
def test_the_answer_says_what_to_write(
    tmp_path: Path, wrong: Callable[[Path], Any], kind: type[Exception], answer: str
) -> None:
    (tmp_path / "a.jsonl").write_text(f"{json.dumps({'text': 'a'})}\n" * 3)
    with pytest.raises(kind, match=re.escape(answer)) as caught:
        wrong(tmp_path)
    assert isinstance(caught.value, ps.PenstockError)


def test_a_device_that_is_not_there_is_named() -> None:
    import torch

    if torch.cuda.is_available():
        assert next(iter(rows().batch(4).to_torch(device="cuda")))["x"].device.type == "cuda"
        return
    with pytest.raises(ps.PenstockError, match="a device that torch can use here"):
        next(iter(rows().batch(4).to_torch(device="cuda", threads=0)))


def test_a_loader_is_still_probed_copied_and_pickled() -> None:
    loader = rows().batch(4).to_numpy(threads=0)
    assert not hasattr(loader, "batch_sampler")
    assert getattr(loader, "dataset", None) is None
    again = copy.deepcopy(loader)
    assert next(iter(again))["x"].tolist() == [0, 1, 2, 3]
    with pytest.raises(AttributeError, match="_nothing"):
        loader._nothing  # noqa: B018


def test_an_unknown_option_of_a_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "corpus", "--bach", "32"]) == 2
    said = capsys.readouterr().err
    assert "usage: penstock plan" in said
    assert "unrecognized arguments: --bach 32; did you mean --batch?" in said
    assert main(["doctor", "surplus"]) == 2
    assert "did you mean" not in capsys.readouterr().err
