"""Refuses loaders that were never sharded where several processes run: each would get the same rows.

Checked when iteration begins, not when a loader is built: a process group is often initialised in between, and
Accelerate shards a loader after it was built. `batch_at`, `peek` and `why` are not checked.
"""

from __future__ import annotations

from penstock.core.errors import UsageError
from penstock.order.shard import several_processes


def refuse_unsharded(sharded: bool, shard: str, share_all: str) -> None:
    """Raises if the rows of a loader are not sharded and this process is one of several.

    `shard` is what the user writes to shard them, `share_all` what to write if every process is to get all rows.
    """
    if sharded:
        return
    found = several_processes()
    if found is not None:
        raise UsageError(
            "a loader that is sharded among processes",
            got=f"one that is not, and {found}: each process would get the same rows",
            fix=f"add {shard}; if every process is to get all rows, {share_all}",
        )
