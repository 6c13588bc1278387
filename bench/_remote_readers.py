"""Two epochs of rows of tokens from an object store, cold and warm, by one library: run as a program of its own.

`python -P _remote_readers.py NAME JOB`, where JOB is JSON; prints what the epochs took as JSON. Libraries other than
Penstock need an environment of their own (see `bench.peers`), so this file imports nothing from this repository.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
import types
from collections.abc import Callable, Iterable
from typing import Any

Job = dict[str, Any]
IMPORTS = {  # with what each imports when it is first used
    "penstock": ("penstock.read", "penstock.outputs.torch", "penstock.store.remote_store", "obstore.store"),
    "streaming": ("streaming", "boto3", "botocore.client", "s3transfer.manager"),
    "litdata": ("litdata", "boto3", "botocore.client", "obstore.store"),
}


def penstock(job: Job) -> Iterable[Any]:
    import penstock as ps

    store = ps.open_store(job["url"], storage_options=job["options"], cache_dir=job["cache"])
    return store.windows(job["length"]).shuffle(seed=1).batch(job["batch"]).to_torch()


def streaming(job: Job) -> Iterable[Any]:
    """MosaicML Streaming: documents of length + 1 tokens. Its own default shuffle and download settings."""
    import numpy as np
    import torch
    from streaming import StreamingDataset

    def collate(rows: list[Any]) -> dict[str, Any]:
        tokens = torch.from_numpy(np.stack([row["tokens"] for row in rows]).astype(np.int64))
        return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}

    data = StreamingDataset(remote=job["url"], local=job["cache"], shuffle=True, batch_size=job["batch"])
    return torch.utils.data.DataLoader(data, batch_size=job["batch"], collate_fn=collate)


def litdata(job: Job) -> Iterable[Any]:
    """LitData: blocks of length + 1 tokens of its own format for tokens."""
    import torch
    from litdata import StreamingDataset, TokensLoader
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no option for it, and the server has no https

    def collate(rows: list[Any]) -> dict[str, Any]:
        tokens = torch.stack(rows).long()
        return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}

    loader = TokensLoader(block_size=job["length"] + 1)
    data = StreamingDataset(
        input_dir=job["url"], cache_dir=job["cache"], item_loader=loader, shuffle=True, storage_options=job["boto"]
    )
    return torch.utils.data.DataLoader(data, batch_size=job["batch"], collate_fn=collate)


def write_litdata(job: Job) -> None:
    """Writes tokens as LitData's format, a document at a time."""
    import numpy as np
    import torch
    from litdata import TokensLoader
    from litdata.streaming import Cache

    tokens = np.fromfile(job["raw"], np.uint16).reshape(-1, job["length"] + 1)
    cache = Cache(job["out"], chunk_bytes=job["chunk_bytes"], item_loader=TokensLoader())
    for n, row in enumerate(tokens):
        cache[n] = torch.from_numpy(row)
    cache.done()
    cache.merge()


def processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main(name: str, job: Job) -> None:
    """Imports are not counted; opening is part of the first epoch."""
    if name == "write_litdata":
        write_litdata(job)
        return
    # torchvision's wheel for CUDA cannot load its operators beside torch for CPUs; nothing here uses them.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("unused"))
    for module in ("torch", *IMPORTS[name]):
        importlib.import_module(module)
    make: Callable[[Job], Iterable[Any]] = {"penstock": penstock, "streaming": streaming, "litdata": litdata}[name]
    found, batches = [], None
    for _ in ("cold", "warm"):
        began, used, rows = time.perf_counter(), processor_seconds(), 0
        batches = make(job) if batches is None else batches
        for batch in batches:
            rows += len(batch["input_ids"])
        found.append({"rows": rows, "seconds": time.perf_counter() - began, "processor": processor_seconds() - used})
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
