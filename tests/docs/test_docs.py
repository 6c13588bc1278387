"""The pages tell the truth: their code runs, their links lead somewhere, the commands they name exist."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.cli.main import main, parser
from tests.docs import names
from tests.docs.pages import PAGES, ROOT, Block, anchors, blocks, links

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
WITH_CODE = [name for name in NAMES if any(b.runs for b in blocks((ROOT / name).read_text()))]
SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run_page(text: str, name: str) -> None:
    """Runs a page's blocks from top to bottom, in one namespace, in the current folder."""
    namespace: dict[str, object] = {"__name__": "page"}
    printed = io.StringIO()
    for block in blocks(text):
        if block.shows_output:
            same = doctest.OutputChecker().check_output(block.text, printed.getvalue(), SHOWN)
            assert same, f"{name}:{block.line}: the block before prints\n{printed.getvalue()}"
        if not block.runs:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run_block(block, name, namespace)


def run_block(block: Block, name: str, namespace: dict[str, object]) -> None:
    if block.language == "python":
        # Blank lines first, so that a traceback names the page's own line.
        exec(compile("\n" * block.line + block.text, name, "exec"), namespace)
        return
    for command in block.commands():
        words = shlex.split(command)
        assert words[0] == "penstock", f"{name}:{block.line}: only penstock runs in a page, not {command!r}"
        assert main(words[1:]) == 0, f"{name}:{block.line}: {command}"


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Small models are quicker without torch's threads, which wait for each other where other tests use the cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", WITH_CODE)
@pytest.mark.usefixtures("one_torch_thread")
def test_the_code_of_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    run_page((ROOT / name).read_text(), name)


def test_running_a_page_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("```python fragment\nthis is not run\n```\n", "page")
    with pytest.raises(AssertionError):
        run_page("```python\nassert 1 == 2\n```\n", "page")
    run_page("```python\nprint('a river')\n```\n```text output\na ...\n```\n", "page")
    with pytest.raises(AssertionError, match="the block before prints"):
        run_page("```python\nprint('a river')\n```\n```text output\na mill\n```\n", "page")
    with pytest.raises(AssertionError, match="penstock info nowhere"):
        run_page("```console run\n$ penstock info nowhere\n```\n", "page")


@pytest.mark.parametrize("name", NAMES)
def test_fragments_are_python_and_fences_are_closed(name: str) -> None:
    text = (ROOT / name).read_text()
    assert len(re.findall(r"^```", text, re.M)) == 2 * len(blocks(text))
    for block in blocks(text):
        if block.language == "python":
            compile(block.text, f"{name}:{block.line}", "exec")


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for link in links(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        inside = (
            target.suffix != ".md" or not anchor or anchor in anchors(target.read_text() if target.exists() else "")
        )
        if not target.exists() or not inside:
            broken.append(link)
    return broken


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    assert broken_links(ROOT / name, (ROOT / name).read_text()) == []


def test_a_broken_link_is_noticed() -> None:
    text = "[a](docs/no-such-page.md) [b](#no-such-heading) [c](README.md) [d](#heading)\n# Heading\n"
    assert broken_links(ROOT / "README.md", text.replace("[d](#heading)", "")) == [
        "docs/no-such-page.md",
        "#no-such-heading",
    ]


def check_command(command: str, targets: set[str], extras: set[str]) -> str | None:
    """What is wrong with a command of a page, or None."""
    words = shlex.split(command, comments=True)
    if words[:1] == ["penstock"]:
        try:
            parser().parse_args(words[1:])
        except SystemExit as stop:
            return None if stop.code in (0, None) else f"penstock does not take {command!r}"
    if words[:1] == ["make"] and not set(words[1:]) <= targets:
        return f"no such target: {command!r}"
    for name in re.findall(r"penstock-data\[([\w,]+)\]", command):
        if not set(name.split(",")) <= extras:
            return f"no such extra: {command!r}"
    return None


def known() -> tuple[set[str], set[str]]:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    table = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return targets, set(re.findall(r"^(\w+) = \[", table, re.M))


@pytest.mark.parametrize("name", NAMES)
def test_commands_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    shown: list[Block] = [b for b in blocks(text) if b.language in ("console", "bash")]
    commands = [command for block in shown for command in block.commands()]
    inline = re.findall(r"`(make [a-z]+|penstock [a-z]+)`", text)
    wrong = [check_command(command, *known()) for command in commands]
    for command in inline:
        words = command.split()
        if words[0] == "make":
            wrong.append(check_command(command, *known()))
        elif not re.search(rf"^    {words[1]} ", parser().format_help(), re.M):
            wrong.append(f"no such command: {command!r}")
    assert [problem for problem in wrong if problem] == []


def test_a_wrong_command_is_noticed() -> None:
    for command in ("penstock prepare --no-such-option x", "make nothing", "pip install 'penstock-data[nothing]'"):
        assert check_command(command, *known()), command
    for command in ("penstock info corpus", "make test", "pip install 'penstock-data[torch,jax]'"):
        assert check_command(command, *known()) is None, command


def test_the_page_of_names_is_as_the_code_says() -> None:
    assert names.PATH.read_text() == names.page(), "run: python -m tests.docs.names"


def test_every_verb_and_method_is_in_the_reference() -> None:
    for kind, page in ((penstock.Pipeline, "pipeline.md"), (penstock.Loader, "loader.md")):
        words = re.findall(
            r"\w+", " ".join(re.findall(r"`([^`\n]+)`", (ROOT / "docs" / "reference" / page).read_text()))
        )
        assert sorted({name for name in dir(kind) if not name.startswith("_")} - set(words)) == [], page


def test_every_command_and_option_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    tree = next(action for action in parser()._actions if isinstance(action.choices, dict))
    for name, command in (tree.choices or {}).items():
        assert f"## {name}\n" in text
        options = {o for action in command._actions for o in action.option_strings if o.startswith("--")}
        assert sorted(o for o in options - {"--help"} if not re.search(rf"{o}\b", text)) == [], name


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    reached = {(index.parent / link.partition("#")[0]).resolve() for link in links(index.read_text())}
    agents = ROOT / "docs" / "llms.txt"
    listed = {(agents.parent / link.partition("#")[0]).resolve() for link in links(agents.read_text())}
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs") and page.suffix == ".md"}
    assert pages - reached - {index} == set()
    assert pages - listed == set()


def test_no_page_has_marks_of_a_merge() -> None:
    assert [page.name for page in PAGES if re.search(r"^(<{7}|={7}|>{7})( |$)", page.read_text(), re.M)] == []


def test_examples_are_short() -> None:
    long = {p.name for p in (ROOT / "examples").glob("*.py") if len(p.read_text().splitlines()) > 80}
    assert long <= {"demo.py", "demo_model.py"}
