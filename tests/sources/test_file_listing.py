"""Listing a folder: the order of a sorted walk for any names; sizes gathered in the background change nothing."""

from __future__ import annotations

import gc
import os
import pickle
import random
import threading
from pathlib import Path

import numpy as np
import pytest

from penstock.core.errors import StorageError
from penstock.sources import file_listing
from penstock.sources.file_listing import list_files
from penstock.sources.folders import ImageFolder
from penstock.sources.names import Names

WORDS = ("a", "a-b", "a b", "A", "é", "z.jpg", "b", "a.b", "0", ".hidden", "~", "x" * 40, "a!", "aa")
ENDS = (".jpg", ".JPG", ".tar.gz", ".gz", ".txt", "", ".jpeg")
SUFFIXES = (".jpg", ".tar.gz", ".gz")


def tree(root: Path, rng: random.Random, depth: int = 0) -> None:
    for word in rng.sample(WORDS, rng.randint(1, 6)):
        if depth < 3 and rng.random() < 0.4:
            (root / word).mkdir(exist_ok=True)
            tree(root / word, rng, depth + 1)
    for word in rng.sample(WORDS, rng.randint(0, 6)):
        path = root / (word + rng.choice(ENDS))
        if not path.exists():
            path.write_bytes(b"x" * rng.randint(0, 99))
    if rng.random() < 0.3:
        (root / "link.jpg").symlink_to("nowhere")
        (root / "loop").symlink_to(root)


def expected(root: Path) -> list[str]:
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith(".")]
        for name in names:
            if not name.startswith(".") and name.lower().endswith(SUFFIXES) and os.path.isfile(f"{folder}/{name}"):
                found.append(os.path.relpath(f"{folder}/{name}", root))
    return sorted(found)


def test_the_order_is_that_of_a_sorted_walk(tmp_path: Path) -> None:
    for seed in range(60):
        root = tmp_path / str(seed)
        root.mkdir()
        tree(root, random.Random(seed))
        runs = list_files(str(root), SUFFIXES)
        names = Names.of_runs(runs)
        assert list(names) == expected(root)
        plain = Names(expected(root))
        assert (names.blob, names.offsets.tolist()) == (plain.blob, plain.offsets.tolist())
        if len(names):
            sizes = file_listing.FileSizes(str(root), names).all().tolist()
            assert sizes == [(root / name).stat().st_size for name in names]


def gathering() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-sizes"]


def images(root: Path) -> Path:
    for n in range(40):
        path = root / f"class{n % 3}" / f"{n}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * (n + 1))
    return root


def test_sizes_come_in_the_background_and_the_identity_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = images(tmp_path / "images")
    plain = ImageFolder(root)
    assert plain.labels is not None and plain.labels.tolist() == sorted(n % 3 for n in range(40))
    identity = plain.fingerprint()
    monkeypatch.setattr(file_listing, "MANY", 10)
    monkeypatch.setattr(file_listing, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(file_listing, "TOGETHER", 3)
    folder = ImageFolder(root)
    for thread in gathering():
        thread.join()
    asked: list[object] = []
    monkeypatch.setattr(os, "stat", lambda *a, **k: asked.append(a))
    assert folder._sizes is not None and int(np.min(folder._sizes.all())) > 0
    assert not asked  # nothing is left to ask for
    monkeypatch.undo()
    assert folder.fingerprint() == identity
    assert pickle.loads(pickle.dumps(ImageFolder(root))).fingerprint() == identity


def test_a_folder_that_is_gone_ends_its_thread_and_a_missing_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = images(tmp_path / "images")
    monkeypatch.setattr(file_listing, "MANY", 10)
    monkeypatch.setattr(file_listing, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(file_listing, "WAIT_SECONDS", 0.2)
    folder = ImageFolder(root)
    (root / "class1" / "1.jpg").unlink()
    for thread in gathering():
        thread.join()
    with pytest.raises(StorageError, match="class1/1.jpg"):
        folder.fingerprint()
    held = ImageFolder(root)
    assert gathering()
    del held, folder
    gc.collect()
    for thread in gathering():
        thread.join(timeout=30)
    assert not gathering()
