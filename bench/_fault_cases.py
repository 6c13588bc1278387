"""One loader under one fault, in a process of its own: `python -m bench._fault_cases LOADER FAULT FOLDER`.

Prints a line of JSON: what the training loop saw. `bench/faults.py` starts it, waits, and looks at what is left,
in the environment of the loader's package: other loaders cannot be imported there.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

ROWS, WIDTH, BATCH, BAD = 4000, 64, 8, 2400
STUCK_SECONDS = 3  # the timeout of loaders that have one


def write(name: str, path: str, rows: Any) -> str:
    """Writes rows in the format of the loader; the file that has the data."""
    if name != "MosaicML Streaming":
        np.save(path, rows)
        return path
    from streaming import MDSWriter

    folder = Path(path).with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    with MDSWriter(out=str(folder), columns={"x": "ndarray:int64"}) as writer:
        for row in rows:
            writer.write({"x": row})
    return str(folder / "shard.00000.mds")


class Rows:
    """A map-style dataset over a memory-mapped file; a row may harm its process."""

    def __init__(self, path: str, fault: str, width: int = 1) -> None:
        self.path, self.fault, self.width = path, fault, width
        self.data: Any = None

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        if self.data is None:
            self.data = np.load(self.path, mmap_mode="r")
        row = np.array(self.data[int(index)])
        harm(int(row[0]), self.fault)
        return np.repeat(row, self.width)


def harm(number: int, fault: str) -> None:
    if number == BAD and fault == "dead worker":
        os.kill(os.getpid(), signal.SIGKILL)
    if number == BAD and fault == "stuck worker":
        time.sleep(3600)


def loader(name: str, path: str, fault: str, workers: int = 2) -> Any:
    """Batches of the first number of each row, in order, with `workers` processes."""
    width = 400 if fault == "tiny /dev/shm" else 1  # 1.6 MB a batch
    if name == "penstock":
        import penstock as ps

        def look(row: dict[str, Any]) -> dict[str, Any]:
            harm(int(row["x"][0]), fault)
            return {"x": np.repeat(row["x"], width)}

        rows = ps.from_arrays({"x": np.load(path, mmap_mode="r")}).map(look)
        return rows.batch(BATCH).to_numpy(workers=workers, timeout=STUCK_SECONDS)
    if name == "grain":
        import grain.python as grain
        from absl import flags

        flags.FLAGS(sys.argv[:1])
        data = grain.MapDataset.source(Rows(path, fault, width)).batch(BATCH).to_iter_dataset()
        return data.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    if name == "MosaicML Streaming":
        from streaming import StreamingDataLoader, StreamingDataset

        class Stream(StreamingDataset):  # type: ignore[misc]
            def __getitem__(self, at: Any) -> Any:
                row = super().__getitem__(at)["x"]
                harm(int(row[0]), fault)
                return np.repeat(row, width)

        data = Stream(local=str(Path(path).with_suffix("")), shuffle=False, batch_size=BATCH, num_canonical_nodes=1)
        return StreamingDataLoader(data, batch_size=BATCH, num_workers=workers, timeout=STUCK_SECONDS)
    options = {"batch_size": BATCH, "num_workers": workers, "timeout": STUCK_SECONDS}
    if name == "StatefulDataLoader":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Rows(path, fault, width), **options)
    from torch.utils.data import DataLoader

    return DataLoader(Rows(path, fault, width), **options)


def first(batch: Any) -> int:
    found = batch["x"] if isinstance(batch, dict) else batch
    return int(np.asarray(found)[0, 0])


def states(run: Any, items: Iterator[Any]) -> Any:
    """The state of an iteration, or None if the loader has none."""
    for held in (items, run):
        for method in ("get_state", "state_dict"):
            if hasattr(held, method):
                return getattr(held, method)()
    return None


def resumed(name: str, path: str, fault: str, state: Any, workers: int) -> Iterator[Any]:
    run = loader(name, path, fault, workers)
    if name == "grain":
        items = iter(run)
        items.set_state(state)
        return items
    run.load_state_dict(state)
    return iter(run)


def play(name: str, fault: str, folder: str) -> str:
    path = str(Path(folder) / "rows.npy")
    rows = np.repeat(np.arange(ROWS, dtype=np.int64)[:, None], WIDTH, 1)
    data = write(name, path, rows)
    run = loader(name, path, fault)
    if fault in ("elastic resume", "changed data"):
        items = iter(run)
        for _ in islice(items, 8):
            pass
        state = copy.deepcopy(states(run, items))
        if state is None:
            return "no state"
        state = json.loads(json.dumps(state)) if name == "penstock" else state
        expected = first(next(items))
        del run, items
        gc.collect()
        if fault == "changed data":
            write(name, path, rows[::-1])
        found = first(next(resumed(name, path, fault, state, 2 if fault == "changed data" else 3)))
        if fault == "changed data":
            return "not noticed: other rows"
        return "the same rows" if found == expected else f"other rows: {found}, not {expected}"
    seen = 0
    for batch in run:
        seen += 1
        first(batch)
        if seen == 20 and fault == "truncated file":
            os.truncate(data, os.path.getsize(data) // 2)
        if fault == "parent killed" and seen == 20:
            print(json.dumps("ready"), flush=True)
            time.sleep(3600)
    return f"{seen} batches of {ROWS // BATCH}"


if __name__ == "__main__":
    try:
        said = play(*sys.argv[1:4])
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:100] if str(error).strip() else ''}"
    print(json.dumps(said), flush=True)
    os._exit(0)  # whatever the loader has left behind
