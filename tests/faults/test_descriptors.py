"""Thousands of shards and files under a small `ulimit -n`, for any batch size and number of threads."""

from __future__ import annotations

import gzip
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from penstock.core.columns import Ragged
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardWriter

SHARDS = 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    tokens = np.arange(200, dtype=np.uint16) + 1
    (folder / "store").mkdir()
    infos = []
    for i in range(SHARDS):
        with ShardWriter(folder / "store" / f"{i:05}.tokens", vocab_size=1000) as shard:
            shard.add(Ragged(tokens, np.arange(0, 201, 20)))
        infos.append(shard.finish())
    write_manifest(folder / "store", infos)
    for i in range(SHARDS):
        (tokens + i % 7).tofile(folder / f"{i:05}.bin")
    line = b'{"text": "a line of text"}\n'
    for i in range(300):
        (folder / f"{i:05}.jsonl.gz").write_bytes(gzip.compress(line * 3, 1))
        (folder / f"{i:05}.jsonl").write_bytes(line * 3)
    return folder


PIPELINES = {
    "store windows": "ps.open_store(folder / 'store').windows(16)",
    "store documents": "ps.open_store(folder / 'store')",
    "store off": "ps.open_store(folder / 'store', verify='off').windows(16)",
    "nanogpt": "ps.open_nanogpt(sorted(folder.glob('*.bin'))).windows(16)",
    "gz": "ps.read_jsonl(str(folder / '*.jsonl.gz'), field='text')",
    "jsonl": "ps.read_jsonl(str(folder / '*.jsonl'), field='text')",
}


@pytest.mark.parametrize("limit", [64])
@pytest.mark.parametrize("kind", PIPELINES)
def test_few_descriptors_are_enough(kind: str, limit: int, folder: Path) -> None:
    pytest.importorskip("resource")
    script = f"""
        import resource, os, hashlib
        from pathlib import Path
        import numpy as np
        resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
        import penstock as ps
        folder = Path({str(folder)!r})
        for batch, threads in ((4096, 0), (64, 4), (900, 4)):
            loader = ({PIPELINES[kind]}).shuffle(seed=1).batch(batch, remainder="short").to_numpy(threads=threads)
            rows = 0
            for columns in loader:
                rows += len(next(iter(columns.values())))
                if rows >= 4096:
                    break
            assert rows, (batch, threads)
        print("done", len(os.listdir("/proc/self/fd")) < 40)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "done True\n", done.stderr
