"""Which rows of a global batch belong to a rank, and which rank this process is.

A global batch is the same for every number of ranks; a rank takes a contiguous slice of its rows. `find_rank` looks
at frameworks that are already imported and at the environment; it imports nothing and starts no backend.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import UsageError

# Launchers, most specific first: torchrun's variables are set inside a SLURM or MPI job as well.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def rows_of_rank(rows: int, rank: int, world: int) -> tuple[int, int]:
    """Returns the rows `[start, stop)` of a global batch for a rank: contiguous, disjoint, together all rows.

    Equal slices when `world` divides `rows`; otherwise (a short last batch) sizes differ by at most one.

    >>> [rows_of_rank(8, rank, 4) for rank in range(4)]
    [(0, 2), (2, 4), (4, 6), (6, 8)]
    >>> [rows_of_rank(3, rank, 4) for rank in range(4)]
    [(0, 0), (0, 1), (1, 2), (2, 3)]
    """
    check_rank(rank, world)
    if rows < 0:
        raise UsageError("a batch of zero or more rows", got=str(rows), where="shard", fix="pass the global batch size")
    return rows * rank // world, rows * (rank + 1) // world


def equal_rows(count: int, rank: int, world: int) -> NDArray[np.int64]:
    """Returns which of a global batch's `count` rows a rank takes: as many as every other rank.

    Where a short last batch cannot be divided equally, some of its rows are used twice, fewer than there are ranks.

    >>> [equal_rows(6, rank, 2).tolist() for rank in range(2)], [equal_rows(5, rank, 3).tolist() for rank in range(3)]
    ([[0, 1, 2], [3, 4, 5]], [[0, 1], [2, 3], [4, 0]])
    """
    each = -(-count // world)
    return np.arange(rank * each, (rank + 1) * each, dtype=np.int64) % count


def check_rank(rank: int, world: int, where: str = "shard") -> None:
    """Raises unless `0 <= rank < world`."""
    if world < 1:
        raise UsageError(
            "a world size of at least 1", got=f"world={world}", where=where, fix="pass the number of ranks"
        )
    if not 0 <= rank < world:
        raise UsageError(
            f"a rank from 0 to {world - 1}",
            got=f"rank={rank}, world={world}",
            where=where,
            fix="ranks count from 0; pass the data-parallel rank and the number of data-parallel ranks",
        )


def find_rank(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Returns this process's `(rank, world)` from torch.distributed, JAX or the launcher's variables, else `(0, 1)`.

    torch and JAX are used only if they are already imported and initialised.

    >>> find_rank({"RANK": "2", "WORLD_SIZE": "8"})
    (2, 8)
    """
    found = _from_torch() or _from_jax() or _from_environment(os.environ if environ is None else environ)
    return found or (0, 1)


def several_processes(environ: Mapping[str, str] | None = None) -> str | None:
    """How this process knows that it is one of several, in words for an error; None if it is alone or cannot know.

    >>> several_processes({"RANK": "2", "WORLD_SIZE": "8"})
    'RANK=2 and WORLD_SIZE=8 in the environment'
    """
    environ = os.environ if environ is None else environ
    for name, found in (("torch.distributed", _from_torch()), ("JAX", _from_jax())):
        if found is not None:
            return f"{name} has {found[1]} processes, of which this is rank {found[0]}" if found[1] > 1 else None
    try:
        found = _from_environment(environ)
    except UsageError:  # variables that contradict each other say nothing
        return None
    if found is None or found[1] < 2:
        return None
    rank, world = next(names for names in _LAUNCHERS if names[0] in environ and names[1] in environ)
    return f"{rank}={environ[rank]} and {world}={environ[world]} in the environment"


def _from_torch() -> tuple[int, int] | None:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _from_jax() -> tuple[int, int] | None:
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return None
    # jax.process_count() starts a backend if none is running, which takes seconds and reserves the devices. It is
    # called only after that has happened; before, jax.distributed.initialize keeps the numbers in its global state.
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", None)
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if started is not None and started():
        rank, world = int(jax.process_index()), int(jax.process_count())
    elif getattr(state, "client", None) is not None:
        rank, world = int(getattr(state, "process_id", 0)), int(getattr(state, "num_processes", 1))
    else:
        return None
    return (rank, world) if world > 1 else None


def _from_environment(environ: Mapping[str, str]) -> tuple[int, int] | None:
    for rank_name, world_name in _LAUNCHERS:
        rank, world = environ.get(rank_name), environ.get(world_name)
        if rank is None and (world is None or world_name != "WORLD_SIZE"):
            continue  # schedulers set their counts for the full allocation, also where no rank runs
        if world is None and (rank_name, rank) == ("SLURM_PROCID", "0"):
            continue  # a batch script that did not request tasks
        if rank is None or world is None:
            missing, present = (rank_name, world_name) if rank is None else (world_name, rank_name)
            raise UsageError(
                f"both {rank_name} and {world_name} to be set",
                got=f"{present}={environ[present]!r}, but no {missing}",
                where="the environment of this process",
                fix=f"set {missing}, unset {present}, or use shard(rank=, world=)",
            )
        numbers = _number(rank_name, rank), _number(world_name, world)
        check_rank(*numbers, where=f"{rank_name} and {world_name} in the environment")
        return numbers
    return None


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(
            f"an integer in {name}",
            got=repr(text),
            where="the environment of this process",
            fix=f"set {name} to a number or use shard(rank=, world=)",
        ) from error
