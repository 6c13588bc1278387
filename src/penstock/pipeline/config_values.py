"""Values of a pipeline's calls as plain data: what TOML, YAML and JSON can hold, and back.

Functions are named by where they are imported from, pipelines by their own configuration. Secrets are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import FunctionType
from typing import Any

import numpy as np

from penstock.core.arguments import Large
from penstock.core.errors import UsageError
from penstock.core.import_path import Allowed, import_path, imported
from penstock.core.limits import LIMITS, Limits

FUNCTION, PIPELINE, LIMITS_KEY, NAME = "function", "pipeline", "limits", "name"
MAPPING = "mapping"  # of a user's mapping whose one key would be read as one of these
ORDERED = "ordered"  # a mapping as a list of pairs: files may be written with sorted keys, and an order decides rows
NONE = "none"  # TOML has no null, and some of its writers leave one out without a word
AUGMENT, VIEWS, BOXES, KEYPOINTS = "augment", "views", "boxes", "keypoints"
_KEYS = {FUNCTION, PIPELINE, LIMITS_KEY, MAPPING, ORDERED, NONE, AUGMENT, VIEWS, BOXES, KEYPOINTS}
_SECRET = re.compile(r"key|secret|token|password|credential|sas|signature", re.IGNORECASE)
_ITEMS = 100_000


def to_plain(value: Any, where: str) -> Any:
    """A value as plain data; what is none is refused, with the argument that has it."""
    if value is None:
        return {NONE: True}
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.bool_ | np.number):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return str(np.dtype(value))
    if isinstance(value, Limits):
        changed = {f.name: getattr(value, f.name) for f in fields(value)}
        return {LIMITS_KEY: {n: v for n, v in changed.items() if v != getattr(LIMITS, n)}}
    if isinstance(value, FunctionType):
        return {FUNCTION: import_path(value, where)}
    if isinstance(value, Mapping):
        secret = "storage_options" in where
        kept = {str(k): v for k, v in value.items() if not (secret and _SECRET.search(str(k)))}
        plain = {name: to_plain(item, f"{where}[{name!r}]") for name, item in kept.items()}
        if not secret and list(plain) != sorted(plain):
            return {ORDERED: [{name: item} for name, item in plain.items()]}
        return {MAPPING: plain} if len(plain) == 1 and set(plain) <= _KEYS else plain
    if isinstance(value, Sequence) and not isinstance(value, bytes) and len(value) <= _ITEMS:
        return [to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted(to_plain(item, where) for item in value)
    if type(value).__module__.startswith("penstock.augment") and (plain := _augmentation(value, where)):
        return plain
    raise UsageError(
        "arguments that a configuration can hold: numbers, text, paths, lists, functions of a module",
        got=value.kind if isinstance(value, Large) else type(value).__name__, where=where,
        fix="write data in memory to files and read those; put objects into a function of a module",
    )  # fmt: skip


def from_plain(value: Any, functions: Allowed, where: str) -> Any:
    """The value again. Functions are imported only from modules that the caller allows."""
    if isinstance(value, Mapping):
        if set(value) == {FUNCTION}:
            return imported(value[FUNCTION], functions, where)
        if set(value) == {NONE} and value[NONE] is True:
            return None
        if set(value) == {LIMITS_KEY} and isinstance(value[LIMITS_KEY], Mapping):
            return Limits(**{str(name): item for name, item in value[LIMITS_KEY].items()})
        if set(value) == {ORDERED} and isinstance(value[ORDERED], Sequence):
            return _ordered(value[ORDERED], functions, where)
        if len(value) == 1 and set(value) <= _KEYS and isinstance(next(iter(value.values())), Mapping):
            return _made(value, functions, where)
        return {str(name): from_plain(item, functions, f"{where}[{name!r}]") for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [from_plain(item, functions, f"{where}[{i}]") for i, item in enumerate(value)]
    return value


def _ordered(pairs: Any, functions: Allowed, where: str) -> dict[str, Any]:
    """A mapping from the list of its pairs, `{name: value}` each."""
    found: dict[str, Any] = {}
    for pair in [pairs] if isinstance(pairs, str | bytes) else pairs:
        if not isinstance(pair, Mapping) or len(pair) != 1 or (name := str(next(iter(pair)))) in found:
            raise UsageError("ordered: a list of {name: value}, each name once", got=repr(pair)[:80], where=where)
        found[name] = from_plain(pair[next(iter(pair))], functions, f"{where}[{name!r}]")
    return found


def _augmentation(value: Any, where: str) -> dict[str, Any]:
    from penstock.augment import Augment, Boxes, Keypoints, Views, config

    if isinstance(value, Augment):
        return {AUGMENT: config.augment_config(value, where)}
    if isinstance(value, Views):
        return {VIEWS: config.views_config(value, where)}
    if isinstance(value, Boxes | Keypoints):
        return {BOXES if isinstance(value, Boxes) else KEYPOINTS: config.points_config(value)}
    return {}


def _made(value: Mapping[str, Any], functions: Allowed, where: str) -> Any:
    """What a mapping of one of the keys of this module stands for."""
    from penstock.augment import Boxes, Keypoints, config

    ((key, inner),) = value.items()
    if key == MAPPING:
        return {str(name): from_plain(item, functions, f"{where}[{name!r}]") for name, item in inner.items()}
    if key == AUGMENT:
        return config.augment_of(inner, functions, where)
    if key == VIEWS:
        return config.views_of(inner, functions, where)
    if key in (BOXES, KEYPOINTS):
        return config.points_of(Boxes if key == BOXES else Keypoints, inner, where)
    raise UsageError("a pipeline only where one belongs", got=repr(value)[:80], where=where)
