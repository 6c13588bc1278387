"""`penstock plan`, `explain` and `bench`: their figures are those of the real loader."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.sources.tokens import TokenArray
from penstock.view.training_run import covered, figures


@pytest.mark.parametrize(
    ("length", "stride", "batch"), [(4, None, 3), (4, 1, 7), (4, 2, 5), (4, 5, 4), (3, 9, 4), (8, 3, 50)]
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_figures_are_those_of_a_real_epoch(length: int, stride: int | None, batch: int, shuffle: bool) -> None:
    source = TokenArray(np.arange(200))
    facts = figures(source, length, stride, batch, seed=3, shuffle=shuffle, epochs=2)
    pipeline = ps.open_tokens(np.arange(200)).windows(length, stride)
    loader = (pipeline.shuffle(3) if shuffle else pipeline).batch(batch).to_numpy(threads=0)
    seen, given = set(), 0
    for got in loader:
        seen |= set(got["input_ids"].ravel().tolist()) | set(got["labels"].ravel().tolist())
        given += got["input_ids"].size
    assert facts["steps_per_epoch"] == len(loader)
    assert facts["tokens_per_epoch"] == given
    assert facts["tokens_trained"] == 2 * given
    assert facts["tokens_not_seen_in_epoch_0"] == 200 - len(seen)
    assert facts["rows_dropped_per_epoch"] == facts["windows"] - given // length
    assert facts["fingerprint"] == loader.state_dict()["fingerprint"]


def test_covered_against_counting() -> None:
    draw = np.random.default_rng(0)
    for _ in range(300):
        windows, length, stride = (int(v) for v in draw.integers(1, 12, 3))
        dropped = np.sort(draw.choice(windows, int(draw.integers(0, windows)), replace=False))
        kept = set(range(windows)) - set(dropped.tolist())
        tokens = {t for w in kept for t in range(w * stride, w * stride + length + 1)}
        assert covered(windows, length, stride, dropped) == len(tokens), (windows, length, stride, dropped)


def test_plan_shows_and_tells(run: Any, store: Path) -> None:
    argv = ["plan", store, "--length", 32, "--batch", 8, "--world", 2, "--epochs", 3, "--seed", 5]
    facts = run(*argv, "--json").json()
    assert facts["rows_per_rank"] == 4
    assert facts["bytes_per_batch"] == 2 * 8 * 4 * 32
    assert facts["steps"] == 3 * facts["steps_per_epoch"]
    shown = run(*argv).out
    assert re.search(rf"^steps per epoch +{facts['steps_per_epoch']:,}$", shown, re.MULTILINE)
    assert "a different order each epoch, seed 5" in shown
    assert facts["fingerprint"] in shown


def test_plan_refuses_what_cannot_run(run: Any, store: Path, corpus: Path) -> None:
    uneven = run("plan", store, "--length", 32, "--batch", 9, "--world", 2)
    assert uneven.code == 1
    assert "that 2 ranks can share equally" in uneven.err
    text = run("plan", corpus, "--length", 32, "--batch", 8)
    assert text.code == 1
    assert "expected tokens: a token store" in text.err
    assert "penstock prepare" in text.err


def test_explain_is_the_very_row(run: Any, store: Path, texts: list[str]) -> None:
    argv = ["explain", store, "--length", 48, "--stride", 40, "--batch", 6, "--seed", 4, "--step", 77, "--row", 2]
    argv += ["--world", 2, "--rank", 1]
    facts = run(*argv, "--json").json()
    loader = ps.open_store(store).windows(48, 40).shuffle(4).shard(1, 2).batch(6).to_numpy(threads=0)
    assert facts["input_ids"] == loader.batch_at(77)["input_ids"][2].tolist()
    assert facts["labels"] == loader.batch_at(77)["labels"][2].tolist()
    assert facts["from"] == loader.why(77, 2)["from"]
    first = facts["from"]["documents"][0]
    assert facts["text"].startswith(texts[first["document"]][first["from"] :][:40].rstrip())
    shown = run(*argv).out
    assert f"step       77, row 2 (epoch {facts['epoch']})" in shown
    assert f"document {first['document']} from its token {first['from']}" in shown
    assert f"file {first['file']}, line {first['line']}" in shown


def test_explain_refuses_a_row_outside(run: Any, store: Path) -> None:
    ran = run("explain", store, "--length", 16, "--batch", 4, "--world", 2, "--step", 0, "--row", 2)
    assert ran.code == 1
    assert "expected a row below 2" in ran.err


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
def test_bench_measures(run: Any, store: Path, to: str) -> None:
    ran = run("bench", store, "--length", 32, "--batch", 8, "--seconds", 0.05, "--to", to, "--json")
    assert ran.code == 0, ran.err
    facts = ran.json()
    assert facts["tokens_per_second"] == pytest.approx(facts["batches"] * 8 * 32 / facts["seconds"], rel=0.01)
    assert facts["share_of_bare_gather"] > 0
    assert set(facts["stage_seconds"]) == {"order", "read", "finish", "deliver"}
    assert "a batch takes" in facts["verdict"]


def test_bench_shows_a_table(run: Any, store: Path) -> None:
    ran = run("bench", store, "--length", 32, "--batch", 8, "--seconds", 0.02, "--threads", 1)
    assert "M tokens/s to numpy" in ran.out
    assert "of the bare gather" in ran.out
    assert "us/batch" in ran.out
    assert ran.out.splitlines()[-1].startswith("a batch takes")
