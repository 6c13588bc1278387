"""Lists, globs, braces and manifests of media, and paths in data that are opened inside of one folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest

import penstock as ps
from penstock.codecs.audio import wav
from penstock.storage.braces import expand_braces
from penstock.testing import assert_elastic, assert_exact_resume


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("media")
    for i in range(30):
        folder = home / "data" / ("cat", "dog")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{i:03d}.png"), np.full((6, 6, 3), i, np.uint8))
        (folder / f"{i:03d}.wav").write_bytes(wav.encode(np.full(100, i / 100), 8000))
    (home / "secret.png").write_bytes((home / "data/cat/000.png").read_bytes())
    (home / "data" / "link.png").symlink_to(home / "secret.png")
    (home / "data" / "way").symlink_to(home)
    rows = [{"file_name": f"{('cat', 'dog')[i % 2]}/{i:03d}.png", "text": f"number {i}", "n": i} for i in range(30)]
    (home / "data" / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f'{row["file_name"].replace("png", "wav")},"{row["text"]}, said",{row["n"]}' for row in rows]
    (home / "data" / "speech.csv").write_text("path,text,n\n" + "\n".join(lines) + "\n")
    (home / "data" / "captions.json").write_text(json.dumps({"images": rows}, indent=1))
    return home


def test_braces() -> None:
    assert expand_braces("a{1..3}{x,y}") == ["a1x", "a1y", "a2x", "a2y", "a3x", "a3y"]
    assert expand_braces("{x-{00..01},v{a..c..2}}.tar") == ["x-00.tar", "x-01.tar", "va.tar", "vc.tar"]
    assert expand_braces("a{") == ["a{"] and expand_braces("{x{1,2}}}") == ["{x1}}", "{x2}}"]
    assert expand_braces("{" * 5000 + "}" * 5000) == ["{" * 5000 + "}" * 5000]
    assert expand_braces("{3..1}") == ["3", "2", "1"] and expand_braces("{01..10..4}") == ["01", "05", "09"]
    with pytest.raises(ps.LimitError):
        expand_braces("{1..999999999}")
    with pytest.raises(ps.LimitError):
        expand_braces("{1..2000}{1..2000}")


def test_braces_for_every_reader(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"s-{i:03d}.jsonl").write_text(json.dumps({"text": str(i)}))
    found = ps.read_jsonl(str(tmp_path / "s-{003..010}.jsonl")).peek(20)
    assert [row["text"] for row in found] == [str(i) for i in range(3, 11)]
    with pytest.raises(FileNotFoundError, match=r"s-012\.jsonl"):
        ps.read_jsonl(str(tmp_path / "s-{010..013}.jsonl"))
    (tmp_path / "odd{1,2}.jsonl").write_text(json.dumps({"text": "braces in a name"}))
    assert len(ps.read_jsonl(str(tmp_path / "odd{1,2}.jsonl")).rows()) == 1


def test_lists_globs_and_braces(home: Path) -> None:
    data = home / "data"
    listed = ps.read_images([data / "dog/003.png", data / "cat/000.png"])
    assert [row["path"] for row in listed.peek()] == ["dog/003.png", "cat/000.png"]
    assert [int(row["label"]) for row in listed.peek()] == [1, 0] and listed.classes == ("cat", "dog")
    globbed = ps.read_images(str(data / "*" / "00*.png"))
    assert len(globbed.rows()) == 10 and globbed.classes == ("cat", "dog")
    braces = ps.read_images(str(data / "cat/{000,002,004}.png"))
    assert [row["path"] for row in braces.peek()] == ["000.png", "002.png", "004.png"] and braces.classes == ("cat",)
    assert len(ps.read_images(data / "cat/000.png").rows()) == 1
    sounds = ps.read_audio(str(data / "{cat,dog}" / "*.wav")).decode_audio(8000, duration=0.01, offset="start")
    assert sounds.peek(1)[0]["audio"].shape == (80,) and sounds.classes == ("cat", "dog")
    recordings = ps.read_audio([data / "cat/000.wav", data / "dog/001.wav"], sample_rate=8000)
    assert recordings.batch(2).to_numpy().batch_at(0)["lengths"].tolist() == [100, 100]
    with pytest.raises(FileNotFoundError, match="nothing matches"):
        ps.read_images(str(data / "*.jpeg"))
    assert_exact_resume(lambda: globbed.decode_images(4).shuffle(seed=1).batch(3), epochs=1)


@pytest.mark.parametrize("name", ["metadata.jsonl", "captions.json"])
def test_a_manifest_of_images(home: Path, name: str) -> None:
    def make(batch: int) -> ps.Pipeline:
        return ps.read_images(home / "data" / name).decode_images(4).shuffle(seed=7).batch(batch)

    batch = make(6).to_numpy().batch_at(1)
    assert (batch["image"][:, 0, 0, 0] * 255).round().astype(int).tolist() == batch["n"].tolist()
    assert batch["text"][0] == f"number {batch['n'][0]}" and batch["file_name"][0].endswith(".png")
    assert_exact_resume(lambda: make(8), epochs=1)
    assert_elastic(make, batch=6, worlds=(1, 2, 3), threads=(0, 2), other_batch=3, most=4)


def test_a_manifest_of_audio(home: Path) -> None:
    pipeline = ps.read_audio(home / "data" / "speech.csv").decode_audio(8000, duration=0.0125, offset="start")
    batch = pipeline.shuffle(seed=1).batch(5).to_numpy().batch_at(0)
    assert np.allclose(batch["audio"][:, 0], batch["n"] / 100, atol=1e-3) and batch["text"][0].endswith(", said")
    at = pipeline.batch(5).to_numpy().why(1, 2)["from"]
    assert at["file"].endswith("speech.csv") and at["line"] == 9


OUTSIDE = [
    "../secret.png",
    "link.png",
    "way/secret.png",
    "cat/../../secret.png",
    "/etc/passwd",
    "",
    ".",
    "a\0b",
    5,
    None,
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_path_leads_out_of_the_root(home: Path, path) -> None:
    rows = [{"image": path, "n": 0}, {"image": "cat/000.png", "n": 1}]
    pipeline = ps.from_records(rows)
    with pytest.raises(ps.BadRecords, match=r"media_root|a path in column|encoded bytes"):
        pipeline.decode_images(4, column="image", media_root=home / "data").batch(2).to_numpy().batch_at(0)
    kept = pipeline.skip_errors().decode_images(4, column="image", media_root=home / "data").batch(2).to_numpy()
    assert kept.batch_at(0)["n"].tolist() == [1, 1]


def test_paths_are_opened_only_where_the_caller_says_so(home: Path) -> None:
    inside = str(home / "data" / "cat" / "002.png")
    for value in (
        inside,
        "cat/002.png",
        {"path": inside, "bytes": None},
        {"path": None, "bytes": Path(inside).read_bytes()},
    ):
        rows = ps.from_dataset([{"image": value, "n": 1}])
        image = rows.decode_images(4, column="image", media_root=str(home / "data")).peek()[0]["image"]
        assert (image * 255).round().max() == 2
    with pytest.raises(ps.BadRecords, match=r"a path: .*(.|\n)*media_root=") as caught:
        ps.from_records([{"image": inside}]).decode_images(4, column="image").batch(1).to_numpy().batch_at(0)
    assert "never opened" in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"cat/999\.png"):
        gone = ps.from_records([{"image": "cat/999.png"}]).skip_errors()
        gone.decode_images(4, column="image", media_root=home / "data").batch(1).to_numpy().batch_at(0)


def test_the_root_is_not_part_of_the_identity(home: Path, tmp_path: Path) -> None:
    os.symlink(home / "data", tmp_path / "copy")
    prints = {
        ps.read_images(root / "metadata.jsonl").decode_images(4).fingerprint()
        for root in (home / "data", tmp_path / "copy")
    }
    assert len(prints) == 1


HF_FILE = {"bytes": None, "path": "cat/000.png"}  # as datasets.Image() stores a file of a folder


@pytest.mark.parametrize(("call", "text"), [
    (lambda data: ps.read_images(data / "metadata.jsonl", path_column="nix"), "a column 'nix' of paths"),
    (lambda data: ps.read_images(data / "metadata.jsonl", labels="name"), "no labels= with a manifest"),
    (lambda data: ps.read_images(data, media_root=data), "media_root= with a manifest"),
    (lambda data: ps.read_images(data / "metadata.jsonl", media_root="nowhere"), "a folder that exists"),
    (lambda data: ps.read_audio(data / "speech.csv", sample_rate=8000), "no sample_rate= with a manifest"),
    (lambda data: ps.from_records([{"n": 1}]).decode_images(4, media_root=data).peek(), "a column 'bytes' of paths"),
    (lambda data: ps.from_records([{"n": 1, "photo": HF_FILE}]).decode_images(4).peek(), "column='photo'"),
    (lambda data: ps.from_records([{"n": 1, "photo": HF_FILE}]).decode_images(4, media_root=data).peek(),
     "of paths: column='photo'"),
])  # fmt: skip
def test_wrong_arguments(home: Path, call, text: str) -> None:
    with pytest.raises(ps.UsageError, match=text):
        call(home / "data")


def test_a_manifest_behind_a_url(home: Path) -> None:
    import fsspec

    for name in ("cat/000.png", "cat/002.png"):
        with fsspec.open(f"memory://manifest/{name}", "wb") as file:
            file.write((home / "data" / name).read_bytes())
    with fsspec.open("memory://manifest/m.jsonl", "wb") as file:
        file.write(b'{"path": "cat/002.png"}\n{"path": "cat/000.png"}\n{"path": "../../etc/passwd"}\n')
    images = (
        ps.read_images("memory://manifest/m.jsonl", on_error="skip").decode_images(4).batch(3).to_numpy().batch_at(0)
    )
    assert set((images["image"][:, 0, 0, 0] * 255).round().astype(int).tolist()) <= {0, 2}
