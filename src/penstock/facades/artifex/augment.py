"""Ready-made random augmentation of images, tokens and audio from JAX keys: `augment_image(image, key)` and the like.

Each is compiled at first use and traced once per shape: another key runs the same program, and all of them may be
called inside a `jax.jit` of your own. Row i of a batch uses `fold_in(key, i)`, so it gets the same augmentation in a
batch of any size. The batch functions return a new dict and do not change their argument. Keys are
`jax.random.key(0)` or `jax.random.PRNGKey(0)`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from penstock.augment import AudioNoise, Brightness, Contrast, Flip, Gain, Noise, Rot90, Shift
from penstock.augment.arrays import apply_all
from penstock.augment.arrays_jax import jax_arrays
from penstock.augment.kinds import AUDIO, CHANNELS, IMAGES
from penstock.augment.masks import check_others
from penstock.augment.operations.tokens import ordinary, picked, random_ids
from penstock.core.arguments import explained_call
from penstock.core.errors import UsageError
from penstock.core.optional import need
from penstock.outputs.arrays import is_jax_array

Takes = Literal["row", "batch", "keys"]
SPECIAL_IDS = (0, 1, 2, 3)
"""PAD, UNK, BOS, EOS of the synthetic text datasets."""
_IMAGE = (Flip(), Rot90(), Brightness(), Contrast(), Noise())


class MissingKey(UsageError, KeyError):
    """A batch without the column that is augmented; also a KeyError."""

    __str__ = UsageError.__str__


@explained_call
def augment_image(image: Any, key: Any) -> Any:
    """Random flip, quarter turn, brightness and contrast (0.8 to 1.2) and noise (up to 0.05) of an image (H, W, C).

    Values stay in [0, 1] (uint8 in its own range). Oblong images are turned by 0 or 180 degrees.

    >>> import jax, numpy as np
    >>> augment_image(np.full((4, 4, 3), 0.5, np.float32), jax.random.key(0)).shape
    (4, 4, 3)
    """
    pixels = _array(image, "(H, W, C)", "augment_batch_jit")
    return _compiled(_image, "row")(_pixels(pixels[None], "augment_image")[0], _key(key))


@explained_call
def augment_image_batch(batch: dict[str, Any], key: Any) -> dict[str, Any]:
    """`augment_image` on every row of `batch["images"]` (N, H, W, C), each with its own randomness."""
    return {**batch, "images": augment_batch_jit(_images(batch, "augment_batch"), key)}


augment_batch = augment_image_batch


@explained_call
def augment_batch_jit(images: Any, key: Any) -> Any:
    """`augment_image` on images (N, H, W, C): one compiled program per batch.

    >>> import jax, numpy as np
    >>> augment_batch_jit(np.zeros((2, 4, 4, 3), np.float32), jax.random.key(0)).shape
    (2, 4, 4, 3)
    """
    return _compiled(_image, "batch")(
        _pixels(_array(images, "(N, H, W, C)", "augment_image"), "augment_batch"), _key(key)
    )


@explained_call
def augment_text_tokens(
    tokens: Any,
    vocab_size: int,
    key: Any,
    *,
    mask_token_id: int = 1,
    special_ids: tuple[int, ...] = SPECIAL_IDS,
) -> Any:
    """Masks 15% of the tokens (length,) and replaces 5% by random ones; ids in `special_ids` stay where they are.

    Random tokens are never special either. `vocab_size` counts all ids, special ones too.

    >>> import jax, numpy as np
    >>> augment_text_tokens(np.array([2, 9, 9, 3, 0, 0]), 100, jax.random.key(0)).tolist()[3:]
    [3, 0, 0]
    """
    return _text(tokens, vocab_size, key, mask_token_id, special_ids, "row")


@explained_call
def augment_text_batch(
    batch: dict[str, Any],
    vocab_size: int,
    key: Any,
    *,
    mask_token_id: int = 1,
    special_ids: tuple[int, ...] = SPECIAL_IDS,
) -> dict[str, Any]:
    """`augment_text_tokens` on every row of `batch["text_tokens"]` (N, length)."""
    tokens = _named(batch, "text_tokens", "augment_text_batch")
    made = _text(tokens, vocab_size, key, mask_token_id, special_ids, "batch")
    return {**batch, "text_tokens": made}


@explained_call
def augment_text_batch_jit(tokens: Any, vocab_size: int, key: Any) -> Any:
    """`augment_text_tokens` on tokens (N, length): one compiled program per batch."""
    return _text(tokens, vocab_size, key, 1, SPECIAL_IDS, "batch")


@explained_call
def augment_audio(audio: Any, sample_rate: int, key: Any) -> Any:
    """Random gain (0.7 to 1.3), circular shift (up to a tenth) and noise (up to 0.05) of a waveform (samples,), then
    scaled to a peak of 1. Silence without noise stays silence. Nothing depends on `sample_rate`, which is checked.

    >>> import jax, numpy as np
    >>> made = augment_audio(np.sin(np.arange(100.0)), 16000, jax.random.key(0))
    >>> made.shape, round(float(abs(made).max()), 5)
    ((100,), 1.0)
    """
    _check_rate(sample_rate)
    return _compiled(_audio, "row")(_array(audio, "(samples,)", "augment_audio_batch_jit"), _key(key))


@explained_call
def augment_audio_batch(batch: dict[str, Any], sample_rate: int, key: Any) -> dict[str, Any]:
    """`augment_audio` on every row of `batch["audio"]` (N, samples)."""
    return {**batch, "audio": augment_audio_batch_jit(_named(batch, "audio", "augment_audio_batch"), sample_rate, key)}


@explained_call
def augment_audio_batch_jit(audio: Any, sample_rate: int, key: Any) -> Any:
    """`augment_audio` on waveforms (N, samples): one compiled program per batch."""
    _check_rate(sample_rate)
    return _compiled(_audio, "batch")(_array(audio, "(N, samples)", "augment_audio"), _key(key))


def _jax() -> Any:
    return need("jax", extra="jax", purpose="for augmentation from JAX keys")


def _array(value: Any, shape: str, other: str) -> Any:
    """`value` as a JAX array; raises unless it has the axes that `shape` names. `other` takes one axis more or less."""
    array = need("jax.numpy", extra="jax").asarray(value)
    if array.ndim != len(shape.strip("(),").split(",")):
        raise UsageError(f"an array of shape {shape}", got=f"shape {array.shape}", fix=f"{other}() for the other shape")
    return array


def _key(key: Any) -> Any:
    if is_jax_array(key) or isinstance(key, np.ndarray):
        return key
    fix = f"jax.random.key({key})" if isinstance(key, int) else "jax.random.key(0)"
    raise UsageError("a JAX random key", got=repr(key)[:80], where="key", fix=fix)


def _pixels(images: Any, where: str) -> Any:
    """Images (N, H, W, C); raises unless their values are those that the operations know, and channels come last.

    What is compiled has no values to look at: there, images outside of the range become NaN.
    """
    height, width, channels = map(int, images.shape[1:])
    if height in CHANNELS and channels not in CHANNELS:
        raise UsageError(
            "channels as the last axis",
            got=f"rows of shape {(height, width, channels)}",
            where=where,
            fix="jax.numpy.moveaxis(images, -3, -1)",
        )
    return IMAGES.check_values(jax_arrays(), images, _IMAGE)


def _named(batch: dict[str, Any], name: str, where: str) -> Any:
    if name not in batch:
        near = difflib.get_close_matches(name, map(str, batch), 1)
        fix = f"batch[{name!r}] = batch.pop({near[0]!r})" if near else f"put the array under {name!r}"
        raise MissingKey(f"a batch with {name!r}", got=f"{sorted(map(str, batch))}", where=where, fix=fix)
    return batch[name]


def _images(batch: dict[str, Any], where: str) -> Any:
    """`batch["images"]` as a JAX array; raises for masks, boxes and second pictures beside it, which would not move."""
    images = _array(_named(batch, "images", where), "(N, H, W, C)", "augment_image")
    height, width = images.shape[1:3]
    check_others(batch, "images", frozenset(), height, width, where)
    return images


def augment_columns(batch: dict[str, Any], keys: Any, text: Any) -> dict[str, Any]:
    """Returns `images`, `audio` and `text_tokens` of a batch, those it has, augmented with one JAX key per row.

    `text` are the `TextParams` of `text_tokens`.
    """
    made = {}
    if "images" in batch:
        images = _pixels(_images(batch, "create_training_pipeline"), "create_training_pipeline")
        made["images"] = _compiled(_image, "keys")(images, keys)
    if "audio" in batch:
        made["audio"] = _compiled(_audio, "keys")(_array(batch["audio"], "(N, samples)", "augment_audio"), keys)
    if "text_tokens" in batch:
        arguments = text.vocab_size, keys, text.unk_token_id, text.special
        made["text_tokens"] = _text(batch["text_tokens"], *arguments, "keys")
    return made


@lru_cache(maxsize=64)
def _compiled(rows_of: Callable[..., Any], takes: Takes, *static: Any) -> Any:
    """`rows_of(rows, keys, *static, ...)` compiled, for one row and its key, a batch and one key, or a key per row."""
    jax = _jax()

    def program(rows: Any, key: Any, *more: Any) -> Any:
        if takes == "row":
            return rows_of(rows[None], key[None], *static, *more)[0]
        if takes == "batch":
            key = jax.vmap(jax.random.fold_in, (None, 0))(key, jax.numpy.arange(rows.shape[0]))
        return rows_of(rows, key, *static, *more)

    return jax.jit(program)


def _draw(keys: Any, fields: int, numbers: int = 0) -> tuple[list[Any], list[dict[str, Any]]]:
    """For each row: `numbers` uniform numbers in [0, 1), and the keys of `fields` noise fields. All from one call, as
    each further call adds a second of compiling."""
    jax = _jax()
    words = jax.vmap(lambda key: jax.random.bits(key, (numbers + 2 * fields,), "uint32"))(keys)
    unit = (words[:, :numbers] >> 8).astype(jax.numpy.float32) * 2.0**-24
    starts = range(numbers, numbers + 2 * fields, 2)
    return [unit[:, i] for i in range(numbers)], [{"k0": words[:, i], "k1": words[:, i + 1]} for i in starts]


def _image(images: Any, keys: Any) -> Any:
    xp = jax_arrays()
    (flips, turns, light, contrast, level), (field,) = _draw(keys, 1, 5)
    steps = 4 if images.shape[1] == images.shape[2] else 2
    drawn: tuple[dict[str, Any], ...] = (
        {"on": flips < 0.5},
        {"k": (turns * steps).astype("int32") * (4 // steps)},
        {"factor": 0.8 + 0.4 * light},
        {"factor": 0.8 + 0.4 * contrast},
        {"level": 0.05 * level, **field},
    )
    return apply_all(xp, IMAGES, _IMAGE, images, drawn)


def _audio(audio: Any, keys: Any) -> Any:
    xp = jax_arrays()
    (gain, shift, level), (field,) = _draw(keys, 1, 3)
    most = audio.shape[-1] // 10
    drawn: tuple[dict[str, Any], ...] = (
        {"factor": 0.7 + 0.6 * gain},
        {"shift": (shift * (2 * most + 1)).astype("int32") - most},
        {"level": 0.05 * level, **field},
    )
    x = apply_all(xp, AUDIO, (Gain(), Shift(), AudioNoise()), audio.astype("float32"), drawn)
    peak = xp.abs(x).max(axis=-1, keepdims=True)
    return xp.where(peak > 0, x / xp.where(peak > 0, peak, 1), x)


def _text(tokens: Any, vocab_size: int, key: Any, mask_id: int, special_ids: tuple[int, ...], takes: Takes) -> Any:
    special = tuple(sorted(set(special_ids)))
    traced = is_jax_array(vocab_size)  # inside a jitted function its value is not known
    choices = vocab_size - (len(special) if traced else sum(1 for one in special if one < vocab_size))
    if not traced and choices < 1:
        raise UsageError(
            "a vocabulary with at least one id that is not special",
            got=f"vocab_size={vocab_size}, special_ids={special}",
            where="augment_text_tokens",
            fix="pass the size of the tokenizer's vocabulary",
        )
    shape, other = ("(length,)", "augment_text_batch_jit") if takes == "row" else ("(N, length)", "augment_text_tokens")
    array = _array(tokens, shape, other)
    if array.dtype.kind not in "iu":
        fix = "tokens.astype('int32'), if these are ids"
        raise UsageError("token ids: integers", got=str(array.dtype), where="augment_text_tokens", fix=fix)
    return _compiled(_tokens, takes, mask_id, special)(array, _key(key), choices)


def _tokens(tokens: Any, keys: Any, mask_id: int, special: tuple[int, ...], choices: Any) -> Any:
    xp = jax_arrays()
    positions = xp.counters(tokens.shape[-1], tokens)
    _, fields = _draw(keys, 3)
    masks, swaps, ids = ((field["k0"][:, None], field["k1"][:, None]) for field in fields)
    free = ordinary(xp, tokens, special)
    out = xp.where(picked(xp, *masks, positions, 0.15) & free, xp.constant(mask_id, tokens), tokens)
    new = random_ids(xp, *ids, positions, choices.astype("uint32"), special).astype(tokens.dtype)
    return xp.where(picked(xp, *swaps, positions, 0.05) & free, new, out)


def _check_rate(sample_rate: int) -> None:
    if not is_jax_array(sample_rate) and not sample_rate > 0:
        raise UsageError("a sample rate above 0", got=repr(sample_rate), where="augment_audio", fix="sample_rate=16000")
