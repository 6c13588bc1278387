"""Synthetic records of several modalities, aligned to a chosen degree.

Record i has a shared vector z of 32 numbers, its `latent`. Each modality m renders its own vector

    h_m = sqrt(a) * z + sqrt(1 - a) * u_m        a = alignment_strength, u_m private to the modality

so the correlation between the vectors of any two modalities is a: 0 makes them independent, 1 makes each a function of
the same z. `measure_alignment` recovers the vectors from the pixels, tokens and samples and measures their agreement.
Record i is a function of (seed, i); nothing is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arguments import explained_call, explained_class
from penstock.core.columns import Columns
from penstock.core.errors import UsageError
from penstock.facades.artifex.datasets.draw import normal_grid
from penstock.facades.artifex.datasets.generated import GeneratedDataset, one_of
from penstock.facades.artifex.multimodal import render
from penstock.facades.artifex.multimodal.render import LATENT

MODALITIES = ("image", "text", "audio")


@explained_class
class MultiModalDataset(GeneratedDataset):
    """Samples `image` (H, W, C), `text` (L,), `audio` (N,), `alignment_score`, `latent` (32,).

    >>> dataset = MultiModalDataset(["image", "text"], 100, image_shape=(8, 8, 3))
    >>> sample = dataset[0]
    >>> list(sample), sample["alignment_score"]
    (['image', 'text', 'alignment_score', 'latent'], 0.8)
    """

    def __init__(
        self,
        modalities: Sequence[str],
        num_samples: int = 1000,
        image_shape: tuple[int, int, int] = (32, 32, 3),
        text_vocab_size: int = 1000,
        text_sequence_length: int = 50,
        audio_sample_rate: int = 16000,
        audio_duration: float = 1.0,
        alignment_strength: float = 0.8,
        *,
        split: str = "train",
        rngs: Any = None,
    ) -> None:
        super().__init__(None, split, rngs=rngs)
        self.set_size(num_samples)
        if isinstance(modalities, str) or not modalities or len(set(modalities)) != len(modalities):
            raise UsageError(
                "modalities: a list of different names", got=repr(modalities), fix='modalities=["image", "text"]'
            )
        chosen = {one_of("modalities", name, MODALITIES) for name in modalities}
        self.modalities = [name for name in MODALITIES if name in chosen]
        if not 0.0 <= alignment_strength <= 1.0:
            raise UsageError("alignment_strength from 0 to 1", got=repr(alignment_strength))
        if len(image_shape) != 3 or min(image_shape) < 1:
            raise UsageError("image_shape as (height, width, channels)", got=repr(image_shape))
        if text_vocab_size <= render.FIRST_WORD or text_sequence_length < 1:
            raise UsageError(
                "text_vocab_size above 4 and text_sequence_length of at least 1",
                got=f"{text_vocab_size} and {text_sequence_length}",
            )
        if int(audio_sample_rate * audio_duration) < 1:
            raise UsageError("at least one sample of audio", got=f"{audio_duration} s at {audio_sample_rate} Hz")
        self.num_samples = self._size
        self.image_shape = (int(image_shape[0]), int(image_shape[1]), int(image_shape[2]))
        self.text_vocab_size, self.text_sequence_length = int(text_vocab_size), int(text_sequence_length)
        self.audio_sample_rate, self.audio_duration = int(audio_sample_rate), float(audio_duration)
        self.alignment_strength = float(alignment_strength)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        chosen = self.check_indices(indices)
        shared = self._vectors(chosen, "latent")
        columns: Columns = {}
        for name in self.modalities:
            own = self._vectors(chosen, name)
            hidden = np.sqrt(self.alignment_strength) * shared + np.sqrt(1.0 - self.alignment_strength) * own
            if name == "image":
                columns[name] = render.render_image(hidden, self.image_shape)
            elif name == "text":
                columns[name] = render.render_text(hidden, self.text_vocab_size, self.text_sequence_length)
            else:
                samples = int(self.audio_sample_rate * self.audio_duration)
                columns[name] = render.render_audio(hidden, samples, self.audio_duration)
        columns["alignment_score"] = np.full(len(chosen), self.alignment_strength, np.float32)
        columns["latent"] = shared.astype(np.float32)
        return columns

    def _vectors(self, indices: NDArray[np.int64], whose: str) -> NDArray[np.float64]:
        return normal_grid(self.record_keys(indices, f"multimodal {whose}"), LATENT).astype(np.float64)

    def sample_from(self, columns: Columns, row: int) -> dict[str, Any]:
        return {**super().sample_from(columns, row), "alignment_score": self.alignment_strength}

    def measure_alignment(self, indices: Any = None) -> dict[tuple[str, str], float]:
        """Measures the mean agreement of each pair of modalities from the data; about `alignment_strength`.

        >>> dataset = MultiModalDataset(["image", "text"], 50, alignment_strength=0.5)
        >>> abs(dataset.measure_alignment()[("image", "text")] - 0.5) < 0.1
        True
        """
        columns = self.read(np.arange(min(len(self), 256)) if indices is None else self.check_indices(indices))
        found = {name: self._recover(name, columns[name]) for name in self.modalities}
        return {
            (one, other): float(render.agreement(*_common(found[one], found[other])).mean())
            for one, other in combinations(self.modalities, 2)
        }

    def _recover(self, name: str, column: Any) -> NDArray[np.float64]:
        if name == "image":
            return render.recover_image(column)
        if name == "text":
            return render.recover_text(column, self.text_vocab_size)
        return render.recover_audio(column, self.audio_duration)

    def identity(self) -> dict[str, Any]:
        names = ("modalities", "image_shape", "text_vocab_size", "text_sequence_length", "audio_sample_rate")
        more = ("audio_duration", "alignment_strength")
        return {**super().identity(), **{name: getattr(self, name) for name in (*names, *more)}}


def _common(one: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the components that both have: a short text encodes fewer than 32."""
    shown = min(one.shape[1], other.shape[1])
    return one[:, :shown], other[:, :shown]


@explained_call
def create_synthetic_multi_modal_dataset(
    modalities: Sequence[str],
    num_samples: int = 1000,
    alignment_strength: float = 0.8,
    *,
    rngs: Any = None,
    **options: Any,
) -> MultiModalDataset:
    """Creates a `MultiModalDataset` of these modalities. Further arguments go to its class.

    >>> create_synthetic_multi_modal_dataset(["text"], 10, text_sequence_length=5)[0]["text"].shape
    (5,)
    """
    return MultiModalDataset(modalities, num_samples, alignment_strength=alignment_strength, rngs=rngs, **options)
