"""The cache: one preparer, completion after a kill, damage noticed and mended, a bound on its size."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import UsageError
from penstock.facades.capibara.loader import CapibaraDataLoader
from penstock.preparation import cache
from penstock.preparation.tokenize import text_source
from penstock.sources.hf import HFDataset
from penstock.storage import cache_entries
from penstock.store.verify import verify

ROOT = Path(__file__).parents[3]
ROWS, WORDS = 4000, 120

WORKER = """
import sys
from penstock.preparation import run
real = run._Run.write
def noted(self, *arguments):
    print("begun", flush=True)
    return real(self, *arguments)
run._Run.write = noted
from penstock.facades.capibara.loader import CapibaraDataLoader
rows = [("word%d " % i) * {words} for i in range({rows})]
loader = CapibaraDataLoader(tokenizer="bytes", dataset_name=rows, batch_size=4, max_length=64, cache_dir=sys.argv[1])
print("sum", int(loader.batch_at(3)["input_ids"].sum()), flush=True)
"""


def worker(folder: Path) -> subprocess.Popen[str]:
    code = textwrap.dedent(WORKER.format(words=WORDS, rows=ROWS))
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(child: subprocess.Popen[str]) -> list[str]:
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err[-3000:]
    return out.split("\n")[:-1]


def entries(folder: Path) -> list[Path]:
    return [p for p in (folder / "tokens").iterdir() if p.is_dir()]


def test_two_processes_at_once(tmp_path: Path) -> None:
    children = [worker(tmp_path) for _ in range(2)]
    said = [ended(child) for child in children]
    assert sum("begun" in one for one in said) == 1, "one prepares"
    assert len({one[-1] for one in said}) == 1, "both read the same"
    (entry,) = entries(tmp_path)
    assert verify(entry).ok
    assert "begun" not in ended(worker(tmp_path)), "a third one finds it ready"


def test_a_killed_preparation_is_completed(tmp_path: Path) -> None:
    whole = ended(worker(tmp_path / "whole"))
    child = worker(tmp_path / "killed")
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    (entry,) = entries(tmp_path / "killed")
    assert not (entry / "manifest.json").exists(), "killed in the middle"
    assert ended(worker(tmp_path / "killed"))[-1] == whole[-1]
    files = [sorted((p.name, p.read_bytes()) for p in e.iterdir()) for e in entries(tmp_path / "killed")]
    assert files == [sorted((p.name, p.read_bytes()) for p in e.iterdir()) for e in entries(tmp_path / "whole")]


def let_go(folder: Path, *keys: str) -> None:
    """Waits until no store of these keys, or of any, is open: the last thread that read it may still be ending."""
    used = [folder / "tokens" / f"{key}.used" for key in keys] or list((folder / "tokens").glob("*.used"))
    for _ in range(500):
        if all(map(_is_free, used)):
            return
        time.sleep(0.01)
    alive = [one for one in gc.get_objects() if type(one) is cache.CachedStore]
    raise AssertionError([(one, [type(r) for r in gc.get_referrers(one)]) for one in alive])


def test_a_store_is_free_as_soon_as_it_is_deleted(tmp_path: Path) -> None:
    gc.disable()  # its fields refer to each other; eviction must not wait for the garbage collector
    try:
        held = store(tmp_path)
        (used,) = (tmp_path / "tokens").glob("*.used")
        assert not _is_free(used)
        del held
        assert _is_free(used)
    finally:
        gc.enable()


def _is_free(path: Path) -> bool:
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


TEXTS = [f"text number {i} " * 40 for i in range(400)]


def store(folder: Path, texts: list[str] = TEXTS, **more: Any) -> Any:
    source = text_source(ps.from_texts(texts).definition, "text", {})
    return cache.cached_store(source, "bytes", cache_dir=folder, settings={}, **more)


def everything(one: Any) -> bytes:
    return bytes(one.read(np.arange(len(one)))["input_ids"].values.astype(np.uint16).tobytes())


def quietly(path: Path, change: Any) -> None:
    """Changes a file as failing hardware would: size and times stay if the change leaves them."""
    was = path.stat()
    path.write_bytes(change(path.read_bytes()))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def flipped(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(data) // 2] ^= 0x55
    return bytes(changed)


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "manifest", "manifest gone"])
def test_damage_is_noticed_and_mended(tmp_path: Path, damage: str) -> None:
    want = everything(store(tmp_path))
    (entry,) = entries(tmp_path)
    shard, manifest = next(entry.glob("*.tokens")), entry / "manifest.json"
    if damage == "flip":
        quietly(shard, flipped)
    elif damage == "cut":
        quietly(shard, lambda data: data[:100])
    elif damage == "gone":
        shard.unlink()
    elif damage == "manifest":
        quietly(manifest, flipped)
    else:
        manifest.unlink()
    assert everything(store(tmp_path)) == want
    (entry,) = entries(tmp_path)
    assert verify(entry).ok


def test_damage_met_while_reading_is_mended_under_many_threads(tmp_path: Path) -> None:
    want = everything(store(tmp_path))
    one = store(tmp_path)  # open, nothing read yet
    (entry,) = entries(tmp_path)
    quietly(next(entry.glob("*.tokens")), flipped)
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(everything(one))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [want] * 4
    assert verify(entries(tmp_path)[0]).ok
    windows = one.gather(np.arange(10), 8)
    assert windows.shape == (10, 8)
    assert one.locate(3)["document"] == 3


def test_a_loader_goes_on_over_damage(tmp_path: Path) -> None:
    def make() -> CapibaraDataLoader:
        return CapibaraDataLoader(
            tokenizer="bytes", dataset_name=TEXTS, batch_size=50, max_length=1024, cache_dir=str(tmp_path)
        )

    want = [np.asarray(b["input_ids"]) for b in make()]
    loader = make()
    (entry,) = entries(tmp_path)
    quietly(next(entry.glob("*.tokens")), flipped)
    assert all(np.array_equal(a, b["input_ids"]) for a, b in zip(want, loader, strict=True))


def test_the_least_recently_used_leaves_first(tmp_path: Path) -> None:
    made = {}
    for name in "abc":
        held = store(tmp_path, [f"{name} {t}" for t in TEXTS])
        made[name] = held.path.name
        del held
        let_go(tmp_path)
        time.sleep(0.02)
    size = sum(f.stat().st_size for f in entries(tmp_path)[0].iterdir())
    again = store(tmp_path, [f"a {t}" for t in TEXTS])  # a is now the newest
    del again
    let_go(tmp_path)
    with pytest.warns(ResourceWarning, match="2 least recently used stores left the cache"):
        store(tmp_path, [f"d {t}" for t in TEXTS], limit=int(size * 2.5))
    left = {p.name for p in entries(tmp_path)}
    assert made["a"] in left
    assert not left & {made["b"], made["c"]}


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    first = store(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = store(tmp_path, [f"x {t}" for t in TEXTS], limit=1)
    assert len(entries(tmp_path)) == 2
    key = first.path.name
    del first
    let_go(tmp_path, key)
    with pytest.warns(ResourceWarning):
        assert cache_entries.sweep(tmp_path / "tokens", 1) == [key]
    assert everything(second)


def test_an_evicted_store_is_made_again(tmp_path: Path) -> None:
    one = store(tmp_path)
    want = everything(one)
    again = store(tmp_path)
    cache_entries._remove(again.path)  # as if another machine without locks had done it
    assert everything(again) == want
    assert len(entries(tmp_path)) == 1


@pytest.mark.parametrize(("text", "size"), [("50GB", 50 * 10**9), ("1.5 mb", 1_500_000), ("123", 123)])
def test_the_limit_from_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE_LIMIT", text)
    assert cache_entries.limit_of(None) == size
    assert cache_entries.limit_of(7) == 7
    monkeypatch.setenv("PENSTOCK_CACHE_LIMIT", "lots")
    with pytest.raises(UsageError, match="a size such as 50GB"):
        cache_entries.limit_of(None)


def test_keys_are_of_content_and_plan(tmp_path: Path) -> None:
    def keys(**more: Any) -> set[str]:
        CapibaraDataLoader(tokenizer="bytes", dataset_name=TEXTS, cache_dir=str(tmp_path), **more)
        return {p.name for p in entries(tmp_path)}

    first = keys()
    assert keys(batch_size=3, max_length=7, shuffle=False) == first, "batches and order need no other tokens"
    assert len(keys(eos=False)) == 2
    assert len(keys(normalize="NFC")) == 3
    (tmp_path / "copy.txt").write_text("\n".join(TEXTS))
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "b.txt").write_text("\n".join(TEXTS))
    CapibaraDataLoader(tokenizer="bytes", dataset_name=str(tmp_path / "copy.txt"), cache_dir=str(tmp_path))
    count = len(entries(tmp_path))
    CapibaraDataLoader(tokenizer="bytes", dataset_name=str(other / "b.txt"), cache_dir=str(tmp_path))
    assert len(entries(tmp_path)) == count, "the same content under another path"


def test_a_dataset_in_files_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.disable_progress_bars()
    folder = tmp_path / "saved"
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(folder)

    def first_row() -> bytes:
        loader = CapibaraDataLoader(
            tokenizer="bytes", dataset_name=str(folder), shuffle=False, max_length=64, cache_dir=str(tmp_path / "c")
        )
        return bytes(np.asarray(loader.batch_at(0)["input_ids"][0]))

    want = first_row()
    hashed: list[int] = []
    real = HFDataset.fingerprint

    def noted(self: HFDataset) -> str:
        hashed.append(not self._id)
        return real(self)

    monkeypatch.setattr(HFDataset, "fingerprint", noted)
    assert first_row() == want
    assert not any(hashed), "nothing is read to know what it is"
    datasets.Dataset.from_dict({"text": ["other", *TEXTS[1:]]}).save_to_disk(folder)
    assert first_row() != want, "other files are other data"
    assert any(hashed)
    for known in (tmp_path / "c" / "ids").iterdir():
        known.write_text("nonsense")
    assert first_row() != want
