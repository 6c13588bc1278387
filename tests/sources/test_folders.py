"""Folders of images and audio: order, labels, identity, bad files."""

from __future__ import annotations

import os
import pickle
import shutil

import numpy as np
import pytest

from penstock.core.errors import BadRecords, FileMissing, UsageError
from penstock.core.limits import Limits
from penstock.sources.base import Source
from penstock.sources.folders import AudioFolder, ImageFolder
from penstock.sources.names import Names


@pytest.fixture
def root(tmp_path):
    for path in ("dog/b.JPG", "dog/a.png", "cat/z.jpeg", "cat/deep/y.webp", "cat/notes.txt", "cat/.hidden.jpg"):
        file = tmp_path / "shelf" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(path.encode())
    return tmp_path / "shelf"


def test_records_are_sorted_by_path_whatever_the_disk_says(root):
    folder = ImageFolder(root)
    assert isinstance(folder, Source)
    assert list(folder.names) == ["cat/deep/y.webp", "cat/z.jpeg", "dog/a.png", "dog/b.JPG"]
    columns = folder.read(np.array([3, 0, 3]))
    assert columns["path"].tolist() == ["dog/b.JPG", "cat/deep/y.webp", "dog/b.JPG"]
    assert columns["bytes"].tolist() == [b"dog/b.JPG", b"cat/deep/y.webp", b"dog/b.JPG"]
    assert columns["label"].tolist() == [1, 0, 1]
    assert columns["label"].dtype == np.int64
    assert folder.classes == ("cat", "dog")
    assert folder.describe() == {
        "kind": "image folder",
        "records": 4,
        "files": 4,
        "root": str(root),
        "classes": ["cat", "dog"],
    }
    assert folder.locate(0) == {"file": str(root / "cat/deep/y.webp"), "label": 0, "class": "cat"}


def test_labels_by_name_function_number_or_not_at_all(tmp_path):
    for name in ("7_anna_0.wav", "0_bert_1.flac", "7_bert_2.mp3", "10.ogg"):
        (tmp_path / name).write_bytes(b"x")
    by_name = AudioFolder(tmp_path, labels="name")
    assert by_name.classes == ("0", "10", "7")
    assert by_name.read(np.arange(4))["label"].tolist() == [0, 1, 2, 2]
    speaker = AudioFolder(tmp_path, labels=lambda path: "bert" if "bert" in path else "other")
    assert speaker.read(np.arange(4))["label"].tolist() == [0, 1, 1, 0]
    numbers = AudioFolder(tmp_path, labels=len)
    assert numbers.read(np.arange(4))["label"].tolist() == [13, 6, 12, 12]
    assert numbers.classes == ()
    assert set(AudioFolder(tmp_path, labels=None).read(np.array([0]))) == {"bytes", "path"}


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ("folder", "directly in the root"),
        ("class", 'labels="folder", "name"'),
        (lambda path: 1.5, "all str or all int"),
    ],
)
def test_labels_that_cannot_be(labels, text, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"x")
    with pytest.raises(UsageError) as error:
        ImageFolder(tmp_path, labels=labels)
    assert text in str(error.value)


def test_splits_are_no_classes(tmp_path):
    for path in ("train/cat/1.jpg", "train/dog/2.jpg", "Val/cat/3.jpg", "Val/dog/4.jpg"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"...")
    with pytest.raises(UsageError, match=r"(?s)classes.*splits: Val, train.*name one of them: '.*train'"):
        ImageFolder(tmp_path)
    assert ImageFolder(tmp_path / "train").classes == ("cat", "dog")
    assert ImageFolder(tmp_path, labels=None).labels is None
    assert ImageFolder(tmp_path, labels=lambda path: path.split("/")[1]).labels.tolist() == [0, 1, 0, 1]
    shutil.rmtree(tmp_path / "Val")
    with pytest.raises(UsageError, match="splits: train"):
        ImageFolder(tmp_path)
    (tmp_path / "train" / "cat").rename(tmp_path / "cat")
    assert ImageFolder(tmp_path).classes == ("cat", "train")  # some folder that is none


