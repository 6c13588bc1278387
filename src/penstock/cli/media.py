"""What `info` and `peek` show of images, audio and tar shards: headers only, nothing is decoded."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np

from penstock.core.columns import row
from penstock.core.errors import RecordError, UsageError
from penstock.sources.formats import Format

_PROBED = 200  # files whose headers `info` reads
KINDS = ("images", "audio", "tar")


def facts(path: str, found: Format) -> dict[str, Any]:
    """The description of a folder of images or audio, or of tar shards."""
    source = _open(path, found)
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


def first(path: str, found: Format, rows: int) -> list[dict[str, Any]]:
    """`{"where", "record"}` or `{"where", "error"}` of the first records."""
    source = _open(path, found)
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


def _open(path: str, found: Format) -> Any:
    from penstock.sources.folders import AudioFolder, ImageFolder
    from penstock.sources.tar import TarShards

    if found.name == "tar":
        return TarShards([path], index=None)  # looking at a shard writes nothing beside it
    if not os.path.isdir(path):
        raise UsageError(
            f"a folder of {found.title}",
            got="a file",
            where=path,
            fix=f"name its folder: {os.path.dirname(path) or '.'}",
        )
    kind = ImageFolder if found.name == "images" else AudioFolder
    try:
        return kind(path)
    except UsageError:  # files that are not in class folders
        return kind(path, labels=None)


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
