"""States that released code saved still load, and the batches after them are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.plan import state as states
from tests.golden import make_facade_states

GOLDEN = json.loads(make_facade_states.PATH.read_text())
KINDS = {
    "builder, stream": "stream loader",
    "stream dataset": "stream",
    "capibara stream": "stream loader",
    "artifex unaligned": "two loaders",
    "artifex dataset": "dataset",
    "artifex cached": "dataset",
}


def same(made: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert sorted(made) == sorted(expected)
        for name in expected:
            same(made[name], expected[name])
    elif isinstance(expected, list):
        assert len(made) == len(expected)
        for one, other in zip(made, expected, strict=True):
            same(one, other)
    elif isinstance(expected, float):  # compiled arithmetic differs in the last bits between machines
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
    else:
        assert made == expected


def test_all_loaders_are_golden() -> None:
    assert set(GOLDEN) == set(make_facade_states.LOADERS)


@pytest.mark.parametrize("name", GOLDEN)
def test_an_old_state_loads(name: str, tmp_path: Path) -> None:
    saved = GOLDEN[name]
    same(make_facade_states.after(make_facade_states.LOADERS[name], str(tmp_path), saved["state"]), saved["after"])


@pytest.mark.parametrize("name", GOLDEN)
def test_a_new_state_is_small_marked_and_of_the_same_batches(name: str, tmp_path: Path) -> None:
    make = make_facade_states.LOADERS[name]
    now = make_facade_states.state_of(make, str(tmp_path))
    state = now["state"]
    assert len(json.dumps(state)) < 1024
    assert (state["penstock"], state.get("kind", "pipeline")) == (states.FORMAT, KINDS.get(name, "pipeline"))
    same(now["after"], GOLDEN[name]["after"])
    same(make_facade_states.after(make, str(tmp_path), state), GOLDEN[name]["after"])
    if "kind" not in state:
        assert state.pop("check")
        assert state == GOLDEN[name]["state"]


@pytest.mark.parametrize("name", ["gpt windows", "builder, stream", "stream dataset", "artifex dataset"])
def test_a_state_of_another_kind_is_refused_by_name(name: str, tmp_path: Path) -> None:
    loader = make_facade_states.LOADERS[name](str(tmp_path))
    own = KINDS.get(name, "pipeline")
    for other, golden in GOLDEN.items():
        kind = KINDS.get(other, "pipeline")
        if kind != own:
            with pytest.raises(ps.StateError, match=f"a state of a {own}(.|\n)*a state of a {kind}"):
                loader.load_state_dict(golden["state"])
    for wrong in (None, [], {}, {"penstock": "stream 2"}, {"kind": own}, {"penstock": 1, "kind": own}):
        with pytest.raises(ps.StateError):
            loader.load_state_dict(wrong)
