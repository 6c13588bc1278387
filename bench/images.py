"""A folder of JPEGs to training batches: decode, random resized crop to 224, flip, normalise, 64 at a time.

Penstock (float32 and uint8, NHWC), tf.data (`decode_and_crop_jpeg`), DALI on the CPU (`image_random_crop`), torch's
DataLoader with 2 workers and Pillow, and bare simplejpeg decoding full images on two threads. tf.data and DALI run in
a process of their own, in the environment that has them (`bench.peers`). Every contender has 2 threads or processes
and reads the same files.

    python -m bench images
    python bench/images.py --folder photos --rounds 5
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import judge, medians, rate, rounds, save, table, unmeasured
from bench.peers import tried

SIDE, ROWS, THREADS = 224, 64, 2
PEERS = {"tf.data": "tensorflow", "DALI": "nvidia.dali"}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def make_folder(root: Path, count: int = 200) -> None:
    """Generates images of 500 x 400 like photographs: detail at every scale, about 4.7 bits per pixel."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(count):
        picture = np.zeros((400, 500, 3))
        for cells in (4, 8, 16, 32, 64, 128, 256):
            noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8))
            picture += (np.asarray(noise.resize((500, 400), Image.Resampling.BICUBIC)) - 127.5) * (4 / cells) ** 0.4
        file = io.BytesIO()
        Image.fromarray(np.clip(picture + 127.5, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=95)
        (root / f"{i:04d}.jpg").write_bytes(file.getvalue())


def ours(folder: Path, dtype: str) -> Any:
    from penstock.read import read_images

    numbers = {"mean": MEAN, "std": STD} if dtype == "float32" else {}
    images = read_images(folder, labels=None).shuffle(seed=1).repeat()
    return images.decode_images(SIDE, crop="random", dtype=dtype, **numbers).batch(ROWS).to_numpy(threads=THREADS)


def bare(files: list[Path], seconds: float, cost: list[float]) -> float:
    """Images per second of reading and decoding full images on two threads, and nothing else."""
    import simplejpeg

    def one(path: Path) -> int:
        return int(simplejpeg.decode_jpeg(path.read_bytes(), "RGB", fastdct=False).shape[0])

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, files[:50]))
        count, began, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            count += len(list(pool.map(one, files)))
        cost.append(1000 * (time.process_time() - cpu) / count)
        return count / (time.perf_counter() - began)


def tf_data(files: list[Path]) -> Any:
    import tensorflow as tf

    mean, std = tf.constant(MEAN), tf.constant(STD)
    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])

    def one(path: Any) -> Any:
        data = tf.io.read_file(path)
        shape = tf.io.extract_jpeg_shape(data)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, whole, area_range=SCALE, aspect_ratio_range=RATIO, use_image_if_no_bounding_boxes=True
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, [SIDE, SIDE]))
        return (image / 255.0 - mean) / std

    options = tf.data.Options()
    options.threading.private_threadpool_size = THREADS
    data = tf.data.Dataset.from_tensor_slices([str(f) for f in files]).repeat().shuffle(len(files))
    return data.map(one, num_parallel_calls=THREADS).batch(ROWS).prefetch(2).with_options(options)


class Endless:
    """An endless source that is built once: a new iteration continues it."""

    def __init__(self, batch: Callable[[], Any]) -> None:
        self.batch = batch

    def __iter__(self) -> Endless:
        return self

    def __next__(self) -> Any:
        return self.batch()


def dali(files: list[Path]) -> Endless:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=ROWS, num_threads=THREADS, device_id=None)
    def graph() -> Any:
        data, _ = fn.readers.file(files=[str(f) for f in files], random_shuffle=True)
        image = fn.decoders.image_random_crop(
            data, device="cpu", random_area=list(SCALE), random_aspect_ratio=list(RATIO)
        )
        image = fn.resize(image, resize_x=SIDE, resize_y=SIDE)
        return fn.crop_mirror_normalize(
            image, dtype=types.FLOAT, output_layout="HWC", mirror=fn.random.coin_flip(),
            mean=[255 * m for m in MEAN], std=[255 * s for s in STD],
        )  # fmt: skip

    pipe = graph()
    pipe.build()

    def batch() -> Any:
        return pipe.run()[0].as_array()

    return Endless(batch)


