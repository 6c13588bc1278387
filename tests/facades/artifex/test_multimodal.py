"""Aligned and paired datasets; the alignment is measured, not believed."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from penstock import UsageError
from penstock.facades.artifex.multimodal.paired import MultiModalPairedDataset
from penstock.facades.artifex.multimodal.synthetic import MultiModalDataset, create_synthetic_multi_modal_dataset


@pytest.mark.parametrize("strength", [0.0, 0.25, 0.5, 0.8, 1.0])
def test_measured_alignment_is_the_strength(strength):
    dataset = create_synthetic_multi_modal_dataset(["image", "text", "audio"], 200, strength, audio_duration=0.25)
    for pair, measured in dataset.measure_alignment().items():
        assert abs(measured - strength) < 0.04, pair


def test_measuring_notices_when_modalities_are_swapped_between_records():
    dataset = MultiModalDataset(["image", "text"], 200, alignment_strength=1.0)
    assert dataset.measure_alignment()[("image", "text")] > 0.99
    true_read = dataset.read

    def shifted(indices):
        return {**true_read(indices), "text": true_read((indices + 1) % 200)["text"]}

    dataset.read = shifted
    assert abs(dataset.measure_alignment()[("image", "text")]) < 0.1


def test_sample_and_batch():
    dataset = create_synthetic_multi_modal_dataset(["image", "text", "audio"], 100, rngs=0)
    sample = dataset[0]
    assert list(sample) == ["image", "text", "audio", "alignment_score", "latent"]
    assert sample["image"].shape == (32, 32, 3)
    assert 0.0 == float(sample["image"].min()) < float(sample["image"].max()) == 1.0
    assert sample["text"].shape == (50,)
    assert sample["text"].dtype == jnp.int32
    assert 4 <= int(sample["text"].min()) <= int(sample["text"].max()) < 1000
    assert float(abs(sample["audio"]).max()) == 1.0
    assert sample["alignment_score"] == 0.8
    assert sample["latent"].shape == (32,)
    batch = dataset.get_batch(5)
    assert batch["audio"].shape == (5, 16000)
    assert batch["alignment_score"].shape == (5,)
    assert not np.array_equal(batch["image"], dataset.get_batch(5)["image"])


def test_seeds_differ_and_odd_sizes_work():
    one, two = (MultiModalDataset(["image"], 10, rngs=seed)[0]["latent"] for seed in (0, 1))
    assert not np.array_equal(one, two)
    tiny = MultiModalDataset(
        ["image", "text", "audio"], 4, image_shape=(2, 3, 1), text_sequence_length=3, audio_sample_rate=10
    ).get_batch(4)
    assert (tiny["image"].shape, tiny["text"].shape, tiny["audio"].shape) == ((4, 2, 3, 1), (4, 3), (4, 10))
    assert bool(jnp.isfinite(tiny["audio"]).all())


def test_refused_while_building():
    with pytest.raises(UsageError, match="modalities one of 'image', 'text', 'audio'"):
        MultiModalDataset(["image", "smell"], 10)
    with pytest.raises(UsageError, match="alignment_strength from 0 to 1"):
        MultiModalDataset(["image"], 10, alignment_strength=1.5)
    with pytest.raises(UsageError, match="different names"):
        MultiModalDataset(["image", "image"], 10)


def paired(**changes):
    arguments = {
        "pairs": [("image", "text")],
        "data": {"image": jnp.arange(24.0).reshape(6, 2, 2), "text": jnp.arange(6)[:, None]},
        "alignments": jnp.linspace(0, 1, 6),
    }
    return MultiModalPairedDataset(**{**arguments, **changes})


def test_paired_rows_stay_together():
    dataset = paired()
    batch = dataset.get_batch(4)
    assert batch["image"].shape == (4, 2, 2)
    np.testing.assert_array_equal(np.asarray(batch["image"])[:, 0, 0] / 4, np.asarray(batch["text"])[:, 0])
    np.testing.assert_allclose(np.asarray(batch["alignment_scores"]) * 5, np.asarray(batch["text"])[:, 0], rtol=1e-6)
    assert batch["pairs"] == [("image", "text")]
    sample = dataset[5]
    assert float(sample["alignment_scores"]) == 1.0
    assert sample["pairs"] == [("image", "text")]
    assert "alignment_scores" not in paired(alignments=None)[0]


def test_paired_is_checked():
    with pytest.raises(UsageError, match="'text' has 5 rows"):
        paired(data={"image": np.zeros((6, 2)), "text": np.zeros((5, 2))})
    with pytest.raises(UsageError, match="pairs of two modalities"):
        paired(pairs=[("image", "audio")])
    with pytest.raises(UsageError, match="'alignment_scores' has 3 rows"):
        paired(alignments=np.ones(3))
