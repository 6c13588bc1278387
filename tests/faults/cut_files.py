"""Cuts a mapped file between two batches; run by `test_cut_files.py`, each case in a process of its own."""

from __future__ import annotations

import os
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.core.columns import Ragged
from penstock.sources.tfrecord import RecordFiles
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardWriter

TOKENS = 100_000
IDS = np.arange(TOKENS, dtype=np.uint16) | 1  # no zero at the end


def store(folder: Path, verify: str) -> tuple[Path, ps.Pipeline]:
    infos = []
    for i in range(3):
        with ShardWriter(folder / f"{i}.tokens", vocab_size=65536) as shard:
            shard.add(Ragged(IDS, np.arange(0, TOKENS + 1, 100)))
        infos.append(shard.finish())
    write_manifest(folder, infos)
    return folder / "1.tokens", ps.open_store(folder, verify=verify)


def megatron(folder: Path, cut: str) -> tuple[Path, ps.Pipeline]:
    n = TOKENS // 10
    IDS.tofile(folder / "a.bin")
    with open(folder / "a.idx", "wb") as file:
        file.write(struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, n, n + 1))
        file.write(np.full(n, 10, np.int32).tobytes() + (np.arange(n) * 20).tobytes() + np.arange(n + 1).tobytes())
    return folder / f"a.{cut}", ps.open_megatron(folder / "a")


def raw(folder: Path, kind: str) -> tuple[Path, ps.Pipeline]:
    path = folder / ("a.npy" if kind == "npy" else "a.bin")
    if kind == "npy":
        np.save(path, IDS)
        return path, ps.from_arrays({"x": np.load(path, mmap_mode="r")})
    IDS.tofile(path)
    if kind == "nanogpt":
        return path, ps.open_nanogpt(path)
    if kind == "zeros":  # the last bytes do not tell whether they were cut
        np.zeros(TOKENS, np.uint16).tofile(path)
        return path, ps.open_nanogpt(path)
    return path, ps.open_dolma(path, dtype="uint16")


NO_TOKENS = ("idx", "npy", "documents", "file", "stream", "rows", "mapping")


def loaders(pipeline: ps.Pipeline, kind: str) -> Iterator[object]:
    documents = pipeline.shuffle(seed=1).batch(8) if kind in NO_TOKENS else None
    batches = documents or pipeline.windows(64).shuffle(seed=1).batch(8)
    return iter(batches.to_numpy(threads=0))


def masked_crc(data: bytes) -> bytes:
    """CRC32C as TFRecord files have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def arrow(folder: Path, kind: str) -> tuple[Path, ps.Pipeline]:
    """Record batches of 1,000 rows; a cut file is no bad record, so it is not skipped."""
    pa, path = pytest.importorskip("pyarrow"), folder / "a.arrow"
    table = pa.table({"x": IDS})
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, 1000)
    return path, ps.read_arrow(str(path), on_error="skip")


def hugging_face(folder: Path, kind: str) -> tuple[Path, ps.Pipeline]:
    """What `save_to_disk` wrote, in order and with the index mapping of `dataset.shuffle`, which is a file too."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_dict({"x": IDS})
    rows.save_to_disk(str(folder / "saved"))
    saved = datasets.load_from_disk(str(folder / "saved"))
    if kind == "rows":
        return folder / "saved" / "data-00000-of-00001.arrow", ps.from_hf(saved).skip_errors()
    mixed = saved.shuffle(seed=1, indices_cache_file_name=str(folder / "mapping.arrow"))
    return folder / "mapping.arrow", ps.from_hf(mixed)


def records(folder: Path) -> tuple[Path, Iterator[object]]:
    path, data = folder / "a.tfrecord", bytes([7]) * 1000
    length = len(data).to_bytes(8, "little")
    path.write_bytes((length + masked_crc(length) + data + masked_crc(data)) * 500)
    found = RecordFiles([(str(path), 0, 500)])
    return path, iter(found.__getitems__([i]) for i in range(499, -1, -1))


Batches = tuple[Path, Iterator[object]]


def of_store(verify: str, kind: str) -> Callable[[Path], Batches]:
    def make(folder: Path) -> Batches:
        path, pipeline = store(folder, verify)
        return path, loaders(pipeline, kind)

    return make


def of_files(make_files: Callable[[Path, str], tuple[Path, ps.Pipeline]], kind: str) -> Callable[[Path], Batches]:
    def make(folder: Path) -> Batches:
        path, pipeline = make_files(folder, kind)
        return path, loaders(pipeline, kind)

    return make


CASES: dict[str, Callable[[Path], Batches]] = {
    **{f"store {v} {k}": of_store(v, k) for v in ("first-touch", "off") for k in ("windows", "documents")},
    **{f"megatron {k}": of_files(megatron, k) for k in ("bin", "idx")},
    **{f"raw {k}": of_files(raw, k) for k in ("nanogpt", "dolma", "npy", "zeros")},
    **{f"arrow {k}": of_files(arrow, k) for k in ("file", "stream")},
    **{f"hugging face {k}": of_files(hugging_face, k) for k in ("rows", "mapping")},
    "tfrecord": records,
}


def run(name: str, folder: Path, keep: Callable[[int], int]) -> str:
    path, batches = CASES[name](folder)
    for _ in range(3):
        next(batches)
    os.truncate(path, keep(path.stat().st_size))
    try:
        count = sum(1 for _ in batches)
    except ps.PenstockError as error:
        return "refused" if str(path) in str(error) else f"not named: {error}"
    return f"{count} batches"


def main(root: Path) -> None:
    for name in CASES:
        for amount, keep in {"all": lambda n: 0, "half": lambda n: n // 2, "one byte": lambda n: n - 1}.items():
            folder = root / name.replace(" ", "-") / amount.replace(" ", "-")
            folder.mkdir(parents=True)
            if (pid := os.fork()) == 0:
                try:
                    report(f"{name}, {amount}: {run(name, folder, keep)}")
                except BaseException:
                    traceback.print_exc()
                os._exit(0)
            if status := os.waitpid(pid, 0)[1]:
                report(f"{name}, {amount}: signal {status}")


def report(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
