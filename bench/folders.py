"""A folder of 100,000 images: time to the first batch, and memory over three epochs.

The files are small JPEGs, hard links of a few, so that the directory listing is real but the disk does not fill up.
Opening, the first batch and three epochs each run in a new process.

    python -m bench folders
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import judge, save, table

FILES, CLASSES, ROWS, EPOCHS = 100_000, 100, 64, 3

FIRST = """
import sys, time
began = time.perf_counter()
from penstock.read import read_images
imported = time.perf_counter()
loader = read_images(sys.argv[1]).shuffle(seed=1).decode_images(64, crop="random").batch({rows}).to_numpy()
opened = time.perf_counter()
batch = next(iter(loader))
print(__import__("json").dumps([imported - began, opened - imported, time.perf_counter() - imported]))
"""

EPOCH = """
import gc, json, sys
from penstock.read import read_images
loader = read_images(sys.argv[1]).shuffle(seed=1).decode_images(16, crop="random", dtype="uint8")
loader = loader.batch({rows}).to_numpy()
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
found = []
for epoch in range({epochs}):
    for step, batch in enumerate(loader):
        if step == 200:
            found.append(resident())
    found.append(resident())
print(json.dumps(found))
"""


def make_folder(root: Path, count: int) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    originals = []
    (root / "originals").mkdir()
    for i in range(CLASSES):
        file = io.BytesIO()
        small = Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8))
        small.resize((96, 80), Image.Resampling.BICUBIC).save(file, "JPEG")
        path = root / "originals" / f"{i}.jpg"
        path.write_bytes(file.getvalue())
        originals.append(path)
    for name in range(CLASSES):
        (root / "images" / f"class{name:03d}").mkdir(parents=True)
    for i in range(count):
        target = root / "images" / f"class{i % CLASSES:03d}" / f"{i:06d}.jpg"
        os.link(originals[(i * 7 + i // CLASSES) % CLASSES], target)


def ask(code: str, folder: Path) -> list[float]:
    text = code.format(rows=ROWS, epochs=EPOCHS)
    source = Path(__file__).resolve().parents[1] / "src"
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", text, str(folder)], capture_output=True, text=True, check=True, env=environment
    )
    return list(json.loads(done.stdout))


def run(count: int = FILES) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        make_folder(root, count)
        before = os.getloadavg()
        firsts = [ask(FIRST, root / "images") for _ in range(5)]
        middle = np.median(firsts, axis=0).tolist()
        memory = ask(EPOCH, root / "images")
    print(f"{count:,} files in {CLASSES} folders; import {middle[0]:.2f} s, open {middle[1]:.2f} s (median of 5)")
    shown = [
        (f"epoch {i // 2 + 1}, {'batch 200' if i % 2 == 0 else 'its end'}", f"{m:.0f}") for i, m in enumerate(memory)
    ]
    table("resident memory", shown, ("", "MB"))
    targets = [
        judge("seconds from opening to the first batch", middle[2], 1.0, most=True),
        judge("memory at the end over that at the end of epoch 1", memory[-1] / memory[1], 1.05, most=True),
    ]
    table("targets", targets, ("what", "found", "wanted", ""))
    print(f"load average before {before[0]:.1f}, after {os.getloadavg()[0]:.1f}")
    facts = {"seconds": firsts, "megabytes": memory, "targets": targets, "load": [before, os.getloadavg()]}
    save("folders", facts)
    return facts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=FILES)
    run(parser.parse_args().files)
