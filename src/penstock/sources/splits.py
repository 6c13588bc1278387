"""The files of a dataset folder, and the split that each belongs to, by the rules of Hugging Face `datasets`.

A split is found in this order: the `configs` that a dataset card (README.md) declares; shards named
`data/<split>-00000-of-00001.*`; a folder named like a split (`train/`, `en/train/`); a file name with the word in it
(`train.jsonl`, `wiki-validation-2.parquet`). Where no name says a split, all files are the split "train". Files whose
names say no split, among files that do, are not read. Cards, licences, hidden files and metadata are never data.

Unlike `datasets`, a split that is spelled in two ways (`dev.jsonl` beside `validation.jsonl`) is never joined, and a
file that could be in two splits is refused.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.errors import DataError, FileMissing, UsageError
from penstock.core.limits import LIMITS
from penstock.core.optional import need
from penstock.storage import filesystem

_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_CANONICAL = {word: split for split, words in _SPLITS.items() for word in words}
_APART, _WORDS = "[-._ 0-9]", "|".join(_CANONICAL)
_IN_FILE = re.compile(rf"(?:^|{_APART})({_WORDS})(?={_APART})", re.IGNORECASE)
_IN_FOLDER = re.compile(rf"(?:^|{_APART})({_WORDS})(?=$|{_APART})", re.IGNORECASE)
_SHARD = re.compile(r"data/(\w+(?:\.\w+)*?)-\d{5}-of-\d{5}[^/]*\.[^/]+")
_METADATA = {"config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json",
             "features.json", "dummy_data.zip"}  # fmt: skip
_ABOUT = {"readme", "license", "licence", "copying", "notice", "citation", "authors", "changelog", "contributing",
          "code_of_conduct", "security", "dataset_card", "datacard"}  # fmt: skip
_CARD = "README.md"
_CARD_BYTES = 1 << 20


def is_data(path: str) -> bool:
    """Whether a file of a dataset folder is data: not hidden, no card, licence or metadata.

    >>> [is_data(name) for name in ("train.jsonl", "README.md", "LICENSE", ".gitattributes", "dataset_infos.json")]
    [True, False, False, False, False]
    """
    name = path.rpartition("/")[2].lower()
    return not name.startswith(".") and name not in _METADATA and name.partition(".")[0] not in _ABOUT


def is_split(name: str) -> bool:
    """Whether a folder of this name is a split of a dataset.

    >>> is_split("train"), is_split("Val"), is_split("trains")
    (True, True, False)
    """
    return name.lower() in _CANONICAL


def data_files(
    paths: filesystem.Paths, suffixes: Sequence[str] = (), storage_options: filesystem.Options = None
) -> list[str]:
    """`filesystem.expand`, where what a folder or glob holds besides data is left out. A file named by itself stays."""
    items = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    found: dict[str, None] = {}
    for item in items:
        matches = filesystem.expand(item, storage_options, suffixes)
        single = [filesystem.local(item)] == matches or [item] == matches
        data = matches if single else [m for m in matches if is_data(m)]
        if not data and _is_folder(item, matches):
            names = sorted({os.path.basename(match) for match in matches})
            raise FileMissing(
                "files of data in a folder",
                got=f"only what describes some: {', '.join(names[:5])}",
                where=item,
                fix="copy the data too; a folder that TFDS prepared also has features.json",
            )
        found.update(dict.fromkeys(data or matches))
    if not items:
        filesystem.expand([])  # raises
    return list(found)


def refuse_several(paths: filesystem.Paths, files: Sequence[str], texts: bool = False) -> None:
    """Raises if one of the folders among `paths` holds files of several splits, which would be mixed.

    A pattern and a list say what is meant, and may name all files. `texts`: files of any name, such as documentation,
    where a word in some of the names says nothing; only a folder whose every name says a split is one of splits.
    """
    for item in [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]:
        if not _is_folder(item, files):
            continue
        root = _absolute(os.path.expanduser(item)).rstrip("/") + "/"
        names = {path: _absolute(path).removeprefix(root) for path in files if _absolute(path).startswith(root)}
        labels = _labels(names, strict=False)
        if len(set(labels.values())) > 1 and (not texts or len(labels) == len(names)):
            first = min(labels, key=lambda path: (_CANONICAL.get(labels[path]) != "train", names[path]))
            folder = item.rstrip("/")
            raise UsageError(
                "the files of one split",
                got=f"a folder with the splits {', '.join(sorted(set(labels.values())))}",
                where=item,
                fix=f"name the files of one, such as {folder}/{names[first]}, or {folder}/** for all of them",
            )


def split_files(
    paths: str | Sequence[str], split: str, *, config: str | None = None, suffixes: Sequence[str] = (),
    storage_options: filesystem.Options = None,
) -> list[str]:  # fmt: skip
    """The files of one split of a folder, a glob, a URL, a file, or of a list of them. A split not there is refused.

    Args:
        config: which of the configurations that a dataset card declares.
        suffixes: endings of the files of a folder that are read; default all.
        storage_options: of URLs.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("train-00000-of-00001.parquet", "test.parquet"): _ = (folder / name).write_bytes(b"")
    >>> [os.path.basename(path) for path in split_files(str(folder), "test")]
    ['test.parquet']
    """
    where = paths if isinstance(paths, str) else ", ".join(paths[:3])
    if "[" in split or "+" in split:
        raise UsageError(
            "one split of files, by its name", got=repr(split), where=where, fix='split="train", and .take() or .skip()'
        )
    declared = _declared(paths, config) if isinstance(paths, str) and os.path.isdir(paths) else None
    if declared is None and config is not None:
        raise UsageError(
            "a folder whose README.md declares configs", got=f"config {config!r}", where=where, fix="leave it out"
        )
    found = by_split(paths, suffixes, storage_options) if declared is None else declared
    return found[choose(list(found), split, where)]


def by_split(
    paths: str | Sequence[str], suffixes: Sequence[str] = (), storage_options: filesystem.Options = None
) -> dict[str, list[str]]:
    """The files of each split, by their names below the folder, glob or list that the user named."""
    items = [paths] if isinstance(paths, str) else list(paths)
    files = data_files(items, suffixes, storage_options)
    root = _root(items, files)
    names = {path: _absolute(path).removeprefix(root).lstrip("/") for path in files}
    labels = _labels(names)
    rest = [path for path in files if path not in labels]
    if labels and rest and not any(_is_folder(item, files) for item in items):  # each was named, none may be dropped
        if len(set(labels.values())) > 1:
            raise UsageError(
                "files whose names all say their split",
                got=f"{rest[0]} beside splits {', '.join(sorted(set(labels.values())))}",
                fix="name only the files of one split",
            )
        labels = dict.fromkeys(files, next(iter(labels.values())))
    found: dict[str, list[str]] = {}
    for path in files:
        if path in labels or not labels:
            found.setdefault(labels.get(path, "train"), []).append(path)
    return found


def _labels(names: Mapping[str, str], strict: bool = True) -> dict[str, str]:
    """The split of each file by its name, where the name says one; one that says two is refused if `strict`."""
    labels = {path: shard[1] for path, name in names.items() if (shard := _SHARD.fullmatch(name))}
    return labels or {path: word for path, name in names.items() if (word := _word(name, strict))}


def _is_folder(item: str, files: Sequence[str]) -> bool:
    if filesystem.scheme(item):
        return not glob.has_magic(item) and item not in files
    return os.path.isdir(os.path.expanduser(filesystem.local(item)))


def _word(name: str, strict: bool) -> str:
    """The word for a split in a path: of its folders, else of its file name. Empty for two of them unless `strict`."""
    folder, _, file = name.rpartition("/")
    levels = [[w.lower() for part in folder.split("/") for w in _IN_FOLDER.findall(part)], _IN_FILE.findall(file)]
    for words in levels:
        if len({_CANONICAL[word.lower()] for word in words}) > 1:
            if not strict:
                return ""
            raise UsageError(
                "a file of one split",
                got=f"a name that says {' and '.join(sorted({w.lower() for w in words}))}",
                where=name,
                fix="name the files of the split: dataset_name=[...] or a glob",
            )
        if words:
            return str(words[0]).lower()
    return ""


def choose(known: Sequence[str], split: str, where: str) -> str:
    """The name of a split among those that are there; another spelling (dev for validation) counts if it is the only.

    >>> choose(["train", "dev"], "validation", "data")
    'dev'
    """
    if split in known:
        return split
    same = [name for name in known if name in _CANONICAL and _CANONICAL[name] == _CANONICAL.get(split)]
    if len(same) == 1:
        return same[0]
    order = list(_CANONICAL)
    listed = sorted(known, key=lambda name: (order.index(name) if name in order else len(order), name))
    raise UsageError(
        "a split of the dataset" if not same else f"a split that is spelled one way, not {' and '.join(same)}",
        got=repr(split),
        where=where,
        fix=f"split= one of {', '.join(map(repr, listed))}",
    )


def _root(items: Sequence[str], files: Sequence[str]) -> str:
    """The folder below which names say the split: parents of what the user named do not count."""
    tops = []
    for item in items:
        if filesystem.scheme(item):
            plain = re.split(r"[*?\[]", item)[0]
            tops.append(_absolute(plain.rpartition("/")[0] if plain != item or item in files else plain.rstrip("/")))
            continue
        path = os.path.expanduser(filesystem.local(item))
        while not os.path.isdir(path or "."):
            path = os.path.dirname(path)
        tops.append(_absolute(path))
    parts = zip(*(top.split("/") for top in tops), strict=False)
    same = itertools.takewhile(lambda level: len(set(level)) == 1, parts)
    return "/".join(level[0] for level in same)


def _absolute(path: str) -> str:
    if filesystem.scheme(path):
        return re.sub(r"^(\w+):/+", r"\1://", path)
    return os.path.abspath(filesystem.local(path)).replace(os.sep, "/")


# What a dataset card declares.


def _declared(folder: str, config: str | None) -> dict[str, list[str]] | None:
    """The files of each split by the `configs` of a dataset card; None where it declares no files."""
    declared = _card(folder).get("configs")
    entries = [entry for entry in declared if isinstance(entry, Mapping)] if isinstance(declared, list) else []
    entries = [entry for entry in entries if entry.get("data_files") or entry.get("data_dir")]
    if not entries:
        return None
    names = [str(entry.get("config_name", "default")) for entry in entries]
    wanted = config
    if wanted is None:
        marked = [name for name, entry in zip(names, entries, strict=True) if entry.get("default") is True]
        wanted = names[0] if len(names) == 1 else next(iter(marked), "default")
    if wanted not in names:
        raise UsageError(
            "one configuration of the dataset",
            got=repr(config) if config is not None else f"{len(names)} of them",
            where=os.path.join(folder, _CARD),
            fix=f"{folder}:<config>, one of {', '.join(names[:20])}",
        )
    entry = entries[names.index(wanted)]
    base = os.path.join(folder, str(entry["data_dir"])) if entry.get("data_dir") else folder
    patterns = _patterns(entry.get("data_files"))
    if not patterns:
        return by_split(_inside(folder, base))
    return {
        split: data_files([_inside(folder, os.path.join(base, one)) for one in each])
        for split, each in patterns.items()
    }


def _patterns(declared: Any) -> dict[str, list[str]]:
    """`data_files` of a card: a pattern, a list of patterns, or a list of {split, path}."""
    if isinstance(declared, str):
        return {"train": [declared]}
    found: dict[str, list[str]] = {}
    for item in declared if isinstance(declared, list) else []:
        split, path = (item.get("split"), item.get("path")) if isinstance(item, Mapping) else ("train", item)
        found.setdefault(str(split), []).extend(str(p) for p in (path if isinstance(path, list) else [path]))
    return found


def _inside(folder: str, path: str) -> str:
    """A card is data: it must not lead out of its folder."""
    top = os.path.abspath(folder)
    if os.path.commonpath([top, os.path.abspath(path)]) != top or filesystem.scheme(path):
        raise DataError(
            "files inside the dataset's folder", got=path, where=os.path.join(folder, _CARD), fix="repair the card"
        )
    return path


def _card(folder: str) -> Mapping[str, Any]:
    """The YAML at the head of a dataset card."""
    path = os.path.join(folder, _CARD)
    if not os.path.isfile(path):
        return {}
    with filesystem.open_read(path) as file:
        text = file.read(min(_CARD_BYTES, LIMITS.manifest_bytes)).decode("utf-8", "replace").replace("\r\n", "\n")
    head = re.match(r"---\n(.*?)\n---(\n|$)", text, re.DOTALL)
    if head is None or not re.search(r"^configs\s*:", head[1], re.MULTILINE):
        return {}
    yaml = need("yaml", extra="yaml", purpose=f"to read the configs in {path}")
    try:
        found = yaml.safe_load(head[1])
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DataError(
            "YAML at the head of a dataset card", got=str(error).split("\n", 1)[0], where=path, fix="repair the card"
        ) from error
    return found if isinstance(found, Mapping) else {}
