"""Reads and writes settings files: TOML and JSON, and YAML if PyYAML is installed. Nothing in a file is executed."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.core import local_files
from penstock.core.errors import DataError, UsageError
from penstock.core.optional import need
from penstock.storage.filesystem import scheme
from penstock.storage.objects import read_all

SUFFIXES = (".toml", ".yaml", ".yml", ".json")


def read(name: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the settings of a file, or of the object of a URL, in the format of its suffix."""
    path = Path(name)
    kind = _kind(path)
    if scheme(os.fspath(name)):
        text = read_all(os.fspath(name)).decode("utf-8", "replace")
    elif not path.is_file():
        raise UsageError("a file of settings", got="no such file", where=str(path))
    else:
        text = path.read_text("utf-8")
    try:
        values = _parse(text, kind)
    except ValueError as error:  # both parsers' errors are ValueErrors
        raise DataError(f"settings in {kind[1:].upper()}", got=str(error)[:200], where=str(path)) from error
    if not isinstance(values, dict):
        raise DataError("settings as names and values", got=type(values).__name__, where=str(path))
    return values


def _parse(text: str, kind: str) -> Any:
    if kind == ".toml":
        return tomllib.loads(text)
    if kind == ".json":
        return json.loads(text)
    yaml = need("yaml", extra="yaml", purpose="for settings in YAML")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def write(path: Path, values: Mapping[str, Any]) -> None:
    """Writes settings atomically. None is left out: TOML has no such value, and it is always the default."""
    plain = {k: _filled(v) for k, v in values.items() if v is not None}
    kind = _kind(path)
    if kind == ".toml":
        text = to_toml(plain)
    elif kind == ".json":
        text = json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
    else:
        text = need("yaml", extra="yaml", purpose="for settings in YAML").safe_dump(
            plain, sort_keys=False, allow_unicode=True
        )
    local_files.atomic_write(str(path), text.encode())


def to_toml(values: Mapping[str, Any]) -> str:
    """Encodes settings as TOML: flat values first, then one table per nested mapping.

    >>> print(to_toml({"seed": 1, "data": {"shapes": [64, 128], "names": {"de": "a b"}}}), end="")
    seed = 1
    <BLANKLINE>
    [data]
    shapes = [64, 128]
    names = {"de" = "a b"}
    """
    flat = [f"{k} = {_value(v)}" for k, v in values.items() if not isinstance(v, Mapping)]
    tables = [
        "\n".join([f"[{name}]", *(f"{k} = {_value(v)}" for k, v in table.items())])
        for name, table in values.items()
        if isinstance(table, Mapping)
    ]
    return "\n\n".join(["\n".join(flat), *tables] if flat else tables) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_value(v)}" for k, v in value.items()) + "}"
    raise UsageError(
        "settings of numbers, text, True, False and lists of them to save",
        got=type(value).__name__,
        fix="name the dataset (register_dataset), so that the settings can be written",
    )


def _filled(value: Any) -> Any:
    return {k: _filled(v) for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value


def _kind(path: Path) -> str:
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"a file ending in {', '.join(SUFFIXES)}", got=path.name, fix="settings.toml, for example")
    return path.suffix.lower()
