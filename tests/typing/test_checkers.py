"""mypy --strict and pyright see the real types of everything behind `ps.`: on a user's script with good and bad lines.

pyright comes as basedpyright, whose wheels on PyPI hold all it needs; "strict" is pyright's own set of rules.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock

ROOT = Path(penstock.__file__).parents[2]
SCRIPT = Path(__file__).with_name("user_script.py")
Errors = dict[int, str]  # line -> what the checker says


def mypy(script: Path, folder: Path) -> tuple[Errors, str]:
    """Errors of `mypy --strict` in a script, and all that it printed."""
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src"), "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache" / "users")}
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", str(script)]
    out = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert out.returncode in (0, 1), out.stdout + out.stderr
    found = re.findall(rf"^{re.escape(str(script))}:(\d+): error: (.*)$", out.stdout, re.M)
    return {int(line): text for line, text in found}, out.stdout


def pyright(script: Path, folder: Path) -> tuple[Errors, str]:
    """Errors of pyright in its strict mode in a script, and all that it printed."""
    settings = {
        "include": [str(script)],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "reportUnusedExpression": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "-p", str(folder), "--pythonpath", sys.executable, "--outputjson"]
    out = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert out.returncode in (0, 1), out.stdout + out.stderr
    messages = json.loads(out.stdout)["generalDiagnostics"]
    errors = [m for m in messages if m["severity"] == "error"]
    shown = "\n".join(f"{m['range']['start']['line'] + 1}: {m['severity']}: {m['message']}" for m in messages)
    return {m["range"]["start"]["line"] + 1: m["message"] for m in errors}, shown


CHECKERS: list[Callable[[Path, Path], tuple[Errors, str]]] = [mypy, pyright]


@pytest.mark.parametrize("check", CHECKERS)
def test_good_lines_pass_and_bad_lines_do_not(
    check: Callable[[Path, Path], tuple[Errors, str]], tmp_path: Path
) -> None:
    lines = enumerate(SCRIPT.read_text().splitlines(), 1)
    bad = {number for number, line in lines if line.endswith("# error")}
    assert len(bad) > 30
    errors, _ = check(SCRIPT, tmp_path)
    assert {number: text for number, text in errors.items() if number not in bad} == {}, "good lines are refused"
    assert bad - errors.keys() == set(), "bad lines are not noticed"


@pytest.mark.parametrize("check", CHECKERS)
def test_no_public_name_is_untyped(check: Callable[[Path, Path], tuple[Errors, str]], tmp_path: Path) -> None:
    names = [f"ps.{name}" for name in penstock.__all__ if name != "__version__"]
    for made, of in (("pipeline", penstock.Pipeline), ("loader", penstock.Loader)):
        names += [f"{made}.{name}" for name in dir(of) if not name.startswith("_")]
    script = tmp_path / "names.py"
    lines = ["import penstock as ps", 'pipeline = ps.from_texts(["a"])', "loader = pipeline.batch(1).to_numpy()"]
    script.write_text("\n".join([*lines, *(f"reveal_type({name})" for name in names), ""]))
    errors, shown = check(script, tmp_path)
    assert errors == {}
    revealed = [line for line in shown.splitlines() if "eveal" in line or "Type of" in line]
    assert len(revealed) == len(names), shown
    assert [line for line in revealed if re.search(r'is "(builtins\.)?(Any|Unknown)"', line)] == []
