"""`stats`, `sample`, `split`, `merge`, `dedup`, `diff` and `completion`, on real files with hostile names."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

HOSTILE = "it's \x1b[31m;$(rm -rf x)\n*.jsonl"
ROWS = [{"text": f"number {i % 25} of the long list of words", "label": i % 3, "user": f"u{i % 5}"} for i in range(30)]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "a folder").mkdir()
    return lines(tmp_path / "a folder" / HOSTILE, ROWS)


def test_stats(run: Any, data: Path, store: Path) -> None:
    found = run("stats", data.parent, "--tokenizer", "bytes", "--json").json()
    assert (found["records"], found["read"]) == (30, 30)
    assert found["columns"]["label"]["classes"] == {"0": 10, "1": 10, "2": 10}
    text = found["columns"]["text"]
    lengths = [len(row["text"]) for row in ROWS]
    assert (text["tokens"]["min"], text["tokens"]["max"]) == (min(lengths), max(lengths))
    assert (text["total"], text["unit"]) == (sum(lengths), "tokens")
    shown = run("stats", data.parent)
    assert "\x1b" not in shown.out and "30 records, 3 columns" in shown.out
    tokens = run("stats", store, "--json").json()["columns"]["input_ids"]
    assert tokens["total"] == run("info", store, "--json").json()["tokens"]
    assert run("stats", data.parent, "--rows", 7, "--json").json()["read"] == 7


def test_missing_values_and_bad_records(run: Any, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"text": "a", "x": 1}, {"text": None, "x": 2}, {"text": "ccc", "x": 3}])
    path.write_text(path.read_text() + "{broken\n")
    ran = run("stats", path, "--json")
    found = ran.json()
    assert ran.code == 0 and (found["records"], found["bad"]) == (4, 2) and sum(found["reasons"].values()) == 2
    text = found["columns"]["text"]
    assert (text["length"]["min"], text["length"]["max"]) == (1, 3)
    path.write_text("{broken\n" * 3)
    assert run("stats", path).code == 1


def test_sample(run: Any, data: Path, store: Path, tmp_path: Path) -> None:
    first, again = run("sample", data.parent, "-n", 7, "--seed", 3), run("sample", data.parent, "-n", 7, "--seed", 3)
    chosen = [json.loads(line) for line in first.out.splitlines()]
    assert len(chosen) == 7 and all(row in ROWS for row in chosen) and first.out == again.out
    assert run("sample", data.parent, "-n", 7, "--seed", 4).out != first.out
    assert [json.loads(x) for x in run("sample", data.parent, "-n", 2, "--first").out.splitlines()] == ROWS[:2]
    everything = run("sample", data.parent, "-n", 99)
    assert len(everything.out.splitlines()) == 30 and "only 30 records" in everything.err
    small = run("sample", store, "-n", 4, "--out", tmp_path / "small", "--json").json()
    assert (small["rows"], small["format"]) == (4, "store")
    assert run("verify", tmp_path / "small").code == 0


def test_stdin_is_known_by_its_content(tmp_path: Path) -> None:
    inputs = {
        b"one\ntwo\n": [{"text": "one"}, {"text": "two"}],
        b'{"a": 1}\n{"a": 2}\n': [{"a": 1}, {"a": 2}],
        b"x,y\n1,2\n3,4\n5,6\n": [{"x": 1, "y": 2}, {"x": 3, "y": 4}],
    }
    for given, expected in inputs.items():
        ran = _penstock("sample", "-", "--first", "-n", "2", input=given)
        assert [json.loads(line) for line in ran.stdout.splitlines()] == expected, ran.stderr
    empty = _penstock("sample", "-", "--json", input=b"")
    assert empty.returncode == 1 and json.loads(empty.stderr)["error"]["expected"] == "records on stdin"
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob("penstock-stdin-*/stdin"))


def _penstock(*argv: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "penstock.cli.main", *map(str, argv)]
    return subprocess.run(command, capture_output=True, check=False, timeout=120, **options)


def test_split_and_merge(run: Any, data: Path, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "par ts"
    found = run("split", data.parent, "--parts", "train=0.8", "val=rest", "--out", out, "--json").json()
    assert {name: one["rows"] for name, one in found.items()} == {"train": 24, "val": 6}
    parts = [rows_in(out / name) for name in ("train", "val")]
    assert sorted(map(str, parts[0] + parts[1])) == sorted(map(str, ROWS))
    run("split", data.parent, "--parts", "train=0.8", "val=rest", "--out", tmp_path / "again", "--quiet")
    assert rows_in(tmp_path / "again" / "val") == parts[1]
    run("split", data.parent, "--parts", "a=0.5", "b=0.5", "--key", "user", "--out", tmp_path / "users", "--quiet")
    users = [{row["user"] for row in rows_in(tmp_path / "users" / name)} for name in "ab"]
    assert not users[0] & users[1] and len(users[0] | users[1]) == 5

    assert run("merge", out / "train", out / "val", "--out", tmp_path / "merged", "--quiet").code == 0
    assert rows_in(tmp_path / "merged") == parts[0] + parts[1]

    assert (
        run("split", store, "--parts", "a=20", "b=rest", "--no-shuffle", "--out", tmp_path / "s", "--quiet").code == 0
    )
    assert run("merge", tmp_path / "s" / "a", tmp_path / "s" / "b", "--out", tmp_path / "whole", "--quiet").code == 0
    assert run("diff", store, tmp_path / "whole").code == 0
    facts = [run("info", path, "--json").json()["tokenizer"] for path in (store, tmp_path / "whole")]
    assert facts[0] == facts[1]


def test_stores_of_different_tokenizers_are_not_merged(run: Any, data: Path, store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    ps.from_arrays({"input_ids": [[1, 2], [3, 4]]}).write(str(other), "store", vocab_size=9)
    ran = run("merge", store, other, "--out", tmp_path / "both", "--json")
    assert ran.code == 1 and "one tokenizer" in json.loads(ran.err)["error"]["expected"]
    assert not (tmp_path / "both" / "manifest.json").exists()


def test_names_of_parts_stay_in_the_folder(run: Any, data: Path, tmp_path: Path) -> None:
    for name in ("../evil", ".hidden", "a/b", ""):
        assert run("split", data.parent, "--parts", f"{name}=0.5", "b=0.5", "--out", tmp_path / "o").code == 2
    assert run("split", data.parent, "--parts", "a=0.5", "a=0.5", "--out", tmp_path / "o").code == 1
    assert not (tmp_path / "o").exists()


def test_dedup(run: Any, data: Path, tmp_path: Path) -> None:
    made = run("dedup", data.parent, "--out", tmp_path / "unique", "--json").json()
    assert (made["rows"], made["duplicates"]) == (25, 5)
    assert rows_in(tmp_path / "unique") == ROWS[:25]
    similar = lines(
        tmp_path / "b.jsonl", [{"text": " ".join(f"w{j}" for j in range(60)) + end} for end in ("", " x", " y")]
    )
    made = run("dedup", similar, "--method", "minhash", "--threshold", 0.7, "--out", tmp_path / "far", "--json").json()
    assert made["rows"] == 1


def test_diff(run: Any, data: Path, tmp_path: Path) -> None:
    assert run("diff", data.parent, data.parent).code == 0
    changed = [dict(row) for row in ROWS]
    changed[17]["label"] = 9
    other = lines(tmp_path / "b.jsonl", changed)
    ran = run("diff", data.parent, other, "--json")
    found = ran.json()
    assert ran.code == 1 and found["differ"] == 1
    assert (found["examples"][0]["row"], found["examples"][0]["column"]) == (17, "label")
    assert run("diff", data.parent, lines(tmp_path / "c.jsonl", ROWS[:29])).code == 1
    assert "rows: 30 -> 29" in run("diff", data.parent, tmp_path / "c.jsonl").out


def test_media(run: Any, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("cats", "dogs"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(4):
            image.new("RGB", (9 + i, 8), (i, 0, 0)).save(tmp_path / "pictures" / name / f"{i} \x1b.png")
    found = run("stats", tmp_path / "pictures", "--json").json()
    assert found["records"] == 8 and sorted(found["columns"]["label"]["classes"].values()) == [4, 4]
    ran = run("sample", tmp_path / "pictures", "-n", 1)
    assert ran.code == 0 and "\x1b" not in ran.out
    ran = run(
        "split", tmp_path / "pictures", "--parts", "a=0.5", "b=0.5", "--stratify", "label", "--out", tmp_path / "tars"
    )
    assert ran.code == 0, ran.err
    with tarfile.open(next((tmp_path / "tars" / "a").glob("*.tar"))) as shard:
        assert sum(name.endswith(".png") for name in shard.getnames()) == 4


def test_errors_in_json_and_exit_codes(run: Any, tmp_path: Path) -> None:
    for argv, code in ((["stats", tmp_path / "none.jsonl"], 1), (["stats"], 2), (["info", "--fly"], 2)):
        ran = run(*argv, "--json")
        assert ran.code == code and ran.out == ""
        assert set(json.loads(ran.err)["error"]) >= {"kind", "expected", "fix"}
    assert run("stats").err.startswith("usage: penstock stats")


def test_colours_only_on_a_terminal(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", ROWS)
    for extra, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        environment = {**os.environ, "TERM": "xterm"} | extra
        assert (b"\x1b[1m" in _on_terminal(["stats", str(path)], environment)) == coloured


def _on_terminal(argv: list[str], environment: dict[str, str]) -> bytes:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *argv], stdout=theirs, stderr=theirs, stdin=theirs, env=environment
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # the terminal is closed when the process ends
            pass
        process.wait(60)
    os.close(ours)
    return said


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(run: Any, tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(run("completion", "bash").out)
    ask = """
        source "$1"; shift
        complete -p penstock > "$1" || exit 1; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _penstock; printf '%s ' "${COMPREPLY[@]}"
    """
    cases = {
        ("penstock", "me"): ["merge"],
        ("penstock", "dedup", "--method", ""): ["exact", "minhash"],
        ("penstock", "split", "--stra"): ["--stratify"],
        ("penstock", "stats", "da"): [],  # bash then completes file names
    }
    for words, expected in cases.items():
        argv = ["bash", "--norc", "-c", ask, "bash", str(script), str(tmp_path / "known"), *words]
        ran = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
        assert ran.stdout.split() == expected, ran.stderr
    assert "-F _penstock penstock" in (tmp_path / "known").read_text()
    for shell in ("zsh", "fish"):
        assert "merge" in run("completion", shell).out
