"""A cached store is of the code that made it: a changed helper, constant or method is other data."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock as ps
from penstock.core.function_globals import globals_id

CHANGES = {
    "a constant": ("END = '1'\ndef f(r): return {'text': r['text'] + END}", "'1'", "'2'"),
    "a helper": ("def g(t): return t + '1'\ndef f(r): return {'text': g(r['text'])}", "'1'", "'2'"),
    "a helper's constant": (
        "END = '1'\ndef g(t): return t + END\ndef f(r): return {'text': g(r['text'])}", "'1'", "'2'",
    ),
    "a dict": ("D = {'end': '1'}\ndef f(r): return {'text': r['text'] + D['end']}", "'1'", "'2'"),
    "a class attribute": ("class C:\n    end = '1'\ndef f(r): return {'text': r['text'] + C.end}", "'1'", "'2'"),
    "a pattern": (
        "import re\nP = re.compile('a')\ndef f(r): return {'text': P.sub('z', r['text'])}", "('a')", "('b')",
    ),
    "a lambda's helper": (
        "def g(t): return t + '1'\nf = lambda r: {'text': g(r['text'])}", "'1'", "'2'",
    ),
    "a method that a method calls": (
        "class C:\n    def g(self, t): return t + '1'\n    def m(self, r): return {'text': self.g(r['text'])}\n"
        "f = C().m", "'1'", "'2'",
    ),
    "a method that an object calls": (
        "class C:\n    def g(self, t): return t + '1'\n    def __call__(self, r): return {'text': self.g(r['text'])}\n"
        "f = C()", "'1'", "'2'",
    ),
}  # fmt: skip


def module(code: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = ModuleType("users_code")
    monkeypatch.setitem(sys.modules, "users_code", made)
    exec(code, made.__dict__)
    return made


@pytest.mark.parametrize("change", CHANGES)
def test_tokenize_notices_changed_code(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, before, after = CHANGES[change]

    def first(code: str) -> Any:
        texts = ps.from_texts(["ab"]).map(module(code, monkeypatch).f)
        return (
            texts.tokenize("bytes", eos=False, cache_dir=tmp_path, show_progress=False).peek()[0]["input_ids"].tolist()
        )

    old, new = first(code), first(code.replace(before, after))
    assert old != new
    assert first(code) == old
    assert len(list(tmp_path.rglob("*.tokens"))) == 2  # the first store was found again


def test_the_id_is_the_same_in_every_process_and_empty_without_globals(tmp_path: Path) -> None:
    assert globals_id(len) == globals_id(lambda record: {"x": record["x"] + len("abc")}) == ""
    script = tmp_path / "script.py"
    script.write_text(
        "import re, math\nfrom penstock.core.function_globals import globals_id\n"
        "WORDS = {'a', 'b', 'c', 'd'}\nP = re.compile('x')\nclass C:\n    n = 3\n    def m(self, t): return len(t)\n"
        "def g(t): return [t, math.pi, P, g]\ndef f(r): return g(r['text']), WORDS, C\nprint(globals_id(f))\n"
    )
    ids = {
        subprocess.run(
            [sys.executable, str(script)], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True,
            check=True,
        ).stdout
        for seed in "123"
    }  # fmt: skip
    assert len(ids) == 1 and ids != {"\n"}
