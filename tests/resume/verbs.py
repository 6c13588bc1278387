"""Pipelines of the verbs that combine pipelines, choose rows and choose columns, as functions of the batch size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import penstock as ps
from penstock import Pipeline

from .pipelines import add_noise, fails_sometimes, not_third, numbers, odd, squares, tokens


def several(record: dict) -> list[dict]:
    return [{"x": record["x"], "part": i} for i in range(int(record["x"]) % 4)]


def three(record: dict, rng: np.random.Generator) -> list[dict]:
    return [{"x": record["x"], "part": i, "drawn": draw} for i, draw in enumerate(rng.random(3))]


def counted() -> Iterator[dict]:
    for i in range(200):
        yield {"n": i, "text": f"t{i}"}


def lengthened(record: dict) -> dict:
    ids = np.arange(int(record["x"]) * 37 % 61)
    return {"x": record["x"], "input_ids": ids, "weight": ids / 2 + record["x"]}


def long_enough(record: dict) -> bool:
    return len(record["input_ids"]) > 8


def weighted() -> Pipeline:
    """A token store with columns beside its tokens."""
    folder = Path(os.environ["PENSTOCK_CACHE"]) / "weighted"
    numbers().map(lengthened).write(folder, "store")
    return ps.open_store(folder)


VERBS: dict[str, Callable[[int], Pipeline]] = {
    "concat": lambda b: ps.concat([numbers(60), numbers(41).shuffle(seed=2), numbers(99)]).shuffle(seed=3).batch(b),
    "concat, in order, with a filter and bad records": lambda b: (
        ps.concat([numbers(60).filter(not_third), numbers(81).map(fails_sometimes).skip_errors()])
        .map(add_noise)
        .repeat(2)
        .batch(b)
    ),
    "concat of windows": lambda b: (
        tokens().windows(16).concat(tokens().windows(16, stride=5)).shuffle(seed=1, lanes=4, block=8).batch(b)
    ),
    "concat of packs": lambda b: (
        ps.concat([tokens().pack(64), tokens().pack(64)]).drop("position_ids").shuffle(seed=1).batch(b)
    ),
    "interleave": lambda b: ps.interleave([numbers(60).shuffle(seed=2), numbers(41), numbers(99)]).batch(b),
    "interleave that stops": lambda b: ps.interleave(
        [numbers(60).shuffle(seed=2), numbers(41).map(add_noise).drop("noise")], at_end="stop"
    ).batch(b),
    "interleave that restarts": lambda b: ps.interleave(
        [numbers(60).shuffle(seed=2), numbers(41).shuffle(seed=3)], at_end="restart"
    ).batch(b),
    "endless interleave": lambda b: ps.interleave([numbers(30).repeat(), numbers(41), numbers(55).repeat()]).batch(b),
    "zip": lambda b: (
        ps.zip([numbers(100).shuffle(seed=1), numbers(100).map(add_noise).select("noise")])
        .shuffle(seed=2)
        .map(fails_sometimes)
        .filter(not_third)
        .skip_errors()
        .batch(b)
    ),
    "zip of packs with columns": lambda b: (
        tokens().pack(64).drop("position_ids").zip(numbers(79)).shuffle(seed=1).batch(b)
    ),
    "zips in a mix": lambda b: ps.mix(
        [
            numbers(50).zip(numbers(50).map(add_noise).select("noise")),
            ps.concat([numbers(20), numbers(30)]).zip(numbers(50).rename({"y": "noise"}).drop("x")),
        ],
        [1, 2],
    ).batch(b),
    "packs with columns": lambda b: (
        weighted().pack(48, columns={"weight": 0, "x": -1}).drop("position_ids").shuffle(seed=1).batch(b)
    ),
    "windows with columns": lambda b: (
        weighted().windows(16, stride=7, columns=["weight", "x"]).shuffle(seed=1, block=8, window=2).batch(b)
    ),
    "windows of chosen documents": lambda b: (
        ps.concat([tokens(), tokens().filter(long_enough, exact=True)]).skip(2).windows(16, stride=9).shuffle(seed=1)
    ).batch(b),
    "packs of a part of a concat, with columns": lambda b: (
        weighted()
        .concat(weighted())
        .split({"train": 0.7, "val": 0.3}, seed=2)["train"]
        .pack(48, columns=["weight"])
        .drop("position_ids")
        .shuffle(seed=1)
        .batch(b)
    ),
    "columns": lambda b: numbers().shuffle(seed=2).rename({"x": "z"}).select("z", "y").batch(b).drop("y"),
    "columns of windows": lambda b: (
        tokens().windows(16).rename({"input_ids": "tokens"}).shuffle(seed=1).batch(b).rename({"labels": "next"})
    ),
    "exact filter": lambda b: (
        numbers()
        .map(fails_sometimes)
        .skip_errors()
        .filter(not_third, exact=True)
        .shuffle(seed=3)
        .map(add_noise)
        .batch(b)
    ),
    "exact filter, cut and repeated": lambda b: (
        numbers().filter(odd, batched=True, exact=True).skip(3).take(60).repeat(2).enumerate().batch(b)
    ),
    "sample": lambda b: numbers().sample(150, seed=4).filter(not_third).shuffle(seed=3).batch(b),
    "split": lambda b: numbers().split({"train": 0.8, "val": 0.2})["train"].shuffle(seed=3).batch(b),
    "split by key": lambda b: numbers().split({"train": 0.8, "val": None}, key="x")["train"].shuffle(seed=3).batch(b),
    "enumerate": lambda b: numbers().enumerate().filter(not_third).shuffle(seed=2).batch(b),
    "enumerate after a shuffle": lambda b: (
        ps.concat([numbers(90).shuffle(seed=2).map(add_noise).enumerate(), numbers(70).map(add_noise).enumerate()])
        .shuffle(seed=3)
        .batch(b)
    ),
    "flat_map": lambda b: numbers(80).map(fails_sometimes).skip_errors().flat_map(several).shuffle(seed=3).batch(b),
    "flat_map of a fixed number, with randomness": lambda b: (
        numbers(60).shuffle(seed=2).flat_map(three, 3).map(add_noise).filter(not_third).repeat(2).batch(b)
    ),
    "unbatch": lambda b: (
        ps.from_arrays({"x": np.arange(200).reshape(50, 4), "y": np.ones((50, 4, 2))})
        .unbatch()
        .shuffle(seed=1)
        .batch(b)
    ),
    "rebatch": lambda b: numbers().shuffle(seed=2).batch(7).map_batches(squares).rebatch(b),
    "cache in memory": lambda b: (
        numbers().map(fails_sometimes).skip_errors().cache(memory=1 << 20).shuffle(seed=4).map(add_noise).batch(b)
    ),
    "window_shuffle": lambda b: numbers().window_shuffle(30, seed=3).map(add_noise).filter(not_third).batch(b),
    "window_shuffle of a stream": lambda b: (
        ps.from_stream(counted, length=200, buffer=100).window_shuffle(25, seed=3).repeat(2).batch(b)
    ),
    "dedup": lambda b: (
        ps.from_arrays({"x": np.arange(300), "text": [f"text {i * i % 97}" for i in range(300)]})
        .dedup(show_progress=False)
        .repeat(6)
        .shuffle(seed=3)
        .batch(b)
    ),
    "tokenize, other columns kept": lambda b: (
        ps.from_arrays({"text": [f"text number {i}" + "é" * (i % 5) for i in range(150)], "x": np.arange(150)})
        .tokenize("bytes", show_progress=False)
        .shuffle(seed=3)
        .pad(to=24, truncate=True)
        .batch(b)
    ),
    "cache": lambda b: numbers().map(fails_sometimes).skip_errors().cache().shuffle(seed=3).map(add_noise).batch(b),
}
