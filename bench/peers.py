"""Peers whose packages conflict with constraints.txt: each runs as a child process in an environment of its own.

    python -m bench.peers           makes environments in build/peers, once (about 4 GB)
    python -m bench.peers torch     one of them

PENSTOCK_PEERS names interpreters elsewhere, separated like PATH. A benchmark asks `python_with("streaming")` for one
that has a module; where none has, that is printed and saved with the results. `Peer` calls a function of this folder in
such an interpreter, as often as there are rounds.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.common import left_out

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build" / "peers"
ENVIRONMENTS = {
    "torch": ["torch", "mosaicml-streaming", "litdata"],
    "audio": ["torch", "lhotse", "datasets==3.6.0", "librosa", "soundfile"],  # later datasets need FFmpeg's libraries
    "tensorflow": ["tensorflow-cpu", "tensorflow-datasets", "nvidia-dali-cuda120"],
}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
# streaming imports torchvision, and later ones do not load beside a torch without CUDA
WITHOUT_CUDA = {"torch": "torchvision==0.16.2"}


def make(names: list[str]) -> None:
    """Creates environments; torch keeps the version of constraints.txt, which has no CUDA."""
    torch = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(torch))
        constraints.flush()
        for name in names:
            subprocess.run([sys.executable, "-m", "venv", HOME / name], check=True)
            command = [HOME / name / "bin" / "python", "-m", "pip", "install", "--quiet"]
            subprocess.run(
                [*command, *ENVIRONMENTS[name]], check=True, env=os.environ | {"PIP_CONSTRAINT": constraints.name}
            )
            if name in WITHOUT_CUDA:
                subprocess.run([*command, "--no-deps", WITHOUT_CUDA[name]], check=True)


def python_with(module: str, title: str = "") -> str | None:
    """An interpreter that can import a module: this one if it can."""
    if _has(sys.executable, module):
        return sys.executable
    named = os.environ.get("PENSTOCK_PEERS", "").split(os.pathsep)
    made = (str(HOME / name / "bin" / "python") for name in ENVIRONMENTS)
    for python in (*filter(None, named), *made):
        if _has(python, module):
            return python
    left_out(title or module, "no environment has it; `python -m bench.peers` makes those that are needed")
    return None


@functools.cache
def _has(python: str, module: str) -> bool:
    if python == sys.executable:
        return find_spec(module.partition(".")[0]) is not None and find_spec(module) is not None
    top = module.partition(".")[0]
    code = f"from importlib.util import find_spec as f; raise SystemExit(not (f({top!r}) and f({module!r})))"
    try:
        return subprocess.run([python, "-P", "-c", code], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


class PeerFailed(Exception):
    """A peer's process ended, or did not answer in time."""


class Peer:
    """A function `module:name` of this repository in another interpreter; arguments and answers are JSON."""

    def __init__(
        self, python: str, function: str, environment: Mapping[str, str] | None = None, timeout: float = 180
    ) -> None:
        self.function, self.timeout, self.patience = function, timeout, 10.0
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the peer
        self.process = subprocess.Popen(
            [python, "-m", "bench.peers", "--serve", function], cwd=ROOT, env=os.environ | dict(environment or {}),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True,
        )  # fmt: skip

    def __call__(self, *arguments: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(arguments).encode() + b"\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], self.timeout)[0]:
                raise PeerFailed(f"{self.function}: no answer in {self.timeout:g} s")
            if line := self.process.stdout.readline():
                return json.loads(line)
        except BrokenPipeError:
            pass
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip().splitlines() or ["it ended without a message"]
        raise PeerFailed(f"{self.function}: {said[-1][:300]}")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        try:
            self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()


def tried(stack: ExitStack, title: str, module: str, function: str, *arguments: Any) -> Peer | None:
    """A peer that has answered a first call; None, which is printed and saved, if it is missing or fails."""
    python = python_with(module, title)
    if python is None:
        return None
    peer = stack.enter_context(Peer(python, function, QUIET))
    try:
        peer(*arguments)
    except PeerFailed as error:
        left_out(title, str(error))
        return None
    return peer


def serve(function: str) -> None:
    """Answers calls until the other side closes."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not an answer
    module, _, name = function.partition(":")
    called = getattr(importlib.import_module(module), name)
    for line in sys.stdin:
        os.write(answers, json.dumps(called(*json.loads(line))).encode() + b"\n")
    os._exit(0)  # whatever the library has left behind


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        make(sys.argv[1:] or list(ENVIRONMENTS))
