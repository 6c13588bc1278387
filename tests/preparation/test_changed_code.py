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

SRC = str(Path(ps.__file__).parents[1])

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
    "an object of a class of one's own": (
        "class C:\n    def __init__(self, end): self.end = [end]\nO = C('1')\n"
        "def f(r): return {'text': r['text'] + O.end[0]}", "('1')", "('2')",
    ),
    "a dataclass": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    end: str\nO = C('1')\n"
        "def f(r): return {'text': r['text'] + O.end}", "('1')", "('2')",
    ),
    "slots": (
        "class C:\n    __slots__ = ('end',)\nO = C()\nO.end = '1'\ndef f(r): return {'text': r['text'] + O.end}",
        "'1'", "'2'",
    ),
    "a namespace": (
        "import types\nO = types.SimpleNamespace(end='1')\ndef f(r): return {'text': r['text'] + O.end}", "'1'", "'2'",
    ),
    "a cached helper": (
        "import functools\n@functools.lru_cache\ndef g(t): return t + '1'\ndef f(r): return {'text': g(r['text'])}",
        "'1'", "'2'",
    ),
    "a cached helper's constant": (
        "import functools\nEND = '1'\n@functools.lru_cache\ndef g(t): return t + END\n"
        "def f(r): return {'text': g(r['text'])}", "'1'", "'2'",
    ),
    "a captured object": (
        "import types\ndef make(o):\n    def f(r): return {'text': r['text'] + o.end}\n    return f\n"
        "f = make(types.SimpleNamespace(end='1'))", "'1'", "'2'",
    ),
    "a default argument": (
        "import types\ndef f(r, o=types.SimpleNamespace(end='1')): return {'text': r['text'] + o.end}", "'1'", "'2'",
    ),
    "an argument of a partial": (
        "import functools, types\ndef g(o, r): return {'text': r['text'] + o.end}\n"
        "f = functools.partial(g, types.SimpleNamespace(end='1'))", "'1'", "'2'",
    ),
    "a field of a bound method's object": (
        "class C:\n    def __init__(self, d): self.d = d\n"
        "    def m(self, r): return {'text': r['text'] + min(self.d['e'])}\nf = C({'e': {'1'}}).m", "'1'", "'2'",
    ),
    "an object of an installed package": (
        "import datetime\nD = datetime.date(2024, 1, 1)\ndef f(r): return {'text': r['text'] + str(D)}", "1, 1", "1, 2",
    ),
    "a callable object of an installed package": (
        "from tokenizers import Tokenizer, models\nT = Tokenizer(models.WordLevel({'ab': 1, 'u': 0}, 'u'))\n"
        "def f(r): return {'text': r['text'] + str(T.encode('ab').ids)}", "'ab': 1", "'ab': 2",
    ),
    "a method of a global object": (
        "class C:\n    def go(self, t): return t + '1'\nO = C()\ndef f(r): return {'text': O.go(r['text'])}",
        "'1'", "'2'",
    ),
    "a method of an object in a dict": (
        "class C:\n    def go(self, t): return t + '1'\nD = {'a': [C()]}\n"
        "def f(r): return {'text': D['a'][0].go(r['text'])}", "'1'", "'2'",
    ),
    "an array": (
        "import numpy as np\nA = np.arange(3)\ndef f(r): return {'text': r['text'] + str(A)}", "(3)", "(4)",
    ),
    "an enum": (
        "import enum\nclass E(enum.Enum):\n    a = 1\n    b = 2\nX = E.a\n"
        "def f(r): return {'text': r['text'] + X.name}", "E.a", "E.b",
    ),
    "a path": (
        "import pathlib\nP = pathlib.Path('a')\ndef f(r): return {'text': r['text'] + str(P)}", "('a')", "('b')",
    ),
    "a constant of a function in a field": (
        "END = '1'\ndef g(t): return t + END\nclass C:\n    def __init__(self, h): self.h = h\n"
        "    def __call__(self, r): return {'text': self.h(r['text'])}\nf = C(g)", "'1'", "'2'",
    ),
    "a constant of a function in a dict": (
        "END = '1'\nD = {'g': lambda t: t + END}\ndef f(r): return {'text': D['g'](r['text'])}", "'1'", "'2'",
    ),
    "a constant of a function in a partial in a list": (
        "import functools\nEND = '1'\ndef g(t, n): return t + END\nD = [functools.partial(g, n=1)]\n"
        "def f(r): return {'text': D[0](r['text'])}", "'1'", "'2'",
    ),
    "the object of a method in a dict": (
        "class C:\n    def __init__(self, end): self.end = [end]\n    def m(self, t): return t + self.end[0]\n"
        "D = {'g': C({'1'}.pop()).m}\ndef f(r): return {'text': D['g'](r['text'])}", "'1'", "'2'",
    ),
    "the object of a method written in C": (
        "D = [{'1'}.__contains__]\ndef f(r): return {'text': str(D[0]('1'))}", "{'1'}", "{'2'}",
    ),
    "a class in a dict": (
        "class C:\n    C = None\n    def m(self, t): return t + '1'\nC.C = C\nD = {'c': C}\n"
        "def f(r): return {'text': D['c']().m(r['text'])}", "'1'", "'2'",
    ),
    "a metaclass": (
        "class M(type):\n    def __call__(cls): return '1'\nclass C(metaclass=M): pass\n"
        "def f(r): return {'text': r['text'] + C()}", "'1'", "'2'",
    ),
    "a descriptor": (
        "class D:\n    def __get__(self, obj, kind): return '1'\nclass C:\n    end = D()\n"
        "def f(r): return {'text': r['text'] + C.end}", "'1'", "'2'",
    ),
    "an attribute of the function": (
        "def f(r): return {'text': r['text'] + f.end}\nf.end = '1'", "'1'", "'2'",
    ),
    "a global by its name": ("END = '1'\ndef f(r): return {'text': r['text'] + globals()['END']}", "'1'", "'2'"),
    "a global in eval": ("END = '1'\ndef f(r): return {'text': r['text'] + eval('END + END')}", "'1'", "'2'"),
    "an object with any attribute": (
        "class C:\n    def __init__(self): self.end = '1'\n    def __getattr__(self, name): return 3\n"
        "O = C()\ndef f(r): return {'text': r['text'] + O.end}", "'1'", "'2'",
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


def test_an_object_that_cannot_be_compared_asks_for_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module("import threading\nL = threading.Lock()\ndef f(r):\n    with L: return r", monkeypatch)
    texts = ps.from_texts(["ab"])
    with pytest.raises(ps.UsageError, match=r'f uses L \(_thread.lock\), which cannot be compared(.|\n)*version="1"'):
        texts.map(made.f).tokenize("bytes", cache_dir=tmp_path)
    assert len(texts.map(made.f, version="1").tokenize("bytes", cache_dir=tmp_path).rows()) == 1


def test_a_version_stands_for_what_the_function_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = CHANGES["a constant"][0]

    def store(code: str, version: str) -> Any:
        pipeline = ps.from_texts(["ab"]).map(module(code, monkeypatch).f, version=version)
        return pipeline.tokenize("bytes", eos=False, cache_dir=tmp_path).peek()[0]["input_ids"].tolist()

    old = store(code, "1")
    assert store(code.replace("'1'", "'2'"), "1") == old != store(code.replace("'1'", "'2'"), "2")


def test_an_object_that_contains_itself_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "class C: pass\nO = C()\nO.me = O\nL = [O]\nL.append(L)\ndef f(r): return O, L, f"
    assert globals_id(module(code, monkeypatch).f, opaque=True) != ""


@pytest.mark.parametrize("change", [name for name in CHANGES if "installed package" not in name])
def test_a_state_of_other_code_is_refused(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, before, after = CHANGES[change]

    def loader(code: str, **options: Any) -> Any:
        function = module(code, monkeypatch).f
        return ps.from_texts(["ab", "cd", "ef"]).map(function, **options).batch(1).to_numpy(threads=0)

    first = loader(code)
    next(iter(first))
    state = first.state_dict()
    loader(code).load_state_dict(state)
    with pytest.raises(ps.StateError):  # the function itself, or what it uses
        loader(code.replace(before, after)).load_state_dict(state)
    versioned = loader(code, version="1").state_dict()
    assert "code" not in versioned


def test_a_state_without_code_is_of_an_earlier_version_and_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    code = CHANGES["a constant"][0]
    loader = ps.from_texts(["ab"]).map(module(code, monkeypatch).f).batch(1).to_numpy()
    state = {name: value for name, value in loader.state_dict().items() if name not in ("code", "check")}
    loader.load_state_dict(state)


def test_values_that_a_run_changes_do_not_change_its_states(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module("SEEN = {}\ndef f(r):\n    SEEN[r['text']] = 1\n    return r", monkeypatch)
    loader = ps.from_texts(["ab", "cd"]).map(made.f).batch(1).to_numpy(threads=0)
    before = loader.state_dict()["code"]
    assert len(list(loader)) == 2 and made.SEEN
    assert loader.state_dict()["code"] == before


USES = [
    "import pk.sub\ndef f(r): return {'text': pk.sub.h(r['text'])}",
    "from pk import sub\ndef f(r): return {'text': sub.h(r['text'])}",
    "def f(r):\n    from pk.sub import h\n    return {'text': h(r['text'])}",
    "def f(r):\n    from pk import sub\n    return {'text': sub.h(r['text'])}",
    "def f(r):\n    import pk.sub\n    return {'text': pk.sub.h(r['text'])}",
    "from pk.sub import o\ndef f(r): return {'text': o.go(r['text'])}",
]


def test_code_in_modules_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "pk").mkdir()
    (tmp_path / "pk/__init__.py").write_text("")
    for number, use in enumerate(USES):
        (tmp_path / f"use{number}.py").write_text(use)
    script = (
        "import importlib, penstock as ps\n"
        f"for number in range({len(USES)}):\n"
        "    f = importlib.import_module(f'use{number}').f\n"
        "    cache = f'cache{number}'\n"
        "    p = ps.from_texts(['ab']).map(f).tokenize('bytes', eos=False, cache_dir=cache, show_progress=False)\n"
        "    state = ps.from_texts(['ab']).map(f).batch(1).to_numpy().state_dict()\n"
        "    print(len(p.peek(1)[0]['input_ids']), state.get('code'))"
    )
    seen = []
    for times in (1, 3, 1):
        (tmp_path / "pk/sub.py").write_text(
            f"K = {{'a': {times}}}\ndef h(t): return t * K['a']\n"
            f"class O:\n    def go(self, t): return t * {times}\no = O()\n"
        )
        ran = subprocess.run(
            [sys.executable, "-B", "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{SRC}"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        seen.append([line.split() for line in ran.stdout.splitlines()])
    for use, first, second, third in zip(USES, *seen, strict=True):
        assert [first[0], second[0], third[0]] == ["2", "6", "2"], use
        assert first == third and first[1] != second[1], use
