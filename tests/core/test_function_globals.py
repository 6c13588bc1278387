"""What a function uses is compared by content; what has no content is no reason to refuse it."""

from __future__ import annotations

import abc
import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.core.function_globals import globals_id

SRC = Path(__file__).parents[2] / "src"


class Cleaner(abc.ABC):
    @abc.abstractmethod
    def clean(self, text: str) -> str: ...


class Lower(Cleaner):
    def clean(self, text: str) -> str:
        return text.lower()


class HasClean(Protocol):
    def clean(self, text: str) -> str: ...


FLOATS = NDArray[np.float32]
ROWS = np.ndarray[Any, np.dtype[np.int64]]
LINES = list[str]
MAYBE = int | None
LOWER = Lower()
FUNCTIONS = {
    "abstract class": lambda text: Lower().clean(text),
    "instance of one": lambda text: LOWER.clean(text) + "",
    "protocol": lambda text: typing.cast(HasClean, LOWER).clean(text),
    "alias of an array": lambda text: typing.cast(FLOATS, text),
    "alias of a typed array": lambda text: typing.cast(ROWS, text),
    "alias of a list": lambda text: [*LINES(text)],
    "union": lambda text: typing.cast(MAYBE, text),
}


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_has_no_content_is_no_obstacle(name: str, opaque: bool) -> None:
    assert globals_id(FUNCTIONS[name], opaque=opaque)


def test_a_changed_method_of_an_abstract_class_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = globals_id(FUNCTIONS["instance of one"], opaque=True)
    monkeypatch.setattr(Lower, "clean", lambda self, text: text.upper())
    assert globals_id(FUNCTIONS["instance of one"], opaque=True) != before


@pytest.mark.parametrize("folder", ["env/lib/site-packages", "target"])
def test_packages_of_another_folder_are_installed_and_modules_beside_them_are_not(folder: str, tmp_path: Path) -> None:
    """As on clusters, where PYTHONPATH adds folders of packages, and with `pip install --target`."""
    place = tmp_path / folder
    (place / "lib").mkdir(parents=True)
    (place / "lib-1.0.dist-info").mkdir()
    (place / "lib-1.0.dist-info/RECORD").write_text("lib/__init__.py,,\nlib-1.0.dist-info/RECORD,,\n")
    script = (
        "import lib, own\nfrom penstock.core.function_globals import globals_id\n"
        "print(globals_id(lambda: lib.f(), opaque=True), globals_id(lambda: own.f(), opaque=True), sep=',')"
    )

    def ids(body: str) -> list[str]:
        (place / "lib/__init__.py").write_text(f"state = (n for n in ())\ndef f():\n    return state, {body}\n")
        (tmp_path / "own").mkdir(exist_ok=True)
        own = place if folder == "target" else tmp_path / "own"
        (own / "own.py").write_text(f"def f():\n    return {body}\n")
        paths = f"{place}:{tmp_path / 'own'}:{SRC}"
        command = [sys.executable, "-B", "-c", script]
        env = {**os.environ, "PYTHONPATH": paths}
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip().split(",")

    first, second = ids("1"), ids("2")
    assert first[0] == second[0] == "", "the code of an installed package is not followed"
    assert first[1] and second[1] and first[1] != second[1]
