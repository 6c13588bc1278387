"""The architecture page is as the code is: its pictures, its table of packages, its call list."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.docs import pictures, trace_batch
from tests.docs.pages import ROOT
from tests.docs.trace_batch import Call

PAGE = trace_batch.PAGE
ENGINE_DELIVERS = {("engine", "outputs")}  # the output is an object that the loader was built with


@pytest.mark.parametrize("name", sorted(pictures.PICTURES))
def test_a_picture_is_as_the_contract_says(name: str) -> None:
    assert (pictures.FOLDER / name).read_text() == pictures.PICTURES[name](), "run: python -m tests.docs.pictures"
    assert f"]({name})" in PAGE.read_text()


def test_every_package_is_described() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", PAGE.read_text().partition("## Three rules")[0], re.M)
    described = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row)]
    assert described == [name for row in pictures.contract() for name in row]
    folder = ROOT / "src" / "penstock"
    there = {p.name.removesuffix(".py") for p in folder.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert set(described) == there - {"__init__", "__main__", "_version"}


def test_the_call_list_is_as_the_code_runs() -> None:
    fresh = [sys.executable, "-m", "tests.docs.trace_batch", "--print"]  # objects of other tests are freed in no trace
    traced = subprocess.run(fresh, cwd=ROOT, env=os.environ, check=True, capture_output=True, text=True).stdout
    assert PAGE.read_text() == traced, "run: python -m tests.docs.trace_batch"


def test_a_batch_goes_down_the_packages_and_only_delivery_goes_up() -> None:
    building, making = trace_batch.walk()
    assert trace_batch.upward(building) == set()
    assert trace_batch.upward(making) == ENGINE_DELIVERS
    passed = list(trace_batch.entered(making))
    assert {"outputs", "engine", "plan", "steps", "store", "order", "core"} == set(passed)


def test_a_call_upward_is_noticed() -> None:
    down = Call("order", "order.shuffle", "permute", "steps")
    up = Call("engine", "engine.loader", "Loader", "store")
    assert trace_batch.upward([down]) == set()
    assert trace_batch.upward([down, up]) == {("store", "engine")}
    assert list(trace_batch.entered([down, up])) == ["engine", "order"]


def test_only_our_own_calls_are_traced() -> None:
    calls, result = trace_batch.trace(lambda: sorted([2, 1]))
    assert (calls, result) == ([], [1, 2])
