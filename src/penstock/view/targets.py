"""What a target of the command line or the viewer is, and how its media are opened."""

from __future__ import annotations

import os
from typing import Any

from penstock.core.errors import UsageError
from penstock.sources.formats import Format

FOLDERS = ("images", "audio")
MEDIA = (*FOLDERS, "tar")


def is_name(path: str) -> bool:
    """Whether it is a dataset name: no such file exists, and it is not a pattern, URL or file name."""
    if os.path.exists(path) or any(os.path.exists(path + end) for end in (".idx", ".bin")):
        return False
    plain = "://" not in path and not any(c in path for c in "*?[") and not os.path.isabs(path)
    return plain and not os.path.splitext(path)[1] and path.count("/") <= 1


def open_media(paths: list[str], found: Format, storage_options: Any = None) -> Any:
    """Opens a folder of images or audio, one file of them, or tar shards; files not in class folders have no labels."""
    from penstock.sources.folders import AudioFolder, ImageFolder
    from penstock.sources.media_paths import is_list
    from penstock.sources.tar import TarShards

    if found.name == "tar":
        return TarShards(paths, index=None)  # looking at a shard writes nothing beside it
    path = paths if len(paths) > 1 else paths[0]
    kind = ImageFolder if found.name == "images" else AudioFolder
    if is_list(path):  # named one by one: folders of the files are not classes
        return kind(path, labels=None, storage_options=storage_options)
    try:
        return kind(path, storage_options=storage_options)
    except UsageError:  # files that are not in class folders
        return kind(path, labels=None, storage_options=storage_options)
