"""What is found out about the rows of a pipeline in one pass, kept as an array under the cache folder.

The key is a hash of the content of the data, the code of the steps before and the arguments; never of a path or a time.
Two processes that ask at the same moment: one reads, the other waits. A damaged file is made again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.cpus import usable_cores
from penstock.core.function_globals import globals_id
from penstock.core.hashing import content_id
from penstock.core.ledger import Ledger
from penstock.core.progress import progress
from penstock.plan.definition import Definition
from penstock.plan.row_source import KeptBlock, KeptRows
from penstock.preparation.kept_once import kept_once

ROWS = 1024
_HEAD = b"penstock-rows-1\n"


def cached_array(
    kind: str, definition: Definition, arguments: list[Any], cache_dir: Any, make: Callable[[], NDArray[Any]]
) -> NDArray[Any]:
    """What `make` returns for the rows of a definition, or what an earlier run kept.

    `kind` is what is made ("filter"), and `arguments` everything besides the rows that it depends on.
    """
    ids = [globals_id(function, opaque=True) for function in definition.functions()]
    key = content_id([f"{kind} 1", definition.fingerprint(), *(one for one in ids if one), *arguments])
    return kept_once(cache_dir, (kind, f"{key}.rows"), f"reading rows for .{kind}()", make, _packed, _unpacked)


def scan(rows: KeptRows, work: Callable[[KeptBlock], None], doing: str, show: bool | None) -> None:
    """Calls `work` with all kept rows, in blocks; several threads read at once, each a range of its own.

    Bad records that the pipeline skips are counted against its budget, over all blocks together.
    """
    threads = min(8, usable_cores())
    per_range = -(-rows.size // (4 * threads * ROWS)) * ROWS
    ledger, lock = Ledger(rows.budget), threading.Lock()

    with progress(rows.size, "rows", doing, show) as bar, ThreadPoolExecutor(threads, "penstock-rows") as pool:

        def part(start: int) -> None:
            at = start
            for block in rows.blocks(start, ROWS, start + per_range):
                work(block)
                with lock:
                    for entry in block.skipped:
                        ledger.add(entry.file, entry.record, entry.reason, entry.detail)
                    bar.update(block.stop - at)
                at = block.stop

        futures = [pool.submit(part, start) for start in range(0, rows.size, per_range or 1)]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()


def _packed(array: NDArray[Any]) -> bytes:
    body = array.dtype.str.encode().ljust(8) + np.ascontiguousarray(array).tobytes()
    return _HEAD + xxhash.xxh3_128_digest(body) + body


def _unpacked(data: bytes) -> NDArray[Any] | None:
    body = data[len(_HEAD) + 16 :]
    if len(body) < 8 or not data.startswith(_HEAD + xxhash.xxh3_128_digest(body)):
        return None
    kind = np.dtype(body[:8].decode().strip())
    return np.frombuffer(body, kind, offset=8)
