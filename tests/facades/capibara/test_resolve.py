"""A name becomes data in the documented order; real `datasets` throughout, nothing from the network."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.errors import UsageError
from penstock.facades.capibara.loader import CapibaraDataLoader
from penstock.facades.capibara.resolve import register_dataset, resolve_dataset
from penstock.pipeline import Pipeline
from penstock.preparation.run import prepare
from penstock.sources.hf_stream import HFStream


def texts_in(found: Any) -> list[str]:
    if isinstance(found, HFStream):
        return [record["text"] for record in found.records()]
    rows = found.rows()
    return list(rows.read(np.arange(len(rows)))["text"])


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache as `datasets` fills it: two configs of two splits, under the name of a repository."""
    home = tmp_path / "mini"
    configs = ""
    for language in ("de", "en"):
        (home / language).mkdir(parents=True)
        configs += f"- config_name: {language}\n  data_files:\n"
        for split, count in (("train", 5), ("test", 2)):
            lines = [json.dumps({"text": f"{language} {split} {i}"}) for i in range(count)]
            (home / language / f"{split}.jsonl").write_text("\n".join(lines))
            configs += f"  - split: {split}\n    path: {language}/{split}.jsonl\n"
    (home / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    cache = tmp_path / "hf"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    datasets.disable_progress_bars()
    for language in ("de", "en"):
        datasets.load_dataset(str(home), language, cache_dir=str(cache))
    return cache


def test_objects() -> None:
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"]})
    both = datasets.DatasetDict({"train": data, "test": data.select([2])})
    assert texts_in(resolve_dataset(data)) == ["a", "b", "c"]
    assert texts_in(resolve_dataset(data.select([2, 0]))) == ["c", "a"]
    assert texts_in(resolve_dataset(both, split="test")) == ["c"]
    with pytest.raises(UsageError, match="split= one of 'train', 'test'"):
        resolve_dataset(both, split="dev")
    stream = resolve_dataset(data.to_iterable_dataset())
    assert isinstance(stream, HFStream)
    assert texts_in(stream) == ["a", "b", "c"]
    assert texts_in(resolve_dataset(data, streaming=True)) == ["a", "b", "c"]
    several = datasets.IterableDatasetDict({"train": data.to_iterable_dataset()})
    assert texts_in(resolve_dataset(several)) == ["a", "b", "c"]
    assert texts_in(resolve_dataset([{"text": "x", "n": 1}])) == ["x"]
    assert texts_in(resolve_dataset(["x", "y"])) == ["x", "y"]
    pipeline = ps.from_texts(["p"])
    assert resolve_dataset(pipeline) is pipeline
    assert texts_in(resolve_dataset(pipeline.definition.origin)) == ["p"]
    with pytest.raises(UsageError, match="a dataset: a name, a path"):
        resolve_dataset(iter(["a"]))


def test_a_class_of_the_users_own() -> None:
    class Mine:
        fingerprint = "mine, version 1"

        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"text": f"record {i}"}

    found = resolve_dataset(Mine())
    assert texts_in(found) == ["record 0", "record 1", "record 2"]
    assert found.fingerprint() == resolve_dataset(Mine()).fingerprint()
    with pytest.raises(UsageError, match="at least one record"):
        resolve_dataset([])


