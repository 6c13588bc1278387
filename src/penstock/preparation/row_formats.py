"""How `write` stores the rows of a shard: Parquet, Arrow, JSON lines, tar. The same rows give the same bytes."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import orjson

from penstock.core.columns import Column, Columns, Ragged, row, rows_of
from penstock.core.errors import DataError, UsageError
from penstock.core.optional import need
from penstock.core.plain_json import nulls
from penstock.core.signals import surface
from penstock.sources.formats import AUDIO_SUFFIXES, IMAGE_SUFFIXES
from penstock.steps.decode_parts import decoder_of

_ROW_GROUP = 1024
_MAGIC = (
    (0, b"\xff\xd8\xff", "jpg"), (0, b"\x89PNG", "png"), (8, b"WEBP", "webp"), (0, b"GIF8", "gif"), (8, b"WAVE", "wav"),
    (0, b"fLaC", "flac"), (0, b"OggS", "ogg"), (0, b"ID3", "mp3"),
)  # fmt: skip
_MEDIA = tuple(suffix[1:] for suffix in (*IMAGE_SUFFIXES, *AUDIO_SUFFIXES))


class RowFormat(Protocol):
    """`name` of a shard by its number, and its bytes; `schema` is what the first shard decided for all of them."""

    def name(self, number: int) -> str: ...

    def encode(self, columns: Columns, first: int, schema: str) -> tuple[bytes, str]: ...


class ParquetRows:
    """Row groups of 1,024 rows; lists of numbers are lists, rows of one shape fixed-size lists."""

    def __init__(self, ipc: bool = False) -> None:
        self.ipc = ipc

    def name(self, number: int) -> str:
        return f"part-{number:05d}.{'arrow' if self.ipc else 'parquet'}"

    def encode(self, columns: Columns, first: int, schema: str) -> tuple[bytes, str]:
        pa = need("pyarrow", extra="parquet", purpose="to write Parquet and Arrow files")
        arrays = {name: _array(pa, name, column) for name, column in columns.items()}
        table = pa.table(arrays)
        if schema:
            wanted = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(schema)))
            if set(wanted.names) == set(table.column_names):
                table = table.select(wanted.names)  # sources of a mixture may order their columns differently
            try:
                table = table.cast(wanted)
            except Exception as error:
                surface(error)
                raise DataError(
                    "rows of one schema, that of the first shard", got=str(error)[:200],
                    where=f"rows from {first}",
                    fix="convert the columns in .map() so that every row has the same types",
                ) from error  # fmt: skip
        sink = io.BytesIO()
        if self.ipc:
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=_ROW_GROUP)
        else:
            parquet = need("pyarrow.parquet", extra="parquet")
            try:
                parquet.write_table(table, sink, row_group_size=_ROW_GROUP, write_page_checksum=True)
            except pa.ArrowNotImplementedError as error:  # a struct without fields
                raise UsageError(
                    "values that Parquet can hold", got=str(error)[:200],
                    fix='convert the column with .map(), leave it out with .drop(), or write format="arrow"',
                ) from error  # fmt: skip
        return sink.getvalue(), table.schema.serialize().to_pybytes().hex()


def _array(pa: Any, name: str, column: Column) -> Any:
    if not isinstance(column, Ragged) and column.ndim > 2:
        raise _unwritable(name, f"an array of shape {column.shape[1:]} in each row", "Parquet")
    objects = column.dtype == object
    column = column if objects else _native(column)
    try:
        if isinstance(column, Ragged):
            start, stop = int(column.offsets[0]), int(column.offsets[-1])
            return pa.LargeListArray.from_arrays(pa.array(column.offsets - start), pa.array(column.values[start:stop]))
        if column.ndim == 2:
            flat = pa.array(np.ascontiguousarray(column).reshape(-1))
            return pa.FixedSizeListArray.from_arrays(flat, column.shape[1])
        values = [value.tolist() if isinstance(value, np.ndarray) else value for value in column] if objects else column
        made = pa.array(values)
    except Exception as error:
        surface(error)
        raise _unwritable(name, f"{type(error).__name__}: {str(error)[:200]}", "Parquet") from error
    if objects and (lack := _first(_lacks(value, made.type) for value in values)) is not None:
        raise UsageError(
            f"the same keys in all dicts of column {name!r}: Parquet and Arrow would add {lack!r} as null",
            got=f"some without {lack!r}",
            fix='.map() them to the same keys, or write format="jsonl", which keeps each as it is',
        )
    return made


def _native(column: Column) -> Column:
    """Numbers in the byte order of this machine."""
    if isinstance(column, Ragged):
        return Ragged(column.values.astype(column.dtype.newbyteorder("="), copy=False), column.offsets)
    return column.astype(column.dtype.newbyteorder("="), copy=False)


def _lacks(value: Any, kind: Any) -> str | None:
    """A key that a dict of a value does not have, but the struct that it becomes."""
    if isinstance(value, dict):
        fields = {field.name: field.type for field in kind}
        missing = next((name for name in fields if name not in value), None)
        return missing or _first(_lacks(inner, fields[name]) for name, inner in value.items())
    if not isinstance(value, list | tuple) or not kind.num_fields:
        return None
    return _first(_lacks(inner, kind.value_type) for inner in value)


def _first(found: Iterable[str | None]) -> str | None:
    return next((one for one in found if one is not None), None)


def _unwritable(name: str, got: str, what: str) -> UsageError:
    return UsageError(
        f"values that {what} can hold in column {name!r}", got=got,
        fix='convert the column with .map(), leave it out with .drop(), or write format="webdataset"',
    )  # fmt: skip


class JsonLines:
    """One JSON object a line."""

    def __init__(self, compression: str | None) -> None:
        self.compression = compression

    def name(self, number: int) -> str:
        ends = {None: "", "gz": ".gz", "zstd": ".zst"}
        return f"part-{number:05d}.jsonl{ends[self.compression]}"

    def encode(self, columns: Columns, first: int, schema: str) -> tuple[bytes, str]:
        lines: list[bytes] = []
        for i in range(rows_of(columns)):
            try:
                lines.append(_json(_plain(row(columns, i))))
            except TypeError as error:
                raise UsageError(
                    "values that JSON can hold", got=str(error)[:200], where=f"row {first + i}",
                    fix='convert the column in .map(), leave it out with .drop(), or write format="parquet"',
                ) from error  # fmt: skip
        data = b"".join(line + b"\n" for line in lines)
        if self.compression == "gz":
            return gzip.compress(data, 6, mtime=0), ""
        if self.compression == "zstd":
            return need("zstandard", extra="zstd", purpose="to write .zst").ZstdCompressor(3).compress(data), ""
        return data, ""


def _json(value: Any) -> bytes:
    """JSON. Raises TypeError for what it cannot hold, also for NaN and Infinity, of which orjson makes null."""
    data = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    number = next((one for one in nulls(value) if one is not None), None) if b"null" in data else None
    if number is not None:
        raise TypeError(f"{number} is no number of JSON")
    return data


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    return {n: np.ascontiguousarray(v) if isinstance(v, np.ndarray) and v.ndim else v for n, v in record.items()}


class TarRows:
    """WebDataset shards: each row is the files `<key>.<part>`, a part for each column.

    The column `key` is the key, else the row's number. `parts` names the parts of columns; by default text is `.txt`,
    whole numbers `.cls`, arrays `.npy`, other values `.json`, and bytes are named by what they hold.
    """

    def __init__(self, parts: Mapping[str, str]) -> None:
        self.parts = dict(parts)

    def name(self, number: int) -> str:
        return f"shard-{number:06d}.tar"

    def encode(self, columns: Columns, first: int, schema: str) -> tuple[bytes, str]:
        names: dict[str, str] = orjson.loads(bytes.fromhex(schema)) if schema else self._named(columns)
        if len({part.lower() for part in names.values()}) != len(names):
            raise UsageError("a part of its own for each column", got=str(names), fix="parts={'column': 'extension'}")
        if odd := [part for part in names.values() if "/" in part or part[:1] in (".", "")]:
            fix = ".rename() the column, or parts={'column': 'extension'}"
            raise UsageError("parts that can end the name of a file", got=repr(odd[0]), fix=fix)
        sink = io.BytesIO()
        with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for i in range(rows_of(columns)):
                key = _key(columns, i, first)
                for name, part in names.items():
                    data = _encoded(columns[name][i], part, name, first + i)
                    info = tarfile.TarInfo(f"{key}.{part}")
                    info.size, info.mode = len(data), 0o644
                    tar.addfile(info, io.BytesIO(data))
        return sink.getvalue(), orjson.dumps(names).hex()

    def _named(self, columns: Columns) -> dict[str, str]:
        unknown = [name for name in self.parts if name not in columns]
        if unknown:
            raise UsageError(f"a column {unknown[0]!r} in parts=", got=", ".join(columns), fix="name one of these")
        return {
            name: self.parts.get(name) or _part(name, column[0] if len(column) else None)
            for name, column in columns.items()
            if name != "key"
        }


def _part(name: str, value: Any) -> str:
    ending = name.rpartition(".")[2].lower()
    if isinstance(value, bytes | bytearray | memoryview):
        known = next((end for at, magic, end in _MAGIC if bytes(value[at : at + len(magic)]) == magic), "bin")
        own = ending in _MEDIA or decoder_of(name) is None
        return known if name == "bytes" and known != "bin" else name if own and ending != "bytes" else f"{name}.{known}"
    wanted = _kind(value)
    fits = {"txt": ("txt", "text", "caption", "transcript"), "cls": ("cls", "cls2", "index", "inx", "id")}
    if wanted in fits and ending in fits[wanted] and decoder_of(name) is not None:
        return name
    if name == "label" and wanted == "cls":
        return "cls"
    return name if ending == wanted else f"{name}.{wanted}"


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "txt"
    if isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_ | np.timedelta64):
        return "cls"
    return "npy" if isinstance(value, np.ndarray) else "json"


def _key(columns: Columns, i: int, first: int) -> str:
    if "key" not in columns:
        return f"{first + i:09d}"
    key: Any = columns["key"][i]
    base = key.rpartition("/")[2] if isinstance(key, str) and key == key.encode(errors="ignore").decode() else ""
    if not base or "." in base or key.startswith("/") or ".." in key.split("/"):
        raise UsageError(
            "keys of tar records: relative paths whose last part has no dot", got=repr(key)[:80],
            where=f"row {first + i}",
            fix="map the column `key`, or leave it out with .drop('key') to number the records",
        )  # fmt: skip
    return str(key)


def _encoded(value: Any, part: str, name: str, number: int) -> bytes:
    ending = part.rpartition(".")[2].lower()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    wrong: str | None = None
    if isinstance(value, str) and ending != "json":
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            wrong = str(error)
    elif ending != "json" and _kind(value) == "json":
        wrong = f"a {type(value).__name__}" if value is not None else "None"  # as JSON it would be read as text
    if wrong is not None:
        raise _no_part(name, part, wrong, number)
    if ending == "npy":
        if np.asarray(value).dtype.kind not in "biufc":
            raise _no_part(name, part, f"an array of {np.asarray(value).dtype}", number)
        sink = io.BytesIO()
        np.save(sink, np.ascontiguousarray(value), allow_pickle=False)
        return sink.getvalue()
    if ending != "json" and isinstance(value, int | np.integer) and not isinstance(value, np.timedelta64):
        return str(int(value)).encode()
    try:
        return _json(value)
    except TypeError as error:
        raise _no_part(name, part, str(error)[:200], number) from error


def _no_part(name: str, part: str, got: str, number: int) -> UsageError:
    return UsageError(
        f"a value of column {name!r} that can be written as .{part}", got=got[:200], where=f"row {number}",
        fix=f"convert the column with .map(), leave it out with .drop(), or parts={{{name!r}: 'json'}}",
    )  # fmt: skip


FORMATS = ("parquet", "arrow", "jsonl", "webdataset")


def row_format(name: str, compression: str | None, parts: Mapping[str, str] | None) -> RowFormat:
    """The format of a name; options that it does not have are refused."""
    if compression is not None and (name != "jsonl" or compression not in ("gz", "zstd")):
        raise UsageError('compression="gz" or "zstd" with format="jsonl"', got=repr(compression), fix="leave it out")
    if parts is not None and name != "webdataset":
        raise UsageError('parts= with format="webdataset"', got=f"format={name!r}", fix="leave it out")
    if name in ("parquet", "arrow"):
        return ParquetRows(ipc=name == "arrow")
    return JsonLines(compression) if name == "jsonl" else TarRows(parts or {})
