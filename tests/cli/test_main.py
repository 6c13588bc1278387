"""Manners: help, exit codes, streams, interruption, and nothing heavy imported to say hello."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock import __version__

COMMANDS = (
    "prepare", "verify", "info", "peek", "check", "plan", "explain", "bench", "report", "doctor",
    "stats", "sample", "split", "merge", "dedup", "diff",
)  # fmt: skip


def penstock(*argv: Any, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock.cli.main", *map(str, argv)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_help_names_every_command(run: Any) -> None:
    ran = run("--help")
    assert ran.code == 0
    assert ran.err == ""
    assert all(f"    {name} " in ran.out for name in COMMANDS)
    assert "examples:" in ran.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(run: Any, name: str) -> None:
    ran = run(name, "--help")
    assert ran.code == 0
    assert f"examples:\n  penstock {name} " in ran.out
    assert "--json" in ran.out


def test_version(run: Any) -> None:
    assert run("--version").out == f"penstock {__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["info"],
        ["prepare", "x", "--tokenizer", "bytes"],
        ["prepare", "x", "--tokenizer", "bytes", "--out", "o", "--threads", "0"],
        ["prepare", "x", "--tokenizer", "bytes", "--out", "o", "--budget", "1.5"],
        ["prepare", "x", "--tokenizer", "bytes", "--out", "o", "--no-eos", "--eos-id", "3"],
        ["plan", "x", "--length", "2.5", "--batch", "1"],
        ["plan", "x", "--leng", "2", "--batch", "1"],
        ["bench", "x", "--length", "2", "--batch", "1", "--seconds", "nan"],
    ],
)
def test_wrong_usage_is_2_with_usage_on_stderr(run: Any, argv: list[str]) -> None:
    ran = run(*argv)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("usage: penstock")


def test_an_error_has_four_parts_and_no_traceback(run: Any, tmp_path: Path) -> None:
    ran = run("info", tmp_path / "nowhere.jsonl")
    assert ran.code == 1
    assert ran.out == ""
    lines = ran.err.splitlines()
    assert [line.split(":")[0].strip() for line in lines] == ["penstock", "got", "where", "fix"]
    assert lines[0].startswith("penstock: expected files")


def test_an_error_of_the_system_names_the_path(run: Any, tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    ran = run("prepare", corpus, "--tokenizer", "bytes", "--out", tmp_path / "file" / "store", "-q")
    assert ran.code == 1
    assert f"got:   Not a directory\n  where: {tmp_path / 'file'}" in ran.err


def test_errors_never_send_escapes_of_data_to_the_terminal(run: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": \x1b]0;owned\x07\xc2\x9b31m}\n')
    ran = run("prepare", tmp_path / "a.jsonl", "--tokenizer", "bytes", "--out", tmp_path / "o")
    assert ran.code == 1
    assert not {"\x1b", "\x07", "\x9b"} & set(ran.err)
    assert "\\x1b" in ran.err


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom penstock.cli.main import main\nmain(['--help'])\nmain(['prepare', '--help'])\n"
        "heavy = {'torch', 'jax', 'pyarrow', 'numpy', 'tokenizers', 'transformers', 'tqdm', 'fsspec'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.returncode == 0


def test_looking_at_text_imports_no_framework(corpus: Path) -> None:
    script = (
        f"import sys\nfrom penstock.cli.main import main\nmain(['peek', {str(corpus)!r}, '--max-length', '8'])\n"
        "sys.exit(', '.join(sorted({'torch', 'jax', 'pyarrow', 'transformers'} & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_no_drama(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("line of text\n" * 50_000)
    child = penstock("peek", tmp_path / "a.txt", "--by", "line", "--rows", 50_000)
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline().startswith(b"record 0")
    child.stdout.close()
    assert child.wait(60) == 141
    assert child.stderr.read() == b""
    child.stderr.close()


def test_ctrl_c_is_130_and_quiet(store: Path) -> None:
    child = penstock("bench", store, "--length", 8, "--batch", 2, "--seconds", 100)
    assert child.stderr is not None
    first = child.stderr.readline()  # the note that measuring has begun
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    out, rest = child.communicate(timeout=30)
    assert child.returncode == 130
    assert out == rest == b""
    assert first.startswith(b"penstock: measuring")


def test_letters_a_terminal_cannot_show_become_escapes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("héllo 日本", encoding="utf-8")
    child = penstock("peek", tmp_path / "a.txt", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert b"h\\xe9llo \\u65e5\\u672c" in out


def test_python_m_is_the_command() -> None:
    ran = subprocess.run([sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"penstock {__version__}\n"
