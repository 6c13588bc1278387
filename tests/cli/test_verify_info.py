"""`penstock verify` and `penstock info`."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def test_sound(run: Any, store: Path) -> None:
    ran = run("verify", store)
    assert ran.code == 0
    assert ran.out.startswith(f"sound: {store}\n")
    assert ran.err == ""
    facts = run("verify", store, "--json").json()
    assert facts["sound"] is True
    assert facts["problems"] == []
    assert facts["documents"] == 60


@pytest.mark.parametrize("where", ["middle", "manifest", "missing"])
def test_damaged(run: Any, store: Path, tmp_path: Path, where: str) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(store, broken)
    shard = broken / "00000.tokens"
    if where == "missing":
        shard.unlink()
    else:
        path = shard if where == "middle" else broken / "manifest.json"
        data = bytearray(path.read_bytes())
        data[5000 if where == "middle" else data.index(b"257")] ^= 1
        path.write_bytes(data)
    ran = run("verify", broken)
    assert ran.code == 1
    assert ran.out.startswith("DAMAGED")
    assert ran.err.startswith("penstock: expected")
    assert all(part in ran.err for part in ("  got:", "  where:", "  fix:", str(broken)))
    facts = run("verify", broken, "--json").json()
    assert facts["sound"] is False
    assert facts["problems"][0]["fix"]


@pytest.mark.parametrize("kind", ["nothing", "folder", "text", "jsonl"])
def test_what_is_no_store_is_an_error_and_no_damage(run: Any, tmp_path: Path, kind: str) -> None:
    path = tmp_path / {"folder": "folder", "text": "a.txt", "jsonl": "a.jsonl"}.get(kind, "nothing")
    if kind == "folder":
        path.mkdir()
    elif kind != "nothing":
        path.write_text('{"text": "one"}\n')
    ran = run("verify", path)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("penstock: expected a token store")
    assert str(path) in ran.err and "fix:" in ran.err


def test_info_of_a_store(run: Any, store: Path) -> None:
    facts = run("info", store, "--json").json()
    assert facts["kind"] == "token store"
    assert facts["records"] == 60
    assert facts["tokenizer"]["kind"] == "bytes"
    shown = run("info", store).out
    assert "vocab_size            257" in shown
    assert "tokenizer.bos_id      none" in shown
    assert "00000.tokens: 60 documents" in shown


def write_megatron(prefix: Path, documents: list[list[int]]) -> None:
    lengths = np.array([len(d) for d in documents], "<i4")
    pointers = (np.cumsum(lengths) - lengths).astype("<i8") * 2
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(documents), len(documents) + 1)
    index = head + lengths.tobytes() + pointers.tobytes() + np.arange(len(documents) + 1, dtype="<i8").tobytes()
    Path(f"{prefix}.idx").write_bytes(index)
    Path(f"{prefix}.bin").write_bytes(np.concatenate([np.array(d, "<u2") for d in documents]).tobytes())


def test_info_of_other_peoples_files(run: Any, tmp_path: Path) -> None:
    write_megatron(tmp_path / "web", [[1, 2, 3], [4]])
    for name in ("web", "web.bin", "web.idx"):
        facts = run("info", tmp_path / name, "--json").json()
        assert (facts["kind"], facts["records"], facts["tokens"]) == ("megatron", 2, 4)
    np.array([1, 2, 0, 3], np.uint16).tofile(tmp_path / "train.bin")
    bare = run("info", tmp_path / "train.bin", "--split-id", 0, "--json")
    assert bare.json()["records"] == 2
    assert "uint16" in bare.err, "an assumption is said"
    np.save(tmp_path / "real.npy", np.arange(5))
    assert run("info", tmp_path / "real.npy", "--json").json()["tokens"] == 5
    np.arange(6, dtype=np.uint32).tofile(tmp_path / "bare.npy")
    refused = run("info", tmp_path / "bare.npy")
    assert refused.code == 1
    assert "dtype" in refused.err
    assert run("info", tmp_path / "bare.npy", "--dtype", "uint32", "--json").json()["tokens"] == 6


def test_a_pickle_in_an_array_is_not_opened(run: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], object), allow_pickle=True)
    ran = run("info", tmp_path / "evil.npy")
    assert ran.code == 1
    assert "expected a .npy file of integers" in ran.err


def test_info_of_text(run: Any, corpus: Path, tmp_path: Path) -> None:
    assert run("info", corpus, "--json").json()["records"] == 60
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"body": ["one", "two"], "n": [1, 2]}), tmp_path / "a.parquet")
    facts = run("info", tmp_path / "a.parquet", "--json").json()
    assert (facts["kind"], facts["records"], facts["columns"]) == ("parquet", 2, ["body", "n"])
