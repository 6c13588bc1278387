"""Pictures and sounds of the Data page: `data/image`, `data/sound`, `data/wave`, `data/mel`."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.errors import UsageError
from penstock.view import media
from penstock.view.pages import Content, Query
from penstock.view.samples import MediaSamples, open_samples
from penstock.view.session import Session


def image(session: Session, query: Query) -> Content:
    """A thumbnail of record `n`, or of its field `f`; `side` pixels, at most 1,200."""
    value, where = _value(session, query)
    return Content(media.thumbnail(value, where, query.number("side", media.SIDE, 16, 1200)), "image/jpeg")


def sound(session: Session, query: Query) -> Content:
    """The first minute as WAV."""
    return Content(media.clip(*_sound(session, query)), "audio/wav")


def wave(session: Session, query: Query) -> Content:
    """The waveform."""
    return Content(media.waveform(_sound(session, query)[0]), "image/png")


def mel(session: Session, query: Query) -> Content:
    """The mel spectrogram."""
    return Content(media.mel_picture(*_sound(session, query)), "image/png")


def _sound(session: Session, query: Query) -> Any:
    """Kept for the last few recordings: a page asks for three pictures of each."""
    kept: dict[tuple[str, str], Any] = session.keep("sounds", dict)
    key = (query.get("n", ""), query.get("f", ""))
    if key not in kept:
        if len(kept) >= 16:
            kept.pop(next(iter(kept)))
        kept[key] = media.sound(*_value(session, query))
    return kept[key]


def _value(session: Session, query: Query) -> tuple[Any, str]:
    samples = open_samples(session)
    number = query.number("n", 0, 0)
    if number >= len(samples):
        raise UsageError(f"a record below {len(samples):,}", got=str(number))
    if isinstance(samples, MediaSamples):
        return bytes(samples.source.read(np.array([number]))["bytes"][0]), str(samples.source.names[number])
    (one,) = samples.read([number])
    name = query.get("f", "")
    if name not in one.values:
        raise UsageError("a field of the record", got=name[:60], where=one.where)
    return one.values[name], f"{one.where}, {name}"
