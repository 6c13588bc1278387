"""The notebooks run from top to bottom, and show what their text says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
SHOWN = {  # what the HTML outputs of a notebook contain, in order
    "first_loader": ["batches an epoch", "in the loss", "step 1,000 of epoch", "batches taken", "next step"],
    "look_at_your_data": ["read, not in the loss", "data:image/png", "data:audio/wav"],
}


def outputs(notebook: Any) -> list[str]:
    found = [o["data"] for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs if "data" in o]
    return [data["text/html"] for data in found if "text/html" in data]


def test_every_notebook_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_runs_and_shows_what_it_says(name: str, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    path = FOLDER / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # outputs would go stale
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = outputs(notebook)
    at = 0
    for words in SHOWN[name]:
        at = next((i for i in range(at, len(shown)) if words in shown[i]), -1)
        assert at >= 0, f"no output shows {words!r}"
    assert all(html.startswith('<div class="penstock">') for html in shown)


def test_progress_bars_show_in_a_notebook(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    code = """
import penstock as ps

ps.prepare(ps.from_texts(["a river"] * 2000), "bytes", "out")
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for output in notebook.cells[0].outputs if output.get("name") == "stderr" or "data" in output]
    text = "".join(str(output.get("text", "")) + str(output.get("data", "")) for output in shown)
    assert "100%" in text or "2.00k" in text or "/2000" in text, text
    assert "Warning" not in text
