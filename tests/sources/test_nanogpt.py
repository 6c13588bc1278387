"""Views of nanoGPT and llm.c `.bin` files."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import StoreError, UsageError
from penstock.sources.base import TokenSource
from penstock.sources.nanogpt import open_nanogpt


def raw(path: Path, tokens: list[int], dtype: str = "<u2") -> Path:
    np.array(tokens, dtype).tofile(path)
    return path


def headed(path: Path, tokens: list[int], magic: int = 20240520, version: int = 1, count: int | None = None) -> Path:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    body = np.array(tokens, "<u4" if magic == 20240801 else "<u2")
    path.write_bytes(header.tobytes() + body.tobytes())
    return path


def test_a_bare_file_is_one_document_and_that_is_said(tmp_path: Path) -> None:
    source = open_nanogpt(raw(tmp_path / "a.bin", [5, 6, 7, 65535]))
    assert isinstance(source, TokenSource)
    assert source.read(np.array([0]))["input_ids"].tolist() == [[5, 6, 7, 65535]]
    assert source.describe()["boundaries"].startswith("unknown: each file is one document")
    assert source.gather(np.array([1, 0]), 2).tolist() == [[6, 7], [5, 6]]


def test_a_header_tells_the_type(tmp_path: Path) -> None:
    source = open_nanogpt(headed(tmp_path / "a.bin", [1, 50256, 3]))
    assert source.dtype == np.uint16
    assert source.read(np.array([0]))["input_ids"].tolist() == [[1, 50256, 3]]
    assert source.locate(0)["byte"] == 1024
    wide = open_nanogpt(headed(tmp_path / "b.bin", [1, 128_000], 20240801, 7))
    assert wide.dtype == np.uint32
    assert wide.gather(np.array([1]), 1).tolist() == [[128_000]]


def test_several_files_are_one_stream(tmp_path: Path) -> None:
    paths = [headed(tmp_path / f"{k}.bin", [10 * k + i for i in range(4)]) for k in range(3)]
    source = pickle.loads(pickle.dumps(open_nanogpt(paths)))
    assert len(source) == 3
    assert source.gather(np.array([2, 3, 0]), 7).tolist() == [
        [2, 3, 10, 11, 12, 13, 20],
        [3, 10, 11, 12, 13, 20, 21],
        [0, 1, 2, 3, 10, 11, 12],
    ]
    assert source.read(np.array([2, 1]))["input_ids"].tolist() == [[20, 21, 22, 23], [10, 11, 12, 13]]
    source.close()
    assert source.gather(np.array([11]), 1).tolist() == [[23]]


def test_documents_end_where_the_named_id_is(tmp_path: Path) -> None:
    paths = [raw(tmp_path / "a.bin", [1, 0, 2, 3, 0]), raw(tmp_path / "b.bin", [0, 4]), raw(tmp_path / "c.bin", [])]
    source = open_nanogpt(paths, eos_id=0)
    assert source.read(np.arange(len(source)))["input_ids"].tolist() == [[1, 0], [2, 3, 0], [0], [4]]
    assert source.describe()["boundaries"] == "after each id 0, as asked"
    assert source.fingerprint() != open_nanogpt(paths).fingerprint()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"version": 2}, "version 1 after magic 20240520"),
        ({"count": 9}, "9 tokens of uint16, as the header says"),
        ({"count": -1}, "as the header says"),
    ],
)
def test_lies_in_the_header(tmp_path: Path, options: dict[str, int], text: str) -> None:
    with pytest.raises(StoreError, match=text):
        open_nanogpt(headed(tmp_path / "a.bin", [1, 2], **options))


def test_other_damage(tmp_path: Path) -> None:
    (tmp_path / "odd.bin").write_bytes(b"\1\2\3")
    with pytest.raises(StoreError, match=r"a whole number of uint16 tokens[\s\S]*3 bytes"):
        open_nanogpt(tmp_path / "odd.bin")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_nanogpt(tmp_path / "none.bin")
    with pytest.raises(UsageError, match="at least one file"):
        open_nanogpt([])
    with pytest.raises(UsageError, match="never guessed"):
        open_nanogpt(raw(tmp_path / "a.bin", [1]), dtype=None)
    with pytest.raises(UsageError, match="an integer dtype"):
        open_nanogpt(raw(tmp_path / "a.bin", [1]), dtype="float16")
    with pytest.raises(StoreError, match="files of one type"):
        open_nanogpt([raw(tmp_path / "a.bin", [1]), headed(tmp_path / "b.bin", [1], 20240801, 7)])


def test_the_fingerprint_samples_large_files(tmp_path: Path) -> None:
    tokens = np.zeros(20 << 20, np.uint16)  # 40 MiB: more than is hashed wholly
    tokens.tofile(tmp_path / "a.bin")
    base = open_nanogpt(tmp_path / "a.bin").fingerprint()
    for place in (0, len(tokens) - 1):
        changed = tokens.copy()
        changed[place] = 1
        changed.tofile(tmp_path / "b.bin")
        assert open_nanogpt(tmp_path / "b.bin").fingerprint() != base


def test_files_behind_urls_are_one_stream_and_a_replaced_one_is_noticed(tmp_path, s3):
    from penstock.storage import objects

    rng = np.random.default_rng(3)
    paths, urls = [], []
    for n, size in enumerate((70, 0, 5, 300)):
        path = tmp_path / f"{n}.bin"
        rng.integers(0, 9, size).astype(np.uint16).tofile(path)
        paths.append(path)
        urls.append(s3.url(tmp_path.name, path.name))
        objects.put_new(urls[-1], path, s3.options)
    local, remote = ps.open_nanogpt(paths, eos_id=0), ps.open_nanogpt(urls, eos_id=0, storage_options=s3.options)
    here, there = local.definition.origin, pickle.loads(pickle.dumps(remote.definition.origin))
    assert here.fingerprint() == there.fingerprint()
    every = np.arange(len(here))
    assert here.read(every)["input_ids"].tolist() == there.read(every)["input_ids"].tolist()
    assert [dict(here.locate(n), file="") for n in every] == [dict(there.locate(n), file="") for n in every]
    for make in (
        lambda p: p.windows(40, stride=13).shuffle(1),
        lambda p: p.pack(32).shuffle(2),
        lambda p: p.shuffle(3).pad(),
    ):
        a, b = (make(p).batch(4).to_numpy(threads=2) for p in (local, remote))
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x["input_ids"], y["input_ids"])
        np.testing.assert_array_equal(b.batch_at(1)["input_ids"], a.batch_at(1)["input_ids"])
    objects.delete([urls[0]], s3.options)
    objects.put_new(urls[0], b"1" * 140, s3.options)
    with pytest.raises(ps.StorageError, match="ETag differs"):
        there.gather(np.array([0]), 40)


def test_text_and_media_are_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    lines = b'{"text": "a line of JSON, and nothing else in it at all"}\r\n' * 3
    for content in (lines, b"\x89PNG\r\n\x1a\n" + bytes(100), b"%PDF-1.7\n" + bytes(100)):
        path.write_bytes(content + b" " * (len(content) % 2))
        with pytest.raises(StoreError, match="a bare array of tokens"):
            open_nanogpt(path)
    path.write_bytes(lines)
    assert len(open_nanogpt(path, dtype="uint8").read(np.arange(1))["input_ids"][0]) == len(lines), "bytes are tokens"
    raw(path, [0x2041] * 20)
    assert open_nanogpt(path).n_tokens == 20, "a few tokens may look like letters"
