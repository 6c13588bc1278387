"""Synthetic audio: sines, noise and chirps, with mel spectrograms if configured.

Waveform i is a function of (seed, split, i), bit-identical on every machine; the kinds alternate. Mel spectrograms use
an FFT, so they agree between machines up to rounding. Nothing is stored; a second of 16 kHz audio takes about a
millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.audio.features import mel_spectrogram
from penstock.core import randomness
from penstock.core.arguments import explained_call, explained_class
from penstock.core.columns import Columns, strings
from penstock.core.errors import UsageError
from penstock.core.randomness import U64
from penstock.facades.artifex.audio.config import AudioModalityConfig
from penstock.facades.artifex.datasets.batches import columns_of, padded
from penstock.facades.artifex.datasets.draw import F32, F64, normal_grid, sine
from penstock.facades.artifex.datasets.generated import GeneratedDataset, checked_config, in_order, one_of
from penstock.outputs.arrays import jax_array

ARRAYS = ("audio", "mel")


def _sines(keys: U64, seconds: F64, config: AudioModalityConfig) -> F64:
    """One tone between 200 and 800 Hz, at half amplitude."""
    hertz = randomness.uniform(keys, 0, 200.0, 800.0) * _slower(config)
    return 0.5 * sine(hertz[:, None] * seconds)


def _noise(keys: U64, seconds: F64, _: AudioModalityConfig) -> F64:
    """White noise with standard deviation 0.3."""
    return 0.3 * normal_grid(keys, len(seconds)).astype(np.float64)


def _chirps(keys: U64, seconds: F64, config: AudioModalityConfig) -> F64:
    """A tone that rises linearly from 200-400 to 600-800 Hz over its full length, at half amplitude."""
    low = randomness.uniform(keys, 0, 200.0, 400.0) * _slower(config)
    high = randomness.uniform(keys, 1, 600.0, 800.0) * _slower(config)
    rise = (high - low) / (2 * config.duration)
    return 0.5 * sine(low[:, None] * seconds + rise[:, None] * (seconds * seconds))


def _slower(config: AudioModalityConfig) -> float:
    """A frequency factor: below 1 if the sample rate is too low for 800 Hz."""
    return min(1.0, 0.45 * config.sample_rate / 800.0)


AUDIO_TYPES: dict[str, Callable[[U64, F64, AudioModalityConfig], F64]] = {
    "sine": _sines,
    "noise": _noise,
    "chirp": _chirps,
}


@explained_class
class SyntheticAudioDataset(GeneratedDataset):
    """Samples `audio` (N,) float32, `audio_type`, `sample_rate`, `duration`, `index`, and `mel` (n_mels, frames).

    >>> dataset = SyntheticAudioDataset(AudioModalityConfig(duration=0.1, n_mels=20), n_samples=9)
    >>> sample = dataset[1]
    >>> sample["audio"].shape, sample["audio_type"], sample["mel"].shape
    ((1600,), 'noise', (20, 7))
    """

    def __init__(
        self,
        config: AudioModalityConfig | None = None,
        n_samples: int = 1000,
        audio_types: Sequence[str] | None = None,
        name: str = "SyntheticAudioDataset",
        split: str = "train",
        *,
        rngs: Any = None,
    ) -> None:
        super().__init__(checked_config(config, AudioModalityConfig, type(self).__name__), split, rngs=rngs)
        self.set_size(n_samples)
        self.n_samples = self._size
        self.name = name
        kinds = list(AUDIO_TYPES) if audio_types is None else audio_types
        if isinstance(kinds, str) or not len(kinds):
            raise UsageError("audio_types: a list of names", got=repr(kinds), fix='audio_types=["sine", "noise"]')
        self.audio_types = [one_of("audio_types", kind, AUDIO_TYPES) for kind in kinds]

    def read(self, indices: NDArray[np.int64]) -> Columns:
        chosen = self.check_indices(indices)
        config: AudioModalityConfig = self.config
        which = chosen % len(self.audio_types)
        audio = np.empty((len(chosen), config.samples), np.float32)
        seconds = np.arange(config.samples, dtype=np.float64) / config.sample_rate
        for number, kind in enumerate(self.audio_types):
            rows = np.flatnonzero(which == number)
            if len(rows):
                keys = self.record_keys(chosen[rows], f"audio {kind}")
                audio[rows] = AUDIO_TYPES[kind](keys, seconds, config)
        if config.normalize:
            peak = np.abs(audio).max(axis=1, keepdims=True)
            audio /= np.where(peak > 0, peak, 1)
        columns: Columns = {
            "audio": audio,
            "audio_type": strings([self.audio_types[i] for i in which.tolist()]),
            "sample_rate": np.full(len(chosen), config.sample_rate, np.int32),
            "duration": np.full(len(chosen), config.duration, np.float64),
            "index": chosen,
        }
        if config.n_mels is not None:
            columns["mel"] = self.mel(audio)
        return columns

    def mel(self, audio: F32) -> F32:
        """Computes mel spectrograms (..., n_mels, frames) of waveforms with the configured parameters."""
        c: AudioModalityConfig = self.config
        return mel_spectrogram(
            audio, c.sample_rate, n_fft=c.n_fft, hop=c.hop_length, n_mels=c.n_mels or 80, pad="constant"
        )

    def sample_from(self, columns: Columns, row: int) -> dict[str, Any]:
        return {
            name: jax_array(column[row]) if name in ARRAYS else _plain(column[row]) for name, column in columns.items()
        }

    def batch_from(self, columns: Columns) -> dict[str, Any]:
        return {
            name: jax_array(column) if name in ARRAYS else np.asarray(column).tolist()
            for name, column in columns.items()
        }

    def collate_fn(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Builds a batch from samples: waveforms and mel spectrograms are stacked, everything else is a list.

        Those of different lengths are padded with 0 to the longest; `audio_mask` and `mel_mask` are then True where
        there is sound.
        """
        if not samples:
            raise UsageError("at least one sample", got="none", where="collate_fn")
        batch: dict[str, Any] = {}
        for name, values in columns_of(samples).items():
            batch.update(padded(name, values, axis=-1) if name in ARRAYS else {name: values})
        return batch

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "audio_types": self.audio_types}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


TYPES = {"synthetic": SyntheticAudioDataset}


@explained_call
def create_audio_dataset(
    dataset_type: str = "synthetic", config: AudioModalityConfig | None = None, **options: Any
) -> SyntheticAudioDataset:
    """Creates a dataset by name: "synthetic". Further arguments go to its class.

    The first two arguments may come in either order.

    >>> len(create_audio_dataset(n_samples=12))
    12
    """
    dataset_type, config = in_order(dataset_type, config)
    return TYPES[one_of("dataset_type", dataset_type, TYPES)](config, **options)
