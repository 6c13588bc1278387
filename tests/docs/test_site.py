"""The documentation site builds without warnings, works without a network, and has a page for each verb and reader."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from website import api, docstrings, stage
from website.pages import ROOT, change_links

import penstock


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "PYTHONWARNINGS": "default",
    }
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=500, check=False)


BUILD = "import sys; from pathlib import Path; from website.__main__ import build; sys.exit(build(Path(sys.argv[1])))"
SPHINX = "import sys; from website.__main__ import sphinx; sys.exit(sphinx(*sys.argv[1:]))"


def requests_of(page: str) -> list[str]:
    """Addresses that a browser loads when it shows a page: scripts, styles, pictures, frames; not links."""
    tags = re.findall(r"<(?:script|link|img|iframe|source|video|audio)\b[^>]*>", page)
    loaded = [address for tag in tags for address in re.findall(r"(?:src|href|srcset|poster)=[\"']([^\"']+)", tag)]
    return [address for address in loaded if re.match(r"[a-z]+:|//", address) and not address.startswith("data:")]


def test_the_site_builds_and_requests_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = run(BUILD, str(tmp_path))
    assert done.returncode == 0, done.stderr
    html = tmp_path / "html"
    pages = {str(path.relative_to(html)): path.read_text() for path in html.rglob("*.html")}
    assert {name: found for name, text in pages.items() if (found := requests_of(text))} == {}
    styles = [path.read_text() for path in html.rglob("*.css")]
    assert styles and not [s for s in styles if re.search(r"@import|url\([\"']?(https?:)?//", s)]

    expected = {f"api/verbs/{name}.html" for name in api.verbs()} | {
        f"api/readers/{name}.html" for name in api.readers()
    }
    expected |= {f"api/facades/{page}.html" for page, _ in api.FACADES.values()}
    expected |= {str(p.relative_to(ROOT / "docs").with_suffix(".html")) for p in (ROOT / "docs").rglob("*.md")}
    assert expected - set(pages) == set()
    assert "Cost:" in pages["api/verbs/shuffle.html"] and "split_dataset" in pages["api/facades/artifex.html"]

    index = (html / "searchindex.js").read_text()  # a script, so that search works from a file too
    for word in ("checkpoint", "proven", "collat", "pin_memori", "prefetch"):  # stems
        assert re.search(rf'"?{word}\w*"?:', index), word


def test_a_warning_fails_the_build(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "index.md").write_text("# Home\n\n[nowhere](no-such-page.md)\n")
    done = run(SPHINX, str(source), str(tmp_path))
    assert done.returncode != 0 and "no-such-page.md" in done.stderr


def test_a_request_to_another_server_is_noticed() -> None:
    assert requests_of('<img src="https://example.org/a.png"><script src="//cdn.example.org/x.js"></script>') != []
    assert requests_of('<a href="https://example.org"></a><img src="a.png"><link href="_static/site.css">') == []


def test_arguments_in_docstrings_exist() -> None:
    import inspect

    for owner, names in ((penstock.Pipeline, api.verbs()), (penstock, api.readers())):
        for name in names:
            value = getattr(owner, name)
            documented = {word for words, _ in docstrings.read(value).arguments for word in re.findall(r"\w+", words)}
            if documented:
                assert documented <= set(inspect.signature(value).parameters), name


def test_a_docstring_is_read() -> None:
    def step(a: int, b: int) -> None:
        """Does one thing. And another.

        More: `a`.

        Args:
            a, b: two numbers,
                both positive.

        >>> step(1, 2)
        """

    read = docstrings.read(step)
    assert (read.first, read.arguments) == ("Does one thing.", [("a, b", "two numbers, both positive.")])
    assert read.about.endswith("More: `a`.") and read.example == ">>> step(1, 2)"


def test_links_lead_inside_the_site() -> None:
    page = ROOT / "docs" / "reference" / "loader.md"
    assert stage.site_name(ROOT / "examples" / "demo.py") == "examples/demo.md"
    assert stage.site_name(ROOT / "CHANGELOG.md") == "project/changelog.md"
    assert stage.site_name(page) == "reference/loader.md"
    with pytest.raises(ValueError, match="not part of the site"):
        stage.site_name(ROOT / "bench" / "windows.py")
    text = "[a](b.md) ![c](d.svg)\n```python\nx[1](e.md)\n```\n[`f`](g.md#h)"
    changed = "[a](B.MD) ![c](D.SVG)\n```python\nx[1](e.md)\n```\n[`f`](G.MD#H)"
    assert change_links(text, str.upper) == changed
