"""In-memory sources."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.columns import Ragged
from penstock.core.errors import StateError, UsageError
from penstock.sources.arrays import Arrays, Texts
from penstock.sources.base import Source


def test_columns_of_all_kinds() -> None:
    source = Arrays(
        {
            "a": np.arange(6).reshape(3, 2),
            "r": Ragged.of([[1], [2, 3], []]),
            "l": [[1, 2], [3], []],
            "n": [1, 2, 3],
            "s": ["x", "y", "z"],
            "u": np.array(["p", "q", "r"]),
            "d": [{"k": 1}, None, b"b"],
            "i": [np.zeros((2, 2)), np.ones((2, 2)), np.ones((2, 2))],
        }
    )
    assert isinstance(source, Source)
    batch = source.read(np.array([2, 1, 1]))
    assert batch["a"].tolist() == [[4, 5], [2, 3], [2, 3]]
    assert batch["r"].tolist() == [[], [2, 3], [2, 3]]
    assert isinstance(batch["l"], Ragged)
    assert batch["n"].dtype == np.int64
    assert batch["u"].tolist() == ["r", "q", "q"]
    assert batch["d"].tolist() == [b"b", None, None]
    assert batch["i"].shape == (3, 2, 2)
    assert len(source.fingerprint()) == 32


def test_fingerprint_is_of_content() -> None:
    a = Arrays({"x": np.arange(10)[2:5], "r": Ragged.of([[9], [1], [2], [3]]).slice(1, 4)})
    b = Arrays({"x": np.array([2, 3, 4]), "r": Ragged.of([[1], [2], [3]])})
    assert a.fingerprint() == b.fingerprint()
    for other in (
        {"x": np.array([2, 3, 5]), "r": Ragged.of([[1], [2], [3]])},
        {"x": np.array([2, 3, 4], np.int32), "r": Ragged.of([[1], [2], [3]])},
        {"y": np.array([2, 3, 4]), "r": Ragged.of([[1], [2], [3]])},
        {"x": np.array([2, 3, 4]), "r": Ragged.of([[1, 2], [], [3]])},
    ):
        assert Arrays(other).fingerprint() != b.fingerprint()
    with pytest.raises(UsageError, match="column 'x', row 0"):
        Arrays({"x": [object()]}).fingerprint()


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"a": [1, 2], "b": [1, 2, 3]}, "columns of one length\n  got:   'a' has 2 rows, 'b' has 3"),
        ({}, "a dict of columns\n  got:   an empty one"),
        ([1], "a dict of columns\n  got:   list"),
        ({"a": []}, "at least one row"),
        ({"a": "text"}, "a column as an array or a list\n  got:   str\n  where: column 'a'"),
        ({"a": np.array(3)}, "columns with one value per row"),
    ],
)
def test_wrong_columns(columns: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Arrays(columns)  # type: ignore[arg-type]


def test_texts() -> None:
    source = Texts(["one", "", "three"])
    assert isinstance(source, Source)
    assert source.read(np.array([2, 0]))["text"].tolist() == ["three", "one"]
    assert (
        source.fingerprint() == Texts(("one", "", "three")).fingerprint() != Texts(["one", "three", ""]).fingerprint()
    )
    big = Texts([str(i) * 1_000_000 for i in range(10, 20)])
    chunks = list(big.iterate())
    assert len(chunks) == 4
    for i, chunk in enumerate(chunks):
        assert [c.texts for c in big.iterate(chunk.cursor)] == [c.texts for c in chunks[i + 1 :]]
    assert chunks[1].positions[0] == (0, 4, 3)


def test_wrong_texts() -> None:
    with pytest.raises(UsageError, match="a list of texts\n  got:   one str"):
        Texts("text")
    with pytest.raises(UsageError, match="texts as str\n  got:   bytes\n  where: text 1"):
        Texts(["a", b"b"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="at least one text"):
        Texts([])
    with pytest.raises(UsageError, match=r"record numbers in \[0, 1\)"):
        Texts(["a"]).read(np.array([1]))
    with pytest.raises(StateError, match="a cursor of these texts"):
        next(Texts(["a"]).iterate({"offset": 5}))
