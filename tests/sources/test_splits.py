"""Which files are a split: by the rules of Hugging Face datasets, and never two splits together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.data_files import DataFilesDict, get_data_patterns

import penstock as ps
from penstock.cli.main import main
from penstock.core.errors import DataError, FileMissing, UsageError
from penstock.sources.splits import by_split, data_files, split_files

LAYOUTS = {
    "shards": ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "test-00000-of-00001.parquet"],
    "data folder": ["data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet"],
    "named splits": ["data/train_sft-00000-of-00001.parquet", "data/test_gen-00000-of-00001.parquet"],
    "hashes": ["data/train-00000-of-00001-a09b74b3ef9c3b56.parquet", "data/test-00000-of-00001-b42.parquet"],
    "stems": ["train.jsonl", "validation.jsonl", "test.jsonl"],
    "folders": ["train/a.jsonl", "train/b.jsonl", "test/a.jsonl"],
    "languages": ["en/train-00000-of-00001.jsonl", "en/test-00000-of-00001.jsonl"],
    "deep": ["my/files/train/a.jsonl", "my/files/test/a.jsonl"],
    "numbers": ["train1.jsonl", "train2.jsonl", "test1.jsonl"],
    "words inside": ["wiki.train.txt", "wiki.valid.txt", "wiki.test.txt"],
    "spellings": ["training.jsonl", "dev.jsonl", "eval.jsonl"],
    "no splits": ["a.jsonl", "b/c.jsonl"],
    "words that only begin so": ["trained.jsonl", "testament.jsonl", "developer.jsonl"],
    "others beside": ["train.jsonl", "test.jsonl", "extra.jsonl"],
    "about": ["train.jsonl", "README.md", "dataset_infos.json", ".gitattributes", ".hidden/test.jsonl"],
    "folder and file": ["test/train_part.jsonl", "train/x.jsonl"],
}
_OTHER = {"train": ("training",), "validation": ("valid", "dev", "val"), "test": ("testing", "eval", "evaluation")}


def made(folder: Path, names: Sequence[str]) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"text": "' + name + '"}\n')
    return folder


def below(folder: Path, files: Sequence[str]) -> list[str]:
    return sorted(str(Path(file).relative_to(folder)) for file in files)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_splits_are_those_of_hugging_face(tmp_path: Path, layout: str) -> None:
    made(tmp_path, LAYOUTS[layout])
    reference = DataFilesDict.from_patterns(get_data_patterns(str(tmp_path)), base_path=str(tmp_path))
    for split, files in reference.items():
        assert below(tmp_path, split_files(str(tmp_path), str(split))) == below(tmp_path, files)
    ours = by_split(str(tmp_path))
    assert {next((c for c, w in _OTHER.items() if s in w), s) for s in ours} == {str(s) for s in reference}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_split_that_is_not_there_lists_those_that_are(tmp_path: Path, layout: str) -> None:
    made(tmp_path, LAYOUTS[layout])
    known = by_split(str(tmp_path))
    with pytest.raises(UsageError, match="a split of the dataset") as caught:
        split_files(str(tmp_path), "holdout")
    assert re.findall(r"'(\w+)'", caught.value.fix) and set(re.findall(r"'(\w+)'", caught.value.fix)) == set(known)
    assert str(tmp_path) in caught.value.where


def test_a_folder_without_splits_is_train(tmp_path: Path) -> None:
    made(tmp_path, ["a.jsonl", "b.jsonl"])
    assert below(tmp_path, split_files(str(tmp_path), "train")) == ["a.jsonl", "b.jsonl"]
    with pytest.raises(UsageError, match="split= one of 'train'"):
        split_files(str(tmp_path), "test")


def test_two_spellings_are_never_joined(tmp_path: Path) -> None:
    made(tmp_path, ["train.jsonl", "dev.jsonl", "validation.jsonl", "val.jsonl"])
    assert below(tmp_path, split_files(str(tmp_path), "validation")) == ["validation.jsonl"]
    assert below(tmp_path, split_files(str(tmp_path), "dev")) == ["dev.jsonl"]
    with pytest.raises(UsageError, match="spelled one way"):
        split_files(str(tmp_path), "valid")


def test_a_name_with_two_splits_is_refused(tmp_path: Path) -> None:
    made(tmp_path, ["train.jsonl", "train_test.jsonl"])
    with pytest.raises(UsageError, match=r"(?s)a file of one split.*test and train.*train_test\.jsonl"):
        split_files(str(tmp_path), "train")


@pytest.mark.parametrize("split", ["train[:10%]", "train+test"])
def test_cuts_are_refused_for_files(tmp_path: Path, split: str) -> None:
    made(tmp_path, ["train.jsonl"])
    with pytest.raises(UsageError, match="one split of files"):
        split_files(str(tmp_path), split)


def test_files_lists_and_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path / "test_folder", ["train.jsonl", "test.jsonl", "other.jsonl", "train-2.jsonl"])
    train = str(folder / "train.jsonl")
    assert split_files(train, "train") == [train]
    with pytest.raises(UsageError, match="split= one of 'train'"):
        split_files(train, "test")
    with pytest.raises(UsageError, match="split= one of 'train'"):
        split_files(str(folder / "other.jsonl"), "test")  # its folder's name does not count
    assert split_files(str(folder / "other.jsonl"), "train") == [str(folder / "other.jsonl")]
    named = [train, str(folder / "other.jsonl")]
    assert split_files(named, "train") == named  # what is named is never dropped
    assert below(folder, split_files(str(folder / "t*.jsonl"), "train")) == ["train-2.jsonl", "train.jsonl"]
    assert below(folder, split_files(str(folder / "t*.jsonl"), "test")) == ["test.jsonl"]
    with pytest.raises(UsageError, match=r"names all say their split\n  got: .*other\.jsonl"):
        split_files(str(folder / "*.jsonl"), "train")
    with pytest.raises(UsageError, match="split= one of 'train', 'test'"):
        split_files([train, str(folder / "test.jsonl")], "validation")
    monkeypatch.chdir(folder)
    assert split_files("train.jsonl", "train") == ["train.jsonl"]
    assert split_files("*.jsonl".replace("*", "tra*"), "train") == ["train-2.jsonl", "train.jsonl"]
    with pytest.raises(FileMissing):
        split_files("nothing*.jsonl", "train")


def test_urls() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for name in ("train-0.jsonl", "test-0.jsonl"):
        memory.pipe(f"/test-bucket/set/{name}", b'{"text": "a"}\n')
    try:
        assert split_files("memory://test-bucket/set", "train") == ["memory:///test-bucket/set/train-0.jsonl"]
        found = split_files("memory://test-bucket/set/*.jsonl", "test")
        assert found == ["memory:///test-bucket/set/test-0.jsonl"]
    finally:
        memory.rm("/test-bucket", recursive=True)


CARD = """---
license: mit
configs:
- config_name: de
  data_files:
  - split: train
    path: ["de/part-*.jsonl"]
  - split: test
    path: de/held.jsonl
