"""`make examples`: runs every example in its own process, two at a time; the exit code is 0 if all succeed in time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOT_EXAMPLES = {"run_all.py", "demo_model.py", "local_s3.py"}
ARGUMENTS = {"demo.py": ["--seconds", "6"]}
LIMIT_SECONDS = 300


def run(path: Path) -> bool:
    """Runs one example; prints a line, and what it said if it failed."""
    began = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", str(path), *ARGUMENTS.get(path.name, [])]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environment,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        good, output = done.returncode == 0, done.stdout + done.stderr
        word = "ok" if good else f"FAILED with code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        good, output = False, f"{_text(error.stdout)}{_text(error.stderr)}"
        word = f"FAILED: still running after {LIMIT_SECONDS} s"
    said = "" if good else "".join(f"    {line}\n" for line in output.splitlines()[-40:])
    print(f"{path.name:<24} {word:<8} {time.perf_counter() - began:6.1f} s\n{said}", end="", flush=True)
    return good


def _text(value: bytes | str | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""


def main() -> int:
    paths = sorted(path for path in HERE.glob("*.py") if path.name not in NOT_EXAMPLES)
    wanted = [path for path in paths if not sys.argv[1:] or path.name in sys.argv[1:]]
    if not wanted:
        print(f"no such example; there are {', '.join(path.name for path in paths)}")
        return 2
    with ThreadPoolExecutor(2) as pool:
        failed = [path.name for path, good in zip(wanted, pool.map(run, wanted), strict=True) if not good]
    print(f"{len(wanted) - len(failed)} of {len(wanted)} examples ran" + (f"; failed: {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
