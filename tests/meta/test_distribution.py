"""The distribution: its name in every install line, its extras, its license."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.errors import MissingExtra
from penstock.core.optional import DISTRIBUTION, need

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"])

# The name without "-data" is another project on PyPI. Written in two parts, so that this file passes its own check.
WRONG_INSTALL = re.compile(r"pip3? install [^\n`]*?\bpen" r"stock(?!-data)\b(?!/)")
WRONG_EXTRA = re.compile(r"\bpen" r"stock\[[a-z]")


def texts() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\n"):
        path = ROOT / name
        if name and path.is_file() and not path.is_symlink():
            yield name, path.read_text(errors="ignore")


def wrong_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if WRONG_INSTALL.search(line) or WRONG_EXTRA.search(line)]


def needed_extras(source: str) -> list[str]:
    """The `extra=` of every call of `need`, and the argument of every `install_line`, when it is a literal."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        values = [k.value for k in call.keywords if k.arg == "extra"] if name == "need" else []
        values += call.args[:1] if name == "install_line" else []
        found += [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]
    return found


def test_the_distribution_name_is_the_one_of_the_install_lines() -> None:
    assert PROJECT["name"] == DISTRIBUTION == "penstock-data"


def test_every_text_names_the_distribution() -> None:
    assert {name: lines for name, text in texts() if (lines := wrong_lines(text))} == {}


def test_a_wrong_install_line_is_noticed() -> None:
    name = "pen" + "stock"
    for line in (f"pip install {name}", f"$ pip install '{name}[torch]'", f"pip install -U {name}", f"{name}[dev]"):
        assert wrong_lines(line) == [line]
    for line in (f"pip install {name}-data", f"pip install '{name}-data[torch]'", f"import {name}", "pip install -e ."):
        assert wrong_lines(line) == []


def test_every_needed_extra_exists() -> None:
    missing = {}
    for path in (ROOT / "src").rglob("*.py"):
        if unknown := set(needed_extras(path.read_text())) - EXTRAS:
            missing[str(path.relative_to(ROOT))] = unknown
    assert missing == {}


def test_an_unknown_extra_is_noticed() -> None:
    assert needed_extras('need("x", extra="nothing")\ninstall_line("other")\n') == ["nothing", "other"]


def test_every_scheme_of_a_url_has_an_extra_that_exists() -> None:
    from penstock.storage import filesystem

    assert set(filesystem._EXTRAS.values()) <= EXTRAS


def test_extras_name_only_extras_that_exist() -> None:
    own = [r for rs in PROJECT["optional-dependencies"].values() for r in rs if r.startswith(f"{DISTRIBUTION}[")]
    named = {name for r in own for name in re.split(r"[,\s]+", r.partition("[")[2].rstrip("]"))}
    assert own
    assert named <= EXTRAS
    development = {"all", "bench", "demo", "dev"}
    everything = PROJECT["optional-dependencies"]["all"][0].partition("[")[2].rstrip("]").split(",")
    assert set(everything) == EXTRAS - development


def test_a_missing_package_names_the_install_line() -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'penstock-data\[zstd\]'"):
        need("no_such_package", extra="zstd", purpose="to read .zst files")


def test_the_license_is_in_the_tree() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
