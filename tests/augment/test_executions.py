"""The same parameters give the same result in NumPy, torch and JAX: floats within 1e-5 (images) and 2e-5 (audio),
uint8 within one grey level, tokens exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
import torch

from penstock.augment import (  # fmt: skip
    AudioNoise,
    Augment,
    Blur,
    Brightness,
    Contrast,
    Crop,
    Cutmix,
    Erase,
    Flip,
    FrequencyMask,
    Gain,
    Hue,
    Mixup,
    Noise,
    Op,
    RandomResizedCrop,
    Resize,
    Rot90,
    Saturation,
    Shift,
    Speed,
    TimeMask,
    TokenMask,
    TokenReplace,
)
from penstock.augment.arrays import Arrays
from penstock.augment.arrays_jax import jax_arrays, program
from penstock.augment.arrays_numpy import NUMPY
from penstock.augment.arrays_torch import torch_arrays
from penstock.augment.compose import carry_keys
from penstock.augment.field import words
from penstock.augment.kinds import IMAGES
from penstock.core.errors import UsageError

IMAGE_ATOL, AUDIO_ATOL = 1e-5, 2e-5

IMAGE_OPS = [
    Flip("vertical"), Rot90(p=0.5), Crop((20, 14), padding=4, fill=0.5),
    Crop(9, where="center"), RandomResizedCrop((10, 20)), Resize((7, 21)), Brightness(0.4),
    Contrast(0.4), Saturation((0.0, 2.0), p=0.5), Hue(0.5), Noise(0.2), Blur(), Blur((0, 1.0), p=1.0),
    Erase(p=1.0, fill=0.25), Mixup(classes=4), Cutmix(classes=4, p=0.7),
]  # fmt: skip
AUDIO_OPS = [
    Gain(), Gain((0.5, 2), p=0.5), Shift(0.5), Shift(0.5, wrap=False), AudioNoise(0.2), TimeMask(0.2, count=3),
    Speed(0.2), Speed((0.25, 4.0), p=0.5),
]  # fmt: skip
CHAIN = (
    Flip(),
    RandomResizedCrop(12),
    Brightness(0.3),
    Contrast(0.3),
    Saturation(0.3),
    Hue(0.1),
    Noise(0.05),
    Blur(),
    Erase(),
)


def ran(augment: Augment, batch: dict[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    keys = augment.keys(np.arange(100, 100 + len(next(iter(batch.values())))))
    made = {"numpy": augment(batch, keys), "torch": augment.torch(batch, keys), "jax": augment.jax(batch, keys)}
    assert isinstance(made["torch"][next(iter(batch))], torch.Tensor)
    assert isinstance(made["jax"][next(iter(batch))], jax.Array)
    return {name: {k: np.asarray(v) for k, v in one.items()} for name, one in made.items()}


def with_labels(images: np.ndarray) -> dict[str, Any]:
    return {"image": images, "labels": np.arange(len(images), dtype=np.int32) % 4}


@pytest.mark.parametrize("op", IMAGE_OPS, ids=repr)
def test_float_images(op: Any, images: np.ndarray) -> None:
    made = ran(Augment(op, seed=2), with_labels(images))
    assert made["numpy"]["image"].dtype == np.float32
    for other in ("torch", "jax"):
        for name, column in made["numpy"].items():
            assert made[other][name].dtype == column.dtype, name
            np.testing.assert_allclose(made[other][name], column, rtol=0, atol=IMAGE_ATOL)


EXACT = (Flip(), Rot90(), Crop((20, 14), padding=4, fill=0.5), Erase(fill=0.25), Cutmix(classes=4, p=0.7))


@pytest.mark.parametrize(("ops", "levels"), [(CHAIN, 1), (EXACT, 0)], ids=["computed", "moved"])
def test_uint8_images(ops: Any, levels: int, images: np.ndarray) -> None:
    made = ran(Augment(*ops, seed=2), with_labels((images * 255).astype(np.uint8)))
    assert made["numpy"]["image"].dtype == np.uint8
    for other in ("torch", "jax"):
        apart = np.abs(made[other]["image"].astype(int) - made["numpy"]["image"])
        assert apart.max() <= levels
        assert (apart > 0).mean() < 0.01


def test_a_whole_chain_agrees_and_changes_the_images(images: np.ndarray) -> None:
    made = ran(Augment(*CHAIN, seed=4), {"image": images})
    for other in ("torch", "jax"):
        np.testing.assert_allclose(made[other]["image"], made["numpy"]["image"], rtol=0, atol=IMAGE_ATOL)
    assert made["numpy"]["image"].shape == (6, 12, 12, 3)
    assert made["numpy"]["image"].std() > 0.02
    assert made["numpy"]["image"].min() >= 0
    assert made["numpy"]["image"].max() <= 1


@pytest.mark.parametrize("op", AUDIO_OPS, ids=repr)
def test_audio(op: Any, waves: np.ndarray) -> None:
    made = ran(Augment(op, seed=3), {"audio": waves})
    for other in ("torch", "jax"):
        np.testing.assert_allclose(made[other]["audio"], made["numpy"]["audio"], rtol=0, atol=AUDIO_ATOL)
    assert made["numpy"]["audio"].dtype == np.float32
    assert not np.array_equal(made["numpy"]["audio"], waves)


def test_int16_audio_within_one_step(waves: np.ndarray) -> None:
    made = ran(Augment(Gain(3.0 / 4), AudioNoise(), Speed(), seed=3), {"audio": (waves * 32767).astype(np.int16)})
    for other in ("torch", "jax"):
        assert made[other]["audio"].dtype == np.int16
        assert np.abs(made[other]["audio"].astype(int) - made["numpy"]["audio"]).max() <= 1


@pytest.mark.parametrize(
    "op", [TimeMask(0.3), FrequencyMask(0.3, count=2), Shift(0.4, wrap=False), AudioNoise()], ids=repr
)
def test_spectrograms(op: Any) -> None:
    mel = np.random.default_rng(0).random((5, 20, 33)).astype(np.float32) + 1
    made = ran(Augment(op, seed=1, audio="mel"), {"mel": mel})
    for other in ("torch", "jax"):
        np.testing.assert_allclose(made[other]["mel"], made["numpy"]["mel"], rtol=0, atol=AUDIO_ATOL)


@pytest.mark.parametrize("dtype", [np.int32, np.int16, np.uint8])
def test_tokens_are_equal_exactly(dtype: Any) -> None:
    ids = np.random.default_rng(0).integers(0, 100, (16, 64)).astype(dtype)
    augment = Augment(TokenMask(4, special=(0, 1, 2, 3, 300)), TokenReplace(100, special=(0, 1, 2, 3), rate=0.3, p=0.5))
    made = ran(augment, {"input_ids": ids})
    for other in ("torch", "jax"):
        assert made[other]["input_ids"].dtype == dtype
        np.testing.assert_array_equal(made[other]["input_ids"], made["numpy"]["input_ids"])
    assert (made["numpy"]["input_ids"] != ids).mean() > 0.2


def test_long_recordings_resample_alike() -> None:
    """After 260,000 samples a float32 position is off by a hundredth of a sample; the fixed-point one is exact."""
    t = np.arange(1 << 18)
    wave = np.sin(2 * np.pi * t * 0.05).astype(np.float32)[None]
    made = ran(Augment(Speed((1.09, 1.1)), seed=1), {"audio": wave})
    for other in ("torch", "jax"):
        np.testing.assert_allclose(made[other]["audio"], made["numpy"]["audio"], rtol=0, atol=AUDIO_ATOL)


def test_noise_fields_have_the_same_bits() -> None:
    k0, k1 = np.array([1, 2**32 - 1], np.uint32), np.array([77, 2**31], np.uint32)
    place = np.arange(5000, dtype=np.uint32)
    ours = words(NUMPY, k0[:, None], k1[:, None], place)
    wide = (torch.from_numpy(v.astype(np.int64)) for v in (k0[:, None], k1[:, None], place))
    np.testing.assert_array_equal(words(torch_arrays(), *wide).numpy(), ours)
    for jaxed in (words, jax.jit(words, static_argnums=0)):
        made = jaxed(jax_arrays(), k0[:, None], k1[:, None], jax.numpy.asarray(place))
        np.testing.assert_array_equal(np.asarray(made), ours)


def test_jax_compiles_once_for_all_keys(images: np.ndarray) -> None:
    program.cache_clear()
    augment = Augment(*CHAIN, seed=11)
    made = [augment.jax({"image": images}, augment.keys(np.arange(6), epoch))["image"] for epoch in range(3)]
    assert program(IMAGES, augment.ops)._cache_size() == 1
    assert not np.array_equal(made[0], made[1])


def test_keys_inside_jit_are_those_of_carry_keys_or_refused(images: np.ndarray) -> None:
    """A uint64 key loses its upper half inside of `jax.jit`."""
    augment = Augment(*CHAIN, seed=11)
    batch, keys = {"image": images}, augment.keys(np.arange(6), 3)
    run = jax.jit(augment.jax)
    carried = carry_keys(batch, keys)
    expected = augment.numpy(batch, keys)["image"]
    np.testing.assert_allclose(run(carried)["image"], expected, rtol=0, atol=IMAGE_ATOL)
    np.testing.assert_allclose(run(batch, carried["augment_keys"])["image"], expected, rtol=0, atol=IMAGE_ATOL)
    for wrong in (keys, carried["augment_keys"][:5], np.zeros((6, 3), np.int32)):
        with pytest.raises(UsageError, match=r"two 32-bit words for each of 6 rows(.|\n)*ps\.carry_keys"):
            run(batch, wrong)
    with pytest.raises(UsageError, match=r"no keys(.|\n)*ps\.carry_keys"):
        run(batch)


def test_unsigned_audio_is_clipped_alike_everywhere(waves: np.ndarray) -> None:
    """NumPy used to wrap unsigned samples around at the end of their range."""
    made = ran(Augment(Gain((3, 4)), seed=3), {"audio": (waves * 200 + 100).astype(np.uint8)})
    for other in ("torch", "jax"):
        assert np.abs(made[other]["audio"].astype(int) - made["numpy"]["audio"]).max() <= 1
    assert (made["numpy"]["audio"] == 255).mean() > 0.2


def test_a_special_id_that_the_dtype_cannot_hold_protects_no_other_token() -> None:
    """300 is 44 modulo 256: torch used to leave token 44 alone."""
    ids = np.full((2, 50), 44, np.uint8)
    for column in ran(Augment(TokenMask(4, special=(300,), rate=1.0)), {"input_ids": ids}).values():
        assert (column["input_ids"] == 4).all()


@pytest.mark.parametrize("op", [Rot90(), Crop((9, 20), padding=3, fill=0.5), Erase(p=1.0), Flip(p=1.0)], ids=repr)
def test_uint16_images_move_alike(op: Any, images: np.ndarray) -> None:
    made = ran(Augment(op, seed=2), {"image": (images * 65535).astype(np.uint16)})
    for other in ("torch", "jax"):
        np.testing.assert_array_equal(made[other]["image"], made["numpy"]["image"])


@pytest.mark.parametrize("op", [*IMAGE_OPS, *AUDIO_OPS], ids=repr)
def test_the_input_is_not_written(op: Any, images: np.ndarray, waves: np.ndarray) -> None:
    """Operations write in place into arrays of their own; torch cannot mark a tensor read-only, so compare."""
    batch = {"image": images.copy(), "audio": waves.copy(), "labels": np.arange(6) % 4}
    rows = {name: column[:4] for name, column in batch.items()}
    augment = Augment(op)
    keys = augment.keys(np.arange(4))
    kept = keys.copy()
    augment.torch({name: torch.from_numpy(column) for name, column in rows.items()}, keys)
    for column in rows.values():
        column.flags.writeable = False
    augment(rows, keys)
    np.testing.assert_array_equal(batch["image"], images)
    np.testing.assert_array_equal(batch["audio"], waves)
    np.testing.assert_array_equal(keys, kept)


@dataclass(frozen=True)
class Invert(Op):
    """An operation as a contributor writes it: one class, for every framework."""

    p: float = 0.5

    def apply(self, xp: Arrays, x: Any, p: dict[str, Any]) -> Any:
        return 1 - x


def test_a_new_operation_is_one_class(images: np.ndarray) -> None:
    augment = Augment(Invert(), Flip(), seed=2)
    made = ran(augment, {"image": images})
    on = augment.params({"image": images}, augment.keys(np.arange(100, 106)))["image"][0]["on"]
    assert 0 < on.sum() < 6
    for other in ("torch", "jax"):
        np.testing.assert_array_equal(made[other]["image"], made["numpy"]["image"])
    assert augment.spec()["ops"][0] == {"op": "Invert", "p": 0.5}
