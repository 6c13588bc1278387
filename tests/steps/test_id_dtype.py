"""The type of token ids: what would wrap is refused when the loader is made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.core.columns import Ragged
from tests.steps.test_pack import store

TOKENS = (np.arange(3600) + 1).astype(np.uint16)


def tokens(vocab: int | None = None) -> ps.Pipeline:
    return ps.open_tokens(TOKENS, np.arange(0, 3601, 30), vocab)


LABELLED = {
    "pack": lambda p: p.pack(32).batch(2),
    "pack, mapped": lambda p: p.pack(32).map_batches(dict).batch(2).map_batches(dict),
    "batch_tokens": lambda p: p.batch_tokens(128),
    "bucket": lambda p: p.bucket([32], 2),
    "mix": lambda p: ps.mix([p.pack(32), p.pack(32)], [1, 1]).batch(2),
}
WINDOWS = {"windows": lambda p: p.windows(32).batch(2), "documents": lambda p: p.batch(2)}


@pytest.mark.parametrize("way", LABELLED)
def test_labels_that_can_be_ignored_need_a_signed_type(way: str) -> None:
    with pytest.raises(ps.UsageError) as caught:
        LABELLED[way](tokens(3601)).to_numpy(ids="uint16")
    for text in ("a signed type for ids=", "-100", "got:   uint16", 'ids="int'):
        assert text in str(caught.value)
    batch = LABELLED[way](tokens(3601)).to_torch(ids="int16", threads=0).batch_at(0)
    assert int(batch["labels"].min()) == -100 and int(batch["labels"].max()) <= 3600


def test_masked_windows_and_padded_masks_too(tmp_path: Path) -> None:
    source = store(tmp_path, [40, 40], [np.arange(40) > 20] * 2)
    for made in (source.windows(8).batch(2), source.pad().batch(2)):
        with pytest.raises(ps.UsageError, match="a signed type for ids="):
            made.to_numpy(ids="uint16")
        assert made.to_numpy(ids="int32").batch_at(0)["labels"].min() == -100


def test_windows_and_packs_without_labels_may_be_unsigned() -> None:
    for pipeline in (tokens().windows(32).batch(2), tokens().pack(32, labels=None).batch(2), tokens().batch(2)):
        ids = pipeline.to_numpy(ids="uint16").batch_at(0)["input_ids"]
        assert ids.dtype == np.uint16


@pytest.mark.parametrize("way", [w for w in (LABELLED | WINDOWS) if w != "pack, mapped"])
def test_too_narrow_a_type_is_refused(way: str) -> None:
    make = (LABELLED | WINDOWS)[way]
    for vocab, kind, most in ((3601, "int8", 3600), (None, "int16", 65535), (None, "int8", 65535)):
        with pytest.raises(ps.UsageError) as caught:
            make(tokens(vocab)).to_numpy(ids=kind)
        assert f"token ids up to {most}" in str(caught.value) and "vocab_size" in str(caught.value)
    make(tokens(3601)).to_numpy(ids="int16")
    make(tokens()).to_numpy(ids="int32")


def test_a_function_may_give_smaller_ids() -> None:
    small = lambda c: {k: v % 100 for k, v in c.items()}  # noqa: E731
    assert tokens().windows(32).map_batches(small).batch(2).to_numpy(ids="int8").batch_at(0)["labels"].max() < 100
    assert tokens().windows(32).batch(2).map_batches(small).to_numpy(ids="int8").batch_at(0)["labels"].max() < 100


@pytest.mark.parametrize("pad_id", [2**31 + 5, 2**40])
def test_padding_that_does_not_fit_is_refused(pad_id: int) -> None:
    for pipeline in (
        tokens().pack(32, pad_id=pad_id).batch(2),
        tokens().batch_tokens(128, multiple=32, pad_id=pad_id),
        tokens().bucket([64], 2, pad_id=pad_id),
    ):
        with pytest.raises(ps.UsageError, match=f"token ids up to {pad_id}"):
            pipeline.to_jax()
        assert int(pipeline.to_numpy(threads=0).batch_at(0)["input_ids"].max()) == pad_id


def test_masks_padded_too_far(tmp_path: Path) -> None:
    source = store(tmp_path, [40, 20], [np.arange(40) > 20, np.arange(20) > 3])
    with pytest.raises(ps.UsageError, match="token ids up to 40000000"):
        source.pad(pad_id=40000000).batch(2).to_numpy(ids="int16")


def test_columns_of_the_user_tell_by_their_type() -> None:
    rows = Ragged.of([[1, 2, 3], [4]])
    with pytest.raises(ps.UsageError, match="token ids up to 2147483647"):
        ps.from_arrays({"input_ids": rows}).batch_tokens(8).to_numpy(ids="int16")
    narrow = ps.from_arrays({"input_ids": Ragged.of([[1, 2, 3], [4]], np.uint8)})
    assert narrow.batch_tokens(8).to_numpy(ids="int16").batch_at(0)["labels"].dtype == np.int16


def test_ids_are_integers() -> None:
    with pytest.raises(ps.UsageError, match="a type of integers for ids="):
        tokens().windows(8).batch(2).to_numpy(ids="float32")
