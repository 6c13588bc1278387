"""`prepare` into an object store: the bytes of a folder, created once each, whoever else writes or dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cli.main import main
from penstock.core.errors import StoreError
from penstock.preparation.clean import clean
from penstock.preparation.output import Output
from penstock.preparation.run import prepare
from penstock.sources.jsonl import JsonlFiles
from penstock.storage import objects

SETTINGS: dict[str, Any] = {"on_error": "skip", "group_bytes": 60_000, "show_progress": False}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    with path.open("w") as file:
        for i in range(4000):
            file.write("broken\n" if i % 97 == 50 else json.dumps({"text": f"{i} " + "word " * (i % 23)}) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def local(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("local")
    prepare(JsonlFiles(corpus), "bytes", out, **SETTINGS)
    return {path.name: path.read_bytes() for path in out.iterdir()}


def contents(server: Any, name: str) -> dict[str, bytes]:
    start = len(server.url(name)) + 1
    listed = objects.list_files(server.url(name), server.options)
    return {file.url[start:]: objects.read_all(file.url, server.options) for file in listed}


def test_the_bytes_are_those_of_a_folder(s3: Any, corpus: str, local: dict[str, bytes], tmp_path: Path) -> None:
    url = s3.url("same")
    made = prepare(JsonlFiles(corpus), "bytes", url, **SETTINGS, storage_options=s3.options)
    assert made.path == url and made.shards > 3
    assert contents(s3, "same") == local
    store = ps.open_store(url, storage_options=s3.options, cache_dir=tmp_path).definition.origin
    last = store.locate(len(store) - 1)
    assert (last["file"], last["line"]) == ("a.jsonl", 4000)
    assert prepare(JsonlFiles(corpus), "bytes", url + "/", **SETTINGS, storage_options=s3.options).already
    with pytest.raises(ps.UsageError, match="the store of the same job"):
        prepare(JsonlFiles(corpus), "bytes", url, group_bytes=50_000, storage_options=s3.options)
    assert contents(s3, "same") == local


def test_small_input_prompts_and_restart(s3: Any, tmp_path: Path) -> None:
    options = {"storage_options": s3.options, "show_progress": False}
    engine = ps.PromptEngine("bytes", "Q: {q} A: {a}", eos=0)
    records = [{"q": str(i), "a": str(i * i)} for i in range(50)]
    here = ps.prepare_prompts(records, engine, tmp_path / "prompts", show_progress=False)
    there = ps.prepare_prompts(records, engine, s3.url("prompts"), **options)
    assert here.id == there.id
    assert contents(s3, "prompts") == {p.name: p.read_bytes() for p in (tmp_path / "prompts").iterdir()}
    ps.prepare(ps.from_texts(["other"]), "bytes", s3.url("prompts"), restart=True, **options)
    ps.prepare(ps.from_texts(["other"]), "bytes", tmp_path / "other", show_progress=False)
    assert contents(s3, "prompts") == {p.name: p.read_bytes() for p in (tmp_path / "other").iterdir()}


SCRIPT = """
import sys, json
from penstock.preparation.run import prepare
from penstock.sources.jsonl import JsonlFiles
made = prepare(JsonlFiles(sys.argv[1]), "bytes", sys.argv[2], storage_options=json.loads(sys.argv[3]), threads=1,
    on_error="skip", group_bytes=60_000)
