"""Shuffled rows of Parquet, beside Hugging Face map-style: texts, token ids, JPEG images; batches of 32.

100 row groups, a plain `.shuffle()`. Processor time per row after the first epoch began: the conversion of the files
(Penstock's stored rows, HF's Arrow cache) is not part of it.

    python -m bench parquet_rows
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import judge, medians, rounds, save, table

ROWS, IMAGES, BATCH = 100_000, 2_000, 32


def make(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(5000)]
    places = rng.integers(0, 4800, ROWS).tolist()
    texts = [" ".join(words[a : a + k]) for a, k in zip(places, rng.integers(20, 120, ROWS).tolist(), strict=True)]
    pq.write_table(pa.table({"text": texts, "n": np.arange(ROWS)}), folder / "text.parquet", row_group_size=ROWS // 100)
    ids = rng.integers(0, 50_000, ROWS * 256).astype(np.int32)
    lists = pa.FixedSizeListArray.from_arrays(ids, 256)
    pq.write_table(pa.table({"input_ids": lists}), folder / "ids.parquet", row_group_size=ROWS // 100)
    jpegs = []
    for _ in range(50):
        file = io.BytesIO()
        small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8))
        small.resize((320, 240), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        jpegs.append(file.getvalue())
    images = [{"bytes": jpegs[i % 50], "path": f"{i}.jpg"} for i in range(IMAGES)]
    pq.write_table(pa.table({"image": images}), folder / "images.parquet", row_group_size=IMAGES // 100)


def per_row(batches: Iterable[Any], seconds: float) -> float:
    """Processor microseconds a row over about `seconds`, after as long a start."""
    run = iter(batches)
    for limit in (seconds, seconds):
        count, began, cpu = 0, time.perf_counter(), time.process_time()
        for _ in run:
            count += 1
            if time.perf_counter() - began > limit:
                break
        else:
            run = iter(batches)
    return 1e6 * (time.process_time() - cpu) / max(1, count) / BATCH


def run(seconds: float = 0.8, count: int = 3) -> dict[str, Any]:
    import datasets
    import torch

    import penstock as ps

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["PENSTOCK_CACHE"] = str(folder / "cache")
        make(folder)
        targets, found = [], {}
        for kind in ("text", "ids", "images"):
            hf = datasets.Dataset.from_parquet(str(folder / f"{kind}.parquet"), cache_dir=str(folder / "hf"))
            if kind == "ids":
                hf = hf.with_format("torch")
            if kind == "images":
                hf = hf.cast_column("image", datasets.Image()).with_transform(_pil)
            rows = ps.read_parquet(folder / f"{kind}.parquet").shuffle(seed=1)
            rows = rows.decode_images(224, column="image", dtype="uint8") if kind == "images" else rows
            ours = rows.batch(BATCH).to_numpy(threads=0)
            theirs = torch.utils.data.DataLoader(hf, BATCH, shuffle=True)
            contenders = {
                "penstock": lambda ours=ours: per_row(ours, seconds),
                "HF map-style + DataLoader": lambda theirs=theirs: per_row(theirs, seconds),
            }
            found[kind] = medians(rounds(contenders, count))
            ratio = found[kind]["HF map-style + DataLoader"] / found[kind]["penstock"]
            targets.append(judge(f"{kind}: HF map-style's processor time over Penstock's", ratio, 2))
    shown = [(kind, *(f"{v:.2f}" for v in each.values())) for kind, each in found.items()]
    table("processor us a row", shown, ("rows", "penstock", "HF map-style + DataLoader"))
    table("targets", targets, ("what", "found", "wanted", ""))
    facts = {"us_per_row": found, "targets": targets}
    save("parquet_rows", facts)
    return facts


def _pil(batch: dict[str, Any]) -> dict[str, Any]:
    import torch

    images = [image.convert("RGB").resize((224, 224)) for image in batch["image"]]
    return {"image": [torch.from_numpy(np.asarray(image).copy()) for image in images]}


if __name__ == "__main__":
    run()
