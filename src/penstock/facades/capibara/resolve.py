"""Resolves a name to data, always in this order.

1. A dataset object: a pipeline, a source, a `datasets` object, a TFDS data source, records in a list.
2. A name registered with `register_dataset`.
3. A path, glob or URL, recognised by `sources.formats`: a token store, a `save_to_disk` folder, a folder that TFDS
   prepared, Parquet, JSON lines or text files. `sources.splits` says which files are a split; `folder:config` is a
   configuration that a dataset card declares. One text file is read by lines, several are a document each.
4. A Hugging Face dataset, as `name` or `name:config`: the local cache first, then the hub if it can be reached.
5. A TFDS dataset, as `name`, `name/config` or `name:config`: prepared under `data_dir`, or a registered builder.

When nothing matches, the error lists what was looked for where.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.core.arguments import explained_call
from penstock.core.errors import UsageError
from penstock.facades.capibara import from_hf, from_tfds
from penstock.pipeline import Pipeline
from penstock.sources import formats
from penstock.sources.hf import load_saved
from penstock.sources.hf_stream import HFStream
from penstock.sources.record_source import source_of
from penstock.sources.records import data_kind
from penstock.sources.splits import split_files
from penstock.storage import filesystem

Found = Pipeline | HFStream
Factory = Callable[..., Any]

_registered: dict[str, Factory] = {}


@dataclass(frozen=True)
class Ask:
    """The arguments of a search, and what was tried."""

    split: str = "train"
    streaming: bool = False
    data_dir: str | None = None
    text_field: str | None = None
    every_field: bool = False  # read other fields than the text too
    by_line: bool = True  # read a single text file by lines
    seed: int | None = None  # None: a stream keeps its own order
    buffer: int = 10_000
    storage_options: filesystem.Options = field(default=None, repr=False)  # of URLs
    tried: list[str] = field(default_factory=list, compare=False)


@explained_call
def register_dataset(name: str, factory: Factory) -> None:
    """Registers a dataset: `factory()` or `factory(split=...)` returns anything that `dataset_name=` takes.

    Registering a name again replaces it.

    >>> register_dataset("two-lines", lambda: ["one", "two"])
    >>> len(resolve_dataset("two-lines").rows())
    2
    """
    if not isinstance(name, str) or not name:
        raise UsageError("a name for the dataset", got=repr(name), fix='register_dataset("mine", factory)')
    if not callable(factory):
        raise UsageError("a function that returns the dataset", got=type(factory).__name__, fix="lambda: dataset")
    _registered[name] = factory


@explained_call
def resolve_dataset(name: Any, **ask: Any) -> Found:
    """Returns the pipeline (or stream) of a dataset object or name; the module describes the order.

    >>> resolve_dataset([{"text": "a"}, {"text": "b"}]).peek(1)
    [{'text': 'a'}]
    """
    return _resolve(name, Ask(**ask))


def _resolve(name: Any, ask: Ask) -> Found:
    if ask.data_dir is not None:
        filesystem.local_only(ask.data_dir, "data_dir, where TFDS keeps its data")
    if not isinstance(name, str | os.PathLike):
        return _object(name, ask)
    named = os.fspath(name)
    if named in _registered:
        return _object(_made(named, ask), ask)
    known = ", ".join(map(repr, sorted(_registered))) or "none"
    ask.tried.append(f"registered datasets: {known}")
    for look in (_path, from_hf.find, from_tfds.find):
        found = look(named, ask)
        if found is not None:
            return found if isinstance(found, Pipeline | HFStream) else _object(found, ask)
    raise UsageError(
        "the name of a dataset that can be found",
        got=repr(named),
        where="looked for\n" + "\n".join(f"    {line}" for line in ask.tried),
        fix="pass a path, register_dataset(name, factory), or a dataset object",
    )


def _made(name: str, ask: Ask) -> Any:
    from penstock.core.functions import has_parameter

    factory = _registered[name]
    made = factory(split=ask.split) if has_parameter(factory, "split") else factory()
    if made is None or (isinstance(made, str) and made == name):
        raise UsageError(f"a dataset from the function registered as {name!r}", got=repr(made))
    return _resolve(made, ask) if isinstance(made, str | os.PathLike) else made


def _object(data: Any, ask: Ask) -> Found:
    if isinstance(data, Pipeline | HFStream):
        return data
    kind = data_kind(data)
    if kind in ("hf", "hf splits", "hf stream"):
        return from_hf.open_dataset(data, ask)
    if kind == "paths":
        return _split([os.fspath(path) for path in data], ask)
    if kind == "mapping":
        raise UsageError(
            "one dataset", got=f"a dict of {', '.join(map(str, data))}", fix="several go in dataset_name={...}"
        )
    source = source_of(data)
    if source is not None:
        return Pipeline(source)
    raise UsageError(
        "a dataset: a name, a path, a pipeline, a datasets or TFDS object, or records with len() and [i]",
        got=type(data).__name__,
        fix="pass list(records) if it is small, or write it as JSON lines",
    )


# A path.


def _path(name: str, ask: Ask) -> Any:
    if name.startswith("~") and not os.path.lexists(name):
        name = os.path.expanduser(name)
    folder, _, config = name.rpartition(":")
    if os.path.isdir(folder) and not os.path.exists(name):
        return _split([folder], ask, config)
    pattern = filesystem.scheme(name) or (glob.has_magic(name) and not os.path.exists(name))
    if (
        filesystem.scheme(name)
        and (known := formats.dataset_at(name, ask.storage_options)) is not None
        and not known.needs
    ):
        return Pipeline(known.open(name, formats.Options(split=ask.split, storage_options=ask.storage_options)))
    if pattern and (filesystem.scheme(name) or glob.glob(name, recursive=True)):
        return _split([name], ask)
    if not (os.path.exists(name) or _is_megatron(name)):
        looks = os.sep in name or name.startswith(".") or re.search(r"\.\w{2,8}$", name)
        ask.tried.append(f"the path {os.path.abspath(name) if looks else name!r}: not there")
        return None
    found = formats.dataset_at(name)
    if found is None:
        return _split([name], ask)
    if found.needs:
        raise UsageError(
            f"a dataset that says its own {found.needs}",
            got=found.title,
            where=name,
            fix=f"pass penstock.{found.read} as the dataset",
        )
    if found.opener == "hf:open_path":
        return load_saved(name)  # a split is chosen, or a stream made of it, as for any dataset object
    return Pipeline(found.open(name, formats.Options(split=ask.split)))


def _is_megatron(prefix: str) -> bool:
    return formats.FORMATS["megatron"].is_at(prefix)


def _split(paths: list[str], ask: Ask, config: str | None = None) -> Pipeline:
    """One split of Parquet, JSON lines or text files."""
    storage = ask.storage_options
    suffixes = formats.suffixes_at(paths, storage)
    files = split_files(
        paths[0] if len(paths) == 1 else paths, ask.split, config=config, suffixes=suffixes, storage_options=storage
    )
    found = formats.format_of(files, storage)
    options = formats.Options(
        field=ask.text_field or "text",
        every_field=ask.every_field
        or found.name in ("parquet", "arrow", "csv"),  # of which other columns are not read until asked for
        by="line" if ask.by_line and len(files) == 1 else "file",
        storage_options=storage,
    )
    return Pipeline(found.open(files, options))
