"""From a name to data, in one order that never varies.

1. A dataset object: a pipeline, a source, a `datasets` object, a TFDS data source, records in a list.
2. A name given to `register_dataset`.
3. A path: a token store, a `save_to_disk` folder, a folder TFDS prepared, Parquet, JSON lines or text files. One text
   file is read by lines, several are a document each.
4. A Hugging Face dataset, as `name` or `name:config`: the local cache first, then the hub if it can be reached.
5. A TFDS dataset, as `name`, `name/config` or `name:config`: prepared under `data_dir`, or a registered builder.

When nothing matches, the error lists what was looked for where.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.core.errors import UsageError
from penstock.facades.capibara import from_hf, from_tfds
from penstock.facades.capibara.records import Records
from penstock.pipeline import Pipeline
from penstock.sources import jsonl, parquet, text
from penstock.sources.base import Source
from penstock.sources.hf_stream import HFStream

Found = Pipeline | HFStream
Factory = Callable[..., Any]

_registered: dict[str, Factory] = {}


@dataclass(frozen=True)
class Ask:
    """What is looked for."""

    split: str = "train"
    streaming: bool = False
    data_dir: str | None = None
    text_field: str | None = None
    every_field: bool = False  # also those beside the text
    by_line: bool = True  # what a single text file is cut into
    seed: int | None = None  # None: a stream keeps its own order
    buffer: int = 10_000
    tried: list[str] = field(default_factory=list, compare=False)


def register_dataset(name: str, factory: Factory) -> None:
    """Gives a name to a dataset: `factory()` or `factory(split=...)` returns anything that `dataset_name=` takes.

    Registering a name again replaces what it meant.

    >>> register_dataset("two-lines", lambda: ["one", "two"])
    >>> len(resolve_dataset("two-lines").rows())
    2
    """
    if not isinstance(name, str) or not name:
        raise UsageError("a name for the dataset", got=repr(name), fix='register_dataset("mine", factory)')
    if not callable(factory):
        raise UsageError("a function that gives the dataset", got=type(factory).__name__, fix="lambda: dataset")
    _registered[name] = factory


def resolve_dataset(name: Any, **ask: Any) -> Found:
    """The pipeline (or stream) of a dataset object or name; see the module for the order.

    >>> resolve_dataset([{"text": "a"}, {"text": "b"}]).peek(1)
    [{'text': 'a'}]
    """
    return _resolve(name, Ask(**ask))


def _resolve(name: Any, ask: Ask) -> Found:
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
        fix="give a path, register_dataset(name, factory), or a dataset object",
    )


def _made(name: str, ask: Ask) -> Any:
    from penstock.steps.mapping import wants

    factory = _registered[name]
    made = factory(split=ask.split) if wants(factory, "split") else factory()
    if made is None or (isinstance(made, str) and made == name):
        raise UsageError(f"a dataset from the function registered as {name!r}", got=repr(made))
    return _resolve(made, ask) if isinstance(made, str | os.PathLike) else made


def _object(given: Any, ask: Ask) -> Found:
    if isinstance(given, Pipeline | HFStream):
        return given
    if from_hf.is_dataset(given):
        return from_hf.open_dataset(given, ask)
    if from_tfds.is_data_source(given):
        return from_tfds.open_source(given)
    if isinstance(given, Mapping):
        raise UsageError(
            "one dataset", got=f"a dict of {', '.join(map(str, given))}", fix="several go in dataset_name={...}"
        )
    if isinstance(given, Source):
        return Pipeline(given)
    if isinstance(given, Sequence) or (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        return Pipeline(Records(given))
    raise UsageError(
        "a dataset: a name, a path, a pipeline, a datasets or TFDS object, or records with len() and [i]",
        got=type(given).__name__,
        fix="pass list(records) if it is small, or write it as JSON lines",
    )


# A path.


def _path(name: str, ask: Ask) -> Any:
    if not os.path.exists(name):
        looks = os.sep in name or name.startswith(".") or re.search(r"\.\w{2,8}$", name)
        ask.tried.append(f"the path {os.path.abspath(name) if looks else name!r}: not there")
        return None
    if os.path.isdir(name):
        whole = os.path.isfile(os.path.join(name, "manifest.json"))
        found = _store(name) if whole else from_hf.saved(name) or from_tfds.prepared(name, ask)
        if found is not None:
            return found
        name = _of_split(name, ask.split)
    elif name.endswith(".tokens"):
        return _store(name)
    elif name.endswith(".arrow"):
        return from_hf.from_arrow(name)
    return _files_of(name, ask)


def _store(path: str) -> Pipeline:
    from penstock.sources.tokens import TokenStore

    return Pipeline(TokenStore(path))


def _of_split(folder: str, split: str) -> str:
    """The part of a folder that is the split: its subfolder or its file of that name, else all of it."""
    inner = os.path.join(folder, split)
    if os.path.isdir(inner):
        return inner
    named = [f for f in sorted(os.listdir(folder)) if f.partition(".")[0] == split]
    return os.path.join(folder, named[0]) if len(named) == 1 else folder


def _files_of(path: str, ask: Ask) -> Pipeline:
    """Parquet, JSON lines or text, by the names of the files."""
    from penstock.storage.filesystem import expand

    every = (*parquet.SUFFIXES, *jsonl.SUFFIXES, *text.SUFFIXES)
    names = [p.lower() for p in expand(path, suffixes=every)]
    kinds = {"parquet": parquet.SUFFIXES, "jsonl": jsonl.SUFFIXES}
    found = {next((k for k, suffixes in kinds.items() if n.endswith(suffixes)), "text") for n in names}
    if len(found) > 1:
        raise UsageError(
            "files of one format",
            got=" and ".join(sorted(found)),
            where=path,
            fix="name the files of one format with a glob, or keep each split in a folder of its own",
        )
    kind = found.pop()
    field = ask.text_field or "text"
    if kind == "parquet":
        return Pipeline(parquet.ParquetFiles(path, text=field))
    if kind == "jsonl":
        return Pipeline(jsonl.JsonlFiles(path, None if ask.every_field else field))
    return Pipeline(text.TextFiles(path, mode="line" if ask.by_line and len(names) == 1 else "file"))