def test_an_empty_or_missing_folder_says_so(tmp_path):
    with pytest.raises(UsageError, match=r"files ending in \.jpg"):
        ImageFolder(tmp_path)
    with pytest.raises(FileMissing, match="no such file or folder") as error:
        ImageFolder(tmp_path / "gone")
    assert str(tmp_path / "gone") in str(error.value)


def test_identity_is_of_content_and_not_of_place_or_time(root, tmp_path):
    shutil.copytree(root, tmp_path / "elsewhere")
    os.utime(tmp_path / "elsewhere" / "dog" / "a.png", (1, 1))
    for identity in ("sampled", "full"):
        first = ImageFolder(root, identity=identity).fingerprint()
        assert ImageFolder(tmp_path / "elsewhere", identity=identity).fingerprint() == first
        assert ImageFolder(root, labels=None, identity=identity).fingerprint() != first
    assert ImageFolder(root).fingerprint() != ImageFolder(root, identity="full").fingerprint()
    before = ImageFolder(root).fingerprint()
    (root / "dog/a.png").write_bytes(b"dog/a.PNG")
    assert ImageFolder(root).fingerprint() != before
    with pytest.raises(UsageError, match='identity="sampled" or "full"'):
        ImageFolder(root, identity="mtime")


def test_sampled_identity_does_not_see_the_middle_and_full_does(root):
    (root / "dog/a.png").write_bytes(b"\0" * 20_000)
    sampled, full = ImageFolder(root).fingerprint(), ImageFolder(root, identity="full").fingerprint()
    (root / "dog/a.png").write_bytes(b"\0" * 9_000 + b"!" + b"\0" * 10_999)
    assert ImageFolder(root).fingerprint() == sampled
    assert ImageFolder(root, identity="full").fingerprint() != full


def test_every_bad_file_of_a_read_is_named(root):
    folder = ImageFolder(root, limits=Limits(record_bytes=100))
    (root / "cat/z.jpeg").write_bytes(b"")
    (root / "dog/a.png").unlink()
    os.mkfifo(root / "dog/a.png")  # a pipe put there since: must not hang
    (root / "dog/b.JPG").write_bytes(b"x" * 101)
    with pytest.raises(BadRecords) as error:
        folder.read(np.arange(4))
    assert [(e.row, e.where, e.got) for e in error.value.errors] == [
        (1, str(root / "cat/z.jpeg"), "0 bytes"),
        (2, str(root / "dog/a.png"), "a pipe, device or folder"),
        (3, str(root / "dog/b.JPG"), "101 bytes"),
    ]
    (root / "dog/a.png").unlink()
    with pytest.raises(FileMissing, match=r"a\.png"):  # not a bad record: whether it is there depends on the moment
        folder.read(np.array([2]))


def test_links_to_folders_are_not_followed(root):
    os.symlink(root, root / "cat" / "loop")
    os.symlink(root / "dog" / "a.png", root / "cat" / "link.png")
    assert "cat/link.png" in list(ImageFolder(root).names)
    assert len(ImageFolder(root)) == 5


def test_it_pickles_and_prints(root):
    folder = pickle.loads(pickle.dumps(ImageFolder(root)))
    assert folder.read(np.array([2]))["bytes"].tolist() == [b"dog/a.png"]
    assert "4 files, 2 classes" in repr(folder)


def test_names_that_are_not_utf8(tmp_path):
    raw = os.fsencode(tmp_path) + b"/\xff\xfe.jpg"
    with open(raw, "wb") as file:
        file.write(b"x")
    folder = ImageFolder(tmp_path, labels=None)
    assert os.fsencode(folder.read(np.array([0]))["path"][0]) == b"\xff\xfe.jpg"
    folder.fingerprint()


def test_names_take_their_own_length():
    names = Names(f"class_{i % 10}/picture_{i:06d}.jpg" for i in range(20_000))
    assert len(names.blob) + names.offsets.nbytes < 20_000 * 40
    assert names[19_999] == "class_9/picture_019999.jpg"
    with pytest.raises(IndexError):
        names[20_000]
