"""Values of a wrong kind, for every argument of every verb: an error of ours, or a result."""

from __future__ import annotations

import inspect
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.core.local_files import atomic_write

WRONG = {
    "object": object(), "float": 3.5, "str": "zz", "list": [1, "a"], "dict": {"a": object()}, "int": -3, "None": None,
    "bytes": b"q", "function": lambda: 1, "nan": float("nan"), "tuple": (), "bool": True,
}  # fmt: skip
NEEDED = {
    "function": lambda row: row, "parts": {"a": 0.5, "b": 0.5}, "boundaries": [4, 8], "budget": 64,
    "tokenizer": "bytes", "length": 4, "names": {"x": "y"},
}  # fmt: skip
NOT_HERE = {
    "view",
    "then",
    "write",
    "to_hf",
    "to_dataset",
    "class_names",
    "classes",
    "definition",
}


def calls(pipeline: ps.Pipeline) -> list[tuple[str, str]]:
    verbs = [name for name in dir(ps.Pipeline) if name[0] != "_" and name not in NOT_HERE]
    return [(verb, name) for verb in verbs for name in inspect.signature(getattr(pipeline, verb)).parameters]


def use(made: Any) -> None:
    if isinstance(made, ps.Pipeline):
        made = (made if made.definition.batch is not None else made.batch(2)).to_numpy(threads=0)
    if isinstance(made, ps.Loader):
        made.batch_at(0)


def test_a_wrong_value_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_QUIET", "1")
    bare, tried = [], 0
    for pipeline in (
        ps.from_records([{"text": f"t{i}", "label": i % 2, "x": i} for i in range(12)]),
        ps.open_tokens(range(90), [0, 10, 22, 35, 60, 90]),
    ):
        for verb, name in calls(pipeline):
            method = getattr(pipeline, verb)
            parameters = inspect.signature(method).parameters
            several = parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            needed = {
                other: NEEDED.get(other, 2)
                for other, p in parameters.items()
                if p.default is p.empty and other != name and p.kind is not p.VAR_POSITIONAL
            }
            for kind, value in WRONG.items():
                tried += 1
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        use(method(value) if several else method(**needed, **{name: value}))
                except ps.PenstockError:
                    pass
                except Exception as error:
                    bare.append(f"{verb}({name}={kind}): {error!r}"[:160])
    assert tried > 2000
    assert bare == [], "\n".join(bare)


def test_the_error_names_the_argument_its_kind_and_the_default() -> None:
    documents = ps.open_tokens(range(90), [0, 10, 22, 35, 60, 90])
    with pytest.raises(ps.ArgumentError) as caught:
        documents.bucket(4, [64, 256])  # type: ignore[arg-type]
    assert caught.value.expected == "a list of integers for boundaries= of .bucket()"
    assert caught.value.got == "int: 4"
    with pytest.raises(TypeError, match=r"an integer for rows= of \.peek\(\)(.|\n)*the default is 5"):
        documents.peek("3")  # type: ignore[arg-type]


def test_a_device_is_written_to_and_a_link_stays(tmp_path: Path) -> None:
    atomic_write(os.devnull, b"x")
    assert not os.path.isfile(os.devnull)
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    for data in (b"new", b"newer"):
        atomic_write(str(link), data)
        assert link.is_symlink()
        assert target.read_bytes() == data
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    atomic_write(str(pipe), b"through")
    assert os.read(reader, 99) == b"through"
    os.close(reader)
