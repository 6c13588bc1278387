"""`TokenArray` and `open_store`: the same protocol over memory and over a store."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.columns import Ragged
from penstock.core.errors import UsageError
from penstock.sources.base import TokenSource
from penstock.sources.tokens import TokenArray, TokenStore
from penstock.store.manifest import write_manifest
from penstock.store.writer import ShardWriter


@given(st.lists(st.lists(st.integers(0, 65535), max_size=20), min_size=1, max_size=20), st.data())
def test_an_array_reads_as_its_documents(docs: list[list[int]], data: st.DataObject) -> None:
    ragged = Ragged.of(docs, np.uint16)
    source = TokenArray(ragged.values, ragged.offsets, vocab_size=65536)
    assert isinstance(source, TokenSource)
    order = np.array(data.draw(st.lists(st.integers(0, len(docs) - 1))), np.int64)
    assert source.read(order)["input_ids"].tolist() == [docs[i] for i in order]
    assert source.lengths(order).tolist() == [len(docs[i]) for i in order]
    assert source.starts(np.arange(len(docs) + 1)).tolist() == ragged.offsets.tolist()
    n = source.n_tokens
    assert source.documents_at(np.arange(n)).tolist() == np.repeat(np.arange(len(docs)), ragged.lengths).tolist()
    if n:
        length = data.draw(st.integers(1, n))
        starts = np.arange(n - length + 1)
        assert source.gather(starts, length).tolist() == [ragged.values[s : s + length].tolist() for s in starts]


def test_without_offsets_the_whole_is_one_document_and_that_is_said() -> None:
    source = TokenArray(np.arange(5))
    assert len(source) == 1
    assert source.describe()["boundaries"] == "unknown: the whole array is one document"
    assert TokenArray(np.arange(5), [0, 5]).describe()["boundaries"] == "doc_offsets"
    assert source.locate(0) == {"document": 0, "start": 0, "tokens": 5}


def test_the_fingerprint_is_of_content() -> None:
    tokens = np.arange(100, dtype=np.uint16)
    base = TokenArray(tokens).fingerprint()
    assert TokenArray(tokens.copy()).fingerprint() == base
    assert TokenArray(tokens.astype(">u2")).fingerprint() == base
    assert TokenArray(tokens[::-1]).fingerprint() != base
    assert TokenArray(tokens.astype(np.uint32)).fingerprint() != base
    assert TokenArray(tokens, [0, 50, 100]).fingerprint() != base
    copy = pickle.loads(pickle.dumps(TokenArray(tokens)))
    assert copy.fingerprint() == base
    assert copy.gather(np.array([98]), 2).tolist() == [[98, 99]]


@pytest.mark.parametrize(
    ("tokens", "offsets", "text"),
    [
        (np.zeros((2, 2), int), None, "one-dimensional array of integers"),
        (np.zeros(2), None, "one-dimensional array of integers"),
        (np.arange(4), [0, 3], "doc_offsets from 0 to 4"),
        (np.arange(4), [1, 4], "doc_offsets from 0 to 4"),
        (np.arange(4), [0, 3, 2, 4], "non-decreasing"),
    ],
)
def test_wrong_arrays(tokens: np.ndarray, offsets: list[int] | None, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        TokenArray(tokens, offsets)


def test_a_store_and_an_array_agree(tmp_path: Path) -> None:
    docs = Ragged.of([[1, 2, 3], [], [4, 5]], np.uint16)
    with ShardWriter(tmp_path / "0.tokens", vocab_size=300) as shard:
        shard.add(docs)
    write_manifest(tmp_path, [shard.finish()])
    store, array = TokenStore(tmp_path), TokenArray(docs.values, docs.offsets)
    assert isinstance(store, TokenSource)
    assert store.read(np.arange(3))["input_ids"].tolist() == array.read(np.arange(3))["input_ids"].tolist()
    assert (store.gather(np.arange(4), 2) == array.gather(np.arange(4), 2)).all()