def test_registered_names_come_before_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("thing").write_text("from the file\n")
    assert texts_in(resolve_dataset("thing")) == ["from the file"]
    register_dataset("thing", lambda split: [f"{split} registered"])
    assert texts_in(resolve_dataset("thing", split="test")) == ["test registered"]
    register_dataset("other", lambda: tmp_path / "thing")
    assert texts_in(resolve_dataset("other")) == ["from the file"]
    with pytest.raises(UsageError, match="a function that returns the dataset"):
        register_dataset("x", [1])  # type: ignore[arg-type]


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert texts_in(resolve_dataset(tmp_path / "a.txt")) == ["one", "two"]
    assert texts_in(resolve_dataset(str(tmp_path / "a.txt"), by_line=False)) == ["one\ntwo\n"]
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "1.txt").write_text("first\nfile")
    (folder / "2.txt").write_text("second")
    assert texts_in(resolve_dataset(folder)) == ["first\nfile", "second"]
    lines = tmp_path / "lines"
    (lines / "train").mkdir(parents=True)
    (lines / "train" / "x.jsonl").write_text('{"text": "l", "lang": "de"}\n')
    (lines / "test.jsonl").write_text('{"text": "t", "lang": "en"}\n')
    assert texts_in(resolve_dataset(lines)) == ["l"]
    assert texts_in(resolve_dataset(lines, split="test")) == ["t"]
    assert resolve_dataset(lines, every_field=True).peek(1) == [{"text": "l", "lang": "de"}]
    pq.write_table(pa.table({"text": ["p", "q"]}), tmp_path / "t.parquet")
    assert texts_in(resolve_dataset(tmp_path / "t.parquet")) == ["p", "q"]
    (folder / "3.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(UsageError, match="files of one format"):
        resolve_dataset(folder)


def test_what_other_tools_saved(tmp_path: Path) -> None:
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_dict({"text": ["a", "b"]})
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": data, "test": data.select([1])}).save_to_disk(tmp_path / "both")
    assert texts_in(resolve_dataset(tmp_path / "one")) == ["a", "b"]
    assert texts_in(resolve_dataset(tmp_path / "both", split="test")) == ["b"]
    arrow = next((tmp_path / "one").glob("*.arrow"))
    assert texts_in(resolve_dataset(arrow)) == ["a", "b"]
    store = tmp_path / "store"
    prepare(ps.from_texts(["ab", "c"]).definition.origin, "bytes", store)
    found = resolve_dataset(store)
    assert [r["input_ids"].tolist() for r in found.peek(2)] == [[97, 98, 256], [99, 256]]


@pytest.mark.usefixtures("hub_cache")
def test_the_local_cache_of_the_hub() -> None:
    assert texts_in(resolve_dataset("mini:de", split="test")) == ["de test 0", "de test 1"]
    assert len(texts_in(resolve_dataset("mini:en"))) == 5
    assert texts_in(resolve_dataset("mini:en", split="train[:2]")) == ["en train 0", "en train 1"]
    assert isinstance(resolve_dataset("mini:en", streaming=True), HFStream)
    with pytest.raises(UsageError, match="split= one of 'train', 'test'"):
        resolve_dataset("mini:en", split="dev")


def test_a_name_that_is_nowhere_lists_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    asked: list[str] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: asked.append(str(host)) or [])
    with pytest.raises(UsageError) as met:
        resolve_dataset("no_such_thing", data_dir=str(tmp_path / "tfds"))
    text = str(met.value)
    assert "got:   'no_such_thing'" in text
    tried = [line.strip().partition(":")[0] for line in text.splitlines() if line.startswith("    ")]
    assert tried == [
        "registered datasets",
        "the path 'no_such_thing'",
        f"Hugging Face cache {tmp_path / 'hf'}",
        "Hugging Face hub",
        f"TFDS data under {tmp_path / 'tfds'}",
        "TFDS builders registered by this program",
    ]
    assert "not asked, since HF_HUB_OFFLINE is set" in text
    assert len(asked) <= 2, "no retries over a network that is not there"


def test_a_hub_that_cannot_be_reached_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    with pytest.raises(UsageError, match=r"127\.0\.0\.1 cannot be reached"):
        resolve_dataset("no_such_thing", data_dir=str(tmp_path))


@pytest.mark.usefixtures("hub_cache")
def test_a_cached_name_feeds_the_loader(tokenizer: Any) -> None:
    loader = CapibaraDataLoader(
        tokenizer=tokenizer, dataset_name="mini:en", split="test", batch_size=2, max_length=8, shuffle=False
    )
    (batch,) = loader
    decoded = [tokenizer.decode(r, skip_special_tokens=True) for r in batch["input_ids"]]
    assert decoded == ["en test 0", "en test 1"]
    assert isinstance(resolve_dataset("mini:en"), Pipeline)


def test_splits_of_a_folder_are_never_mixed(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        pq.write_table(pa.table({"text": [name]}), tmp_path / f"{name}.parquet")
    assert texts_in(resolve_dataset(tmp_path)) == ["train-00000-of-00002", "train-00001-of-00002"]
    assert texts_in(resolve_dataset(tmp_path, split="test")) == ["test-00000-of-00001"]
    with pytest.raises(UsageError, match=r"a split(.|\n)*'validation'(.|\n)*split= one of 'train', 'test'"):
        resolve_dataset(tmp_path, split="validation")


def test_token_files_are_not_read_as_text(tmp_path: Path) -> None:
    text = "the bytes of this text are also tokens.."
    (tmp_path / "train.bin").write_bytes(text.encode())
    with pytest.raises(UsageError, match=r"says its own dtype(.|\n)*penstock.open_nanogpt\(path, dtype=...\)"):
        resolve_dataset(tmp_path / "train.bin")
    (tmp_path / "shot.jpg").write_bytes(b"...")
    with pytest.raises(UsageError, match=r"penstock.read_images\(folder\)"):
        resolve_dataset(tmp_path / "shot.jpg")


def test_an_interrupted_preparation_is_not_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"text": "about the job"}')
    (tmp_path / "journal.jsonl").write_text('{"text": "about a shard"}\n')
    with pytest.raises(UsageError, match="a preparation that was interrupted"):
        resolve_dataset(tmp_path)


