"""Records of anything, by number or in a row, and what a prompt engine makes of them.

`records_of` takes a datasets.Dataset, a list or other sequence of dicts, a JSON-lines path (or a .json file that is one
array), a pipeline, or a source. Records come whole, as plain dicts; JSON lines need not all have the same fields.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import orjson

from penstock import _files, _hash
from penstock._code import code_id
from penstock._errors import DataError, LimitError, PenstockError, RecordError, UsageError, UserCodeError
from penstock._limits import LIMITS
from penstock._ship import shipped
from penstock.columns import row as row_of
from penstock.sources import json_fields
from penstock.sources.hf import HFDataset
from penstock.sources.jsonl import SUFFIXES
from penstock.sources.lines import LineFiles, place
from penstock.text.prompts.engine import PromptEngine

Record = Mapping[str, Any]
_ENGINE_FACTS = ("mask", "max_length", "truncation", "system", "boundary", "specials", "turn")


class Records(Protocol):
    """Records by number. `read` gives, for each number, the record or the error that stands in its place."""

    def __len__(self) -> int: ...

    def read(self, numbers: Sequence[int]) -> list[Any]: ...

    def name(self, number: int) -> str: ...

    def fingerprint(self) -> str: ...


class Listed:
    """A sequence of dicts in memory, or anything with `len` and `[i]`."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        return [self.items[n] for n in numbers]

    def name(self, number: int) -> str:
        return f"record {number}"

    def fingerprint(self) -> str:
        """By content where it is plain data, else by kind and length."""
        if not isinstance(self.items, list | tuple):
            return f"{type(self.items).__module__}.{type(self.items).__qualname__}:{len(self)}"
        option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS
        try:
            return _hash.content_id(orjson.dumps(item, option=option) for item in self.items)
        except TypeError:
            return f"objects:{len(self)}"


class HFRecords:
    """A datasets.Dataset, read as it reads itself: its format, transforms and decoded features are kept."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        return list(self.dataset.__getitems__([int(n) for n in numbers])) if len(numbers) else []

    def name(self, number: int) -> str:
        return f"record {number}"

    def fingerprint(self) -> str:
        return HFDataset(self.dataset.with_format(None)).fingerprint()


class JsonRecords:
    """JSON-lines files, each line as it was written."""

    def __init__(self, paths: Any) -> None:
        self.lines = LineFiles(paths, limits=LIMITS, suffixes=SUFFIXES)

    def __len__(self) -> int:
        return len(self.lines)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        data, bad = self.lines.fetch(np.asarray(numbers, np.int64))
        out: list[Any] = []
        errors = {error.row: error for error in bad}
        for at, line in enumerate(data):
            try:
                out.append(errors[at] if at in errors else self._record(line, int(numbers[at])))
            except RecordError as error:
                out.append(error)
        return out

    def _record(self, line: bytes, number: int) -> dict[str, Any]:
        record = json_fields.load(line, "")
        if not json_fields.shallow(record, LIMITS.json_depth):
            raise RecordError(
                f"at most {LIMITS.json_depth} levels of JSON", got="more", where=self.name(number), fix="flatten it"
            )
        return record

    def name(self, number: int) -> str:
        at = self.lines.locate(int(number))
        return place(at["file"], at["line"], at["offset"])

    def fingerprint(self) -> str:
        return _hash.content_id(["json lines", *(_hash.file_id(path) for path in self.lines.paths)])


class SourceRecords:
    """A penstock source, or a pipeline's rows."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        columns = self.source.read(np.asarray(numbers, np.int64))
        return [row_of(columns, i) for i in range(len(numbers))]

    def name(self, number: int) -> str:
        facts = self.source.locate(int(number))
        return ", ".join(f"{k} {v}" for k, v in facts.items())

    def fingerprint(self) -> str:
        return str(self.source.fingerprint())


