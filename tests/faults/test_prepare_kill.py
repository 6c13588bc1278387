"""`penstock prepare` killed with SIGKILL at random moments, and two of them in one folder."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BAD_EVERY = 9  # more bad lines than the list of skipped ones holds


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 20 MB in lines of many lengths, some of them bad: five shards of one chunk each."""
    path = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    draw = random.Random(5)
    with open(path, "w") as file:
        for i in range(20_000):
            text = f"line {i} " + "abcdefgh " * draw.randint(1, 230)
            file.write("broken\n" if i % BAD_EVERY == 5 else '{"text": "' + text + '"}\n')
    return path


def start(corpus: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock.cli.main", "prepare", str(corpus), "--tokenizer", "bytes"]
    command += ["--out", str(out), "--shard-tokens", "1e6", "--on-error", "skip", "--threads", "1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], float]:
    """The files of a run that nobody touched, and how long it takes."""
    out = tmp_path_factory.mktemp("whole") / "store"
    began = time.perf_counter()
    child = start(corpus, out)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    found = contents(out)
    assert len([name for name in found if name.endswith(".tokens")]) >= 4
    assert {"manifest.json", "skipped.jsonl"} <= set(found)
    assert len(found) == len([n for n in found if n.endswith(".tokens")]) + 2, "nothing else is left"
    return found, time.perf_counter() - began


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_moments_gives_the_same_bytes(
    corpus: Path, undisturbed: tuple[dict[str, bytes], float], tmp_path: Path, seed: int
) -> None:
    expected, took = undisturbed
    draw = random.Random(seed)
    out = tmp_path / "store"
    for _ in range(4):
        child = start(corpus, out)
        try:
            child.communicate(timeout=draw.uniform(0.2, 0.8) * took)
            break  # it was done before we came
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.communicate()
            assert child.returncode in (-signal.SIGKILL, 0), "killed, or done in the moment before"
    last = start(corpus, out)
    _, err = last.communicate(timeout=120)
    assert last.returncode == 0, err
    found = contents(out)
    assert found.keys() == expected.keys()
    assert found == expected


def test_killed_after_each_shard_goes_on_from_there(
    corpus: Path, undisturbed: tuple[dict[str, bytes], float], tmp_path: Path
) -> None:
    """Not by chance: killed when a record is written, so that every restart finds one shard more."""
    out = tmp_path / "store"
    done = []
    for shards in (1, 2, 3):
        child = start(corpus, out)
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            if len(list(out.glob("done/*/*.json"))) >= shards:
                os.kill(child.pid, signal.SIGKILL)
                break
            time.sleep(0.001)
        _, err = child.communicate()
        done.append(err)
        if child.returncode == 0:
            break
    last = start(corpus, out)
    _, err = last.communicate(timeout=120)
    assert last.returncode == 0, err
    assert "already written" in done[1], "the second run says that it goes on"
    assert contents(out) == undisturbed[0]


def test_killed_between_the_last_shard_and_the_manifest(
    corpus: Path, undisturbed: tuple[dict[str, bytes], float], tmp_path: Path
) -> None:
    """The last shard has no record, as the manifest comes next: it is written again."""
    expected, out = undisturbed[0], tmp_path / "store"
    last_shard = out / max(name for name in expected if name.endswith(".tokens"))
    child = start(corpus, out)
    while not last_shard.exists() and child.poll() is None:
        time.sleep(0.0005)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    if not (out / "manifest.json").exists():
        assert len(list(out.glob("done/*/*.json"))) == len([n for n in expected if n.endswith(".tokens")]) - 1
    again = start(corpus, out)
    _, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert contents(out) == expected


@pytest.mark.parametrize("left", [b"", b'{"tokeni', None])
def test_a_power_cut_that_loses_the_name_of_the_job(
    corpus: Path, undisturbed: tuple[dict[str, bytes], float], tmp_path: Path, left: bytes | None
) -> None:
    """It is not synced: each record names its job too, and the next run goes on from those."""
    out = tmp_path / "store"
    child = start(corpus, out)
    while not list(out.glob("done/*/0001.json")) and child.poll() is None:
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    (out / "job.json").unlink()
    if left is not None:
        (out / "job.json").write_bytes(left)
    last = start(corpus, out)
    _, err = last.communicate(timeout=120)
    assert last.returncode == 0, err
    assert "already written" in err, "it goes on"
    assert contents(out) == undisturbed[0]


def test_killed_right_after_the_manifest_leaves_nothing(
    corpus: Path, undisturbed: tuple[dict[str, bytes], float], tmp_path: Path
) -> None:
    """The last moment of all: the store is whole, its journal still there, a temporary file half written."""
    out = tmp_path / "store"
    out.mkdir()
    for name, data in undisturbed[0].items():
        (out / name).write_bytes(data)
    (out / "done" / "000000").mkdir(parents=True)
    for name in ("done/000000/0000.json", "job.json", ".skipped.jsonl.a1b2c3d4.tmp"):
        (out / name).write_bytes(b"{}")
    child = start(corpus, out)
    said, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    assert "already exists" in said
    assert contents(out) == undisturbed[0]


def test_two_at_once_the_second_is_refused_and_names_the_first(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    first = start(corpus, out)
    try:
        deadline = time.monotonic() + 60
        while not (out / "job.json").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        first.send_signal(signal.SIGSTOP)  # it holds the folder for as long as we like
        second = start(corpus, out)
        said, err = second.communicate(timeout=60)
    finally:
        first.send_signal(signal.SIGCONT)
    assert second.returncode == 1
    assert said == ""
    assert "expected no other process to be preparing a token store here" in err
    assert f"got:   locked by process {first.pid} on " in err
    _, err = first.communicate(timeout=120)
    assert first.returncode == 0, err