def test_a_list_of_paths_is_files_not_texts(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.jsonl" for i in range(2)]
    for i, path in enumerate(paths):
        path.write_text(f'{{"text": "record {i}"}}\n')
    assert texts_in(resolve_dataset(paths)) == ["record 0", "record 1"]
    assert texts_in(resolve_dataset(list(map(str, paths)))) == ["record 0", "record 1"]


def test_a_cloned_repository_is_read_by_split_and_config(tmp_path: Path) -> None:
    home = tmp_path / "mini"
    for language in ("de", "en"):
        for split in ("train", "test"):
            path = home / language / f"{split}-00000-of-00001.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"text": f"{language} {split}"}))
    for name in ("LICENSE", ".gitattributes", "README.md", "dataset_infos.json", "mini.py"):
        (home / name).write_text("{}")
    assert texts_in(resolve_dataset(home)) == ["de train", "en train"]
    assert texts_in(resolve_dataset(home / "en", split="test")) == ["en test"]
    assert texts_in(resolve_dataset(str(home / "*" / "test-*.jsonl"), split="test")) == ["de test", "en test"]
    listed = [home / "de" / "test-00000-of-00001.jsonl"]
    assert texts_in(resolve_dataset(listed, split="test")) == ["de test"]
    with pytest.raises(UsageError, match="split= one of 'test'"):
        resolve_dataset(listed)
    with pytest.raises(UsageError, match="split= one of 'train', 'test'"):
        resolve_dataset(home, split="validation")
    configs = "".join(f"- config_name: {name}\n  data_dir: {name}\n" for name in ("de", "en"))
    (home / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    assert texts_in(resolve_dataset(f"{home}:de", split="test")) == ["de test"]
    with pytest.raises(UsageError, match="one of de, en"):
        resolve_dataset(home)


def test_tables_and_unknown_files_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,lang\none,de\n")
    for path in (tmp_path / "a.csv", tmp_path):
        assert resolve_dataset(path).peek() == [{"text": "one", "lang": "de"}]
    (tmp_path / "b.txt").write_text("one")
    with pytest.raises(UsageError, match="1 csv, 1 text|1 text, 1 csv"):
        resolve_dataset(tmp_path)
    (tmp_path / "paper").write_bytes(b"%PDF-1.7 ...")
    with pytest.raises(UsageError, match="a PDF document"):
        resolve_dataset(tmp_path / "paper")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "a.xyz").write_bytes(b"...")
    with pytest.raises(FileNotFoundError, match=r"got:   1 \.xyz"):
        resolve_dataset(tmp_path / "odd")


def test_a_misnamed_single_file_is_another_split(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    assert texts_in(resolve_dataset(tmp_path / "train.jsonl")) == ["a"]
    with pytest.raises(UsageError, match="split= one of 'train'"):
        resolve_dataset(tmp_path / "train.jsonl", split="test")


def test_a_path_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    for name in ("~/train.jsonl", "~/*.jsonl", "~"):
        assert texts_in(resolve_dataset(name)) == ["a"]


def test_a_folder_of_metadata_alone_is_not_data(tmp_path: Path) -> None:
    for folder, name in (("tfds/1.0.0", "dataset_info.json"), ("hub", "README.md"), ("other", "dataset_infos.json")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text('{"name": "x"}')
        top = folder.partition("/")[0]
        with pytest.raises(FileNotFoundError, match=rf"(?s)files of data in a folder.*{name}.*{top}.*features\.json"):
            CapibaraDataLoader(tokenizer="bytes", dataset_name=str(tmp_path / top))


def test_a_tokenizer_in_the_place_of_the_configuration_is_named() -> None:
    with pytest.raises(UsageError, match=r"(?s)as the first argument.*'bytes'.*tokenizer=\.\.\., dataset_name="):
        CapibaraDataLoader("bytes", "wikitext")
