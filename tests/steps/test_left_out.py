"""What a plan leaves out of an epoch is counted where the user can see it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.steps.test_bucket import documents, tokens

LONG = [5] * 16 + [50, 60, 70]
CASES: dict[str, tuple[Any, dict[str, int]]] = {
    "bucket": (lambda: tokens([5] * 17 + [50] * 9).shuffle().bucket([10], 4), {"documents_left_over": 2}),
    "bucket, short": (lambda: tokens(LONG).bucket([10], 4, remainder="short"), {}),
    "budget": (lambda: tokens(LONG).batch_tokens(40, overlong="drop"), {"documents_dropped": 3}),
    "budget, cut": (lambda: tokens(LONG).batch_tokens(40, overlong="truncate"), {"documents_truncated": 3}),
    "pack": (
        lambda: tokens([0, *LONG]).pack(40, overlong="drop").batch(2),
        {"documents_dropped": 3, "documents_empty": 1, "tokens_cut": 180},
    ),
    "pack, cut": (
        lambda: tokens(LONG).pack(40, overlong="truncate").batch(2, remainder="short"),
        {"documents_truncated": 3, "tokens_cut": 60},
    ),
    "pack, split": (lambda: tokens(LONG).pack(40).batch(1), {}),
    "concat": (lambda: tokens(LONG).pack(40, strategy="concat").batch(1), {}),
    "mix": (
        lambda: ps.mix([tokens(LONG).pack(40, overlong="drop"), tokens(LONG).pack(40)], [1, 1]).batch(1),
        {"documents_dropped": 3, "tokens_cut": 180},
    ),
    "windows": (lambda: tokens([23]).windows(5).batch(1), {"tokens_left_over": 2}),
    "rows": (lambda: ps.from_arrays({"x": np.arange(11)}).batch(4), {"rows_left_over": 3}),
    "rows, short": (lambda: ps.from_arrays({"x": np.arange(11)}).batch(4, remainder="short"), {}),
    "rows, endless": (lambda: ps.from_arrays({"x": np.arange(11)}).repeat().batch(4), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_counts_are_in_the_stats_and_in_what_is_printed(name: str) -> None:
    make, want = CASES[name]
    loader = make().to_numpy(threads=0)
    assert loader.stats()["left_out"] == want
    for what, count in want.items():
        assert f"{what!r}: {count}" in repr(loader)
        if what.startswith("documents") and name != "mix":
            assert f"{count} {what.replace('_', ' ')}" in repr(make())
    assert want or "left_out" not in repr(loader)


def test_a_bucket_smaller_than_its_batch_is_warned_of_once() -> None:
    with pytest.warns(UserWarning, match="3 documents") as caught:
        loader = tokens(LONG).shuffle(seed=1).bucket([10], 4).to_numpy(threads=0)
    (warning,) = caught
    assert warning.filename == __file__
    for text in ("in no epoch", "bucket 1 holds 3", "batches of 4", 'remainder="short" or "pad"'):
        assert text in str(warning.message)
    assert loader.stats()["left_out"] == {"documents_in_no_epoch": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = {d for _ in range(3) for b in loader for d in documents(b)}
    assert seen == set(range(16))


def test_who_is_left_over_changes_with_the_epoch() -> None:
    loader = tokens([5] * 17).shuffle(seed=1).bucket([10], 4).to_numpy(threads=0)
    missing = [set(range(17)) - {d for b in loader for d in documents(b)} for _ in range(6)]
    assert all(len(m) == 1 for m in missing) and len(set.union(*missing)) > 1
