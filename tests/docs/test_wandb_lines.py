"""The lines for W&B of the page on trainers, offline."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT

BEFORE = """
import penstock as ps
loader = ps.from_arrays({"x": range(4000)}).shuffle(seed=7).batch(20).to_numpy()
"""


def test_the_lines_log_a_run(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "trainers.md").read_text()
    blocks = re.findall(r"^```python fragment\n(.*?)^```$", page, re.M | re.S)
    (tmp_path / "train.py").write_text(BEFORE + next(block for block in blocks if "import wandb" in block))
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True, timeout=120, capture_output=True)
    logged = b"".join(path.read_bytes() for path in tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert b"waited_share" in logged and b"batches_taken" in logged
