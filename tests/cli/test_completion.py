"""`penstock completion` in the shells themselves: what is offered after a few letters and the tab key."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

# The shell is started without the user's settings: the script must bring what it needs.
ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; cd $2; source $1; echo REA''DY"
zpty -r shell out '*READY*' || exit 1
while (( $# > 2 )); do
    zpty -n -w shell $'\x15'"$3"$'\t\t'
    zpty -r shell out "*$4*" || exit 1
    print -r -- "$4"
    shift 2
done
zpty -d shell
"""
# what is typed, and what must then appear, as a pattern
TYPED = {
    "penstock vi": "penstock view",
    "penstock view --no-o": "--no-open",
    "penstock completion ": "bash*fish*zsh",
    "penstock prepare --on-error ": "raise*skip",
    "penstock info --storage-": "--storage-option",
    "penstock info only-f": "only-file.jsonl",
}


def run(shell: str, script: str, *words: str, folder: Path) -> str:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} on this machine (apt-get install {shell}): its completion is not tried")
    command = [program, *(["-f"] if shell == "zsh" else []), "-c", script, shell, *words]
    environment = {**os.environ, "HOME": str(folder), "ZDOTDIR": str(folder), "TERM": "dumb"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "only-file.jsonl").write_text("{}\n")
    return tmp_path


def written(folder: Path, shell: str) -> str:
    from penstock.cli.main import main

    with open(folder / "script", "w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        assert main(["completion", shell]) == 0
    return str(folder / "script")


def test_zsh(folder: Path) -> None:
    words = [word for pair in TYPED.items() for word in pair]
    assert run("zsh", ZSH, written(folder, "zsh"), str(folder), *words, folder=folder).splitlines() == [*TYPED.values()]


def test_fish(folder: Path) -> None:
    script = written(folder, "fish")
    for typed, wanted in TYPED.items():
        out = run("fish", f"source {script}; complete -C '{typed}'", folder=folder)
        offered = [line.partition("\t")[0] for line in out.splitlines()]
        assert offered == wanted.rpartition(" ")[2].split("*"), typed
    assert "object store's client" in run("fish", f"source {script}; complete -C 'penstock info --sto'", folder=folder)


def test_bash_offers_the_values_of_an_argument(folder: Path) -> None:
    asked = "COMP_WORDS=(penstock completion ''); COMP_CWORD=2; _penstock; echo ${COMPREPLY[@]}"
    assert run("bash", f". {written(folder, 'bash')}; {asked}", folder=folder).split() == ["bash", "zsh", "fish"]
