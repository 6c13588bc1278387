"""The four examples of CONTRIBUTING.md work: each is one new file and one registry entry in a copy of src/."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

RECIPES = ["A source format", "A verb", "A tokenizer kind", "An output"]


@dataclass
class Recipe:
    """The new files, the changes of existing files, and the script of one section."""

    files: dict[str, str] = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)
    script: str = ""


def recipe(title: str) -> Recipe:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition(f"\n### {title}\n")[2]
    made = Recipe()
    for block in blocks(re.split(r"^##+ ", section, maxsplit=1, flags=re.M)[0]):
        if block.language == "diff":
            made.changes[block.marks[0]] = block.text
        elif block.marks[1] == "run":
            made.script = block.text
        else:
            made.files[block.marks[1]] = block.text
    return made


def changed(text: str, diff: str) -> str:
    """`text` with the "+" lines of `diff` put after its one context line, which must occur once."""
    context, *added = diff.splitlines()
    assert context.startswith(" ")
    assert all(line.startswith("+") for line in added)
    lines = text.splitlines()
    assert lines.count(context[1:]) == 1, f"{context[1:]!r} is not in the file exactly once"
    place = lines.index(context[1:]) + 1
    return "\n".join([*lines[:place], *(line[1:] for line in added), *lines[place:], ""])


def run(tmp_path: Path, made: Recipe) -> subprocess.CompletedProcess[str]:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in made.files.items():
        assert not (tmp_path / name).exists(), f"{name} exists already"
        (tmp_path / name).write_text(text)
    for name, diff in made.changes.items():
        path = tmp_path / name
        path.write_text(changed(path.read_text(), diff))
    (tmp_path / "work").mkdir()
    script = tmp_path / "work" / "script.py"
    script.write_text(made.script)
    place = {"PYTHONPATH": str(tmp_path / "src"), "PENSTOCK_CACHE": str(tmp_path / "cache")}
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=script.parent,
        env=os.environ | place,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("title", RECIPES)
def test_an_example_is_one_new_file_and_one_entry(title: str, tmp_path: Path) -> None:
    made = recipe(title)
    assert (len(made.files), len(made.changes)) == (1, 1)
    done = run(tmp_path, made)
    assert done.returncode == 0, done.stdout + done.stderr
    unchanged = run(tmp_path / "without", Recipe(script=made.script))
    assert unchanged.returncode != 0, "the script passes without the example"


@pytest.mark.parametrize("title", RECIPES)
def test_the_code_of_an_example_passes_the_linter(title: str) -> None:
    made = recipe(title)
    texts = {name: changed((ROOT / name).read_text(), diff) for name, diff in made.changes.items()}
    for name, text in (made.files | texts).items():
        for command in (["check"], ["format", "--check"]):
            done = subprocess.run(
                [sys.executable, "-m", "ruff", *command, "--stdin-filename", ROOT / name, "-"],
                input=text, capture_output=True, text=True, check=False, cwd=ROOT,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr


def test_a_context_line_that_is_not_there_is_noticed() -> None:
    assert changed("a\nb\n", " a\n+    c\n") == "a\n    c\nb\n"
    with pytest.raises(AssertionError, match="exactly once"):
        changed("a\na\n", " a\n+c\n")


_PATH = re.compile(r"(?<![\w/.<])((?:[\w.-]+/)+[\w.-]*)")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", "README.md"])
def test_paths_in_code_and_commands_exist(page: str) -> None:
    """Of the text between backticks and of links, outside of examples that add files."""
    text = re.sub(r"^```python fragment.*?^```|^```diff.*?^```", "", (ROOT / page).read_text(), flags=re.M | re.S)
    said = re.findall(r"`([^`\n]+)`", text) + re.findall(r"\]\(([^)#\s]+)", text)
    paths = {path for one in said if "://" not in one for path in _PATH.findall(one)}
    places = (ROOT, ROOT / "src", ROOT / "src/penstock")
    own = [path for path in paths if any((place / path.split("/")[0]).is_dir() for place in places)]
    missing = [path for path in own if not any((place / path).exists() for place in places)]
    assert missing == [] and (len(own) > 10 or page != "CONTRIBUTING.md")
