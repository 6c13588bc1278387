"""One bit that differs on the way: whatever is read from an object is right, read again, or an error."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import penstock as ps
from penstock.core.errors import StorageError
from penstock.storage import filesystem, object_reader, objects
from tests.storage.fault_proxy import Faults

TEXTS = ["".join(random.Random(n).choices("abcdefgh ", k=200)) for n in range(700)]
LEAST = 2000  # bytes of an answer in which a bit is changed


def _write(folder: Path) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    (folder / "a.jsonl").write_bytes(lines)
    (folder / "a.jsonl.zst").write_bytes(zstandard.ZstdCompressor(write_checksum=False).compress(lines))
    (folder / "a.txt").write_text("\n".join(TEXTS))
    (folder / "a.json").write_text(json.dumps([{"text": text} for text in TEXTS]))
    table = pa.table({"text": TEXTS})
    pq.write_table(table, folder / "a.parquet", row_group_size=200, compression="NONE", use_dictionary=False)
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=200)


READERS: dict[str, Callable[..., Any]] = {
    "a.jsonl": ps.read_jsonl,
    "a.jsonl.zst": ps.read_jsonl,
    "a.txt": lambda path, **more: ps.read_text(path, by="line", **more),
    "a.json": ps.read_json,
    "a.parquet": ps.read_parquet,
    "a.arrow": ps.read_arrow,
}


@pytest.fixture(scope="module")
def places(s3: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("wrong")
    _write(folder)
    for path in folder.iterdir():
        objects.put_new(f"{s3.url('wrong')}/{path.name}", path, s3.options)
    return folder, s3.url("wrong")


def flipped(which: int, place: float) -> tuple[Any, list[str]]:
    """What changes one bit of the `which`th large answer, and the ranges of such answers so far."""
    seen: list[str] = []

    def twist(method: str, path: str, span: str, head: bytes, body: bytes) -> list[bytes] | None:
        if method != "GET" or len(body) < LEAST:
            return None
        seen.append(span)
        at = int(len(body) * place)
        return [head + body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]] if len(seen) == which else None

    return twist, seen


def each_flip(proxy: Any, work: Callable[[], Any], expected: Any) -> Iterator[bool]:
    """Whether the work failed, for a bit in each of its answers, until it needs no further answer."""
    for which in range(1, 40):
        for place in (0.3, 0.8):
            proxy.twist, seen = flipped(which, place)
            try:
                assert work() == expected
                yield False
            except StorageError:
                yield True
            finally:
                proxy.twist = None
        if len(seen) < which:
            return


def texts(rows: Any) -> list[str]:
    return [str(row["text"]) for row in rows.rows()]


@pytest.mark.parametrize("name", [name for name in READERS if name != "a.parquet"])
def test_rows_are_right(fault_proxy: Any, places: tuple[Path, str], name: str) -> None:
    url = f"{places[1]}/{name}"
    failed = list(each_flip(fault_proxy, lambda: texts(READERS[name](url, storage_options=fault_proxy.options)), TEXTS))
    assert len(failed) > 2 and not any(failed)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.txt", "a.json", "a.arrow"])
def test_what_is_prepared_is_right_or_an_error(
    fault_proxy: Any, places: tuple[Path, str], tmp_path: Path, name: str
) -> None:
    made = iter(range(1000))

    def prepared(path: str, **more: Any) -> list[list[int]]:
        out = tmp_path / f"{next(made)}"
        ps.prepare(READERS[name](path, **more), "bytes", out, show_progress=False)
        return [row["input_ids"].tolist() for row in ps.open_store(out).windows(100).rows()]

    expected, options = prepared(str(places[0] / name)), fault_proxy.options
    failed = list(each_flip(fault_proxy, lambda: prepared(f"{places[1]}/{name}", storage_options=options), expected))
    assert len(failed) > 2 and not all(failed)


def test_what_has_nothing_to_compare_with_is_read_twice_where_that_is_asked_for(
    fault_proxy: Any, places: tuple[Path, str]
) -> None:
    url, options = f"{places[1]}/a.parquet", fault_proxy.options | {"read_twice": True}
    assert not any(each_flip(fault_proxy, lambda: texts(READERS["a.parquet"](url, storage_options=options)), TEXTS))
    with pytest.raises(AssertionError):  # this is why
        list(
            each_flip(
                fault_proxy,
                lambda: texts(READERS["a.parquet"](url, storage_options=fault_proxy.options)),
                TEXTS,
            )
        )
    fault_proxy.twist = None
    counts = []
    for more in ({}, {"read_twice": True}):
        fault_proxy.clear()
        filesystem.read_ranges(url, [(0, 5000), (5000, 9000)], fault_proxy.options | more)
        counts.append(fault_proxy.requests)
    assert counts == [2, 4]
    fault_proxy.clear(Faults(wrong=1.0))
    with pytest.raises(StorageError, match="6 answers that all differ"):
        filesystem.read_ranges(url, [(0, 50_000)], options)
    assert fault_proxy.requests == 6


def test_an_etag_that_only_looks_like_an_md5_is_noticed_once(
    fault_proxy: Any, places: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a server encrypts with keys of its own."""
    monkeypatch.setattr(object_reader, "_no_md5", set())
    data = (places[0] / "a.arrow").read_bytes()
    true, other = hashlib.md5(data).hexdigest().encode(), b"0123456789abcdef" * 2

    def renamed(method: str, path: str, span: str, head: bytes, body: bytes) -> list[bytes]:
        if method == "HEAD":
            return [head.replace(true, other)]
        first, last = map(int, span.split("-"))
        part = data[first : last + 1]
        return [
            b'HTTP/1.1 206 Partial Content\r\nETag: "%s"\r\nLast-Modified: Thu, 19 Nov 2026 20:00:00 GMT\r\n' % other
            + b"Content-Range: bytes %d-%d/%d\r\nContent-Length: %d\r\n\r\n" % (first, last, len(data), len(part))
            + part
        ]

    fault_proxy.twist = renamed
    read = []
    for _ in range(2):
        fault_proxy.clear()
        with filesystem.open_read(f"{places[1]}/a.arrow", fault_proxy.options) as file:
            assert file.read() == data
        read.append(fault_proxy.requests)
    assert read[0] == 2 * read[1] - 1  # without the HEAD