print(made.id, made.resumed)
"""


def start(corpus: str, url: str, server: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, corpus, url, json.dumps(server.options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_and_begun_again(s3: Any, corpus: str, local: dict[str, bytes]) -> None:
    kills = 0
    for records in (1, 2):
        child = start(corpus, s3.url("killed"), s3)
        for _ in range(3000):
            if child.poll() is not None:
                break
            if len(objects.list_files(s3.url("killed/done"), s3.options)) >= records:
                os.kill(child.pid, signal.SIGKILL)
                break
            time.sleep(0.01)
        child.communicate(timeout=60)
        kills += child.returncode == -signal.SIGKILL
    assert kills
    with pytest.raises(ps.UsageError, match="an unfinished preparation of the same job"):
        prepare(JsonlFiles(corpus), "bytes", s3.url("killed"), group_bytes=9_000, storage_options=s3.options)
    made = prepare(JsonlFiles(corpus), "bytes", s3.url("killed"), **SETTINGS, storage_options=s3.options)
    assert made.resumed
    assert contents(s3, "killed") == local


def test_two_runs_at_once_end_with_one_store(s3: Any, corpus: str, local: dict[str, bytes]) -> None:
    children = [start(corpus, s3.url("two"), s3) for _ in range(2)]
    said = [child.communicate(timeout=120)[0].split() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert said[0][0] == said[1][0]
    clean(s3.url("two"), storage_options=s3.options)  # what the slower one wrote after the other had swept
    assert contents(s3, "two") == local


def test_a_record_that_is_swept_while_it_is_compared_is_written_again(s3: Any) -> None:
    class Swept(Output):
        swept = 0

        def read(self, name: str) -> bytes | None:
            if not Swept.swept:  # a faster run of the job ends between the question for the size and this
                self.delete([name])
            Swept.swept += 1
            return super().read(name)

    output = Swept(s3.url("swept"), s3.options)
    assert output.put("record.json", b"{}")
    output.put_same("record.json", b"{}")
    assert Swept.swept == 1
    assert output.read("record.json") == b"{}"
    with pytest.raises(StoreError, match="the same bytes"):
        output.put_same("record.json", b"[]")


def test_clean_keeps_the_store_and_files_of_others(
    s3: Any, corpus: str, local: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    url = s3.url("clean")
    prepare(JsonlFiles(corpus), "bytes", url, **SETTINGS, storage_options=s3.options)
    orphan = f"g000001-000-{'0' * 32}.tokens"
    for name in (orphan, "done/000003/0000.json", "job.json", "notes.txt", "other/00000.tokens"):
        objects.put_new(objects.join(url, name), b"x", s3.options)
    given = [f"--storage-option={name}={value}" for name, value in s3.options.items()]
    assert main(["clean", url, *given]) == 0
    assert capsys.readouterr().out.split() == ["done/000003/0000.json", orphan, "job.json"]
    assert contents(s3, "clean") == local | {"notes.txt": b"x", "other/00000.tokens": b"x"}
    objects.put_new(s3.url("half/job.json"), b"{}", s3.options)
    with pytest.raises(ps.UsageError, match="--unfinished"):
        clean(s3.url("half"), storage_options=s3.options)
    assert clean(s3.url("half"), unfinished=True, storage_options=s3.options) == ["job.json"]
    with pytest.raises(ps.UsageError, match="got:   neither"):
        clean(s3.url("half"), storage_options=s3.options)


def test_clean_keeps_what_is_young(s3: Any, corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = s3.url("young")
    prepare(JsonlFiles(corpus), "bytes", url, **SETTINGS, storage_options=s3.options)
    orphan = f"g000001-000-{'0' * 32}.tokens"
    objects.put_new(objects.join(url, orphan), b"x", s3.options)
    given = [f"--storage-option={name}={value}" for name, value in s3.options.items()]
    assert main(["clean", url, "--older-than", "1h", *given]) == 0
    assert orphan in contents(s3, "young")
    assert main(["clean", url, "--older-than", "soon", *given]) == 2
    assert "12h" in capsys.readouterr().err
    objects.put_new(s3.url("young-half/job.json"), b"{}", s3.options)
    with pytest.raises(ps.UsageError, match="wrote nothing in the last 3,600 s(.|\n)*job.json, written"):
        clean(s3.url("young-half"), unfinished=True, older_than=3600, storage_options=s3.options)
    (seconds,) = (one.modified for one in objects.list_files(s3.url("young-half"), s3.options))
    time.sleep(max(0.0, seconds + 1.1 - time.time()))
    assert clean(url, older_than=1, storage_options=s3.options) == [orphan]
    assert clean(s3.url("young-half"), unfinished=True, older_than=1, storage_options=s3.options) == ["job.json"]


def test_the_command_reads_the_store_back_and_verify_reads_the_bucket_not_the_cache(
    s3: Any, corpus: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    url, options = s3.url("verified"), s3.options
    given = [f"--storage-option={name}={value}" for name, value in options.items()]
    call = ["prepare", corpus, "-t", "bytes", "-o", url, "--on-error", "skip", "--group-bytes", "60_000", "--quiet"]
    assert main([*call, *given]) == 0
    assert "every byte" in capsys.readouterr().out
    store = ps.open_store(url, storage_options=options)
    rows = store.definition.origin
    everything = rows.gather(np.array([0]), rows.n_tokens)  # now all pages are in the cache
    assert main(["verify", url, *given]) == 0
    name = rows.manifest.shards[1].name
    data = bytearray(objects.read_all(f"{url}/{name}", options))
    data[5000] ^= 1
    objects.delete([f"{url}/{name}"], options)
    objects.put_new(f"{url}/{name}", bytes(data), options)
    capsys.readouterr()
    assert main(["verify", url, *given]) == 1
    said = capsys.readouterr()
    assert "DAMAGED" in said.out and name in said.err
    objects.delete([f"{url}/{name}"], options)
    assert main(["verify", url, *given]) == 1
    said = capsys.readouterr()
    assert "DAMAGED" in said.out and name in said.err
    assert len(everything[0]) == rows.n_tokens
    assert not list(tmp_path.glob("penstock-verify-*"))


def test_other_bytes_under_a_name_are_an_error_not_overwritten(s3: Any) -> None:
    url = s3.url("taken")
    objects.put_new(objects.join(url, "00000.tokens"), b"x", s3.options)
    with pytest.raises(ps.StoreError, match="the same bytes from every run of a job"):
        ps.prepare(ps.from_texts(["a"]), "bytes", url, storage_options=s3.options)
    assert contents(s3, "taken")["00000.tokens"] == b"x"


def test_storage_without_conditional_puts_is_refused(
    unconditional: Any, corpus: str, local: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    url, options = unconditional.url("plain"), unconditional.options
    objects.put_new(objects.join(url, "notes.txt"), b"x", options)
    with pytest.raises(ps.StorageError, match="refuses to create a file twice(.|\n)*single_writer=True"):
        prepare(JsonlFiles(corpus), "bytes", url, **SETTINGS, storage_options=options)
    assert contents(unconditional, "plain") == {"notes.txt": b"x"}
    given = [f"--storage-option={name}={value}" for name, value in options.items()]
    assert main(["prepare", corpus, "-t", "bytes", "-o", url, "--on-error", "skip", "--quiet", *given]) == 1
    assert "--single-writer" in capsys.readouterr().err
    made = prepare(JsonlFiles(corpus), "bytes", url, **SETTINGS, storage_options=options, single_writer=True)
    assert made.shards > 3
    assert contents(unconditional, "plain") == local | {"notes.txt": b"x"}
    objects.put_new(unconditional.url("taken/00000.tokens"), b"x", options)
    with pytest.raises(ps.StoreError, match="the same bytes"):
        ps.prepare(
            ps.from_texts(["a"]), "bytes", unconditional.url("taken"), storage_options=options, single_writer=True
        )
    assert contents(unconditional, "taken")["00000.tokens"] == b"x"


def test_input_from_the_bucket_too(s3: Any, corpus: str, local: dict[str, bytes]) -> None:
    objects.put_new(s3.url("raw/a.jsonl"), Path(corpus), s3.options)
    source = JsonlFiles(s3.url("raw/"), storage_options=s3.options)
    made = prepare(source, "bytes", s3.url("from-s3"), **SETTINGS, storage_options=s3.options)
    found = contents(s3, "from-s3")
    assert {n: d for n, d in found.items() if n.endswith(".tokens")} == {
        n: d for n, d in local.items() if n.endswith(".tokens")
    }
    assert made.id == json.loads(local["manifest.json"])["id"]
    assert prepare(source, "bytes", s3.url("from-s3"), **SETTINGS, storage_options=s3.options).already
