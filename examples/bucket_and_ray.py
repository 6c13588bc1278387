"""A corpus in a bucket: prepared on a Ray cluster, planned, and read by four hosts that become two.

Starts a real S3 server and a Ray cluster on this machine; with your own bucket and cluster only `BUCKET`,
`OPTIONS` and `address=` change.

    python examples/bucket_and_ray.py
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

import penstock as ps
from local_s3 import BUCKET, s3_server


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    for part in range(4):
        lines = (json.dumps({"text": f"Document {i} of part {part}: the river runs. " * 9}) for i in range(2000))
        (folder / f"part-{part}.jsonl").write_text("\n".join(lines))
    texts = ps.read_jsonl(folder / "*.jsonl")

    with s3_server(folder / "server") as options:
        # 1. Tokens: one Ray task for each group of input, written straight into the bucket.
        settings = {"group_bytes": 1 << 20, "show_progress": False}
        remote = ps.prepare(texts, "bytes", f"{BUCKET}/rivers", cluster="ray", storage_options=options, **settings)
        local = ps.prepare(texts, "bytes", folder / "rivers", **settings)
        print(f"{remote.documents:,} documents, {remote.tokens:,} tokens, {remote.shards} shards in {remote.path}")
        assert remote.id == local.id  # whatever the cluster did

        # 2. The order: each host reads blocks of its own; the rows of a step do not depend on the number of hosts.
        store = ps.open_store(f"{BUCKET}/rivers", storage_options=options, cache_dir=folder / "cache")
        run = store.windows(256).shuffle(seed=7, lanes=4, block=512, window=2).batch(32)
        print(run.plan(hosts=4, world=4))

        # 3. Four hosts train for 10 steps, then two resume from the checkpoint.
        hosts = [run.shard(rank, 4).to_numpy() for rank in range(4)]
        for _ in zip(range(10), *hosts, strict=False):
            pass
        checkpoint = hosts[0].state_dict()
        hosts = [run.shard(rank, 2).to_numpy() for rank in range(2)]
        for host in hosts:
            host.load_state_dict(checkpoint)
        found = np.concatenate([next(iter(host))["input_ids"] for host in hosts])

        # 4. The same batch from the local copy.
        same = ps.open_store(folder / "rivers").windows(256).shuffle(seed=7, lanes=4, block=512, window=2).batch(32)
        expected = same.to_numpy().batch_at(10)["input_ids"]
        assert sorted(map(bytes, found)) == sorted(map(bytes, expected))
        print("step 10 of two hosts from the bucket is step 10 of one machine from its disk")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
