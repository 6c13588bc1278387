"""Configuration of audio datasets: sample rate, length, and an optional mel spectrogram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.core.arguments import explained_class
from penstock.core.errors import UsageError
from penstock.facades.artifex.datasets.config import BaseModalityConfig


@explained_class
@dataclass(frozen=True)
class AudioModalityConfig(BaseModalityConfig):
    """Waveforms of `duration` seconds at `sample_rate`; with `n_mels`, also a mel spectrogram with that many bands.

    `n_mel_channels` is an alias of `n_mels`. `normalize` scales each waveform to a peak of 1.

    >>> AudioModalityConfig(sample_rate=8000, duration=0.5).samples
    4000
    """

    sample_rate: int = 16000
    duration: float = 2.0
    n_mels: int | None = None
    hop_length: int = 256
    n_fft: int = 1024
    normalize: bool = True
    n_mel_channels: int | None = None

    def __post_init__(self) -> None:
        if self.n_mels is not None and self.n_mel_channels not in (None, self.n_mels):
            raise UsageError("n_mels or n_mel_channels", got=f"both: {self.n_mels} and {self.n_mel_channels}")
        bands = self.n_mel_channels if self.n_mels is None else self.n_mels
        object.__setattr__(self, "n_mels", bands)
        object.__setattr__(self, "n_mel_channels", bands)
        for name in ("sample_rate", "hop_length", "n_fft", "n_mels"):
            value: Any = getattr(self, name)
            if name == "n_mels" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} of at least 1", got=repr(value), where="AudioModalityConfig")
        if not self.duration > 0 or self.samples < 1:
            raise UsageError("a duration of at least one sample", got=repr(self.duration), where="AudioModalityConfig")

    @property
    def samples(self) -> int:
        """Number of samples of one waveform."""
        return int(self.sample_rate * self.duration)
