"""The data commands with inputs and configurations at URLs of a real S3 server: as with local files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.cli.main import main
from penstock.storage import objects


def test_commands_read_urls_as_local_files(s3: Any, tmp_path: Path, capfd: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    options = [f"--storage-option={name}={value}" for name, value in s3.options.items()]
    local, other = tmp_path / "it's $(x) a.jsonl", tmp_path / "b.jsonl"
    local.write_text("".join(json.dumps({"text": f"number {i % 7}", "label": i % 2}) + "\n" for i in range(20)))
    other.write_text(local.read_text().replace("number 3", "number 9"))
    url = s3.url("commands")
    for path in (local, other):
        objects.put_new(f"{url}/{path.name}", path, s3.options)

    def run(*argv: Any) -> tuple[int, Any]:
        code = main([str(arg) for arg in argv])
        out = capfd.readouterr().out
        return code, out

    def both(name: str, *argv: Any) -> None:
        found = []
        for root in (str(tmp_path), url):
            there = [f"{root}/{a.name}" if isinstance(a, Path) else a for a in argv]
            out = tmp_path / f"{name}-{len(found)}"
            target = [] if name in ("stats", "sample", "diff") else ["--out", out]
            code, shown = run(name, *there, *target, *(options if root == url else []))
            written = [p.read_text() for p in sorted(out.rglob("*.jsonl"))] if target else shown
            found.append((code, written))
        assert found[0] == found[1] and found[0][1], name

    both("stats", local)
    both("sample", local, "-n", "3")
    both("split", local, "--parts", "a=0.5", "b=rest")
    both("merge", local, other)
    both("dedup", local)
    both("diff", local, other)


def test_diff_of_configurations(tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"n {i}"}) + "\n" for i in range(20)))
    for name, seed in (("a", 1), ("b", 2)):
        made = ps.read_jsonl(str(tmp_path / "a.jsonl")).shuffle(seed=seed).batch(4).to_config()
        (tmp_path / f"{name}.toml").write_text("".join(f"{key} = {toml(value)}\n" for key, value in made.items()))
    assert main(["diff", str(tmp_path / "a.toml"), str(tmp_path / "a.toml")]) == 0
    assert main(["diff", str(tmp_path / "a.toml"), str(tmp_path / "b.toml")]) == 1
    out = capfd.readouterr().out
    assert "seed" in out


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(one)}" for key, one in value.items() if one is not None) + "}"
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)
