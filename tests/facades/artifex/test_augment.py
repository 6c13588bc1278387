"""The ready-made functions on JAX keys: shapes, ranges, protection of special ids, and one trace for all keys."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import UsageError
from penstock.facades.artifex.augment import (  # fmt: skip
    _compiled,
    augment_audio,
    augment_audio_batch,
    augment_audio_batch_jit,
    augment_batch,
    augment_batch_jit,
    augment_image,
    augment_image_batch,
    augment_text_batch,
    augment_text_batch_jit,
    augment_text_tokens,
)

KEYS = [jax.random.key(0), jax.random.PRNGKey(0)]
IMAGE = jnp.asarray(np.random.default_rng(0).random((8, 8, 3), np.float32))
TOKENS = jnp.asarray([2, *range(4, 60), 3, 0, 0, 0, 0], jnp.int32)
WAVE = jnp.sin(jnp.arange(800) * 0.1)

CALLS: dict[str, Any] = {
    "image": lambda key: augment_image(IMAGE, key),
    "images": lambda key: augment_batch_jit(jnp.stack([IMAGE] * 5), key),
    "tokens": lambda key: augment_text_tokens(TOKENS, 1000, key),
    "token rows": lambda key: augment_text_batch_jit(jnp.stack([TOKENS] * 5), 1000, key),
    "audio": lambda key: augment_audio(WAVE, 16000, key),
    "audio rows": lambda key: augment_audio_batch_jit(jnp.stack([WAVE] * 5), 16000, key),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_second_key_does_not_trace_again(name: str) -> None:
    traces: list[str] = []

    def note(event: str, seconds: float, **more: Any) -> None:
        if event == "/jax/core/compile/jaxpr_trace_duration":
            traces.append(event)

    _compiled.cache_clear()
    keys = jax.block_until_ready([jax.random.key(i) for i in range(3)])
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        first = np.asarray(CALLS[name](keys[0]))
        traced = len(traces)
        others = [np.asarray(CALLS[name](key)) for key in keys[1:]]
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert traced > 0
    assert len(traces) == traced
    assert all(not np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("name", ["images", "tokens", "audio rows"])
def test_all_of_them_may_be_jitted_by_the_caller(name: str) -> None:
    count = []

    @jax.jit
    def again(key: Any) -> Any:
        count.append(1)
        return CALLS[name](key)

    for i in range(3):
        np.testing.assert_allclose(again(jax.random.key(i)), CALLS[name](jax.random.key(i)), atol=1e-6)
    assert len(count) == 1


@pytest.mark.parametrize("name", ["image", "tokens", "audio"])
def test_both_kinds_of_key_and_the_same_answer_twice(name: str) -> None:
    first, second = (np.asarray(CALLS[name](key)) for key in KEYS)
    np.testing.assert_array_equal(first, second)


def test_batches_answer_a_new_dict_and_row_i_is_fold_in_i() -> None:
    key = jax.random.key(3)
    batch = {"images": jnp.stack([IMAGE] * 4), "labels": jnp.arange(4)}
    made = augment_batch(batch, key)
    assert made is not batch
    assert made["labels"] is batch["labels"]
    assert augment_batch is augment_image_batch
    for i in range(4):
        alone = augment_image(IMAGE, jax.random.fold_in(key, i))
        np.testing.assert_allclose(made["images"][i], alone, atol=1e-6)
    smaller = augment_batch({"images": batch["images"][:2]}, key)["images"]
    np.testing.assert_allclose(smaller, made["images"][:2], atol=1e-6)
    assert not np.allclose(made["images"][0], made["images"][1])


def test_images_keep_shape_type_and_range() -> None:
    for image in (IMAGE, IMAGE[:5], (IMAGE * 255).astype(jnp.uint8), IMAGE.astype(jnp.float16)):
        made = augment_image(image, jax.random.key(1))
        assert made.shape == image.shape
        assert made.dtype == image.dtype
        assert float(made.min()) >= 0
        assert float(made.max()) <= (255 if image.dtype == jnp.uint8 else 1)


def test_flips_and_turns_all_happen() -> None:
    """A lone bright corner ends in each corner as often; the flip cannot be seen apart from turns of one corner."""
    corner = jnp.zeros((64, 6, 6, 1)).at[:, 0, 1].set(1.0)
    made = np.asarray(augment_batch_jit(jnp.tile(corner, (16, 1, 1, 1)), jax.random.key(0)))[..., 0]
    places = np.bincount(made.reshape(1024, 36).argmax(1), minlength=36)
    expected = [1, 4, 6, 11, 24, 29, 31, 34]
    assert set(np.flatnonzero(places)) == set(expected)
    assert ((places[expected] - 128) ** 2 / 128).sum() < 24.3  # one in a thousand, seven degrees of freedom


def test_special_tokens_stay_and_random_ones_are_ordinary() -> None:
    rows = jnp.stack([TOKENS] * 500)
    made = np.asarray(augment_text_batch({"text_tokens": rows}, 1000, jax.random.key(0))["text_tokens"])
    before = np.asarray(rows)
    assert made.dtype == np.int32
    np.testing.assert_array_equal(made[before < 4], before[before < 4])
    free = before >= 4
    masked, changed = (made[free] == 1).mean(), (made[free] != before[free]).mean()
    assert abs(masked - 0.15 * 0.95) < 0.01
    assert abs(changed - (0.15 * 0.95 + 0.05)) < 0.01
    assert set(np.unique(made[free])) & {0, 2, 3} == set()
    assert made.max() < 1000
    other = augment_text_tokens(jnp.full(500, 9), 10, jax.random.key(0), mask_token_id=7, special_ids=(8,))
    assert 7 in other
    assert 8 not in other


def test_audio_has_a_peak_of_one_and_silence_stays_finite() -> None:
    made = augment_audio_batch({"audio": jnp.stack([WAVE] * 6), "sample_rate": 8000}, 8000, jax.random.key(0))
    np.testing.assert_allclose(np.abs(made["audio"]).max(1), 1.0, atol=1e-6)
    assert made["sample_rate"] == 8000
    assert made["audio"].dtype == jnp.float32
    assert np.isfinite(augment_audio(jnp.zeros(50), 16000, jax.random.key(0))).all()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        augment_text_tokens(TOKENS, 4, jax.random.key(0))
    assert caught.value.expected == "a vocabulary with at least one id that is not special"
    assert caught.value.got == "vocab_size=4, special_ids=(0, 1, 2, 3)"
    assert caught.value.fix
    with pytest.raises(UsageError, match="a sample rate above 0"):
        augment_audio(WAVE, 0, jax.random.key(0))


@pytest.mark.parametrize("wrong", [-1.0, 255.0, np.nan])
def test_values_outside_of_0_to_1_are_refused_instead_of_clipped(wrong):
    images = np.full((2, 8, 8, 3), 0.5, np.float32)
    images[1, 2, 3] = wrong
    key = jax.random.key(0)
    for call in (
        lambda: ps.augment_image(images[1], key),
        lambda: ps.augment_batch({"images": images}, key),
        lambda: ps.augment_batch_jit(images, key),
        lambda: list(ps.create_training_pipeline([{"images": image} for image in images], 2, normalize=False)),
    ):
        with pytest.raises(UsageError, match="black and white"):
            call()
    inside = jax.jit(ps.augment_batch_jit)(images, key)  # nothing can be raised there
    assert np.isnan(inside).all()
    with pytest.raises(UsageError, match="int32"):
        ps.augment_image((images[0] * 255).astype(np.int32), key)


def test_wrong_layouts_keys_and_tokens_are_named():
    key, image = jax.random.key(0), np.full((3, 8, 16), 0.5, np.float32)
    with pytest.raises(UsageError, match="channels as the last axis"):
        ps.augment_image(image, key)
    with pytest.raises(UsageError, match=r"fix: +jax.random.key\(7\)"):
        ps.augment_image(image.transpose(1, 2, 0), 7)
    with pytest.raises(UsageError, match="a JAX random key"):
        ps.augment_audio(np.zeros(8, np.float32), 8, None)
    with pytest.raises(UsageError, match="token ids: integers"):
        ps.augment_text_tokens(np.array([2.0, 9.0]), 100, key)
    with pytest.raises(UsageError, match="a sample with 'images'"):
        ps.validate_sample({"img": image})
