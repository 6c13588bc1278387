"""Writes the datasets of mds.zip with the real MDSWriter, in an environment with mosaicml-streaming and Pillow.

$ python -P tests/data/make_mds.py
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = {
    "text": "str", "raw": "bytes", "n": "int", "u8": "uint8", "i16": "int16", "u64": "uint64", "f16": "float16",
    "f32": "float32", "f64": "float64", "j": "json", "any": "ndarray", "typed": "ndarray:int32",
    "fixed": "ndarray:uint16:2,3", "si": "str_int", "sf": "str_float", "sd": "str_decimal", "jpg": "jpeg",
    "png": "png", "pil": "pil", "pngs": "list[png]",
}  # fmt: skip
TOKENS = [np.arange(i * 10, i * 10 + 3 + i * 5) for i in range(12)]


def pixels(i: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A small picture."""
    return (np.arange(4 * 5 * 3).reshape(4, 5, 3) * (i + 1) % 256).astype(np.uint8)


def record(i: int) -> dict[str, Any]:
    """Record i of the dataset "records", but for its pictures."""
    return {
        "text": f"läuft {i} " * (i % 4), "raw": bytes(range(i)), "n": -i, "u8": i, "i16": -i * 100, "u64": 2**63 + i,
        "f16": i / 2, "f32": i / 3, "f64": i / 7, "j": {"a": [i, None, "x"], "big": 2**70 + i},
        "any": np.arange(i + 1, dtype=np.uint16), "typed": np.arange(i * 60 + 1, dtype=np.int32),
        "fixed": np.full((2, 3), i, np.uint16), "si": 10**15 + i, "sf": i / 3, "sd": Decimal("1.10") * i,
    }  # fmt: skip


def main(folder: Path) -> None:
    """Writes all datasets below a folder."""
    from PIL import Image
    from streaming import MDSWriter

    with MDSWriter(out=f"{folder}/records", columns=COLUMNS, hashes=["sha1", "xxh64"], size_limit=6000) as writer:
        for i in range(8):
            image = Image.fromarray(pixels(i))
            writer.write({**record(i), "jpg": image, "png": image, "pil": image, "pngs": [image] * (i % 3)})
    for name, compression in (("zstd", "zstd:7"), ("gz", "gz")):
        columns = {"tokens": "ndarray:uint16", "source": "str"}
        with MDSWriter(
            out=f"{folder}/{name}", columns=columns, compression=compression, hashes=["sha256"], size_limit=400
        ) as writer:
            for i, tokens in enumerate(TOKENS):
                writer.write({"tokens": tokens.astype(np.uint16), "source": f"s{i % 3}"})
    with MDSWriter(out=f"{folder}/bytes", columns={"tokens": "bytes"}, size_limit=600) as writer:
        for tokens in TOKENS:
            writer.write({"tokens": tokens.astype(np.int64).tobytes()})
    with MDSWriter(out=f"{folder}/pickle", columns={"n": "int", "obj": "pkl"}) as writer:
        writer.write({"n": 5, "obj": [1, 2]})


if __name__ == "__main__":
    sys.path.insert(0, ".")
    target = Path(__file__).with_name("mds.zip")
    with tempfile.TemporaryDirectory() as made, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        main(Path(made))
        for path in sorted(p for p in Path(made).rglob("*") if p.is_file()):
            info = zipfile.ZipInfo(str(path.relative_to(made)), (2026, 1, 1, 0, 0, 0))
            archive.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
