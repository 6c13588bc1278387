"""A mapped file that is cut under a loader is an error that names it, never SIGBUS."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.cut_files import CASES

# The last byte is zero, the high byte of a small number or of the end of a stream: its page reads the same.
SAME = {
    "megatron idx, one byte",
    "arrow stream, one byte",
    "hugging face rows, one byte",
    "hugging face mapping, one byte",
}


@pytest.mark.skipif(sys.platform == "win32", reason="mapped files cannot be cut there")
def test_a_cut_file_is_an_error(tmp_path: Path) -> None:
    script = Path(__file__).with_name("cut_files.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    found = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines())
    assert len(found) == 3 * len(CASES), done.stderr
    assert {case: result for case, result in found.items() if result != "refused"}.keys() <= SAME
