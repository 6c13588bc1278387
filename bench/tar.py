"""JPEG in tar shards to shuffled batches of crops, beside webdataset and a bare read and decode of the same bytes.

    python -m bench tar

Processor time of an image, of all threads and worker processes, and images a second. The bare loop decodes every image
in full and scales its middle down, averaging as Penstock does; nothing else.
"""

from __future__ import annotations

import io
import resource
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import judge, medians, rounds, save, table

SHARDS, EACH, SIDE, ROWS = 4, 128, 224, 32


def make_shards(root: Path) -> list[str]:
    from PIL import Image

    rng = np.random.default_rng(0)
    paths = []
    for shard in range(SHARDS):
        paths.append(str(root / f"{shard:04d}.tar"))
        with tarfile.open(paths[-1], "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(EACH):
                picture = np.zeros((400, 500, 3))
                for cells in (4, 16, 64):
                    noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8))
                    picture += (np.asarray(noise.resize((500, 400))) - 127.5) * (4 / cells) ** 0.4
                file = io.BytesIO()
                Image.fromarray(np.clip(picture + 127.5, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=92)
                for name, data in ((f"{i:05d}.jpg", file.getvalue()), (f"{i:05d}.cls", b"%d" % (i % 10))):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return paths


def middle(image: Any) -> Any:
    """The largest square in the middle, scaled down."""
    import cv2

    return cv2.resize(image[:, 50:450], (SIDE, SIDE), interpolation=cv2.INTER_AREA)


def ours(paths: list[str]) -> Iterator[Any]:
    import penstock as ps

    records = ps.read_tar(paths).shuffle(seed=1).repeat()
    yield from records.decode_images(SIDE, crop="center", column="jpg").batch(ROWS).to_numpy(threads=2)


def bare(paths: list[str]) -> Iterator[Any]:
    import simplejpeg

    members = []
    for path in paths:
        with tarfile.open(path) as tar:
            members += [(path, m.offset_data, m.size) for m in tar if m.name.endswith(".jpg")]
    files = {path: open(path, "rb") for path in paths}  # noqa: SIM115 - open as long as the loop runs
    for seed in range(1 << 30):
        order = np.random.default_rng(seed).permutation(len(members))
        for at in range(0, len(order) - ROWS + 1, ROWS):
            out = np.empty((ROWS, SIDE, SIDE, 3), np.uint8)
            for place, i in zip(out, order[at : at + ROWS], strict=True):
                path, start, size = members[i]
                files[path].seek(start)
                image = simplejpeg.decode_jpeg(files[path].read(size), "RGB")
                place[:] = middle(image)
            yield out


def webdataset(paths: list[str]) -> Iterator[Any]:
    import webdataset as wds

    data = wds.WebDataset(paths, shardshuffle=SHARDS, seed=1, empty_check=False).repeat().shuffle(256).decode("rgb8")
    loader = wds.WebLoader(data.to_tuple("jpg", "cls").map_tuple(middle, int).batched(ROWS), batch_size=None)
    yield from loader


def cpu_seconds() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in both)


def run(count: int = 3, batches: int = 12) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        paths = make_shards(Path(name))
        makers: dict[str, Callable[[list[str]], Iterator[Any]]] = {"penstock": ours, "bare read and decode": bare}
        if find_spec("webdataset"):
            makers["webdataset"] = webdataset
        rates: dict[str, list[float]] = {}

        def contender(title: str) -> Callable[[], float]:
            def one() -> float:
                items = makers[title](paths)
                for _ in islice(items, 3):
                    pass
                cpu, wall = cpu_seconds(), time.perf_counter()
                for _ in islice(items, batches):
                    pass
                spent, took = cpu_seconds() - cpu, time.perf_counter() - wall
                getattr(items, "close", lambda: None)()
                rates.setdefault(title, []).append(batches * ROWS / took)
                return 1e3 * spent / (batches * ROWS)

            return one

        found = rounds({title: contender(title) for title in makers}, count)
    cost, speed = medians(found), medians(rates)
    table(
        "images of tar shards",
        [(title, f"{cost[title]:.2f}", f"{speed[title]:.0f}") for title in makers],
        ("what", "cpu ms an image", "images/s"),
    )
    targets = [judge("processor time of a bare read and decode", cost["penstock"] / cost["bare read and decode"], 1.25,
                     most=True)]  # fmt: skip
    if "webdataset" in cost:
        targets.append(judge("times less processor time than webdataset", cost["webdataset"] / cost["penstock"], 1.5))
    table("targets", targets, ("what", "found", "wanted", ""))
    facts = {"cpu_ms": cost, "images_per_second": speed, "targets": targets}
    save("tar", facts)
    return facts


if __name__ == "__main__":
    run()
