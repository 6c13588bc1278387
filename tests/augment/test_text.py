"""Token operations: rates, protected ids, ragged rows."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import Ragged
from penstock.augment import Augment, TokenMask, TokenReplace
from penstock.core.errors import UsageError

SPECIAL = (0, 2, 3, 50)


def ids(rows: int = 400, length: int = 64) -> np.ndarray:
    made = np.random.default_rng(1).integers(0, 60, (rows, length))
    made[:, -5:] = -100
    return made


def run(*ops: object, tokens: object) -> object:
    augment = Augment(*ops, seed=1)  # type: ignore[arg-type]
    return augment({"text_tokens": tokens}, augment.keys(np.arange(len(tokens))))["text_tokens"]  # type: ignore[arg-type]


def test_special_and_negative_ids_are_never_touched() -> None:
    before = ids()
    made = run(TokenMask(1, special=SPECIAL, rate=1.0), TokenReplace(60, special=SPECIAL, rate=1.0), tokens=before)
    fixed = np.isin(before, SPECIAL) | (before < 0)
    np.testing.assert_array_equal(made[fixed], before[fixed])  # type: ignore[index]
    assert not np.isin(made[~fixed], SPECIAL).any()  # type: ignore[index]


def test_rates() -> None:
    before = ids()
    free = ~(np.isin(before, (*SPECIAL, 1)) | (before < 0))
    masked = run(TokenMask(1, special=SPECIAL), tokens=before) == 1
    n, k = free.sum(), masked[free].sum()  # type: ignore[index]
    assert abs(k - 0.15 * n) < 4 * np.sqrt(0.15 * 0.85 * n)
    assert len({tuple(row) for row in masked[:20]}) == 20, "rows must not share a pattern"  # type: ignore[index]


def test_replacements_are_even_over_the_free_ids() -> None:
    made = run(TokenReplace(60, special=SPECIAL, rate=1.0), tokens=np.full((500, 64), 7))
    counts = np.bincount(np.asarray(made).ravel(), minlength=60)
    assert (counts[list(SPECIAL)] == 0).all()
    free = np.delete(counts, SPECIAL)
    expected = free.sum() / 56
    assert ((free - expected) ** 2 / expected).sum() < 93.2  # one in a thousand, 55 degrees of freedom


def test_ragged_rows_equal_padded_rows() -> None:
    lengths = [5, 0, 64, 17]
    padded = ids(4)
    ragged = Ragged.of([padded[i, :n] for i, n in enumerate(lengths)])
    op = TokenMask(1, special=SPECIAL, rate=0.4)
    whole, parts = run(op, tokens=padded), run(op, tokens=ragged)
    assert isinstance(parts, Ragged)
    for i, n in enumerate(lengths):
        np.testing.assert_array_equal(parts[i], whole[i, :n])  # type: ignore[index]
    np.testing.assert_array_equal(run(op, tokens=ragged.slice(0, 4)).values, parts.values)  # type: ignore[attr-defined]


def test_ragged_rows_may_begin_after_the_first_value() -> None:
    """The result used to keep offsets that begin elsewhere than its values."""
    ragged = Ragged.of([ids(1, n)[0] for n in (7, 5, 0, 30)])
    op = TokenReplace(60, special=SPECIAL, rate=0.5)
    made = run(op, tokens=Ragged(ragged.values, ragged.offsets[1:]))
    alone = run(op, tokens=Ragged.of([ragged[i] for i in (1, 2, 3)]))
    assert [row.tolist() for row in made] == [row.tolist() for row in alone]  # type: ignore[attr-defined]


def test_an_id_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        run(TokenMask(300, special=()), tokens=np.zeros((2, 3), np.uint8))
    assert caught.value.expected == "integer tokens that hold ids up to 300"
    assert caught.value.got == "uint8"
    with pytest.raises(UsageError, match="integer tokens that hold ids up to 8"):
        run(TokenReplace(9, special=()), tokens=np.zeros((2, 3), np.float32))