def records_of(data: Any) -> Records:
    """The records of whatever holds them; what cannot be read by number is refused, with what to do.

    >>> records_of([{"a": 1}]).read([0])
    [{'a': 1}]
    """
    datasets = sys.modules.get("datasets")  # whoever holds one of its objects has imported it
    if datasets is not None and isinstance(data, datasets.Dataset):
        return HFRecords(data)
    if datasets is not None and isinstance(data, datasets.DatasetDict | datasets.IterableDatasetDict):
        raise UsageError(
            "one split of a dataset",
            got=f"a {type(data).__name__} of {', '.join(map(repr, data))}",
            fix=f"choose one: dataset[{next(iter(data), 'train')!r}]",
        )
    if isinstance(data, str | os.PathLike):
        return _file_records(os.fspath(data))
    if hasattr(data, "definition") and hasattr(data, "rows"):
        return SourceRecords(data.rows())
    if all(hasattr(data, verb) for verb in ("read", "fingerprint", "locate", "__len__")):
        return SourceRecords(data)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, Mapping | bytes):
        return Listed(data)
    raise UsageError(
        "records that can be read by number: a datasets.Dataset, a list of dicts, a JSON-lines path or a pipeline",
        got=f"a {type(data).__name__} without len() and [i]",
        fix="use StreamingPreprocessedDataset, or create_preprocessed_dataset(..., streaming=True), for a stream",
    )


def _file_records(path: str) -> Records:
    if not path.endswith(".json"):
        return JsonRecords(path)
    with _files.open_read(path) as file:
        head = file.read(64).lstrip()
        if not head.startswith(b"["):
            return JsonRecords(path)
    size = _files.stamp(path).size
    if size > LIMITS.record_bytes:
        raise LimitError(
            f"a JSON array of at most {LIMITS.record_bytes} bytes",
            got=f"{size}",
            where=path,
            fix="write one record a line (.jsonl), which is read piece by piece",
        )
    with _files.open_read(path) as file:
        chunks = []
        while block := file.read(1 << 22):
            chunks.append(block)
    try:
        return Listed(orjson.loads(b"".join(chunks)))
    except orjson.JSONDecodeError as error:
        raise DataError("a JSON array of records", got=str(error), where=path, fix="repair the file") from error


class Prompted:
    """Records through a prompt engine: a row, None where the engine skips, or an error that names the record."""

    def __init__(self, engine: Callable[..., Any]) -> None:
        if not callable(engine):
            raise UsageError(
                "prompt_engine= a PromptEngine or a function from a record to a dict",
                got=repr(engine)[:80],
                fix="PromptEngine(tokenizer, template), or lambda record: {...}",
            )
        self.engine = engine

    def __getstate__(self) -> dict[str, Any]:
        return shipped(self.__dict__)

    @cached_property
    def identity(self) -> str:
        """What the engine is, as far as a state should notice."""
        if isinstance(self.engine, PromptEngine):
            facts = {name: getattr(self.engine, name) for name in _ENGINE_FACTS}
            return f"PromptEngine {facts} {code_id(self.engine.template)}"
        known = hasattr(self.engine, "__code__") or hasattr(self.engine, "func")
        return code_id(self.engine) if known else f"{type(self.engine).__module__}.{type(self.engine).__qualname__}"

    def __call__(self, record: Any, name: Callable[[], str]) -> dict[str, Any] | None:
        if isinstance(record, PenstockError):
            if not record.where:
                record.where = name()
            raise record
        try:
            made = self.engine(record, where=name()) if isinstance(self.engine, PromptEngine) else self.engine(record)
        except PenstockError as error:
            if not error.where:
                error.where = name()
            raise
        except Exception as error:
            raise UserCodeError(
                f"{_called(self.engine)} to make a row of the record",
                got=f"{type(error).__name__}: {str(error)[:300]}",
                where=name(),
                fix="mend the function or the record; skip_errors=True leaves such records out and counts them",
            ) from error
        if made is None:
            return None
        if not isinstance(made, Mapping):
            raise UserCodeError(
                f"a dict, or None to skip the record, from {_called(self.engine)}",
                got=f"{type(made).__name__}: {str(made)[:80]}",
                where=name(),
                fix="return {'input_ids': ..., 'labels': ...}",
            )
        return dict(made)

    def pad_token_id(self) -> int:
        """What to pad token ids with: the tokenizer's own, else 0. The attention mask and labels hide it either way."""
        tokenizer = getattr(getattr(self.engine, "encoder", None), "tokenizer", None)
        found = getattr(tokenizer, "pad_id", None)
        if found is None:
            found = getattr(tokenizer, "eos_id", None)
        return 0 if found is None else int(found)


def _called(engine: Any) -> str:
    return str(getattr(engine, "__qualname__", type(engine).__name__)).rpartition("<locals>.")[2]


class RowCollate:
    """What rows are collated with where nobody says: token rows are padded, others are left to torch."""

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        from penstock.batching.collate import create_collate_fn
        from penstock.outputs.torch_data import data

        if rows and "input_ids" in rows[0]:
            return create_collate_fn(self.pad_token_id)(rows)
        return data.default_collate([dict(row) for row in rows])
