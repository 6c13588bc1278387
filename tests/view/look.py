"""Opens an address in a real browser, in a process of its own: `python -m tests.view.look URL WIDTH SCHEME SCRIPT`.

Prints JSON: what the script returned, the addresses that were asked for, errors, the width of the page, and what axe
found (None if axe-core is not installed).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
AXE = (os.environ.get("AXE_CORE", ""), str(ROOT / ".venv/axe/node_modules/axe-core/axe.min.js"))


def browser() -> str | None:
    """The program, if there is one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def main(url: str, width: str, scheme: str, script: str) -> None:
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    errors: list[str] = []
    axe = next((path for path in AXE if os.path.isfile(path)), None)
    with sync_playwright() as running:
        program = running.chromium.launch(executable_path=browser(), args=["--no-sandbox", "--disable-dev-shm-usage"])
        context = program.new_context(
            viewport={"width": int(width), "height": 900}, color_scheme=scheme, bypass_csp=axe is not None
        )
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url[:200]))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        address, _, path = url.partition(" ")
        page.goto(address)
        page.wait_for_selector("main h1")
        if path:
            page.goto(path)
            page.wait_for_selector("main h1")
        found = {"result": page.evaluate(script), "width": page.evaluate("document.documentElement.scrollWidth")}
        found["axe"] = None
        if axe is not None:
            page.add_script_tag(path=axe)
            violations = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            found["axe"] = [[one["id"], one["nodes"][0]["html"][:200]] for one in violations]
        program.close()
    sys.stdout.write(json.dumps(found | {"asked": asked, "errors": errors}))


if __name__ == "__main__":
    main(*sys.argv[1:5])
