"""Builds the site into build/site, or another folder: `python -m website [FOLDER]`. Warnings are errors."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from website import stage
from website.pages import ROOT


def build(out: Path) -> int:
    """Exit code of Sphinx. Sources and intermediate files are in `out` too, beside `html`."""
    shutil.rmtree(out, ignore_errors=True)
    stage.stage(out / "source")
    return sphinx(out / "source", out)


def sphinx(source: str | Path, out: str | Path) -> int:
    """Builds `source` into `out/html`; a warning is an error, after all of them are shown."""
    options = ["-W", "--keep-going", "-q", "-j", "auto", "-c", str(Path(__file__).parent), "-d", f"{out}/doctrees"]
    return build_main([*options, str(source), f"{out}/html"])


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    code = build(folder)
    if code == 0:
        sys.stdout.write(f"{folder / 'html' / 'index.html'}\n")
    sys.exit(code)
