"""`convert`: tokenised documents from one format into another, without tokenising again.

The result appears complete or not at all. Documents, their order and their boundaries are kept exactly; what else the
target cannot hold is listed in the result.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from penstock.core import local_files
from penstock.core.arguments import explained_call
from penstock.core.columns import Ragged
from penstock.core.errors import DataError, UsageError
from penstock.core.progress import progress
from penstock.plan.definition import Definition
from penstock.preparation.commit import writing
from penstock.preparation.converted_place import LocalPlace, Place, RemotePlace
from penstock.preparation.journal import MANIFEST, wipe
from penstock.preparation.output import Output, checked_place
from penstock.preparation.run import prepare
from penstock.preparation.token_input import InputOptions, TokenInput, in_memory, tar_records, token_input
from penstock.preparation.token_outputs import SHARD_TOKENS, MDSOutput, MegatronOutput, StoreOutput, TokenOutput
from penstock.preparation.tokenize import text_source
from penstock.sources import formats
from penstock.sources.base import PipelineLike, TextSource
from penstock.sources.mds import MDSDataset
from penstock.sources.mds_index import NAME as INDEX
from penstock.sources.records import data_kind
from penstock.storage.filesystem import scheme

Target = Literal["store", "megatron", "mds"]


@dataclass
class Converted:
    """The result of `convert`. `lost` says what of the input the target cannot hold."""

    path: str
    to: str
    documents: int
    tokens: int
    bytes: int
    seconds: float
    lost: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@explained_call
def convert(
    source: Any,
    out: str | os.PathLike[str],
    to: Target = "store",
    *,
    column: str | None = None,
    columns: Sequence[str] | None = None,
    dtype: Any = None,
    eos_id: int | None = None,
    vocab_size: int | None = None,
    tokenizer: Any = None,
    field: str = "text",
    split: str | None = None,
    compression: Literal["zstd", "gz"] | None = None,
    shard_tokens: int = SHARD_TOKENS,
    size_limit: int = 1 << 26,
    restart: bool = False,
    show_progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
) -> Converted:
    """Converts tokenised documents to a token store, Megatron's `.bin` and `.idx`, or MosaicML MDS.

    The result appears complete or not at all; an interrupted conversion begins again. Holds about four million tokens
    in memory, or the longest document.

    Args:
        source: paths (a token store, Megatron, nanoGPT, Dolma, MDS; or records with token ids: JSON lines, Parquet,
            tar shards, a saved Hugging Face dataset), a dataset in memory, or a pipeline.
        out: a folder or URL, or Megatron's prefix; it must not exist.
        column: of records, the one with token ids; default "input_ids" or "tokens".
        columns: other columns to keep; default all columns of numbers.
        dtype: of ids in files or columns that do not state it.
        eos_id: the id that ends documents, in files without a document table.
        vocab_size: checked for every id; sets the type in which a store keeps them. Default: what the input says.
        tokenizer: tokenise the texts in `field` instead; only to a store.
        split: of a dataset that has splits.
        compression: of the shards of MDS.
        shard_tokens: tokens in a shard of a store, at least.
        size_limit: bytes of a shard of MDS.
        restart: replace what an earlier conversion wrote to `out`.
        storage_options: for URLs, of the source and of `out`.
        single_writer: nothing else writes to the URL `out`: needed if its storage ignores conditional puts.

    >>> import tempfile, penstock as ps
    >>> out = tempfile.mkdtemp() + "/web"
    >>> convert(ps.open_tokens([5, 6, 7, 8], [0, 3, 4]), out, "megatron").documents
    2
    >>> [row["input_ids"].tolist() for row in ps.open_megatron(out).peek()]
    [[5, 6, 7], [8]]
    """
    if to not in get_args(Target):
        raise UsageError('to="store", "megatron" or "mds"', got=repr(to), fix='to="store"')
    began = time.perf_counter()
    target = checked_place(out)
    options = InputOptions(column, columns, dtype, eos_id, split, storage_options)
    if tokenizer is not None:
        return _tokenised(
            source, tokenizer, field, target, to, options, restart, show_progress, shard_tokens, single_writer
        )
    found = token_input(source, options)
    if vocab_size is not None:
        found.vocab_size = vocab_size

    def made(place: Place | None, name: Path) -> TokenOutput:
        if place is None:
            return MegatronOutput(name, found)
        if to == "megatron":
            return MegatronOutput(name, found, place)
        return (
            StoreOutput(place, found, shard_tokens)
            if to == "store"
            else MDSOutput(place, found, compression, size_limit)
        )

    if scheme(target):
        return _remote(target, to, found, made, restart, single_writer, show_progress, options, began)
    place = Path(target)
    with local_files.writing(str(place)):
        place.parent.mkdir(parents=True, exist_ok=True)
    with local_files.writing(str(place)), local_files.lock(str(place.with_name(f".{place.name}.lock")), "converting"):
        _make_room(place, to, restart)
        output = made(None if to == "megatron" else LocalPlace(place), place)
        documents, tokens, size = _copy(found, output, show_progress)
    lost = [*found.lost, *output.lost]
    return Converted(str(place), to, documents, tokens, size, time.perf_counter() - began, lost)


def _remote(
    url: str, to: str, found: TokenInput, made: Callable[[Place | None, Path], TokenOutput], restart: bool,
    single_writer: bool, show: bool | None, options: InputOptions, began: float,
) -> Converted:  # fmt: skip
    """Makes the files in a temporary folder and creates each once at the URL, what makes them a dataset last."""
    parent, _, base = url.rstrip("/").rpartition("/")
    base = base.removesuffix(".bin").removesuffix(".idx")
    output = Output(parent if to == "megatron" else url, options.storage_options)
    with writing(output, single_writer=single_writer), output.scratch() as folder:
        _make_remote_room(output, to, base, restart)
        converted = made(RemotePlace(output, folder), folder / base)
        documents, tokens, size = _copy(found, converted, show)
    lost = [*found.lost, *converted.lost]
    return Converted(url.rstrip("/"), to, documents, tokens, size, time.perf_counter() - began, lost)


def _make_remote_room(output: Output, to: str, base: str, restart: bool) -> None:
    """Refuses to write beside anything; with `restart` deletes an earlier result of the same kind first."""
    if to == "megatron":
        there = [name for name in (f"{base}.bin", f"{base}.idx") if output.exists(name)]
        same = True
    else:
        there = list(output.sizes())
        same = {"store": MANIFEST, "mds": INDEX}[to] in there
    if there and not (restart and same):
        raise UsageError(
            "a place where nothing is yet", got=f"{there[0]}, which exists", where=output.path(there[0]),
            fix="choose another name" + (", or pass restart=True (--restart) to replace it" if same else ""),
        )  # fmt: skip
    if there and to == "store":
        wipe(output)
    elif there:
        ours = re.compile(r"shard\.\d+\.mds(\.\w+)?") if to == "mds" else re.compile(".*")
        output.delete([name for name in (INDEX, *there) if name == INDEX or ours.fullmatch(name)])


def _copy(source: TokenInput, output: TokenOutput, show: bool | None) -> tuple[int, int, int]:
    documents = tokens = 0
    try:
        with progress(source.total, "documents", "converting", show) as bar:
            for ids, columns in source.blocks():
                _check_ids(ids, source.vocab_size, documents)
                output.add(ids, columns)
                documents += len(ids)
                tokens += int(ids.offsets[-1] - ids.offsets[0])
                bar.update(len(ids))
        if not documents:
            raise DataError("at least one document to convert", got="none", where=source.title, fix="check the input")
        return documents, tokens, output.finish()
    except BaseException:
        output.abort()
        raise


def _check_ids(ids: Ragged, vocab_size: int | None, first: int) -> None:
    values = ids.values[ids.offsets[0] : ids.offsets[-1]]
    if vocab_size is None or not len(values) or (int(values.max()) < vocab_size and int(values.min()) >= 0):
        return
    at = int(np.argmax((values >= vocab_size) | (values < 0)))
    document = int(np.searchsorted(ids.offsets - ids.offsets[0], at, "right")) - 1
    raise DataError(
        f"token ids in [0, {vocab_size}), the vocabulary", got=f"id {int(values[at])}",
        where=f"document {first + document}", fix="pass the vocabulary size of the tokenizer that made these ids",
    )  # fmt: skip


def _make_room(place: Path, to: str, restart: bool) -> None:
    """Refuses to write over anything but, with `restart`, an earlier result of the same kind."""
    if to == "megatron":
        base = place.name.removesuffix(".bin").removesuffix(".idx")
        there = [path for end in (".bin", ".idx") if (path := place.with_name(base + end)).exists()]
    else:
        there = [place] if place.exists() and not (place.is_dir() and not any(place.iterdir())) else []
    if not there:
        return
    kind = None if to == "megatron" else formats.dataset_at(str(place))
    same = to == "megatron" or (place.is_dir() and kind is not None and kind.name == to)
    if not restart or not same:
        raise UsageError(
            "a place where nothing is yet", got=f"{there[0].name}, which exists", where=str(there[0]),
            fix="choose another name" + (", or pass restart=True (--restart) to replace it" if same else ""),
        )  # fmt: skip


def _tokenised(
    source: Any, tokenizer: Any, field: str, place: str, to: str, options: InputOptions, restart: bool,
    show: bool | None, shard_tokens: int, single_writer: bool,
) -> Converted:  # fmt: skip
    """Texts go through `prepare`, as everywhere."""
    if to != "store":
        raise UsageError(
            "a store as the target of texts", got=f"to={to!r} with a tokenizer",
            fix='convert to a store first, and that to the other format: to="store"',
        )  # fmt: skip
    began = time.perf_counter()
    settings: dict[str, Any] = {"restart": restart, "show_progress": show, "shard_tokens": shard_tokens}
    texts = _texts(source, field, options, settings)
    if scheme(place):
        settings |= {"storage_options": options.storage_options, "single_writer": single_writer}
    made = prepare(texts, tokenizer, place, **settings)
    lost = ["all columns but the text"]
    seconds = time.perf_counter() - began
    return Converted(made.path, to, made.documents, made.tokens, made.bytes, seconds, lost)


def _texts(source: Any, field: str, options: InputOptions, settings: dict[str, Any]) -> TextSource:
    if isinstance(source, PipelineLike):
        source.definition.refuse_shard("convert()")
        return text_source(source.definition, field, settings)
    if data_kind(source) != "paths":
        return text_source(Definition(in_memory(source)), field, settings)
    listed = [os.fspath(path) for path in ([source] if isinstance(source, str | os.PathLike) else source)]
    found = formats.format_of(listed[0] if len(listed) == 1 else listed, options.storage_options)
    if found.name == "mds":
        dataset = MDSDataset(listed, columns=[field], split=options.split, storage_options=options.storage_options)
        return text_source(Definition(dataset), field, settings)
    if found.name == "tar":
        return text_source(tar_records(listed, options.storage_options), field, settings)
    opened = found.open(
        listed if found.one_pass else listed[0],
        formats.Options(field=field, split=options.split or "train", storage_options=options.storage_options),
    )
    return opened if found.one_pass else text_source(Definition(opened), field, settings)