class Pictures:
    """A typical map-style dataset with Pillow."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files) * 1000

    def __getitem__(self, index: int) -> Any:
        import torch
        from PIL import Image

        rng = np.random.default_rng(index)
        with Image.open(self.files[index % len(self.files)]) as file:
            image = file.convert("RGB")
        width, height = image.size
        area, aspect = width * height * rng.uniform(*SCALE), np.exp(rng.uniform(*np.log(RATIO)))
        w, h = min(width, round((area * aspect) ** 0.5)), min(height, round((area / aspect) ** 0.5))
        x, y = rng.integers(0, width - w + 1), rng.integers(0, height - h + 1)
        image = image.crop((x, y, x + w, y + h)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        if rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.asarray(image, np.float32) / 255.0
        return torch.from_numpy((pixels - np.array(MEAN, np.float32)) / np.array(STD, np.float32))


def torch_loader(files: list[Path]) -> Any:
    from torch.utils import data

    return data.DataLoader(Pictures(files), ROWS, shuffle=True, num_workers=2, multiprocessing_context="spawn")


class Costed:
    """Batches and their CPU time, which is less noisy than wall time on a shared machine."""

    def __init__(self, batches: Any, found: list[float]) -> None:
        self.batches, self.found = batches, found

    def __iter__(self) -> Iterator[Any]:
        count, began, run = -3, 0.0, iter(self.batches)
        try:
            for batch in run:
                yield batch
                count += 1
                if count == 0:
                    began = time.process_time()
        finally:
            if count > 0:
                self.found.append(1000 * (time.process_time() - began) / count / ROWS)
            if hasattr(run, "close"):
                run.close()


def peer_round(name: str, files: list[str], seconds: float) -> tuple[float, float]:
    """Images a second and processor milliseconds an image of tf.data or DALI, in the peer's process."""
    cost: list[float] = []
    made = {"tf.data": tf_data, "DALI": dali}[name]([Path(f) for f in files])
    return ROWS * rate(Costed(made, cost), seconds), cost[-1]


def noted(answer: tuple[float, float], cost: list[float]) -> float:
    cost.append(answer[1])
    return answer[0]


def run(folder: Path | None = None, count: int = 9, seconds: float = 4.0) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as made:
        if folder is None:
            folder = Path(made)
            make_folder(folder)
        return compare(folder, count, seconds)


def compare(folder: Path, count: int, seconds: float) -> dict[str, Any]:
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    sizes = [p.stat().st_size for p in files]
    print(f"{len(files)} JPEGs of {np.mean(sizes) / 1000:.0f} kB on average, batches of {ROWS}, {THREADS} threads")
    cost: dict[str, list[float]] = defaultdict(list)
    contenders: dict[str, Callable[[], float]] = {
        "penstock": lambda: ROWS * rate(Costed(ours(folder, "float32"), cost["penstock"]), seconds),
        "penstock uint8": lambda: ROWS * rate(Costed(ours(folder, "uint8"), cost["penstock uint8"]), seconds),
        "bare simplejpeg": lambda: bare(files, seconds, cost["bare simplejpeg"]),
    }
    if find_spec("torch"):
        torch_rate = lambda: ROWS * rate(Costed(torch_loader(files), cost["torch 2 workers"]), seconds)  # noqa: E731
        contenders["torch 2 workers"] = torch_rate
    names = [str(f) for f in files]
    before = os.getloadavg()
    with ExitStack() as stack:
        for name, module in PEERS.items():
            if peer := tried(stack, name, module, "bench.images:peer_round", name, names, 0.3):
                contenders[name] = lambda name=name, peer=peer: noted(peer(name, names, seconds), cost[name])
        found = rounds(contenders, count)
    middle = medians(found)
    ranked = sorted(middle.items(), key=lambda item: -item[1])
    used = {name: float(np.median(values)) for name, values in cost.items() if name != "torch 2 workers"}
    shown = [
        (name, f"{value:.0f}", f"{min(found[name]):.0f}..{max(found[name]):.0f}", f"{used.get(name, np.nan):.2f}")
        for name, value in ranked
    ]
    table("median of rounds", shown, ("", "images/s", "range", "CPU ms an image, its process"))
    targets = [
        judge("float32 / bare decode", middle["penstock"] / middle["bare simplejpeg"], 0.7),
        judge("uint8 / bare decode", middle["penstock uint8"] / middle["bare simplejpeg"], 0.85),
    ]
    others = [middle[name] for name in PEERS if name in middle]
    what = "float32 / faster of tf.data and DALI"
    ratio = judge(what, middle["penstock"] / max(others), 1.15) if others else unmeasured(what, 1.15, "neither runs")
    targets.append(ratio)
    if "torch 2 workers" in middle:
        targets.append(judge("float32 / torch DataLoader", middle["penstock"] / middle["torch 2 workers"], 1.7))
    table("targets", targets, ("what", "found", "wanted", ""))
    print(f"load average before {before[0]:.1f}, after {os.getloadavg()[0]:.1f}")
    facts = {
        "images_per_second": middle,
        "cpu_ms": used,
        "rounds": found,
        "targets": targets,
        "load": [before, os.getloadavg()],
    }
    save("images", facts)
    return facts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="JPEGs to read; without it some are made")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=4.0)
    asked = parser.parse_args()
    run(asked.folder, asked.rounds, asked.seconds)
