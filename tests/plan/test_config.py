"""A pipeline as plain data, and back."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

import penstock as ps
from penstock.augment import Flip
from penstock.cli.main import main


def shout(record: dict) -> dict:
    return {**record, "text": record["text"].upper()}


def thirds(columns: dict) -> dict:
    return {**columns, "third": columns["n"] % 3}


def long(record: dict) -> bool:
    return len(record["text"]) > 3


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    Path("a.jsonl").write_text("".join(json.dumps({"text": f"text {i}", "n": i}) + "\n" for i in range(40)))
    Path("b.csv").write_text("text,n\n" + "".join(f"line {i},{i}\n" for i in range(40)))
    np.arange(500, dtype=np.uint16).tofile("train.bin")
    return tmp_path


def pipelines() -> dict[str, ps.Pipeline]:
    a = ps.read_jsonl("a.jsonl", fields=["text", "n"], on_error="skip", budget=3, limits=ps.Limits(line_bytes=500))
    b = ps.read_csv(Path("b.csv"), columns=["text", "n"], types={"n": "int"})
    return {
        "windows": ps.open_nanogpt("train.bin", dtype=np.uint32).windows(8, stride=4).shuffle(seed=7).batch(8),
        "records": a.take(30).shuffle(3, block=4, window=2).batch(5, remainder="short"),
        "mixture": ps.mix([a.drop("n"), b.select("text").skip(2)], [2, 1], seed=5, stop="first").batch(4),
        "names": ps.mix({"web": b.drop("n"), "code": a.drop("n")}, {"code": 1, "web": 2}, seed=5).batch(4),
        "functions": a.map(shout).filter(long, version="1").batch(4),
        "joined": ps.concat([a, b]).rename({"n": "number"}).repeat(2).batch(4),
        "in memory": ps.from_texts(["one", "two"])
        .tokenize("bytes", show_progress=False)
        .pad(to=4, truncate=True)
        .batch(2),
        "shard": b.shard(0, 2).batch(4),
        "part": b.split({"train": 0.7, "val": None}, seed=3)["val"].skip(1).batch(2),
        "stratified": b.map_batches(thirds)
        .split({"x": 0.5, "y": 0.5}, stratify="third", show_progress=False)["x"]
        .batch(2),
    }


def test_every_form_makes_the_same_pipeline(home: Path) -> None:
    for name, pipeline in pipelines().items():
        config = pipeline.to_config()
        allowed = ["tests"] if name in ("functions", "stratified") else False
        forms = [config, OmegaConf.create(config)]
        Path("p.json").write_text(json.dumps(config))
        Path("p.yaml").write_text(yaml.safe_dump(config))
        for form in [*forms, "p.json", Path("p.yaml")]:
            again = ps.from_config(form, allow_functions=allowed)
            assert again == pipeline and again.to_config() == config, name
            assert again.definition.batch == pipeline.definition.batch
            one, two = pipeline.to_numpy(threads=0).batch_at(0), again.to_numpy(threads=0).batch_at(0)
            assert {k: v.tolist() for k, v in one.items()} == {k: v.tolist() for k, v in two.items()}


def test_names_of_a_mixture(home: Path) -> None:
    """Written by hand they are a table; `to_config` keeps their order in files with sorted keys."""
    pipeline = pipelines()["names"]
    listed = pipeline.to_config()["source"]["mix"]["pipelines"]
    assert [item["name"] for item in listed] == ["web", "code"]
    by_hand = {item["name"]: {"pipeline": item["pipeline"]} for item in listed}
    found = ps.from_config({"source": {"mix": {"pipelines": by_hand, "weights": [2, 1], "seed": 5}}})
    assert found.batch(4).fingerprint() == pipeline.fingerprint() and "of web" in repr(found)
    with pytest.raises(ps.UsageError, match="a different name for each pipeline"):
        ps.from_config({"source": {"mix": {"pipelines": [listed[0], listed[0]]}}})


def test_toml(home: Path) -> None:
    Path("p.toml").write_text(
        '[source.read_jsonl]\npaths = ["a.jsonl"]\nfields = ["text", "n"]\n'
        "[[steps]]\nshuffle = {seed = 7}\n[[steps]]\nbatch = {size = 4}\n"
    )
    expected = ps.read_jsonl(["a.jsonl"], fields=["text", "n"]).shuffle(seed=7).batch(4)
    assert ps.from_config("p.toml") == expected


def test_what_a_configuration_cannot_hold_is_refused(home: Path) -> None:
    a = ps.read_jsonl("a.jsonl")
    for pipeline, text in (
        (a.map(lambda record: record), r"functions that can be imported(.|\n)*map\(function=\)"),
        (ps.from_arrays({"x": np.zeros(3)}), r"ndarray(.|\n)*from_arrays\(columns=\)"),
        (ps.from_texts(["x"] * 20_000), r"got:   list"),
        (ps.Pipeline(a.definition.origin), "a source object or a step of your own"),
        (pickle.loads(pickle.dumps(a)), "a source object or a step of your own"),
    ):
        with pytest.raises(ps.UsageError, match=text):
            pipeline.to_config()


def test_secrets_are_left_out(home: Path) -> None:
    options = {"aws_secret_access_key": "hidden", "access_key_id": "hidden", "region": "eu", "session_token": "hidden"}
    config = ps.read_jsonl("a.jsonl", storage_options=options).to_config()
    assert "hidden" not in json.dumps(config)
    assert config["source"]["read_jsonl"]["storage_options"] == {"region": "eu"}


SOURCE = {"from_texts": {"texts": ["a"]}}


@pytest.mark.parametrize(("config", "text"), [
    ({"source": {"map": {}}}, "a function that begins a pipeline"),
    ({"source": {"read_jsonll": {}}}, "fix:   read_jsonl"),
    ({"source": {"prepare": {}}}, "a function that begins a pipeline"),
    ({"source": {"from_config": {"config": "x"}}}, "a function that begins a pipeline"),
    ({"source": {"os:system": {"command": "x"}}}, "a function that begins a pipeline"),
    ({"source": SOURCE, "steps": [{"shufle": {}}]}, "fix:   shuffle"),
    ({"source": SOURCE, "steps": [{"to_numpy": {}}]}, "a verb of pipelines"),
    ({"source": SOURCE, "steps": [{"then": {"step": 1}}]}, "a verb of pipelines"),
    ({"source": SOURCE, "steps": [{"_new": {}}]}, "a verb of pipelines"),
    ({"source": SOURCE, "steps": [{"write": {"path": "x"}}]}, "a verb of pipelines"),
    ({"source": SOURCE, "steps": [{"take": 3}]}, "arguments by name"),
    ({"source": SOURCE, "steps": [{"take": {"coumt": 3}}]}, "count=3"),
    ({"source": SOURCE, "steps": [{"split": {"parts": {"a": 1}}}]}, r"part: one of a(.|\n)*got:   none"),
    ({"source": SOURCE, "steps": [{"split": {"parts": {"a": 1}, "part": "c"}}]}, "got:   'c'"),
    ({"source": SOURCE, "steps": {"take": 3}}, '"steps" as a list'),
    ({"source": SOURCE, "steps": [{"take": {}, "skip": {}}]}, "one call"),
    ({"source": SOURCE, "steps": [{}]}, r"one call(.|\n)*leave an empty table out"),
    ({"source": SOURCE, "steps": [{"rename": {"names": {"ordered": [{"b": "a"}, {"b": "c"}]}}}]}, "each name once"),
    ({"source": SOURCE, "steps": [{"rename": {"names": {"ordered": ["b"]}}}]}, "each name once"),
    ({"source": SOURCE, "steps": [{"rename": {"names": {"ordered": "b"}}}]}, "each name once"),
    ({"sources": SOURCE}, '"source" and "steps"'), ([], '"source" and "steps"'),
    ({"source": SOURCE, "steps": [{"map": {"function": {"function": "os:system"}}}]}, "importing runs code"),
    ({"source": SOURCE, "steps": [{"map": {"function": {"function": "os.system"}}}]}, '"module:name"'),
])  # fmt: skip
def test_wrong_configurations(config, text: str) -> None:
    with pytest.raises(ps.UsageError, match=text):
        ps.from_config(config)


def test_functions_come_only_from_allowed_modules(home: Path) -> None:
    config = {"source": SOURCE, "steps": [{"map": {"function": {"function": "tests.plan.test_config:shout"}}}]}
    assert ps.from_config(config, allow_functions="tests.plan").peek() == [{"text": "A"}]
    assert ps.from_config(config, allow_functions=True).peek() == [{"text": "A"}]
    for allowed in (False, ["test"], ["tests.pla"]):
        with pytest.raises(ps.UsageError, match="allow_functions="):
            ps.from_config(config, allow_functions=allowed)
    config["steps"][0]["map"]["function"]["function"] = "tests.plan.test_config:nothing"
    with pytest.raises(ps.UsageError, match="that can be imported"):
        ps.from_config(config, allow_functions=True)


@pytest.mark.parametrize(("name", "text"), [
    ("bad.toml", "[source"), ("bad.yaml", "a: [1"), ("bad.json", "{"), ("odd.yaml", "!!python/object:os.system x"),
])  # fmt: skip
def test_damaged_files(home: Path, name: str, text: str) -> None:
    Path(name).write_text(text)
    with pytest.raises(ps.DataError, match=f"TOML, YAML or JSON(.|\n)*{name}"):
        ps.from_config(name)


def test_commands_take_a_configuration(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = ps.read_jsonl("a.jsonl").take(30).shuffle(seed=7)
    Path("p.yaml").write_text(yaml.safe_dump(pipeline.to_config()))
    Path("run.json").write_text(json.dumps(pipeline.batch(4).to_config()))
    assert main(["peek", "p.yaml", "--json", "-n", "2"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [one["record"]["text"] for one in shown["records"]] == [row["text"] for row in pipeline.peek(2)]
    assert main(["plan", "run.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps_per_epoch"] == 7
    assert main(["prepare", "p.yaml", "-t", "bytes", "--out", "store", "--quiet"]) == 0
    assert len(ps.open_store("store").rows()) == 30
    assert os.path.isdir("store")


def test_values_of_hydra_are_arguments(home: Path) -> None:
    """Lists and dicts of OmegaConf, and dataclasses that Hydra's instantiate wraps, mean what they say."""
    config = OmegaConf.create(
        {"size": [8, "${width}"], "width": 8, "names": ["x"], "rename": {"x": "y"}, "parts": {"a": 0.5, "b": 0.5}}
    )
    pixels = ps.from_arrays({"x": [1, 2, 3, 4]})
    assert pixels.select(*config.names).rename(config.rename).peek(1) == [{"y": 1}]
    assert list(pixels.split(config.parts)) == ["a", "b"]
    assert pixels.rename(config.rename).to_config() == pixels.rename({"x": "y"}).to_config()
    decoded = ps.from_arrays({"bytes": [b"x"]}).decode_images(config.size)
    assert decoded.fingerprint() == ps.from_arrays({"bytes": [b"x"]}).decode_images([8, 8]).fingerprint()
    flip = OmegaConf.create([Flip(p=1.0)])[0]
    assert not isinstance(flip, Flip)
    assert ps.Augment(flip, seed=3).spec() == ps.Augment(Flip(p=1.0), seed=3).spec()
    read = ps.read_jsonl(**OmegaConf.create({"paths": ["a.jsonl"], "fields": ["n"], "types": {"n": "int"}}))
    assert read.peek(1) == [{"n": 0}]
