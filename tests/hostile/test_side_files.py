"""Mutated files beside the data: configurations, run snapshots, cached rows, descriptions of datasets, tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock as ps
from penstock.view.run_facts import read_run
from tests.hostile.fuzzing import fuzz

TEXTS = [f"text {i}" for i in range(12)]


def written(path: Path, read: Callable[[], object]) -> Callable[[bytes], object]:
    def one(data: bytes) -> object:
        path.write_bytes(data)
        return read()

    return one


@pytest.mark.parametrize("suffix", ["json", "toml", "yaml"])
def test_configurations(tmp_path: Path, suffix: str) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    config = {
        "source": {"read_jsonl": {"paths": str(lines)}},
        "steps": [{"shuffle": {"seed": 7}}, {"take": {"count": 5}}],
    }
    toml = (
        f'[source.read_jsonl]\npaths = "{lines}"\n[[steps]]\nshuffle = {{seed = 7}}\n[[steps]]\ntake = {{count = 5}}\n'
    )
    yaml = f"source:\n  read_jsonl: {{paths: {lines}}}\nsteps:\n- shuffle: {{seed: 7}}\n- take: {{count: 5}}\n"
    path = tmp_path / f"pipeline.{suffix}"
    read = written(path, lambda: ps.from_config(path).peek(3))
    counts = fuzz(read, {"json": json.dumps(config), "toml": toml, "yaml": yaml}[suffix].encode(), 300)
    assert counts["refused"] > 200


def test_run_snapshots(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    loader = ps.from_texts(TEXTS).batch(2).to_numpy(threads=0)
    loader.write_snapshots(path)
    for _ in loader:
        pass
    loader.close()
    data = path.read_bytes()
    assert read_run(str(path)).batches == 6
    fuzz(written(path, lambda: read_run(str(path)).batches), data, 300)


@pytest.mark.parametrize("name", ["manifest.json", "00000.tokens"])
def test_cached_rows_are_made_again(tmp_path: Path, name: str) -> None:
    def rows() -> list[str]:
        cached = ps.from_texts(TEXTS).cache(cache_dir=tmp_path, show_progress=False)
        return [row["text"] for row in cached.peek(12)]

    assert rows() == TEXTS
    (path,) = tmp_path.rglob(name)
    data = path.read_bytes()
    counts = fuzz(written(path, rows), data, 30, checked=True)
    assert counts["same"] == 30


@pytest.mark.parametrize("name", ["dataset_info.json", "state.json"])
def test_descriptions_of_hugging_face_datasets(tmp_path: Path, name: str) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(str(tmp_path / "saved"))
    path = tmp_path / "saved" / name
    data = path.read_bytes()
    read = written(path, lambda: [row["text"] for row in ps.from_hf(tmp_path / "saved").peek(12)])
    assert fuzz(read, data, 100)["refused"] > 50


def test_tokenizers(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    made.train_from_iterator(TEXTS, tokenizers.trainers.BpeTrainer(vocab_size=280, show_progress=False))
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    data = path.read_bytes()

    def ids() -> str:
        texts = ps.from_texts(TEXTS[:2])
        options = {"eos": False, "engine": "reference", "cache_dir": tmp_path / "c", "show_progress": False}
        return str(texts.tokenize(str(path), **options).peek(2))

    assert fuzz(written(path, ids), data, 100)["refused"] > 50
