"""A small corpus, the store prepared from it by the command itself, and a way to run commands in-process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.cli.main import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def call(*argv: Any) -> Ran:
        capfd.readouterr()
        code = main([str(a) for a in argv])
        return Ran(code, *capfd.readouterr())

    return call


TEXTS = [f"Document {i}: " + "the water runs down the pipe and turns the wheel. " * (1 + i % 7) for i in range(60)]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three JSONL files."""
    folder = tmp_path_factory.mktemp("corpus")
    for part in range(3):
        lines = [json.dumps({"text": t, "n": i}) for i, t in enumerate(TEXTS[part * 20 : part * 20 + 20])]
        (folder / f"part-{part}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return TEXTS


@pytest.fixture(scope="session")
def store(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its token store, of bytes. Tests must not change it."""
    out = tmp_path_factory.mktemp("stores") / "store"
    assert main(["prepare", str(corpus), "--tokenizer", "bytes", "--out", str(out), "--quiet"]) == 0
    return out
