"""Detects ranks that restore different positions: each then continues with rows of another step, without an error.

States are the same on every rank, but ranks that save at different moments write different ones. When a sharded loader
loads a state, its rank writes the position into the key-value store of the process group (torch.distributed or JAX; it
is there for their own start-up) and compares it with what the other ranks have written. That is no collective: no
device is used, nothing hangs if some ranks load no state. A rank waits a few seconds for the others, so that usually
all of them raise; otherwise the last one does. Without a process group nothing is compared.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.core.errors import StateError

WAIT = 5.0  # seconds for the other ranks to load their states
_PAUSE = 0.05
_POSITION = ("step", "epoch", "n", "epoch_end", "stages", "mix")  # fields of states; most have some of them


class TorchStore:
    """The store of torch's default process group. `get` returns None for a key that was not set; it does not wait."""

    def __init__(self, distributed: Any, store: Any) -> None:
        self.rank, self.world, self.store = distributed.get_rank(), distributed.get_world_size(), store

    def set(self, key: str, text: str) -> None:
        self.store.set(key, text)

    def get(self, key: str) -> str | None:
        return self.store.get(key).decode() if self.store.check([key]) else None


class JaxStore:
    """The same of `jax.distributed`."""

    def __init__(self, state: Any) -> None:
        self.rank, self.world, self.store = state.process_id, state.num_processes, state.client

    def set(self, key: str, text: str) -> None:
        self.store.key_value_set(key, text, allow_overwrite=True)

    def get(self, key: str) -> str | None:
        try:
            found: str = self.store.key_value_try_get(key)
        except Exception as error:  # JAX's own class, which is not public
            if "NOT_FOUND" in str(error):
                return None
            raise
        return found


class _Loads:
    """Counts the states loaded so far, by what they belong to; again from 0 for another process group."""

    def __init__(self) -> None:
        self.store: Any = None
        self.counts: Counter[str] = Counter()

    def next(self, store: Any, identity: str) -> int:
        if store is not self.store:
            self.store, self.counts = store, Counter()
        self.counts[identity] += 1
        return self.counts[identity]


_LOADS = _Loads()


def refuse_different_steps(identity: str, state: Any, world: int) -> None:
    """Raises if another rank has loaded a state of another position. `world` is the loader's world size.

    The first state that a rank loads for a pipeline (`identity`) is compared with the first of the others, and so on.
    """
    ranks = find_store() if world > 1 and isinstance(state, Mapping) else None
    if ranks is None:
        return
    name = f"penstock/{identity}/{_LOADS.next(ranks.store, identity)}"
    mine = json.dumps({field: state[field] for field in _POSITION if field in state}, sort_keys=True, default=str)
    for rank, other in _others(ranks, name, mine):
        if other != mine:
            raise StateError(
                "the same state on every rank",
                got=f"{_shown(mine)} on rank {ranks.rank}, {_shown(other)} on rank {rank}",
                where="load_state_dict()",
                fix="save after the same step on every rank, or save on one rank and load that state on all",
            )


def _others(ranks: TorchStore | JaxStore, name: str, mine: str) -> Iterator[tuple[int, str]]:
    """The positions of other ranks, as they load their states, for a few seconds."""
    missing, end = set(range(ranks.world)) - {ranks.rank}, time.monotonic() + WAIT
    try:
        ranks.set(f"{name}/{ranks.rank}", mine)
        while missing:
            for rank in sorted(missing):
                other = ranks.get(f"{name}/{rank}")
                if other is not None:
                    missing.remove(rank)
                    yield rank, other
            if not missing or time.monotonic() > end:
                return
            time.sleep(_PAUSE)
    except RuntimeError:  # the process that holds the store has ended: torch or JAX report that themselves
        return


def _shown(position: str) -> str:
    fields = json.loads(position)
    return ", ".join(f"{name} {fields[name]}" for name in ("step", "epoch", "n") if name in fields)


def find_store() -> TorchStore | JaxStore | None:
    """The store of the process group that is initialised, if it has several processes."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        store = distributed.distributed_c10d._get_default_store()
        return TorchStore(distributed, store) if distributed.get_world_size() > 1 else None
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if state is not None and state.client is not None and (state.num_processes or 1) > 1:
        return JaxStore(state)
    return None
