"""`penstock plan` of every kind of row, of files and of numbers alone, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as ps


@pytest.mark.parametrize(
    ("options", "verbs"),
    [
        (["--pack", 128, "--batch", 4], lambda p: p.pack(128).shuffle(0).batch(4)),
        (["--pad", 64, "--batch", 4], lambda p: p.shuffle(0).batch(4).pad(64, truncate=True)),
        (["--batch-tokens", 900], lambda p: p.shuffle(0).batch_tokens(900, overlong="truncate")),
        (["--batch", 4, "--no-shuffle"], lambda p: p.batch(4)),
        (["--window", 32, "--stride", 16, "--batch", 4], lambda p: p.windows(32, 16).shuffle(0).batch(4)),
    ],
)
def test_rows_of_a_store(run: Any, store: Path, options: list[Any], verbs: Any) -> None:
    facts = run("plan", store, *options, "--world", 2, "--json").json()
    pipeline = verbs(ps.open_store(store))
    assert facts["steps_per_epoch"] == len(pipeline.shard(0, 2).to_numpy(threads=0))
    assert facts["fingerprint"] == pipeline.fingerprint()
    assert facts["reading"]["exact"]
    assert facts["assumptions"]["latency"] == 0.03
    assert "steps per epoch" in run("plan", store, *options, "--world", 2).out


def test_files_of_records(run: Any, corpus: Path, tmp_path: Path) -> None:
    assert run("plan", corpus, "--batch", 4, "--json").json()["rows_per_epoch"] == 60
    for i in range(8):
        (tmp_path / f"{i}.png").write_bytes(bytes(100))
    facts = run("plan", tmp_path, "--batch", 4, "--json").json()
    assert (facts["steps_per_epoch"], facts["reading"]["requests"]) == (2, 8)


def test_numbers_alone_with_other_prices(run: Any) -> None:
    argv = ["plan", "--tokens", "1e10", "--length", 1024, "--batch", 1024, "--world", 64, "--get-price", "0.005"]
    facts = run(*argv, "--fetch-steps", 4, "--cache-bytes", "1e9", "--json").json()
    assert facts["assumptions"]["changed"] == ["cache_bytes", "fetch_steps", "get_price"]
    assert facts["hosts"] == 8
    shown = run(*argv).out
    assert "$0.005 per 1,000 GET" in shown
    assert "(estimate)" in shown


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "a path, --samples N or --tokens N"),
        (["--samples", 100, "--batch", 4], "--sample-bytes 2050"),
        (["--tokens", 100, "--batch", 4], "--length 1024"),
        (["--tokens", 100, "--samples", 4, "--batch", 4], "either samples or tokens"),
        (["--samples", 100, "--sample-bytes", 3], "--batch 1024"),
        (["--samples", 100, "--pack", 4, "--batch", 4], "data with --pack"),
        (["--samples", 100, "--sample-bytes", 3, "--batch", 4, "--in-flight", 0], "in_flight"),
    ],
)
def test_what_is_missing_is_named(run: Any, options: list[Any], text: str) -> None:
    ran = run("plan", *options)
    assert ran.code == 1
    assert text in ran.err


def test_a_store_needs_a_batch_and_one_kind_of_rows(run: Any, store: Path) -> None:
    assert "--batch 1024" in run("plan", store, "--length", 8).err
    assert "one of --length, --pack" in run("plan", store, "--length", 8, "--pack", 8, "--batch", 2).err
    assert "leave one of them out" in run("plan", store, "--samples", 8, "--batch", 2).err


def test_mosaicml_mds(run: Any, tmp_path: Path) -> None:
    tokens = ps.open_tokens([n % 250 for n in range(4000)], list(range(0, 4001, 100)), 256)
    ps.convert(tokens, tmp_path / "mds", "mds", size_limit=3000)
    facts = run("plan", tmp_path / "mds", "--window", 64, "--batch", 4, "--json").json()
    assert facts["steps_per_epoch"] == len(ps.open_mds(tmp_path / "mds").windows(64).batch(4).to_numpy())
    assert run("plan", tmp_path / "mds", "--batch", 4, "--json").json()["rows_per_epoch"] == 40
    said = run("peek", tmp_path / "mds", "--max-length", 4, "--rows", 1).out
    assert "[0, 1, 2, 3]" in said and "[1, 2, 3, 4]" in said
