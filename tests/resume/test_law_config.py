"""Every pipeline of the law comes back from its configuration, in each file format, also where a writer sorts keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toml
import yaml

import penstock as ps
from penstock import Pipeline, Ragged
from penstock.read.config import _readers, _verbs

from .calls import calls
from .pipelines import PIPELINES, WHOLE
from .readers import FACADES, MEDIA, READERS, make_files
from .test_law_packed import PACKED, PLANNED
from .verbs import VERBS

# Objects, and bytes in a list.
REFUSED = {"from_dataset", "parts of shards", "Capibara's padding", "Capibara's languages", "Artifex's passes"}


def listed(value: Any) -> Any:
    """Data in memory as lists, which a configuration can hold."""
    return value.tolist() if isinstance(value, np.ndarray | Ragged) else value


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pipeline]]:
    root = tmp_path_factory.mktemp("configs")
    arrays, tokens = ps.from_arrays, ps.open_tokens
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(root / "cache"))
        make_files(root)
        patch.setattr(ps, "from_arrays", lambda columns: arrays({n: listed(c) for n, c in columns.items()}))
        patch.setattr(ps, "open_tokens", lambda ids, at=None, size=None: tokens(listed(ids), listed(at), size))
        made = {name: make(12) for table in (PIPELINES, WHOLE, VERBS, PACKED) for name, make in table.items()}
        made |= {f"planned: {name}": make(False) for name, make in PLANNED.items()}
        made |= {name: make(root, 12) for table in (READERS, MEDIA, FACADES) for name, make in table.items()}
        patch.setattr(ps, "from_arrays", arrays)
        yield made


def without_empty_tables(config: Any) -> bool:
    """The package toml, unlike others, leaves out the name of an empty table, such as `enumerate = {}`."""
    values = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    return config != {} and all(map(without_empty_tables, values))


def test_every_reader_and_verb_comes_back(pipelines: dict[str, Pipeline], tmp_path: Path) -> None:
    done, refused = set[str](), set[str]()
    for name, pipeline in pipelines.items():
        try:
            config = pipeline.to_config()
        except ps.UsageError:
            refused.add(name)
            continue
        (tmp_path / "p.json").write_text(json.dumps(config, sort_keys=True))
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(config))  # which sorts keys too
        if without_empty_tables(config):
            (tmp_path / "p.toml").write_text(toml.dumps(config))
        for path in tmp_path.glob("p.*"):
            again = ps.from_config(path, allow_functions=["tests"])
            assert again == pipeline and again.to_config() == config, (name, path.suffix)
            assert again.fingerprint() == pipeline.fingerprint(), (name, path.suffix)
            path.unlink()
        done |= set(calls(pipeline))
    assert refused == REFUSED
    assert set(_readers()) - done == {"from_dataset"}
    assert set(_verbs()) - done == {"shard", "decode_parts"}  # below


def test_the_verbs_that_are_in_no_such_pipeline(tmp_path: Path) -> None:
    pipeline = ps.from_arrays({"txt": ["a"], "json": ["{}"]}).decode_parts("txt").shard(0, 2)
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(pipeline.to_config()))
    assert ps.from_config(tmp_path / "p.yaml") == pipeline


@pytest.mark.parametrize("shuffle", [True, False])
def test_parts_of_a_split_keep_their_rows(shuffle: bool, tmp_path: Path) -> None:
    parts = ps.from_texts([str(i) for i in range(20)]).split({"train": 0.5, "test": 0.5}, seed=1, shuffle=shuffle)
    for name, part in parts.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(part.to_config()))
        assert ps.from_config(path).peek(20) == part.peek(20)
