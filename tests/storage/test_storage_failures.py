"""A server that fails is a StorageError that names the object, never a missing file and never a bad record."""

from __future__ import annotations

import functools
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.storage import filesystem


class Flaky(http.server.SimpleHTTPRequestHandler):
    """Serves a folder until `failing` says how not to."""

    failing: str | int = ""

    def log_message(self, *args: object) -> None:
        return None

    def do_GET(self) -> None:
        self._answer(super().do_GET)

    def do_HEAD(self) -> None:
        self._answer(super().do_HEAD)

    def _answer(self, normal: functools.partial[None] | object) -> None:
        if type(self).failing == "reset":
            self.connection.close()
        elif type(self).failing:
            self.send_error(int(type(self).failing))
        else:
            normal()  # type: ignore[operator]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, type[Flaky]]]:
    handler = type("Handler", (Flaky,), {})
    served = functools.partial(handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), served) as httpd:  # type: ignore[arg-type]
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}", handler
        httpd.shutdown()
        thread.join()


FAILURES = [503, 500, 403, 429, "reset"]
FEW = {"retry_config": {"max_retries": 1, "backoff": {"init_backoff": 0.01}}}


@pytest.mark.parametrize("failing", FAILURES)
def test_a_failing_server_is_not_a_missing_file(server: tuple[str, type[Flaky]], failing: str | int) -> None:
    url, handler = server
    handler.failing = failing
    for call in (filesystem.expand, filesystem.stamp, filesystem.open_read):
        with pytest.raises(ps.StorageError) as caught:
            call(f"{url}/a.jsonl", FEW)
        assert not isinstance(caught.value, FileNotFoundError) and f"{url}/a.jsonl" in caught.value.where
        assert failing == "reset" or str(failing) in caught.value.got


def test_a_missing_file_is_missing(server: tuple[str, type[Flaky]]) -> None:
    url, _ = server
    for call in (filesystem.expand, filesystem.stamp, filesystem.open_read):
        with pytest.raises(FileNotFoundError):
            call(f"{url}/none.jsonl")


def write(folder: Path) -> None:
    records = [{"text": f"record {i} " * 50} for i in range(300)]
    (folder / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    pq.write_table(pa.Table.from_pylist(records), folder / "a.parquet", row_group_size=20)
    with tarfile.open(folder / "a.tar", "w") as tar:
        for i in range(300):
            info = tarfile.TarInfo(f"{i:04d}.txt")
            info.size = 400
            tar.addfile(info, io.BytesIO(b"x" * 400))


READERS = {"jsonl": ps.read_jsonl, "parquet": ps.read_parquet, "tar": ps.read_tar}


@pytest.mark.parametrize("failing", FAILURES)
@pytest.mark.parametrize("kind", READERS)
def test_skipping_bad_records_does_not_skip_storage(
    tmp_path: Path, server: tuple[str, type[Flaky]], kind: str, failing: str | int
) -> None:
    write(tmp_path)
    url, handler = server
    loader = (
        READERS[kind](f"{url}/a.{kind}", storage_options=FEW).skip_errors().shuffle(3).batch(10).to_numpy(threads=0)
    )
    first = loader.batch_at(0)
    handler.failing = failing
    with pytest.raises(ps.StorageError) as caught:
        for step in range(1, 30):  # a loop may have requested all of them before
            loader.batch_at(step)
    assert f"a.{kind}" in caught.value.where
    assert loader.ledger.total == 0
    handler.failing = ""
    assert {k: v.tolist() for k, v in loader.batch_at(0).items()} == {k: v.tolist() for k, v in first.items()}
