"""With several processes, a loader that was never sharded is refused, with the line to write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import penstock as ps
from penstock.order.shard import several_processes
from tests.torch_data.trainers.ranks import on_ranks

TEXT = "the river runs and the wheel turns " * 20


def numbers() -> ps.Pipeline:
    return ps.from_arrays({"x": range(12)})


def windows(**options: Any) -> Any:
    dataset = ps.create_dataset("gpt_v1", txt=TEXT, tokenizer="bytes", max_length=8, stride=8)
    return ps.create_dataloader(dataset, batch_size=2, **options)


def transformer(**options: Any) -> Any:
    path = Path("train.jsonl")
    path.write_text(json.dumps({"text": TEXT}) + "\n")
    return ps.create_dataloaders(path, path, "bytes", 2, 8, **options)[1]


def built(*place: int) -> Any:
    builder = ps.DataLoaderBuilder().with_dataset([{"x": i} for i in range(8)]).with_batch_size(2)
    return (builder.with_distributed(*place) if place else builder).build()


def capibara(**options: Any) -> Any:
    return ps.CapibaraDataLoader(tokenizer="bytes", dataset_name=["a", "b"], batch_size=2, cache_dir="cache", **options)


# Each kind of loader: unsharded, the line that shards it, and one that gives all rows to every process.
KINDS: dict[str, tuple[Callable[[], Any], str, Callable[[], Any]]] = {
    "to_numpy": (lambda: numbers().batch(4).to_numpy(), ".shard()", lambda: numbers().shard(0, 1).batch(4).to_numpy()),
    "to_torch": (lambda: numbers().batch(4).to_torch(), ".shard()", lambda: numbers().batch(4).shard(0, 1).to_torch()),
    "to_jax": (lambda: numbers().batch(4).to_jax(), ".shard()", lambda: numbers().shard(0, 1).batch(4).to_jax()),
    "mix": (
        lambda: ps.mix([numbers(), numbers()], stop="all").batch(4).to_numpy(),
        ".shard()",
        lambda: ps.mix([numbers().shard(0, 1), numbers()], stop="all").batch(4).to_numpy(),
    ),
    "tokenize": (
        lambda: ps.from_texts([TEXT]).tokenize("bytes", cache_dir="cache").windows(8).batch(4).to_numpy(),
        ".shard()",
        lambda: ps.from_texts([TEXT]).shard(0, 1).tokenize("bytes", cache_dir="cache").windows(8).batch(4).to_numpy(),
    ),
    "create_dataloader": (windows, "rank= and world=", lambda: windows(rank=0, world=1)),
    "create_dataloaders": (transformer, "rank= and world=", lambda: transformer(rank=0, world=1)),
    "builder": (built, ".with_distributed(rank, world_size)", lambda: built(0, 1)),
    "simple": (
        lambda: ps.create_simple_data_loader([{"x": i} for i in range(8)], 2),
        "loader = loader.shard(rank, world)",
        lambda: ps.create_simple_data_loader([{"x": i} for i in range(8)], 2).shard(0, 1),
    ),
}


def launched(monkeypatch: pytest.MonkeyPatch, rank: int = 1, world: int = 2) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))


@pytest.mark.parametrize("kind", KINDS)
def test_an_unsharded_loader_is_refused_with_the_line_to_write(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    unsharded, line, everything = KINDS[kind]
    before = list(unsharded())
    launched(monkeypatch)
    loader = unsharded()
    with pytest.raises(ps.UsageError) as caught:
        iter(loader)
    text = str(caught.value)
    assert line in text and "RANK=1 and WORLD_SIZE=2" in text and "all rows" in text
    assert len(loader) == len(before)
    loader.batch_at(0)  # looking at a batch is not training
    assert len(list(everything())) == len(before), "asked for by name, every process gets all rows"


def test_a_capibara_loader_finds_its_rank_when_it_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    early = capibara()
    launched(monkeypatch)
    with pytest.raises(ps.UsageError, match=r"rank= and world="):
        iter(early)  # built before the processes were known
    assert next(iter(capibara()))["input_ids"].shape[0] == 1
    assert next(iter(capibara(rank=0, world=1)))["input_ids"].shape[0] == 2


def test_shard_that_found_one_process_does_not_count_later(monkeypatch: pytest.MonkeyPatch) -> None:
    early = numbers().shard().batch(4).to_numpy()
    assert len(list(early)) == 3
    launched(monkeypatch)
    with pytest.raises(ps.UsageError, match="after the processes have been initialised"):
        iter(early)
    assert [batch["x"].tolist() for batch in numbers().shard().batch(4).to_numpy()] == [[2, 3], [6, 7], [10, 11]]


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "0"}, None),
        ({"WORLD_SIZE": "2"}, None),
        ({"RANK": "x", "WORLD_SIZE": "2"}, None),
        ({"SLURM_NTASKS": "4"}, None),
        ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, None),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, "SLURM_PROCID=1 and SLURM_NTASKS=4 in the environment"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "PMI_RANK=1 and PMI_SIZE=2 in the environment"),
    ],
)
def test_environments(environ: dict[str, str], found: str | None) -> None:
    assert several_processes(environ) == found


def test_peek_preparation_and_the_test_helpers_are_not_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from penstock.cli.main import main
    from penstock.testing import assert_exact_resume

    launched(monkeypatch)
    assert len(numbers().peek(3)) == 3
    store = str(tmp_path / "store")
    assert ps.prepare(ps.from_texts([TEXT]), "bytes", store, show_progress=False).documents == 1
    assert_exact_resume(lambda: numbers().shuffle(seed=1).batch(4))
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    path = str(tmp_path / "a.jsonl")
    assert main(["check", path, path, "--tokenizer", "bytes", "--batch-size", "2", "--seq-length", "8"]) == 0


def test_a_loader_can_be_sharded_after_it_was_built() -> None:
    whole = [batch["x"].tolist() for batch in numbers().shuffle(seed=3).batch(4).to_numpy()]
    loader = numbers().shuffle(seed=3).batch(4).to_numpy()
    next(iter(loader))
    ranks = [loader.shard(rank, 2) for rank in range(2)]
    parts = [[batch["x"].tolist() for batch in rank] for rank in ranks]
    assert [a + b for a, b in zip(*parts, strict=True)] == whole[1:], "from its position on"
    assert [batch["x"].tolist() for batch in loader] == whole[1:], "the loader itself did not change"
    each = numbers().batch(per_rank=2).to_numpy().shard(1, 2)
    assert [batch["x"].tolist() for batch in each] == [[2, 3], [6, 7], [10, 11]]
    with pytest.raises(ps.UsageError, match="at least one batch of 40 rows"):
        numbers().batch(per_rank=10).to_numpy().shard(0, 4)
    simple = [ps.create_simple_data_loader([{"x": i} for i in range(8)], 4, shuffle=False).shard(r, 2) for r in (0, 1)]
    assert [[b["x"].tolist() for b in loader] for loader in simple] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def _process_group(rank: int) -> list[Any]:
    import os

    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name)
    loader = numbers().batch(4).to_torch()
    alone = len(list(loader))
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}", rank=rank, world_size=2
    )
    try:
        iter(loader)
        refused = ""
    except ps.UsageError as error:
        refused = str(error)
    rows = [x for batch in numbers().shard().batch(4).to_torch() for x in batch["x"].tolist()]
    torch.distributed.barrier()  # rank 0 holds the store of the group: it must not end first
    return [alone, refused, rows]


def test_a_process_group_that_is_initialised_after_the_loader_was_built() -> None:
    ranks = on_ranks(_process_group)
    for rank, (alone, refused, _) in enumerate(ranks):
        assert alone == 3
        assert f"torch.distributed has 2 processes, of which this is rank {rank}" in refused
    assert sorted(ranks[0][2] + ranks[1][2]) == list(range(12))
