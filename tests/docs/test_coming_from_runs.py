"""Each counterpart on the page for people who come from other loaders is code that runs, as it is written there."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import jax
import numpy as np
import pytest
from PIL import Image

import penstock as ps
import penstock.augment
import penstock.testing
from penstock.steps.limit import Take
from tests.codecs.media_files import encoded_video
from tests.docs.test_coming_from import PAGE, rows
from tests.resume.readers import DATA, N, make_files, streamed

ROWS = rows(PAGE)


def same(record: dict[str, Any]) -> dict[str, Any]:
    return record


def twice(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [record, record]


def small(record: dict[str, Any]) -> bool:
    return bool(record["x"] < 50)


def bare(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": np.arange(N), "label": np.arange(N) % 3, "text": [f"t{i % 7}" for i in range(N)]}


class World:
    """What the names on the page stand for: files, pipelines and values."""

    def __init__(self, root: Path) -> None:
        self.root = root
        make_files(root)
        (root / "shards").mkdir(exist_ok=True)
        for i in range(2):
            (root / "shards" / f"{i:03d}.tar").write_bytes(next((root / "shards").glob("*.tar")).read_bytes())
        np.arange(40, dtype=np.int32).tofile(root / "records.bin")
        self.rows = ps.from_arrays(bare(np.random.default_rng(0)))
        self.images = ps.from_arrays({"bytes": [_png(i) for i in range(N)], "label": np.arange(N) % 3})
        boxed = {"bytes": [_png(i) for i in range(N)], "boxes": np.full((N, 2, 4), 5.0), "points": np.ones((N, 3, 2))}
        self.boxed = ps.from_arrays(boxed)
        self.pixels = self.images.decode_images(16, dtype="uint8")
        self.sounds = ps.read_audio(root / "sounds")
        self.waves = self.sounds.decode_audio(8000, duration=0.1)
        self.tokens = ps.open_tokens(np.arange(900) % 250, np.arange(0, 901, 30), 250)
        weight = [np.ones(5 + i % 7) for i in range(N)]
        documents = {"input_ids": [np.arange(5 + i % 7) for i in range(N)], "weight": weight}
        ps.from_records(
            [dict(zip(documents, one, strict=True)) for one in zip(*documents.values(), strict=True)]
        ).write(root / "weighted", "store", show_progress=False)
        self.weighted = ps.open_store(root / "weighted")
        self.films = ps.from_arrays({"video": [encoded_video(8, 10, "mp4", 16, 16)] * 4})
        self.number = 0

    def start(self, code: str) -> Any:
        """The pipeline before a verb, by the verb."""
        verb = re.match(r"\.(\w+)", code)
        match verb[1] if verb else "":
            case "decode_images":
                return self.boxed if "boxes" in code else self.images
            case "decode_audio":
                cuts = ps.read_audio(self.root / "cuts.jsonl", path_column="path", media_root=self.root)
                return cuts if "cut=" in code else self.sounds
            case "decode_video":
                return self.films
            case "windows":
                return self.tokens
            case "pack":
                return self.weighted if "columns" in code else self.tokens
            case "bucket" | "batch_tokens":
                return self.weighted
            case "unbatch":
                return ps.from_arrays({"x": np.arange(20).reshape(5, 4)})
            case "pad":
                return self.tokens.batch(4)
            case "batch":
                if "Mixup" in code:
                    return self.pixels.rename({"label": "labels"})
                return self.tokens if ".pad(" in code else self.rows
            case "rebatch":
                return self.rows.batch(3)
            case "to_numpy" | "to_torch" | "to_jax" | "plan":
                return self.rows.select("x", "label").batch(8)
            case _:
                return self.rows

    def names(self, code: str) -> dict[str, Any]:
        """What names stand for in a piece of code."""
        self.number += 1
        loader = self.rows.select("x", "label").rename({"x": "image"}).batch(8).to_numpy()
        loader_state = loader.state_dict()
        reader = re.match(r"ps\.(\w+)", code)
        at = self.root
        paths: dict[str, Any] = {
            "read_csv": at / "a.csv", "read_json": at / "a.json", "read_jsonl": at / "a.jsonl",
            "read_text": at / "texts", "read_parquet": at / "a.parquet", "read_arrow": at / "a.arrow",
            "read_tar": str(at / "shards" / "*.tar"),
            "read_array_record": at / "a.array_record", "read_tfrecords": str(DATA / "tfrecord" / "plain*"),
            "read_audio": str(at / "sounds" / "**" / "*.wav"),
        }  # fmt: skip
        streams = reader is not None and reader[1] == "from_stream"
        function: Any = {True: streamed}.get(streams, same)
        if code.startswith(".filter"):
            function = small
        if code.startswith(".flat_map"):
            function = twice
        return vars(penstock.augment) | {
            "ps": ps, "np": np, "penstock": penstock, "on": self.start(code), "loader": loader, "state": loader_state,
            "paths": paths.get(reader[1]) if reader else None, "function": function, "pipelines": [self.rows, self.rows]
            if "zip" not in code else [self.rows.select("x"), self.rows.select("label")],
            "weights": [2, 1], "columns": bare(np.random.default_rng(0)), "records": [{"x": 1}, {"x": 2}],
            "dataset": datasets.Dataset.from_list([{"x": 1}, {"x": 2}]) if "hf" in code else [{"x": 1}, {"x": 2}],
            "source": self.tokens if "convert" in code else [{"x": 1}, {"x": 2}], "n": 4, "length": 8, "size": 8,
            "times": 2, "budget": 64 if "tokens" in code else 3, "boundaries": [8],
            "step": Take(3) if "then" in code else 1,
            "row": 0, "rank": 0, "world": 2, "path": at / ("records.bin" if "memmap" in code else f"out{self.number}"),
            "out": at / f"out{self.number}", "dtype": np.int32, "shape": (10, 4), "tokenizer": "bytes",
            "device": "cpu", "sharding": jax.sharding.SingleDeviceSharding(jax.devices()[0]),
            "pipeline": self.rows, "make": lambda: self.rows.batch(8), "frames": 2, "mean": [0.5] * 3, "std": [0.2] * 3,
            "folder": at / "law_toy" / "1.0.0", "root": at / ("images" if "images" in code else "sounds"),
            "manifest": at / "cuts.jsonl", "url": at / ("mds" if "mds" in code else "store"),
            "one": ps.read_images(at / "flat", None),
            "other": ps.read_jsonl(at / "captions.jsonl", fields=["key", "caption"]),
            "noises": [np.ones(50)], "responses": [np.ones(5)],
            "types": {"caption": "str"}, "shapes": {}, "defaults": {"caption": ""},
        }  # fmt: skip

    def run(self, code: str) -> None:
        """Runs a piece of code of the page, and what it makes."""
        names = self.names(code)
        written = code
        if code.startswith("."):
            written = f"on{code}"
        if '"shards/' in code:
            written = code.replace('"shards/', f'"{self.root}/shards/')
        if "record, rng: ..." in code:
            written = written.replace("...", "{**record, 'drawn': rng.random()}")
        made = eval(written, names)
        if isinstance(made, ps.Augment):
            audio = any(op.kind == "audio" for op in made.ops)
            waves = self.sounds.decode_audio(8000, duration=0.1, features="log_mel") if "Spec" in code else self.waves
            made = (waves if audio else self.pixels).map_batches(made)
        for one in made.values() if isinstance(made, dict) and code.startswith(".split") else [made]:
            self.deliver(one)

    def deliver(self, made: Any) -> None:
        if isinstance(made, ps.Pipeline):
            batched = made.definition.batch is not None
            assert next(iter((made if batched else made.batch(2)).to_numpy(threads=0)))
        elif isinstance(made, ps.Loader):
            with made:
                assert next(iter(made)) is not None


def _png(i: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 20), (i * 3, 90, 9)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("coming")
        patch.setenv("PENSTOCK_CACHE", str(root / "cache"))
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", root / "hf_cache")
        patch.chdir(root)
        yield World(root)


CODES = list(dict.fromkeys(code for _, ours in ROWS for code in re.findall(r"`([^`]+)`", ours)))


def test_every_row_has_code_that_runs_or_a_reason() -> None:
    for theirs, ours in ROWS:
        reason = re.match(r"none\b.*, because ", ours) or ours.startswith("leave it out")
        assert reason or re.search(r"`[^`]+`", ours), theirs


@pytest.mark.parametrize("code", CODES)
def test_the_counterpart_runs(code: str, world: World) -> None:
    if '"cuda"' in code:  # no such device here: the arguments are refused for that alone
        with pytest.raises((ps.PenstockError, AssertionError, RuntimeError), match=r"(?i)cuda"):
            world.run(code)
        return
    world.run(code)