- config_name: en
  data_dir: en
---
# A dataset
"""


def test_what_a_card_declares(tmp_path: Path) -> None:
    names = ["de/part-1.jsonl", "de/part-2.jsonl", "de/held.jsonl", "de/unused.jsonl", "en/train.jsonl", "en/val.jsonl"]
    made(tmp_path, names)
    (tmp_path / "README.md").write_text(CARD)
    with pytest.raises(UsageError, match=r"(?s)one configuration.*2 of them.*:<config>, one of de, en"):
        split_files(str(tmp_path), "train")
    german = split_files(str(tmp_path), "train", config="de")
    assert below(tmp_path, german) == ["de/part-1.jsonl", "de/part-2.jsonl"]
    assert below(tmp_path, split_files(str(tmp_path), "test", config="de")) == ["de/held.jsonl"]
    assert below(tmp_path, split_files(str(tmp_path), "validation", config="en")) == ["en/val.jsonl"]
    with pytest.raises(UsageError, match="'fr'"):
        split_files(str(tmp_path), "train", config="fr")
    (tmp_path / "README.md").write_text(CARD.replace("- config_name: en", "- config_name: en\n  default: true"))
    assert below(tmp_path, split_files(str(tmp_path), "train")) == ["en/train.jsonl"]
    reference = datasets.load_dataset_builder(str(tmp_path)).config.data_files
    assert below(tmp_path, reference["train"]) == ["en/train.jsonl"]


@pytest.mark.parametrize("path", ["../secret.jsonl", "/etc/passwd", "s3://bucket/x.jsonl"])
def test_a_card_does_not_lead_out_of_its_folder(tmp_path: Path, path: str) -> None:
    folder = made(tmp_path / "set", ["a.jsonl"])
    made(tmp_path, ["secret.jsonl"])
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: x\n  data_files: {path}\n---\n")
    with pytest.raises((DataError, FileMissing)):
        split_files(str(folder), "train")


@pytest.mark.parametrize("head", ["configs: [", "configs: 3", "configs:\n- 3", "configs: {a: b}", "- configs:\n"])
def test_odd_cards(tmp_path: Path, head: str) -> None:
    made(tmp_path, ["a.jsonl"])
    (tmp_path / "README.md").write_text(f"---\n{head}\n---\n")
    try:
        assert below(tmp_path, split_files(str(tmp_path), "train")) == ["a.jsonl"]
    except DataError as error:
        assert error.where.endswith("README.md")  # noqa: PT017


def test_only_data_is_listed(tmp_path: Path) -> None:
    about = ["README.md", "LICENSE", "LICENSE.txt", "CITATION.cff", "dataset_infos.json", ".gitattributes"]
    made(tmp_path, ["a.txt", *about])
    assert below(tmp_path, data_files(tmp_path)) == ["a.txt"]
    assert below(tmp_path, data_files(tmp_path / "README.md")) == ["README.md"]  # named by itself


def _write(path: Path, split: str) -> None:
    texts = [f"{split} {i}" for i in range(3)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), path)
    elif path.suffix == ".csv":
        path.write_text("text\n" + "\n".join(texts))
    elif path.suffix == ".txt":
        path.write_text("\n".join(texts))
    else:
        path.write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))


READERS = {".jsonl": ps.read_jsonl, ".parquet": ps.read_parquet, ".csv": ps.read_csv, ".txt": ps.read_text}


@pytest.mark.parametrize("suffix", READERS)
def test_a_folder_of_several_splits_is_refused_where_they_would_be_mixed(suffix: str, tmp_path: Path) -> None:
    for split in ("train", "test"):
        _write(tmp_path / f"{split}-00000-of-00001{suffix}", split)
    read = READERS[suffix]
    with pytest.raises(UsageError, match="the files of one split") as refused:
        read(tmp_path)
    assert "test, train" in refused.value.got and f"{tmp_path}/train-00000-of-00001{suffix}" in str(refused.value.fix)
    one = read(tmp_path / f"train-00000-of-00001{suffix}").rows()
    assert {text.split()[0] for row in one for text in [row["text"]]} == {"train"}
    assert sum(len(row["text"].split()) for row in read(f"{tmp_path}/**").rows()) == 12  # a pattern may name all
    assert main(["prepare", str(tmp_path), "--tokenizer", "bytes", "--out", str(tmp_path / "store")]) == 1
    assert not (tmp_path / "store").exists()


def test_words_in_names_of_documents_and_names_of_two_splits_refuse_nothing(tmp_path: Path) -> None:
    for name in ("test_plan.txt", "training.txt", "notes.txt"):
        (tmp_path / name).write_text(name)
    assert len(ps.read_text(tmp_path).rows()) == 3
    (tmp_path / "lines").mkdir()
    for name in ("train_and_test.jsonl", "test.jsonl"):
        (tmp_path / "lines" / name).write_text('{"text": "a"}\n')
    assert len(ps.read_jsonl(tmp_path / "lines").rows()) == 2
    (tmp_path / "test" / "train").mkdir(parents=True)  # folders above the one that was named say nothing
    (tmp_path / "test" / "train" / "a.jsonl").write_text('{"text": "a"}\n')
    assert len(ps.read_jsonl(tmp_path / "test" / "train").rows()) == 1
