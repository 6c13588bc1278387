"""Ranks that saved different steps are refused when they restore, on real processes of torch and JAX."""

from __future__ import annotations

import os
import socket
from itertools import islice
from typing import Any

import pytest
import torch

import penstock as ps
from tests.torch_data.trainers.ranks import on_ranks

KINDS = ("pipeline", "windows", "built map", "built stream")


def _loader(kind: str, rank: int, world: int) -> Any:
    if kind == "pipeline":
        return ps.from_arrays({"x": range(96)}).shuffle(seed=1).shard(rank, world).batch(12).to_torch()
    if kind == "windows":
        dataset = ps.create_dataset("gpt_v1", txt="river " * 60, tokenizer="bytes", max_length=4, stride=2)
        return ps.create_dataloader(dataset, 4, rank=rank, world=world)
    rows: Any = [{"x": i} for i in range(96)]
    if kind == "built stream":
        rows = ps.StreamingPreprocessedDataset(rows, dict, buffer_size=8)
    return ps.DataLoaderBuilder().with_dataset(rows).with_batch_size(4).with_distributed(rank, world).build()


def _states(kind: str, world: int, steps: list[int]) -> list[Any]:
    """The state of each rank after its own number of steps."""
    found = []
    for rank, count in enumerate(steps):
        loader = _loader(kind, rank, world)
        list(islice(loader, count))
        found.append(loader.state_dict())
    return found


def _restore(rank: int, world: int) -> dict[Any, str]:
    torch.distributed.init_process_group("gloo")
    found = {}
    for kind in KINDS:
        same = _states(kind, world, [3] * world)
        ahead = _states(kind, world, [3] * (world - 1) + [4])
        for case, states in (("same", same), ("ahead", ahead), ("same again", same)):
            torch.distributed.barrier()
            loader = _loader(kind, rank, world)
            try:
                loader.load_state_dict(states[rank])
                next(iter(loader))
                found[kind, case] = "restored"
            except ps.StateError as error:
                found[kind, case] = str(error)
    torch.distributed.barrier()
    return found


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_a_rank_that_saved_one_step_ahead_is_refused(world: int) -> None:
    ranks = on_ranks(_restore, world, world=world)
    assert [type(rank) for rank in ranks] == [dict] * world, "\n".join(map(str, ranks))
    for kind in KINDS:
        assert all(rank[kind, case] == "restored" for rank in ranks for case in ("same", "same again")), kind
        for rank in ranks:
            text = rank[kind, "ahead"]
            assert "the same state on every rank" in text and "step 3" in text and "step 4" in text, text
            assert "save on one rank and load that state on all" in text


def _only_one(rank: int) -> str:
    torch.distributed.init_process_group("gloo")
    loader = _loader("pipeline", rank, 2)
    if rank == 0:
        loader.load_state_dict(_states("pipeline", 2, [3, 3])[0])
    alone = ps.from_arrays({"x": range(96)}).shard(0, 1).batch(12).to_torch()
    list(islice(alone, rank + 1))
    alone.load_state_dict(alone.state_dict())  # every rank has all rows: its position is its own
    return f"step {loader.step}, {alone.step}"


def test_a_state_that_only_one_rank_loads_does_not_hang() -> None:
    assert on_ranks(_only_one) == ["step 3, 1", "step 0, 2"]


def _jax(rank: int, address: str) -> str:
    import jax

    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name)
    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(address, 2, rank)
    loader = ps.from_arrays({"x": range(96)}).shard().batch(12).to_numpy()
    list(islice(loader, 3 + rank))
    state = loader.state_dict()
    try:
        loader.load_state_dict(state)
        found = "restored"
    except ps.StateError as error:
        found = str(error)
    jax._src.distributed.global_state.client.wait_at_barrier("compared", 60_000)  # process 0 holds the store
    return found


def test_processes_of_jax() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for rank, text in enumerate(on_ranks(_jax, address)):
        assert f"step {3 + rank}, n {36 + 12 * rank} on rank {rank}" in text, text
