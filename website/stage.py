"""Copies the pages into a folder for Sphinx: links lead inside the site, and sections have a table of contents.

The pages stay plain Markdown that reads well where the repository is shown; what only the site needs is added here.
`docs/index.md` is the one list of pages: a section `## Title` with links becomes a section of the site.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from website import api
from website.pages import DOCS, ROOT, change_links, title_of

PROJECT = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
COPIED = {".md", ".svg", ".png", ".jpg", ".txt", ".ipynb", ".html"}


def stage(folder: Path) -> None:
    """Writes the sources of the site."""
    folder.mkdir(parents=True)
    written: dict[str, str] = {}
    for path in sorted(DOCS.rglob("*")):
        name = path.relative_to(DOCS).as_posix()
        if path.suffix == ".md":
            written[name] = for_site(path, name)
        elif path.is_file() and path.suffix in COPIED:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)
    for name in PROJECT:
        written[site_name(ROOT / name)] = for_site(ROOT / name, site_name(ROOT / name))
    written |= examples()
    generated = api.pages(written)
    written = api.link_tables(written, generated) | generated
    written["index.md"], sections = contents(written["index.md"])
    for name, text in (written | sections).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def site_name(path: Path) -> str:
    """Where a file of the repository is in the site: `examples/demo.py` is `examples/demo.md`."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    if name == "README.md":
        return "index.md"
    if name == "examples":
        return "examples/index.md"
    if name.startswith("examples/") and name.endswith(".py"):
        return name.removesuffix(".py") + ".md"
    if name in PROJECT:
        return f"project/{name.lower()}"
    raise ValueError(f"{name} is not part of the site: link to a page of docs/, an example, or one of {PROJECT}")


def for_site(page: Path, name: str) -> str:
    """The text of a page, its links changed to lead from `name` to other pages of the site."""

    def change(link: str) -> str:
        path, mark, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", link):
            return link
        target = site_name((page.parent / path).resolve())
        return os.path.relpath(target, os.path.dirname(name) or ".") + mark + anchor

    return change_links(page.read_text(), change)


def examples() -> dict[str, str]:
    """A page for each example, with its first docstring line as title, and a list of them."""
    made, lines = {}, []
    for path in sorted((ROOT / "examples").glob("*.py")):
        code = path.read_text()
        found = re.match(r'(?:#.*\n)*"""(.*?)(?:"""|\n)', code)
        about = found[1].strip().rstrip(".") if found else path.stem
        name = path.name
        made[f"examples/{path.stem}.md"] = f"{api.ORPHAN}# {name}\n\n{about}.\n\n```python\n{code}```\n"
        lines.append(f"- [{name}]({path.stem}.md): {about}")
    head = "# Examples\n\nScripts that run as they are; CI runs them all.\n\n"
    made["examples/index.md"] = head + "\n".join(lines) + "\n"
    return made


def contents(index: str) -> tuple[str, dict[str, str]]:
    """The index page with a hidden table of contents, and a page for each of its sections."""
    sections: dict[str, str] = {}
    for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", index, re.M | re.S):
        links = re.findall(r"^- \[([^\]]+)\]\(([^)#\s]+)\.md\)", body, re.M)
        if links:
            name = f"contents/{re.sub(r'[^a-z]+', '-', title.lower()).strip('-')}.md"
            moved = change_links(body, lambda link: link if ":" in link else f"../{link}")
            moved = re.sub(r"^##(#+ )", r"#\1", moved, flags=re.M)
            entries = [f"{text} <../{target}>" for text, target in {b: (a, b) for a, b in links}.values()]
            sections[name] = f"# {title}\n{moved.rstrip()}\n\n{_toctree(entries)}"
    project = [
        f"{title_of((ROOT / name).read_text())} <project/{name.lower().removesuffix('.md')}>" for name in PROJECT
    ]
    entries = [name.removesuffix(".md") for name in sections]
    extra = ["api/index", "examples/index"]
    return (
        index
        + "\n"
        + _toctree([*entries, *extra], caption="Documentation")
        + "\n"
        + _toctree(project, caption="Project"),
        sections,
    )


def _toctree(entries: list[str], caption: str = "") -> str:
    option = f":caption: {caption}\n" if caption else ""
    return "```{toctree}\n:hidden:\n" + option + "\n" + "\n".join(entries) + "\n```\n"
