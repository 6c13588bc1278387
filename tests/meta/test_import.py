"""Importing penstock imports no framework, and quickly."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ["torch", "jax", "pyarrow", "PIL", "cv2", "ray", "tqdm", "tokenizers", "transformers", "datasets", "gigatoken"]


def loaded_after(code: str) -> list[str]:
    script = f"{code}\nimport sys\nprint([m for m in {HEAVY} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return eval(out.stdout)


def test_no_framework_is_imported() -> None:
    assert loaded_after("import penstock") == []


def test_a_whole_numpy_pipeline_imports_no_framework() -> None:
    code = "import penstock as ps\nlist(ps.from_arrays({'x': range(9)}).shuffle().batch(3).to_numpy())"
    assert loaded_after(code) == []


def test_this_test_can_fail() -> None:
    assert loaded_after("import penstock, tqdm") == ["tqdm"]


def test_import_costs_little_beside_numpy() -> None:
    """Ratios of modules, not of time: machines are noisy. The benchmark measures milliseconds."""
    script = "import sys\nimport numpy\nbefore = len(sys.modules)\nimport penstock\nprint(len(sys.modules) - before)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(out.stdout) <= 5
