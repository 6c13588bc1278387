"""Compares MDS with mosaicml-streaming itself: its files with `read_mds`, and converted files with `StreamingDataset`.

The package conflicts with constraints.txt, so it runs in an environment of its own:

$ python -m bench.peers torch
$ python -m bench.mds_peer
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import penstock as ps
from bench.peers import python_with

_READ = """
import json, sys
from streaming import StreamingDataset
data = StreamingDataset(local=sys.argv[1], shuffle=False, batch_size=1, validate_hash="xxh64")
print(json.dumps([data[i]["tokens"].tolist() for i in range(data.num_samples)]))
"""
_WRITE = """
import json, sys
import numpy as np
from streaming import MDSWriter
options = {"compression": sys.argv[2] or None, "hashes": ["sha1", "xxh64"], "size_limit": 50_000}
with MDSWriter(out=sys.argv[1], columns={"tokens": "ndarray:uint16", "text": "str"}, **options) as writer:
    for document in json.loads(sys.stdin.read()):
        writer.write({"tokens": np.array(document, np.uint16), "text": str(len(document))})
"""


def main() -> int:
    """Writes with each side and reads with the other; 1 if there is no other side."""
    python = python_with("streaming", "MosaicML Streaming")
    if python is None:
        return 1
    rng = np.random.default_rng(7)
    documents = [rng.integers(0, 50257, n).tolist() for n in rng.integers(1, 700, 400).tolist()]
    offsets = np.cumsum([0, *map(len, documents)])
    tokens = ps.open_tokens(np.concatenate(documents).astype(np.uint16), offsets, 50257)
    for compression in ("", "zstd", "gz"):
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = str(Path(folder, "ours")), str(Path(folder, "theirs"))
            ps.convert(tokens, ours, "mds", compression=compression or None, size_limit=50_000)  # type: ignore[arg-type]
            answer = subprocess.run([python, "-P", "-c", _READ, ours], capture_output=True, check=True)
            assert json.loads(answer.stdout.splitlines()[-1]) == documents, "StreamingDataset reads other tokens"
            text = json.dumps(documents).encode()
            subprocess.run([python, "-P", "-c", _WRITE, theirs, compression], input=text, check=True)
            assert [row["input_ids"].tolist() for row in ps.open_mds(theirs).peek(1000)] == documents
            print(f"{compression or 'plain'}: {len(documents)} documents are the same in both directions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
