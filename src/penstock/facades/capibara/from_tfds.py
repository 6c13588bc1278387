"""TFDS datasets by object, folder and name, without TensorFlow.

A name is looked for among what is prepared under `data_dir` (else where TFDS keeps its data), then among the builders
that the program has registered. A registered builder that is not prepared is prepared, as ArrayRecord files.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from penstock.core.signals import surface
from penstock.pipeline import Pipeline
from penstock.sources.tfds import TFDSource, tfds_module

if TYPE_CHECKING:
    from penstock.facades.capibara.resolve import Ask

_NAME = re.compile(r"\w{1,96}([/:][\w.-]{1,96}){0,2}")


def find(name: str, ask: Ask) -> Any:
    """A dataset by name; None, and lines in `ask.tried`, if there is none."""
    if not _NAME.fullmatch(name):
        ask.tried.append("TFDS: not a dataset's name")
        return None
    if find_spec("tensorflow_datasets") is None:
        ask.tried.append("TFDS: the package 'tensorflow_datasets' is not installed (pip install 'penstock-data[tfds]')")
        return None
    tfds = tfds_module()
    full = name.replace(":", "/", 1) if "/" not in name and not re.search(r":\d", name) else name
    where = os.path.expanduser(ask.data_dir or str(tfds.core.constants.DATA_DIR))
    try:
        builder = _prepared(tfds, full, where, ask) or _registered(tfds, full, where, ask)
    except Exception as error:  # a builder's own code, or its download
        surface(error)
        ask.tried.append(f"TFDS builder {full!r}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return None
    return None if builder is None else Pipeline(TFDSource.open(builder, ask.split))


def _prepared(tfds: Any, full: str, where: str, ask: Ask) -> Any:
    try:
        return tfds.core.read_only_builder.builder_from_files(full, data_dir=where)
    except (tfds.core.registered.DatasetNotFoundError, FileNotFoundError) as error:
        ask.tried.append(f"TFDS data under {where}: {' '.join(str(error).split())[:120] or 'not there'}")
        return None


def _registered(tfds: Any, full: str, where: str, ask: Ask) -> Any:
    short = full.partition("/")[0].partition(":")[0]
    registered = tfds.core.registered._DATASET_REGISTRY
    own = {n: c for n, c in registered.items() if not c.__module__.startswith("tensorflow_datasets.")}
    if short not in own:
        line = f"TFDS builders registered by this program: {', '.join(sorted(own)) or 'none'}"
        if short in registered:
            line += f"; TFDS knows {short!r}, prepare it with tfds.builder({short!r}).download_and_prepare()"
        ask.tried.append(line)
        return None
    builder = tfds.builder(full, data_dir=where, file_format="array_record")
    if not builder.is_prepared():
        builder.download_and_prepare()
    return builder
