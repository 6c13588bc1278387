"""Functions that depend on nothing but their arguments, and those of which that cannot be told."""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.core.closed_functions import why_open

LEVEL = 3
SEEN: list[int] = []


class Words:
    def __call__(self, row: dict) -> dict:
        return row


def double(x: Any) -> Any:
    return 2 * x


def with_helper(row: dict) -> dict:
    return {"x": double(row["x"])}


def recursive(n: int) -> int:
    return 1 if n < 2 else n * recursive(n - 1)


def checks(row: dict) -> dict:
    if row["tag"] not in {"a", "b"}:
        raise ValueError(row["tag"])
    return {"x": sorted(len(word) for word in row["text"].split()), "n": np.mean(row["x"]), "j": json.dumps(row)}


def with_generator(row: dict, rng: np.random.Generator) -> dict:
    return {"x": rng.random()}


def aliases_random(row: dict) -> dict:
    state = np.random
    return {"x": state.rand()}


def imports_numpy(row: dict) -> dict:
    import numpy

    return {"x": numpy.random.rand()}


def with_import(row: dict) -> dict:
    from math import floor

    return {"x": floor(row["x"])}


def reads_level(row: dict) -> dict:
    return {"x": row["x"] * LEVEL}


def in_a_helper(row: dict) -> dict:
    return reads_level(row)


def counts(row: dict) -> dict:
    SEEN.append(1)
    return row


def rebinds(row: dict) -> dict:
    global LEVEL  # noqa: PLW0603
    LEVEL += 1
    return row


def remembers(row: dict) -> dict:
    remembers.rows = row  # type: ignore[attr-defined]
    return row


def prints(row: dict) -> dict:
    print(row)  # noqa: T201
    return row


def imports_random(row: dict) -> dict:
    from numpy.random import rand

    return {"x": rand()}


def captured(level: int) -> Callable[[dict], dict]:
    return lambda row: {"x": row["x"] * level}


def attributed(row: dict) -> dict:
    return {"x": attributed.level}  # type: ignore[attr-defined]


attributed.level = 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "function",
    [
        double,
        with_helper,
        recursive,
        checks,
        with_import,
        with_generator,
        lambda row: {"x": math.sqrt(row["x"])},
        lambda row, k=3: k,
    ],
)
def test_a_function_of_its_arguments_is_closed(function: Callable[..., Any]) -> None:
    assert why_open(function) == ""


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (reads_level, "LEVEL"),
        (in_a_helper, "reads_level: LEVEL"),
        (counts, "SEEN"),
        (rebinds, "LEVEL"),
        (remembers, "rows"),
        (attributed, "level"),
        (prints, "print"),
        (captured(3), "level"),
        (lambda row, kept=[]: row, "a default argument, list"),
        (lambda row: random.random(), "random"),
        (lambda row: np.random.rand(), "random"),
        (aliases_random, "random"),
        (imports_numpy, "random"),
        (imports_random, "import numpy.random"),
        (lambda row: list({word.lower() for word in row["text"]}), "a set, whose order differs between processes"),
        (lambda row: list({"a", "b"}), "a set, whose order differs between processes"),
        (lambda row: hash(row["text"]), "hash"),
        (lambda row: eval(row["code"]), "eval"),
        (lambda row: row.__class__, "__class__"),
        (Words(), "a Words"),
        (Words().__call__, "a method"),
        (functools.partial(double, 3), "a partial"),
    ],
)
def test_what_may_depend_on_more_is_named(function: Callable[..., Any], why: str) -> None:
    assert why_open(function) == why
