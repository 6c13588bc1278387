"""Slices of a batch, and finding the rank in real processes of torch and JAX and in the environment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.errors import UsageError
from penstock.order.shard import check_rank, find_rank, rows_of_rank


def test_slices_cover_every_row_once_and_are_even() -> None:
    for rows in range(40):
        for world in range(1, 12):
            slices = [rows_of_rank(rows, rank, world) for rank in range(world)]
            assert [row for start, stop in slices for row in range(start, stop)] == list(range(rows))
            sizes = {stop - start for start, stop in slices}
            assert max(sizes) - min(sizes) <= (rows % world != 0)


def test_invalid_arguments_raise() -> None:
    with pytest.raises(UsageError) as caught:
        rows_of_rank(8, 4, 4)
    assert str(caught.value) == (
        "expected a rank from 0 to 3\n  got:   rank=4, world=4\n  where: shard\n"
        "  fix:   ranks count from 0; pass the data-parallel rank and the number of data-parallel ranks"
    )
    with pytest.raises(UsageError, match=r"a rank from 0 to 3\n  got:   rank=-1"):
        rows_of_rank(8, -1, 4)
    with pytest.raises(UsageError, match=r"a world size of at least 1\n  got:   world=0\n  where: pipeline"):
        check_rank(0, 0, where="pipeline")
    with pytest.raises(UsageError, match=r"a batch of zero or more rows\n  got:   -8"):
        rows_of_rank(-8, 0, 4)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, (1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6"}, (5, 6)),
        ({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (3, 8)),
        ({"SLURM_NTASKS": "4"}, (0, 1)),
        ({"SLURM_PROCID": "0"}, (0, 1)),
        ({"SLURM_PROCID": "0", "PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
    ],
)
def test_rank_from_the_environment(environ: dict[str, str], found: tuple[int, int]) -> None:
    assert find_rank(environ) == found


@pytest.mark.parametrize(
    ("environ", "expected", "got", "fix"),
    [
        (
            {"RANK": "3"},
            "both RANK and WORLD_SIZE to be set",
            "RANK='3', but no WORLD_SIZE",
            "set WORLD_SIZE, unset",
        ),
        ({"WORLD_SIZE": "3"}, "RANK and WORLD_SIZE to be set", "WORLD_SIZE='3', but no RANK", "set RANK, unset WORLD"),
        ({"SLURM_PROCID": "2"}, "SLURM_PROCID and SLURM_NTASKS", "SLURM_PROCID='2', but no", "set SLURM_NTASKS"),
        ({"PMI_RANK": "0"}, "PMI_RANK and PMI_SIZE", "PMI_RANK='0', but no PMI_SIZE", "use shard(rank=, world=)"),
        ({"RANK": "x", "WORLD_SIZE": "3"}, "an integer in RANK", "'x'", "set RANK to a number"),
        ({"RANK": "3", "WORLD_SIZE": "3"}, "a rank from 0 to 2", "rank=3, world=3", "ranks count from 0"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "a world size of at least 1", "world=0", "number of ranks"),
    ],
)
def test_an_inconsistent_environment_names_the_variable(
    environ: dict[str, str], expected: str, got: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        find_rank(environ)
    error = caught.value
    assert expected in error.expected
    assert got in error.got
    assert fix in error.fix
    assert "environment" in error.where


def run_ranks(script: str, *arguments: str, world: int = 2) -> list[str]:
    """Runs a script in `world` real processes at once; returns what each printed."""
    environ = {name: text for name, text in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environ["JAX_PLATFORMS"] = "cpu"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), str(world), *arguments],
            env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    answers = []
    try:
        for process in running:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            answers.append(out.strip())
    finally:
        for process in running:
            process.kill()
    return answers


def test_rank_from_torch_distributed(tmp_path: Path) -> None:
    script = """
import os, sys
from penstock.order.shard import find_rank
import torch.distributed as dist
rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
before = find_rank({})
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
print(before, find_rank({"RANK": "7", "WORLD_SIZE": "9"}))
dist.barrier()  # a rank that ends removes the file through which the other one may still be connecting
dist.destroy_process_group()
"""
    assert run_ranks(script, str(tmp_path / "store")) == ["(0, 1) (0, 2)", "(0, 1) (1, 2)"]


def test_rank_from_jax_without_starting_a_backend() -> None:
    script = """
import sys
from penstock.order.shard import find_rank
import jax
from jax._src import xla_bridge
rank, world, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
alone = find_rank({})
jax.distributed.initialize("localhost:" + port, world, rank)
early = find_rank({})
started = xla_bridge.backends_are_initialized()
jax.devices()
print(alone, early, started, find_rank({}))
jax.distributed.shutdown()
"""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    assert run_ranks(script, str(port)) == [f"(0, 1) ({rank}, 2) False ({rank}, 2)" for rank in range(2)]


def test_a_single_jax_process_uses_the_environment() -> None:
    script = """
import sys
from penstock.order.shard import find_rank
import jax
first = find_rank({"RANK": "1", "WORLD_SIZE": "3"})
jax.devices()
print(first, find_rank({"RANK": "1", "WORLD_SIZE": "3"}))
"""
    assert run_ranks(script, world=1) == ["(1, 3) (1, 3)"]


def test_no_framework_is_imported() -> None:
    script = """
import sys
from penstock.order.shard import find_rank
find_rank({})
print(sorted({"torch", "jax"} & set(sys.modules)))
"""
    assert run_ranks(script, world=1) == ["[]"]
