"""Pipelines, loaders and sources pickle, deep-copy and reach other processes with the same rows."""

from __future__ import annotations

import copy
import gzip
import io
import itertools
import json
import multiprocessing
import pickle
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock as ps
from penstock.codecs.audio import wav
from penstock.core.columns import Ragged
from penstock.sources.base import Source
from penstock.testing.resume import assert_same_batches
from tests.resume.pipelines import PIPELINES, WHOLE, ragged
from tests.sources.test_dolma import write as write_dolma
from tests.sources.test_megatron import write as write_megatron

LIMIT = 4


def first_batches(pipeline: ps.Pipeline) -> list[dict[str, Any]]:
    return list(itertools.islice(pipeline.to_numpy(threads=0), LIMIT))


def digest(pipeline: ps.Pipeline) -> list[str]:
    """The fingerprint and the rows of the first batches, as text that can be compared between processes."""
    rows = [
        f"{name} {column.tolist() if not isinstance(column, Ragged) else [row.tolist() for row in column]}"
        for batch in first_batches(pipeline)
        for name, column in sorted(batch.items())
    ]
    return [pipeline.fingerprint(), *rows]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    lines = [json.dumps({"text": f"text number {i}", "key": f"{i:02d}"}) for i in range(24)]
    (root / "a.jsonl").write_text("\n".join(lines))
    (root / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (root / "a.txt").write_text("\n".join(f"line {i}" for i in range(24)))
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": range(24), "text": [f"t{i}" for i in range(24)]}), root / "a.parquet")
    np.arange(500, dtype="<u2").tofile(root / "nano.bin")
    write_megatron(root / "mega", [[1, 2, 3, 4], [5, 6, 7], [8, 9]] * 9, list(range(28)))
    write_dolma(root, "dolma", [[1, 2, 3], [4, 5]] * 12)
    ps.prepare(ps.read_jsonl(root / "a.jsonl"), "bytes", root / "store")
    (root / "photos").mkdir()
    (root / "sounds").mkdir()
    (root / "texts").mkdir()
    with tarfile.open(root / "a.tar", "w") as tar:
        for i in range(24):
            picture = io.BytesIO()
            Image.new("RGB", (20, 12), (i * 9, 5, 90)).save(picture, "PNG")
            (root / "photos" / f"{i:02d}.png").write_bytes(picture.getvalue())
            sound = wav.encode(0.5 * np.sin(np.arange(400 + i) * 0.05), 8000)
            (root / "sounds" / f"{i:02d}.wav").write_bytes(sound)
            (root / "texts" / f"{i:02d}.txt").write_text(f"text {i}")
            for name, content in ((f"{i:02d}.png", picture.getvalue()), (f"{i:02d}.txt", f"caption {i}".encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return root


def _hf(root: Path) -> ps.Pipeline:
    import datasets

    return ps.from_hf(datasets.Dataset.from_dict({"n": list(range(24))}))


def _tfds(root: Path) -> ps.Pipeline:
    from tests.sources.test_tfds import PenstockToy

    builder = PenstockToy(config="de", data_dir=root / "tfds", file_format="array_record")
    builder.download_and_prepare()
    return ps.from_tfds(builder.data_path)


SOURCES: dict[str, Callable[[Path], ps.Pipeline]] = {
    "jsonl": lambda root: ps.read_jsonl(root / "a.jsonl"),
    "compressed jsonl": lambda root: ps.read_jsonl(root / "a.jsonl.gz"),
    "lines": lambda root: ps.read_text(root / "a.txt", by="line"),
    "text files": lambda root: ps.read_text(sorted((root / "texts").iterdir())),
    "parquet": lambda root: ps.read_parquet(root / "a.parquet"),
    "store": lambda root: ps.open_store(root / "store").windows(8),
    "tokenized": lambda root: ps.read_jsonl(root / "a.jsonl").tokenize("bytes", cache_dir=root / "cache").windows(8),
    "packed": lambda root: ps.open_store(root / "store").pack(32),
    "nanogpt": lambda root: ps.open_nanogpt(root / "nano.bin").windows(8),
    "megatron": lambda root: ps.open_megatron(root / "mega").windows(4),
    "dolma": lambda root: ps.open_dolma(root / "dolma.npy", dtype="uint32", ends=root / "dolma.csv.gz").windows(4),
    "memory-mapped": lambda root: ps.open_tokens(np.memmap(root / "nano.bin", np.uint16, "r")).windows(8),
    "hf": _hf,
    "tfds": _tfds,
    "texts": lambda root: ps.from_texts(["a", "bc", "def"] * 8),
    "arrays": lambda root: ps.from_arrays({"x": np.arange(24), "y": np.arange(48).reshape(24, 2)}),
    "rows of a pipeline": lambda root: ps.Pipeline(ps.from_arrays({"x": range(24)}).map(lambda r: r).rows()),
    "tar": lambda root: (
        ps.read_tar(root / "a.tar").decode_parts("txt").decode_images(8, crop="random", column="png", dtype="uint8")
    ),
    "images": lambda root: ps.read_images(root / "photos", None).decode_images(8, crop="random", dtype="uint8"),
    "audio": lambda root: ps.read_audio(root / "sounds", None).decode_audio(8000, duration=0.01),
    "pair": lambda root: ps.pair(
        ps.read_images(root / "photos", None),
        {f"k{i:02d}": f"caption {i}" for i in range(24)},
        key=lambda path: "k" + path[:2],
    ).decode_images(8, crop="random", dtype="uint8"),
    "mix": lambda root: ps.mix(
        [ps.read_text(root / "a.txt").map(lambda r: {"text": r["text"]}), ps.from_texts(["x", "y"]).shuffle(seed=2)]
    ),
}


def lambdas(batch: int) -> ps.Pipeline:
    """A lambda, a closure and a method of a local object in one pipeline."""
    factor = 3

    class Local:
        def keep(self, record: dict) -> bool:
            return record["x"] % 5 != 0

    numbers = ps.from_arrays({"x": np.arange(60)}).shuffle(seed=3).filter(Local().keep)
    return numbers.map(lambda r: {"x": r["x"] * factor}).batch(batch).map_batches(lambda c: {**c, "y": c["x"] + factor})


MADE = {
    **PIPELINES,
    **WHOLE,
    "lambdas": lambdas,
    "bucket": lambda batch: ragged().shuffle(seed=5).bucket([4, 9], batch_size=batch),
    "batch_tokens": lambda batch: ragged().shuffle(seed=5).batch_tokens(8 * batch, multiple=4),
}


@pytest.mark.parametrize("name", MADE)
def test_steps_survive_pickle_and_deepcopy(name: str) -> None:
    made = MADE[name](10)
    expected = first_batches(made)
    for protocol in (2, 5):
        again = pickle.loads(pickle.dumps(made, protocol))
        assert again == made
        assert again.fingerprint() == made.fingerprint()
        assert_same_batches(first_batches(again), expected)
    copied = copy.deepcopy(made)
    assert copied == made
    assert_same_batches(first_batches(copied), expected)
    for step in made.definition.steps:
        assert pickle.loads(pickle.dumps(step)).spec() == step.spec()


@pytest.mark.parametrize("name", SOURCES)
def test_sources_survive_pickle_and_deepcopy(name: str, files: Path) -> None:
    made = SOURCES[name](files).batch(3)
    expected = digest(made)
    assert digest(pickle.loads(pickle.dumps(made))) == expected
    assert digest(copy.deepcopy(made)) == expected
    origin = made.definition.origin
    if isinstance(origin, Source):
        for again in (pickle.loads(pickle.dumps(origin)), copy.deepcopy(origin)):
            assert again.fingerprint() == origin.fingerprint()
            assert len(again) == len(origin)


def test_memory_mapped_tokens_are_opened_again_not_sent(files: Path) -> None:
    mapped = ps.open_tokens(np.memmap(files / "nano.bin", np.uint16, "r")).windows(8).batch(3)
    held = ps.open_tokens(np.arange(500, dtype=np.uint16)).windows(8).batch(3)
    assert len(pickle.dumps(mapped)) + 900 < len(pickle.dumps(held))


def test_a_fresh_interpreter_makes_the_same_batches(files: Path, tmp_path: Path) -> None:
    made = {name: make(files).batch(3) for name, make in SOURCES.items()}
    made |= {name: make(10) for name, make in MADE.items()}
    (tmp_path / "pipelines").write_bytes(pickle.dumps(made))
    code = (
        "import json, pickle, sys; from tests.plan.test_pickling import digest; "
        "made = pickle.load(open(sys.argv[1], 'rb')); print(json.dumps({k: digest(v) for k, v in made.items()}))"
    )
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "pipelines"], cwd=root, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {name: digest(pipeline) for name, pipeline in made.items()}


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_workers_of_multiprocessing_make_the_same_batches(start: str, files: Path) -> None:
    made = [lambdas(10), SOURCES["store"](files).shuffle(seed=4).batch(3), SOURCES["tar"](files).batch(2)]
    with multiprocessing.get_context(start).Pool(2) as pool:
        assert pool.map(digest, made) == [digest(pipeline) for pipeline in made]


OUTPUTS: dict[str, Callable[[ps.Pipeline], Any]] = {
    "threads": lambda p: p.to_numpy(threads=2),
    "torch": lambda p: p.to_torch(),
    "jax": lambda p: p.to_jax(threads=0),
    "child process": lambda p: p.to_numpy(workers=1),
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_loader_keeps_its_position_and_none_of_its_threads(output: str) -> None:
    loader = OUTPUTS[output](lambdas(6))
    running = iter(loader)
    taken = [next(running) for _ in range(3)]
    assert len(taken) == 3
    again, copied = pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)
    assert again.step == copied.step == 3
    assert again.state_dict() == copied.state_dict() == loader.state_dict()
    rest = [{k: np.asarray(v) for k, v in batch.items()} for batch in running]
    assert rest
    for other in (again, copied):
        assert_same_batches([{k: np.asarray(v) for k, v in batch.items()} for batch in other], rest)


def test_a_loader_keeps_the_places_where_its_batch_size_changed() -> None:
    small, large = PIPELINES["shuffle"](10).to_numpy(), PIPELINES["shuffle"](16).to_numpy()
    for _ in itertools.islice(small, 3):
        pass
    large.load_state_dict(small.state_dict())
    again = pickle.loads(pickle.dumps(large))
    assert again.state_dict() == large.state_dict()
    assert_same_batches(list(again), list(large))


def test_what_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(ps.UsageError, match=r"cannot pickle '_thread.lock'") as caught:
        pickle.dumps(ps.from_texts(["a"]).map(lambda r: (lock, r)[1]))
    assert caught.value.where == ".map()"
