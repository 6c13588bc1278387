"""Twenty composed pipelines, every verb among them, as functions of the global batch size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import penstock as ps
from penstock import Pipeline, Ragged

TOKENS = (np.arange(5000) * 7919 % 251).astype(np.uint16)
DOCUMENTS = np.array([0, 700, 701, 1500, 1500, 2600, 5000])


def tokens() -> Pipeline:
    return ps.open_tokens(TOKENS, DOCUMENTS, 251)


def numbers(n: int = 200) -> Pipeline:
    return ps.from_arrays({"x": np.arange(n), "y": np.arange(n) * 0.5})


def words() -> Pipeline:
    return ps.from_texts([f"text number {i} " + "é" * (i % 5) for i in range(150)])


def ragged() -> Pipeline:
    lengths = np.arange(180) * 13 % 17 + 1
    return ps.from_arrays({"input_ids": Ragged.of([np.arange(n) + i for i, n in enumerate(lengths)])})


def add_noise(record: dict, rng: np.random.Generator) -> dict:
    return {**record, "noise": rng.random()}


def add_key(columns: dict, keys: np.ndarray) -> dict:
    return {**columns, "key": keys >> np.uint64(1)}


def squares(columns: dict) -> dict:
    return {**columns, "square": columns["x"] ** 2}


def centred(columns: dict) -> dict:
    return {**columns, "centred": columns["y"] - columns["y"].mean()}


def not_third(record: dict) -> bool:
    return record["x"] % 3 != 0


def odd(columns: dict) -> np.ndarray:
    return columns["x"] % 2 == 1


def fails_sometimes(record: dict) -> dict:
    if record["x"] % 29 == 5:
        raise ValueError("a bad record")
    return record


def same_columns(record: dict) -> dict:
    return {"x": record["x"], "y": record["y"]}


PIPELINES: dict[str, Callable[[int], Pipeline]] = {
    "plain": lambda b: numbers().batch(b),
    "shuffle": lambda b: numbers().shuffle(seed=3).batch(b),
    "block shuffle": lambda b: numbers(203).shuffle(seed=3, block=8, window=4).batch(b),
    "windows": lambda b: tokens().windows(16).shuffle(seed=1).batch(b),
    "overlapping windows": lambda b: tokens().windows(16, stride=5).shuffle(seed=1).batch(b),
    "documents padded": lambda b: ragged().shuffle(seed=2).pad(to="longest", pad_id=9).batch(b),
    "documents padded to a length": lambda b: ragged().shuffle(seed=2).batch(b).pad(to=20, side="left"),
    "ragged": lambda b: ragged().shuffle(seed=2).batch(b),
    "strings": lambda b: words().shuffle(seed=9).batch(b),
    "take and skip": lambda b: numbers().skip(7).take(130).shuffle(seed=4).batch(b),
    "shuffle then take": lambda b: numbers().shuffle(seed=4).take(100).batch(b),
    "repeat": lambda b: numbers(50).shuffle(seed=5).repeat(3).batch(b),
    "endless repeat": lambda b: numbers(50).shuffle(seed=5).repeat().batch(b),
    "map with randomness": lambda b: numbers().shuffle(seed=6).map(add_noise).batch(b),
    "map_batches with keys": lambda b: numbers().shuffle(seed=6).map_batches(add_key).batch(b),
    "map_batches after batch": lambda b: numbers().shuffle(seed=6).batch(b).map_batches(squares),
    "filter": lambda b: numbers().shuffle(seed=7).filter(not_third).batch(b),
    "two filters and a map": lambda b: (
        numbers().filter(odd, batched=True).shuffle(seed=7).map(add_noise).filter(not_third).batch(b)
    ),
    "skipped errors": lambda b: numbers().shuffle(seed=8).map(fails_sometimes).skip_errors(budget=0.5).batch(b),
    "mix": lambda b: ps.mix([numbers(30).shuffle(seed=1), numbers(70).shuffle(seed=2)], [0.25, 0.75]).batch(b),
    "mix of names": lambda b: ps.mix(
        {"web": numbers(31).shuffle(seed=1), "code": ps.mix({"c": numbers(20), "d": numbers(9)})}, {"code": 2, "web": 1}
    ).batch(b),
    "mix that ends": lambda b: ps.mix([numbers(60).shuffle(seed=1), numbers(90)], stop="all", seed=4).batch(b),
    "mix of mixes, mapped and filtered": lambda b: (
        ps.mix(
            [
                ps.mix([numbers(40).filter(not_third), numbers(50).shuffle(seed=3)], [1, 1], seed=2).map(same_columns),
                numbers(80).shuffle(seed=5),
            ],
            [0.7, 0.3],
        )
        .filter(odd, batched=True)
        .map(add_noise)
        .batch(b)
    ),
    "lanes": lambda b: numbers(203).shuffle(seed=3, lanes=6, block=4, window=3).batch(b),
    "lanes, less than a block each": lambda b: numbers(100).shuffle(seed=3, lanes=32, block=64).batch(b),
    "lanes of windows": lambda b: tokens().windows(16).shuffle(seed=1, lanes=8, block=5, window=2).batch(b),
    "lanes, cut and repeated": lambda b: (
        numbers().skip(7).shuffle(seed=4, lanes=5, block=3, window=2).skip(3).take(130).repeat(2).batch(b)
    ),
    "lanes, filtered and mapped": lambda b: (
        numbers()
        .filter(odd, batched=True)
        .shuffle(seed=7, lanes=4, block=8, window=2)
        .map(add_noise)
        .filter(not_third)
        .batch(b)
    ),
    "lanes in a mix": lambda b: ps.mix(
        [numbers(730).shuffle(seed=1, lanes=4, block=2, window=2), numbers(1400).shuffle(seed=2)], [0.5, 0.5]
    ).batch(b),
    "lanes in a mix that ends": lambda b: ps.mix(
        [numbers(61).shuffle(seed=1, lanes=4, block=2), numbers(90).shuffle(seed=5, lanes=8, block=3).repeat()],
        [0.4, 0.6],
        stop="first",
    ).batch(b),
    "lanes, short remainder": lambda b: (
        numbers(130).shuffle(seed=1, lanes=8, block=4, window=2).batch(b, remainder="short")
    ),
    "lanes, padded remainder": lambda b: (
        tokens().windows(33).shuffle(seed=1, lanes=8, block=4, window=2).batch(b, remainder="pad")
    ),
    "short remainder": lambda b: numbers(130).shuffle(seed=1).batch(b, remainder="short"),
    "padded remainder": lambda b: tokens().windows(33).shuffle(seed=1).batch(b, remainder="pad"),
}

# What a step may not do under another batch size: its result depends on the whole batch by definition.
WHOLE: dict[str, Callable[[int], Pipeline]] = {
    "lanes over the whole batch": lambda b: (
        numbers().shuffle(seed=6, lanes=8, block=4, window=2).batch(b, remainder="pad").map_batches(centred, whole=True)
    ),
    "map_batches over the whole batch": lambda b: numbers().shuffle(seed=6).batch(b).map_batches(centred, whole=True),
}
