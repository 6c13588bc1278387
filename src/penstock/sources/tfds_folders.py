"""Folders that TFDS prepared: finds them, and checks what is in them before TFDS reads it.

TFDS keeps a dataset in `name/version` or `name/config/version`. Nothing of TFDS is imported here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import orjson

from penstock.core.errors import DataError, FileMissing, UsageError
from penstock.core.limits import LIMITS
from penstock.storage import filesystem

NAMES = ("dataset_info.json", "features.json")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_CLASS_KEYS = ("pythonClassName", "python_class_name")


def is_prepared(folder: str) -> bool:
    """Whether a folder is one version of one configuration."""
    return all(os.path.isfile(os.path.join(folder, name)) for name in NAMES)


def versions_below(folder: str) -> list[str]:
    """Prepared folders one or two levels down, sorted by name.

    >>> versions_below("nowhere")
    []
    """
    found = []
    for child in _folders(folder):
        if _VERSION.fullmatch(os.path.basename(child)):
            found += [child] * is_prepared(child)
        else:
            below = (inner for inner in _folders(child) if _VERSION.fullmatch(os.path.basename(inner)))
            found += [inner for inner in below if is_prepared(inner)]
    return found


def _folders(folder: str) -> Iterator[str]:
    """Folders in a folder, by name. What the listing says is enough: no `stat` for each of many files."""
    try:
        with os.scandir(folder) as entries:
            found = [entry.path for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError:
        return
    yield from sorted(found)


def prepared_folder(path: str) -> str:
    """The prepared folder at or below a path: the only one there is. Says what is missing, or what to choose from."""
    if is_prepared(path):
        check_features(path)
        return path
    found = versions_below(path)
    if len(found) == 1:
        check_features(found[0])
        return found[0]
    if found:
        listed = ", ".join(os.path.relpath(one, path) for one in found[:20])
        raise UsageError(
            "one version of a TFDS dataset", got=f"{len(found)} of them", where=path, fix=f"add one of {listed}"
        )
    if not os.path.isdir(path):
        raise FileMissing(
            "a folder that TFDS prepared",
            got="no such folder",
            where=path,
            fix="from_tfds('~/tensorflow_datasets/mnist')",
        )
    if os.path.isfile(os.path.join(path, NAMES[0])):
        raise DataError(
            "a folder of TFDS 4 or newer, with features.json",
            got="no features.json: it was made by an old TFDS (3.2.1 or older), or not copied in full",
            where=path,
            fix="prepare the dataset again with a newer TFDS, or copy the folder again",
        )
    raise FileMissing(
        f"a folder that TFDS prepared, with {' and '.join(NAMES)}",
        got=f"neither, nor a version below: {', '.join(sorted(os.listdir(path))[:8]) or 'an empty folder'}",
        where=path,
        fix="pass the folder of the version, as ~/tensorflow_datasets/mnist/3.0.1",
    )


def check_features(folder: str) -> None:
    """Refuses a features.json that names classes outside TFDS, which TFDS would import."""
    path = os.path.join(folder, NAMES[1])
    with filesystem.open_read(path) as file:
        data = file.read(LIMITS.manifest_bytes)
    try:
        found = list(_classes(orjson.loads(data)))
    except orjson.JSONDecodeError as error:
        raise DataError(
            "a features.json of TFDS", got=f"not JSON: {error.msg}", where=path, fix="copy the folder again"
        ) from error
    for name in found:
        if not isinstance(name, str) or not name.startswith("tensorflow_datasets."):
            raise DataError(
                "features that TFDS itself defines",
                got=f"the class {name!r}",
                where=path,
                fix="code named by data is never imported; prepare the dataset with TFDS's own features",
            )


def _classes(value: Any) -> Iterator[Any]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield from (item[key] for key in _CLASS_KEYS if key in item)
            stack += item.values()
        elif isinstance(item, list):
            stack += item
