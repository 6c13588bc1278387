"""`.dedup()`: finds duplicates in one pass over a pipeline's records, and caches which they are.

Exact: 128-bit hashes of the values, about 50 bytes of memory per record. MinHash: a signature of `num_perm` numbers per
record in a temporary file (512 bytes for 128), about 60 bytes of memory per record, some 4 MB of text per second and
core. The result is one bit per record, kept under the cache folder and keyed by the content of the data, the code of
the steps before and the arguments; it depends on nothing else.

Signatures and the shape of the index are those of datasketch, which runs wherever NumPy does. rensa measured about 50
times faster on this machine; its signatures carry a version, and another one would drop other records.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from typing import IO, Any, Literal, cast

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from penstock.core.columns import Column, Columns
from penstock.core.errors import UsageError
from penstock.core.function_globals import globals_id
from penstock.core.hashing import content_id
from penstock.core.optional import need
from penstock.core.os_errors import temporary_errors
from penstock.core.plain_json import identity_json
from penstock.core.progress import Progress, progress
from penstock.order.row_set import RowSet
from penstock.plan.branches import Combined
from penstock.plan.definition import Definition
from penstock.plan.row_source import KeptRows
from penstock.preparation.kept_once import kept_once
from penstock.steps.dedup import Dedup

Method = Literal["exact", "minhash"]
_ROWS = 1024
_HEAD = b"penstock-duplicates-1\n"
_PURPOSE = "finding duplicates"
_PAIRS = 1 << 16
_SEED = 1
_SIGNATURES = "the signatures of near duplicates"
_NO_SPACES = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af"  # Japanese, Chinese, Korean: a word a character
_WORD = re.compile(rf"[{_NO_SPACES}]|[^\W{_NO_SPACES}]+")
_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS


def deduplicated(
    definition: Definition, field: str, method: Method, threshold: float, ngram: int, num_perm: int, cache_dir: Any,
    show: bool | None,
) -> Definition:  # fmt: skip
    """The definition without duplicates; they are found now unless the cache knows them."""
    _check(method, threshold, ngram, num_perm)
    if isinstance(definition.origin, Combined):
        verb = definition.origin.verb
        raise UsageError(
            "the records of one source before .dedup()", got=f"penstock.{verb}()",
            fix=f"put .dedup() before {verb}(); to find duplicates across files, read all of them with one read_*()",
        )  # fmt: skip
    rows = KeptRows(definition, ".dedup()")
    settings = (threshold, ngram, num_perm) if method == "minhash" else (None, None, None)
    ids = [globals_id(function, opaque=True) for function in definition.functions()]
    key = content_id(["dedup 1", definition.fingerprint(), *(one for one in ids if one), field, method, *settings])
    found = kept_once(
        cache_dir, ("dedup", f"{key}.bits"), _PURPOSE,
        lambda: _find(rows, field, method, threshold, ngram, num_perm, show), _packed, _unpacked,
    )  # fmt: skip
    return definition.then(Dedup(field, method, found, *settings))


def _check(method: str, threshold: float, ngram: int, num_perm: int) -> None:
    if method not in ("exact", "minhash"):
        raise UsageError('method="exact" or "minhash" in .dedup()', got=repr(method), fix='method="exact"')
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold <= 1:
        raise UsageError("a threshold above 0 and at most 1 in .dedup()", got=repr(threshold), fix="threshold=0.8")
    for name, value, least, most in (("ngram", ngram, 1, 1000), ("num_perm", num_perm, 2, 4096)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UsageError(f"{name} in [{least}, {most}] in .dedup()", got=repr(value), fix="leave it out")


def _find(
    rows: KeptRows, field: str, method: Method, threshold: float, ngram: int, num_perm: int, show: bool | None
) -> RowSet:
    records: list[NDArray[np.int64]] = []
    with progress(rows.size, "records", _PURPOSE, show) as bar:
        columns = _columns(rows, field, records, bar)
        again = _near(columns, threshold, ngram, num_perm) if method == "minhash" else _equal(columns)
    numbers = np.concatenate(records) if records else np.empty(0, np.int64)
    flags = np.zeros(int(numbers.max(initial=-1)) + 1, bool)
    if len(np.unique(numbers)) != len(numbers):
        raise UsageError(
            "every record once before .dedup()", got="a record that comes again", fix="put .repeat() after .dedup()"
        )
    flags[numbers[again]] = True
    return RowSet.of(flags)


def _columns(rows: KeptRows, field: str, records: list[NDArray[np.int64]], bar: Progress) -> Iterator[Column]:
    done = 0
    for block in rows.blocks(0, _ROWS):
        bar.update(block.stop - done)
        done = block.stop
        if len(block.positions):
            records.append(block.records)
            yield _column(block.columns, field)


def _column(columns: Columns, field: str) -> Column:
    if field not in columns:
        names = ", ".join(sorted(columns))
        raise UsageError(
            f"a column {field!r} for .dedup()", got=f"columns {names}", fix=f"field={sorted(columns)[0]!r}"
        )
    return columns[field]


def _equal(columns: Iterator[Column]) -> NDArray[np.int64]:
    """Rows whose value came before."""
    keys = [np.frombuffer(b"".join(map(value_digest, column)), "<u8").reshape(-1, 2) for column in columns]
    if not keys:
        return np.empty(0, np.int64)
    every = np.concatenate(keys)
    order = np.lexsort((every[:, 0], every[:, 1]))  # stable: of equal ones the first comes first
    same = (every[order[1:]] == every[order[:-1]]).all(axis=1)
    again: NDArray[np.int64] = order[1:][same]
    return again


def value_digest(value: Any, verb: str = ".dedup()") -> bytes:
    """A hash of text, bytes, numbers, arrays or JSON: equal for equal values."""
    if isinstance(value, str):
        return xxhash.xxh3_128_digest(b"s" + value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes):
        return xxhash.xxh3_128_digest(b"b" + value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
        return xxhash.xxh3_128_digest(f"a{value.dtype.str}{value.shape}".encode() + value.tobytes())
    try:
        return xxhash.xxh3_128_digest(b"j" + identity_json(value, _JSON))
    except TypeError as error:
        raise UsageError(
            f"values that can be compared in {verb}: text, bytes, numbers, arrays or JSON", got=str(error)[:200],
            fix="name another column: field=",
        ) from error  # fmt: skip


def _near(columns: Iterator[Column], threshold: float, ngram: int, num_perm: int) -> NDArray[np.int64]:
    """Rows that are not the first of their group of near duplicates.

    Records that share a band of their signatures are compared with the first record of it; those whose estimated
    Jaccard similarity reaches the threshold are in one group, and so are the groups that they connect.
    """
    sketch = need("datasketch", extra="dedup", purpose="to find near duplicates")
    graph = need("scipy.sparse", extra="dedup", purpose="to find near duplicates")
    components = need("scipy.sparse.csgraph", extra="dedup").connected_components
    index = sketch.MinHashLSH(threshold=threshold, num_perm=num_perm)
    with _signature_file() as file:
        rows = 0
        for column in columns:
            shingles = [_shingles(value, ngram) for value in column]
            made = sketch.MinHash.generator(shingles, num_perm=num_perm, seed=_SEED, hashfunc=_hash32)
            found = np.array([one.hashvalues for one in made], "<u4")
            _append(file, found.tobytes())
            rows += len(found)
        if not rows:
            return np.empty(0, np.int64)
        signatures = np.memmap(file, "<u4", "r", shape=(rows, num_perm))
        pairs = [_alike(signatures, band * index.r, index.r, threshold) for band in range(index.b)]
        first, other = (np.concatenate(side) for side in zip(*pairs, strict=True))
        del signatures
    edges = graph.coo_matrix((np.ones(len(first), np.int8), (first, other)), shape=(rows, rows))
    _, group = components(edges, directed=False)
    kept = np.unique(group, return_index=True)[1]
    return np.setdiff1d(np.arange(rows), kept)


def _signature_file() -> IO[bytes]:
    with temporary_errors(_SIGNATURES):
        return cast("IO[bytes]", tempfile.TemporaryFile(prefix="penstock-", buffering=0))


def _append(file: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        with temporary_errors(_SIGNATURES):
            rest = rest[file.write(rest) :]  # a file without a buffer may take a part


def _alike(signatures: NDArray[Any], start: int, width: int, threshold: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Pairs of records that are equal in a band and alike: the first record of the band and each other one."""
    mixed = np.zeros(len(signatures), np.uint64)
    for column in range(start, start + width):
        mixed = (mixed ^ signatures[:, column]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    order = np.argsort(mixed, kind="stable")
    begins = np.concatenate([[True], mixed[order[1:]] != mixed[order[:-1]]])
    heads = order[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]
    first, other = heads[~begins], order[~begins]
    good = np.zeros(len(first), bool)
    for at in range(0, len(first), _PAIRS):
        some = slice(at, at + _PAIRS)
        good[some] = (signatures[first[some]] == signatures[other[some]]).mean(axis=1) >= threshold
    return first[good], other[good]


def _shingles(text: Any, ngram: int) -> list[bytes]:
    """Runs of `ngram` words of a text, in lower case and without punctuation.

    >>> _shingles("The river runs, past the mill", 4)
    [b'the river runs past', b'river runs past the', b'runs past the mill']
    """
    if not isinstance(text, str):
        raise UsageError(
            'text in the column of .dedup(method="minhash")', got=type(text).__name__,
            fix='name a column of text: field=; method="exact" compares any values',
        )  # fmt: skip
    words = _WORD.findall(text.lower())
    if len(words) <= ngram:
        return [(" ".join(words) or text).encode("utf-8", "surrogatepass")]
    return [" ".join(words[i : i + ngram]).encode("utf-8", "surrogatepass") for i in range(len(words) - ngram + 1)]


def _hash32(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF


def _packed(found: RowSet) -> bytes:
    body = found.count.to_bytes(8, "little") + found.bits
    return _HEAD + xxhash.xxh3_128_digest(body) + body


def _unpacked(data: bytes) -> RowSet | None:
    """What an earlier run found; None if it is damaged."""
    body = data[len(_HEAD) + 16 :]
    if len(body) < 8 or not data.startswith(_HEAD + xxhash.xxh3_128_digest(body)):
        return None
    return RowSet(body[8:], int.from_bytes(body[:8], "little"))
