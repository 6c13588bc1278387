"""What `info` and `peek` show of images, audio and tar shards: headers only, nothing is decoded."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np

from penstock.core.columns import row
from penstock.core.errors import RecordError
from penstock.sources.formats import Format
from penstock.view.targets import FOLDERS, open_media
from penstock.view.targets import MEDIA as KINDS

__all__ = ["FOLDERS", "KINDS", "facts", "first"]
_PROBED = 200  # files whose headers `info` reads


def facts(path: str, found: Format) -> dict[str, Any]:
    """The description of a folder of images or audio, or of tar shards."""
    source = open_media([path], found)
    described = {
        name: value for name, value in source.describe().items() if name not in ("root", "files") and value != []
    }
    if found.name == "tar":
        return described
    picked = np.unique(np.linspace(0, len(source) - 1, min(len(source), _PROBED)).astype(np.int64)).tolist()
    heads = [_head(found.name, os.path.join(source.root, source.names[i])) for i in picked]
    good = [head for head in heads if "error" not in head]
    described |= {"headers_read": len(heads), "headers_damaged": len(heads) - len(good)}
    described["formats"] = dict(Counter(head["format"] for head in good))
    numbers = ("width", "height") if found.name == "images" else ("sample_rate", "seconds")
    for name in numbers if good else ():
        values = [head[name] for head in good]
        described[name] = f"{min(values)} to {max(values)}" if min(values) < max(values) else values[0]
    return described


def first(paths: list[str], found: Format, rows: int) -> list[dict[str, Any]]:
    """`{"where", "record"}` or `{"where", "error"}` of the first records."""
    source = open_media(paths, found)
    shown = []
    for i in range(min(rows, len(source))):
        where = source.locate(i)
        if found.name == "tar":
            record = {name: _part(value) for name, value in row(source.read(np.array([i])), 0).items()}
            shown.append({"where": f"{where['file']}, record {i}", "record": record})
            continue
        head = _head(found.name, where["file"])
        known = {"error": head["error"]} if "error" in head else {"record": head | _label(where)}
        shown.append({"where": where["file"]} | known)
    return shown


def _head(name: str, path: str) -> dict[str, Any]:
    from penstock.codecs.audio.probe import probe as probe_audio
    from penstock.codecs.image.probe import probe as probe_image

    size = {"bytes": os.path.getsize(path)}
    try:
        if name == "images":
            image = probe_image(path)
            return {
                "format": image.format,
                "width": image.width,
                "height": image.height,
                "channels": image.channels,
            } | size
        sound = probe_audio(path)
        rate = {"sample_rate": sound.sample_rate, "channels": sound.channels, "seconds": round(sound.seconds, 3)}
        return {"format": sound.format} | rate | size
    except RecordError as error:
        return {"error": str(error)}


def _label(where: dict[str, Any]) -> dict[str, Any]:
    return {name: where[name] for name in ("class", "label") if name in where}


def _part(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode() if len(value) < 4096 else f"{len(value):,} bytes"
    except UnicodeDecodeError:
        return f"{len(value):,} bytes"
