"""One path per batch: random pipelines deliver the same batches on every way that leads to them.

Iteration, `batch_at`, threads, child processes, a loader that resumes, NumPy, torch and JAX, and the ranks of a world
together. `why` explains every row. The pipelines are drawn by seed, so that a failure names a pipeline that can be made
again: `pipeline(random.Random(seed), folder)`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import Pipeline
from penstock.core.columns import Ragged

from .pipelines import DOCUMENTS, TOKENS

STEPS = 4
SEEDS = 120
Draw = random.Random


def keeps(record: dict) -> bool:
    return int(record["n"]) % 5 != 2


def keeps_rows(columns: dict) -> np.ndarray:
    return np.asarray(columns["n"]).astype(int) % 4 != 1


def draws(record: dict, rng: np.random.Generator) -> dict:
    return {**record, "noise": rng.random()}


def fails(record: dict) -> dict:
    if int(record["n"]) % 11 == 3:
        raise ValueError("a bad record")
    return record


def keyed(columns: dict, keys: np.ndarray) -> dict:
    return {**columns, "key": keys >> np.uint64(1)}


def twice(record: dict) -> list[dict]:
    return [{**record, "part": part} for part in (0, 1)]


def squared(columns: dict) -> dict:
    return {**columns, "square": np.asarray(columns["n"]) ** 2}


def centred(columns: dict) -> dict:
    numbers = np.asarray(columns["n"]).astype(np.float64)
    return {**columns, "centred": numbers - numbers.mean()}


def long_enough(record: dict) -> bool:
    return len(record["input_ids"]) > 6


ROW_VERBS: list[Callable[[Pipeline, Draw], Pipeline]] = [
    lambda p, d: p.map(draws),
    lambda p, d: p.map_batches(keyed),
    lambda p, d: p.filter(keeps),
    lambda p, d: p.filter(keeps_rows, batched=True),
    lambda p, d: p.filter(keeps, exact=True),
    lambda p, d: p.map(fails).skip_errors(),
    lambda p, d: p.shuffle(seed=d.randint(0, 5)),
    lambda p, d: p.shuffle(seed=d.randint(0, 5), block=d.choice([2, 4, 8]), window=d.choice([1, 2, 3])),
    lambda p, d: p.shuffle(seed=1, lanes=d.choice([2, 4]), block=4, window=2),
    lambda p, d: p.window_shuffle(d.randint(2, 9), seed=2),
    lambda p, d: p.take(d.randint(10, 60)),
    lambda p, d: p.skip(d.randint(0, 5)),
    lambda p, d: p.repeat(d.choice([2, 3, None])),
    lambda p, d: p.sample(d.randint(5, 20), seed=3),
    lambda p, d: p.enumerate(),
    lambda p, d: p.flat_map(twice, 2),
    lambda p, d: p.split({"a": 0.8, "b": None}, seed=1)["a"],
    lambda p, d: p.dedup("text"),
    lambda p, d: p.cache(memory=1 << 20),
    lambda p, d: p.rename({"text": "other"}).rename({"other": "text"}),
    lambda p, d: p.batch(3, remainder="short").unbatch(),
]
DOCUMENT_VERBS: list[Callable[[Pipeline, Draw], Pipeline]] = [
    lambda p, d: p.take(50),
    lambda p, d: p.skip(3),
    lambda p, d: p.sample(20, seed=2),
    lambda p, d: p.filter(long_enough, exact=True),
    lambda p, d: p.concat(p),
    lambda p, d: p.split({"a": 0.8, "b": None}, seed=1)["a"],
]
ORDERS: list[Callable[[Pipeline], Pipeline]] = [
    lambda p: p,
    lambda p: p.shuffle(seed=3),
    lambda p: p.shuffle(seed=2, block=4, window=2),
    lambda p: p.shuffle(seed=2, lanes=2, block=4, window=2),
    lambda p: p.repeat(2),
]


def varied(made: Pipeline, verbs: list[Callable[[Pipeline, Draw], Pipeline]], most: int, draw: Draw) -> Pipeline:
    """Up to `most` verbs more; one that is refused there is left out."""
    for _ in range(draw.randint(0, most)):
        try:
            longer = draw.choice(verbs)(made, draw)
            longer.rows()  # builds it
        except ps.UsageError:
            continue
        made = longer
    return made


def rows(draw: Draw, folder: Path, depth: int = 0) -> Pipeline:
    """Records with "n" and "text" of a source, or of several pipelines."""
    kind = draw.choice(["arrays", "lines", "records", *(["mix", "concat", "interleave", "zip"] if depth < 2 else [])])
    if kind == "arrays":
        return ps.from_arrays({"n": np.arange(53), "text": [f"a{i}" for i in range(53)]})
    if kind == "records":
        return ps.from_records([{"n": i, "text": f"r{i}"} for i in range(37)])
    if kind == "lines":
        return ps.read_jsonl(folder / "a.jsonl", fields=["n", "text"], on_error="skip")
    if kind == "zip":
        numbers = ps.from_arrays({"n": np.arange(53), "text": [f"a{i}" for i in range(53)]}).shuffle(seed=4)
        return numbers.zip(ps.from_arrays({"other": np.arange(53)}).map(draws))
    parts = [
        varied(rows(draw, folder, depth + 1), ROW_VERBS, 2, draw).select("n", "text") for _ in range(draw.randint(1, 3))
    ]
    if kind == "concat":
        return ps.concat([part.take(60) for part in parts] if depth else parts)
    if kind == "interleave":
        return ps.interleave(parts, at_end=draw.choice(["continue", "stop", "restart"]))
    weights = [draw.choice([1, 2, 3.5]) for _ in parts]
    return ps.mix(parts, weights, seed=draw.randint(0, 3), stop=draw.choice(["never", "all", "first"]))


def documents(draw: Draw, folder: Path) -> Pipeline:
    if draw.random() < 0.5:
        return ps.open_store(folder / "store")
    return ps.open_tokens(TOKENS, DOCUMENTS, 251)


def token_rows(draw: Draw, folder: Path, size: int) -> Pipeline:
    made = varied(documents(draw, folder), DOCUMENT_VERBS, 2, draw)
    kind = draw.choice(["windows", "pack", "concat", "pad", "longest", "bucket", "budget"])
    if kind in ("bucket", "budget"):
        made = draw.choice(ORDERS[:2])(made)
        made = made.bucket([64, 900], batch_size=size) if kind == "bucket" else made.batch_tokens(3000, multiple=4)
        return made.pad(multiple=4) if draw.random() < 0.5 else made
    if kind in ("pad", "longest"):
        made = draw.choice(ORDERS)(made).batch(size, remainder=draw.choice(["drop", "short", "pad"]))
        return made.pad(to=64, truncate=True) if kind == "pad" else made.pad(multiple=draw.choice([None, 8]))
    if kind == "windows":
        made = draw.choice(ORDERS)(made.windows(draw.choice([4, 8, 16]), draw.choice([None, 3])))
        return made.batch(size, remainder=draw.choice(["drop", "short", "pad"]))
    if kind == "concat":
        made = made.pack(48, strategy="concat")
    else:
        labels = draw.choice(["next", "same", None])
        made = made.pack(48, overlong=draw.choice(["split", "truncate", "drop"]), labels=labels)  # type: ignore[arg-type]
    return draw.choice(ORDERS)(made).batch(size, remainder=draw.choice(["drop", "short", "pad"]))


def pipeline(draw: Draw, folder: Path) -> Pipeline:
    size = draw.choice([4, 6, 8])
    if draw.random() < 0.5:
        return token_rows(draw, folder, size)
    made = varied(rows(draw, folder), ROW_VERBS, 5, draw).batch(size, remainder=draw.choice(["drop", "short"]))
    for _ in range(draw.randint(0, 2)):
        made = made.map_batches(squared) if draw.random() < 0.5 else made.map_batches(centred, whole=True)
    return made


def plain(column: Any) -> Any:
    """A column as lists; floats as JAX has them."""
    if isinstance(column, Ragged):
        return [row.tolist() for row in column]
    array = np.asarray(column)
    return (array.astype(np.float32) if array.dtype.kind == "f" else array).tolist()


def batches(loader: Any, most: int = STEPS) -> list[dict[str, Any]]:
    return [{name: plain(column) for name, column in batch.items()} for batch in islice(loader, most)]


def numeric(batch: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {name: column for name, column in batch.items() if name in other}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("paths")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(root / "cache"))
        lines = (json.dumps({"n": i, "text": f"l{i}"}) if i not in (5, 17) else "{" for i in range(61))
        (root / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
        ps.open_tokens(TOKENS, DOCUMENTS, 251).write(root / "store", "store", show_progress=False)
        yield root


def made_by(seed: int, folder: Path) -> tuple[Pipeline, list[dict[str, Any]]] | None:
    """The pipeline of a seed and its first batches; None if it is refused."""
    try:
        made = pipeline(Draw(seed), folder)
        return made, batches(made.to_numpy(threads=0))
    except (ps.UsageError, ps.DataError, ps.UserCodeError):
        return None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_way_to_a_batch_delivers_the_same(seed: int, folder: Path) -> None:
    found = made_by(seed, folder)
    if found is None:
        return
    made, expected = found
    loader = made.to_numpy(threads=0)
    backwards = [loader.batch_at(step) for step in reversed(range(len(expected)))]
    assert [{name: plain(column) for name, column in batch.items()} for batch in reversed(backwards)] == expected
    assert batches(made.to_numpy(threads=2)) == expected
    assert batches(made.to_torch(threads=0)) == expected if fits_torch(made) else True
    check_resume(made, expected, seed)
    check_jax(made, expected)
    check_ranks(made, expected)
    for step, batch in enumerate(expected):
        for row in (0, max(map(len, (column for column in batch.values() if isinstance(column, list)))) - 1):
            assert json.dumps(loader.why(step, min(row, rows_of(batch) - 1)))


def rows_of(batch: dict[str, Any]) -> int:
    return len(next(column for name, column in batch.items() if name in ("n", "input_ids", "text")))


def fits_torch(made: Pipeline) -> bool:
    try:
        next(iter(made.to_torch(threads=0)), None)
    except ps.UsageError:  # rows of different lengths
        return False
    return True


def check_resume(made: Pipeline, expected: list[dict[str, Any]], seed: int) -> None:
    first, at = made.to_numpy(threads=0), seed % max(1, len(expected))
    assert batches(first, at) == expected[:at]
    again = made.to_numpy(threads=1)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert batches(again, len(expected) - at) == expected[at:]


def check_jax(made: Pipeline, expected: list[dict[str, Any]]) -> None:
    try:
        found = batches(made.to_jax(threads=0))
    except ps.UsageError:  # shapes that are not static, or texts alone
        return
    assert [numeric(batch, other) for batch, other in zip(expected, found, strict=True)] == found


def check_ranks(made: Pipeline, expected: list[dict[str, Any]]) -> None:
    """The rows of both ranks are those of the global batch, each once."""
    if any(
        step.plans_batches for step in made.definition.steps
    ):  # equal numbers of rows for each rank: another batch in another world
        return
    ranks = [batches(made.shard(rank, 2).to_numpy(threads=0)) for rank in range(2)]
    for step, batch in enumerate(expected):
        for name, column in batch.items():
            if isinstance(column, list) and not name.startswith("cu_seqlens"):
                parts = [rank[step][name] for rank in ranks if step < len(rank)]
                assert sorted(map(str, sum(parts, []))) == sorted(map(str, column)), (step, name)


@pytest.mark.parametrize("seed", range(0, SEEDS, 20))
def test_child_processes_deliver_the_same(seed: int, folder: Path) -> None:
    found = next(one for one in (made_by(seed + more, folder) for more in range(20)) if one and one[1])
    made, expected = found
    assert batches(made.to_numpy(workers=2)) == expected
    if fits_torch(made):
        assert batches(made.to_torch(isolate=True)) == expected


def test_most_seeds_make_a_pipeline_with_batches(folder: Path) -> None:
    made = [made_by(seed, folder) for seed in range(SEEDS)]
    assert sum(1 for one in made if one and one[1]) > SEEDS * 0.8
