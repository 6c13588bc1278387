"""A URL where only a local path can be used is refused before any work, never made into a folder named `s3:`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cli.main import main
from penstock.codecs.audio import wav
from penstock.facades.capibara.config import CapibaraConfig
from penstock.facades.micro_transformer.tokenizer import MicroTransformerTokenizer
from penstock.sources.text import TextFiles

URL = "s3://bucket/out"


class Untouched(TextFiles):
    """Texts whose content must not be looked at: the path is wrong, and that is known before."""

    def fingerprint(self) -> str:
        raise AssertionError("the texts were read before the path was checked")

    def iterate(self, *_: Any) -> Any:
        raise AssertionError("the texts were read before the path was checked")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "b.jsonl").write_text('{"instruction": "q", "output": "a"}\n')
    return tmp_path


def prompts(out: str) -> Any:
    return ps.prepare_prompts([{"q": "1", "a": "2"}], ps.PromptEngine("bytes", "{q} {a}", eos=0), out)


WRITERS: dict[str, Callable[[str], Any]] = {
    "prepare": lambda url: ps.prepare(Untouched("a.txt"), "bytes", url),
    "tokenize": lambda url: ps.Pipeline(Untouched("a.txt")).tokenize("bytes", cache_dir=url),
    "prepare_prompts": prompts,
    "CachedDataset": lambda url: ps.CachedDataset(None, [1], cache_dir=url),
    "CapibaraDataLoader": lambda url: ps.CapibaraDataLoader(
        None, "bytes", "a.txt", batch_size=1, cache_dir=url, pad_id=0
    ),
    "CapibaraConfig.save": lambda url: CapibaraConfig().save(url + ".toml"),
    "MicroTransformerTokenizer.save": lambda url: MicroTransformerTokenizer().save(url),
}


@pytest.mark.parametrize("url", [URL, "gs://b/o", "https://host/o", "memory://o", "hf://datasets/x"])
@pytest.mark.parametrize("name", WRITERS)
def test_outputs(name: str, url: str, here: Path) -> None:
    if name.startswith(("prepare", "tokenize", "CapibaraData")) and url.startswith(("s3:", "gs:")):
        return  # an object store: tests/preparation/test_object_stores.py, tests/remote/test_every_path_takes_urls.py
    with pytest.raises(ps.UsageError, match="a local path\n(.|\n)*own tool"):
        WRITERS[name](url)
    assert sorted(os.listdir(here)) == ["a.txt", "b.jsonl"]


def test_an_unknown_scheme_is_no_folder_either(here: Path) -> None:
    with pytest.raises(ps.UsageError, match="a known scheme"):
        ps.prepare(ps.from_texts(["a"]), "bytes", "ftp://host/out")
    assert sorted(os.listdir(here)) == ["a.txt", "b.jsonl"]


def test_the_cache_folder_of_the_environment(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", URL)
    with pytest.raises(ps.UsageError, match="PENSTOCK_CACHE: a local path"):
        ps.Pipeline(Untouched("a.txt")).tokenize("bytes")
    assert sorted(os.listdir(here)) == ["a.txt", "b.jsonl"]


@pytest.mark.parametrize("arguments", [
    ["prepare", "a.txt", "-t", "bytes", "--out", "https://host/out"],
    ["prepare", "b.jsonl", "-t", "bytes", "--prompt", "alpaca", "--out", "memory://out"],
    ["report", "a.txt", "--out", URL],
])  # fmt: skip
def test_the_command_line(arguments: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert "--out: a" in said and "a local path" in said
    assert sorted(os.listdir(here)) == ["a.txt", "b.jsonl"]


def test_file_urls_are_local_paths(here: Path) -> None:
    url = f"file://{here}"
    made = ps.prepare(ps.from_texts(["one", "two"]), "bytes", f"{url}/store")
    assert made.path == str(here / "store") and len(ps.open_store(f"{url}/store").rows()) == 2
    ps.from_texts(["x"]).tokenize("bytes", cache_dir=f"{url}/cache")
    assert list((here / "cache").rglob("manifest.json"))
    np.array([1, 2, 3], np.uint16).tofile(here / "t.bin")
    assert ps.open_nanogpt(f"{url}/t.bin").windows(1).rows().read(np.array([1]))["input_ids"].tolist() == [[2]]
    (here / "sounds").mkdir()
    (here / "sounds/a.wav").write_bytes(wav.encode(np.zeros(9), 8000))
    assert len(ps.read_audio(f"{url}/sounds", labels=None).rows()) == 1
    assert not (here / "file:").exists()


def test_a_url_in_a_path_object_is_refused(here: Path) -> None:
    for call in (WRITERS["prepare"], WRITERS["tokenize"], ps.open_store, ps.read_images, ps.read_jsonl):
        with pytest.raises(ps.UsageError, match=r"turned :// into :/(.|\n)*'s3://bucket/out'"):
            call(Path("s3://bucket/out"))  # type: ignore[arg-type]
    assert sorted(os.listdir(here)) == ["a.txt", "b.jsonl"]
