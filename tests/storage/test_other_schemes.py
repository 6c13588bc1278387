"""http and memory URLs: failed requests are tried again, stalled ones are given up, media folders are listed."""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock as ps
from penstock.core.errors import StorageError, UsageError
from penstock.storage import filesystem, fsspec_files, metrics
from tests.storage.fault_proxy import USUAL, FaultProxy, Faults

QUICK = {"retry_config": {"max_retries": 30, "backoff": {"init_backoff": 0.01, "max_backoff": 0.05}}}


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and ranges of its files."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        return None

    def do_GET(self) -> None:
        path, wanted = self.translate_path(self.path), self.headers.get("Range")
        if wanted is None or not os.path.isfile(path):
            return super().do_GET()
        data = Path(path).read_bytes()
        first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)
        return None


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        return None  # a proxy that resets its connections is no news


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the URL under which an HTTP server has it."""
    folder = tmp_path / "served"
    folder.mkdir()
    with Server(("127.0.0.1", 0), functools.partial(Ranges, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def _jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps({"text": f"record {n} " * (n % 50)}) + "\n" for n in range(400)))


def _parquet(path: Path) -> None:
    pq.write_table(pa.table({"text": [f"record {n} " * (n % 50) for n in range(400)]}), path, row_group_size=30)


def _tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for n in range(200):
            info = tarfile.TarInfo(f"{n:04}.txt")
            info.size = 10 * n
            tar.addfile(info, BytesIO(b"x" * info.size))


KINDS: dict[str, Any] = {
    "jsonl": (_jsonl, ps.read_jsonl),
    "parquet": (_parquet, ps.read_parquet),
    "tar": (_tar, lambda path, **more: ps.read_tar(path, index=None, **more)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_over_http_is_exact_under_faults(served: tuple[Path, str], kind: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(fsspec_files, "STALLED", 0.5)
    folder, url = served
    write, read = KINDS[kind]
    write(folder / f"a.{kind}")
    local = list(read(folder / f"a.{kind}").shuffle(seed=3).batch(16).to_numpy())
    requests = []
    with FaultProxy(url) as proxy:
        for faults in (Faults(), Faults(refuse=USUAL.refuse, reset=USUAL.reset, stall=USUAL.stall, seed=4)):
            proxy.clear(faults)
            pipeline = read(f"{proxy.endpoint}/a.{kind}", storage_options=QUICK).shuffle(seed=3).batch(16)
            before = metrics.counters()
            remote = list(pipeline.to_numpy())
            assert len(remote) == len(local)
            for ours, theirs in zip(remote, local, strict=True):
                assert {name: column.tolist() for name, column in ours.items()} == {
                    name: column.tolist() for name, column in theirs.items()
                }
            assert metrics.since(before)["http"].requests
            requests.append(proxy.requests)
        assert proxy.made["refuse"] >= 2
    assert requests[1] <= 1.6 * requests[0]


def test_what_stays_wrong_is_an_error_within_the_deadline(served: tuple[Path, str], monkeypatch: Any) -> None:
    monkeypatch.setattr(fsspec_files, "STALLED", 0.2)
    folder, url = served
    (folder / "a.bin").write_bytes(bytes(range(256)) * 40)
    options = {"retry_config": {"max_retries": 2, "backoff": {"init_backoff": 0.01}}}
    for faults in (Faults(refuse=1.0), Faults(reset=1.0), Faults(stall=1.0), Faults(short=1.0), Faults(full=1.0)):
        with FaultProxy(url) as proxy:
            assert filesystem.read_ranges(f"{proxy.endpoint}/a.bin", [(5, 9), (300, 400)], options)[0] == bytes(
                [5, 6, 7, 8]
            )
            proxy.clear(faults)
            with pytest.raises(StorageError, match="tried 3 times") as caught:
                filesystem.read_ranges(f"{proxy.endpoint}/a.bin", [(5, 9)], options)
            assert "a.bin" in str(caught.value.where)


def test_answers_that_are_never_right_are_told_from_those_that_will_be(served: tuple[Path, str]) -> None:
    folder, url = served
    (folder / "a.bin").write_bytes(b"0123456789")
    with pytest.raises(StorageError, match="it is shorter now"):
        filesystem.read_ranges(f"{url}/a.bin", [(5, 20)])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        filesystem.read_ranges(f"{url}/none.bin", [(5, 20)])
    with filesystem.open_read(f"{url}/a.bin") as file:
        assert file.read(3) == b"012"
        file.seek(-2, 2)
        assert file.read() == b"89"


def _images(folder: Path) -> None:
    for n in range(12):
        (folder / f"c{n % 2}").mkdir(exist_ok=True)
        pixels = np.random.default_rng(n).integers(0, 255, (9 + n, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"c{n % 2}" / f"{n}.png")


@pytest.mark.parametrize("place", ["http", "memory"])
def test_folders_and_lists_of_images_are_those_of_a_disk(served: tuple[Path, str], place: str) -> None:
    folder, url = served
    _images(folder)
    if place == "memory":
        url = "memory://pictures"
        for path in folder.rglob("*.png"):
            filesystem.filesystem(url).pipe_file(f"/pictures/{path.relative_to(folder)}", path.read_bytes())
    local = ps.read_images(folder).shuffle(seed=2).decode_images(8, crop="random").batch(5)
    remote = ps.read_images(url).shuffle(seed=2).decode_images(8, crop="random").batch(5)
    assert remote.fingerprint() == local.fingerprint()
    assert remote.class_names == local.class_names == {"label": ("c0", "c1")}
    for ours, theirs in zip(remote.to_numpy(), local.to_numpy(), strict=True):
        assert list(ours) == list(theirs)
        assert all(ours[name].tolist() == theirs[name].tolist() for name in ours)
    names = [f"{url}/c1/3.png", f"{url}/c0/2.png"]
    assert [row["path"] for row in ps.read_images(names).peek()] == ["c1/3.png", "c0/2.png"]
    full = [ps.read_images(at, identity="full").fingerprint() for at in (url, folder)]
    assert full[0] == full[1]
    with pytest.raises(UsageError, match="none"):
        ps.read_images(f"{url}/c0", None, suffixes=[".jpg"])
    if place == "memory":
        filesystem.filesystem(url).rm("/pictures", recursive=True)


def test_lists_of_several_storages_are_refused(served: tuple[Path, str]) -> None:
    folder, url = served
    _images(folder)
    with pytest.raises(UsageError, match="files of one storage"):
        ps.read_images([f"{url}/c0/0.png", str(folder / "c1" / "1.png")])


FORKED = """
import os, sys
from penstock.storage import filesystem
for _ in range(2):  # then in a child, which has none of the threads of its parent
    assert filesystem.read_ranges(sys.argv[1], [(1, 3)]) == [b"12"]
    if os.fork():
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_forked_process_reads_http(served: tuple[Path, str]) -> None:
    folder, url = served
    (folder / "a.bin").write_bytes(b"0123456789")
    command = [sys.executable, "-W", "ignore", "-c", FORKED, f"{url}/a.bin"]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


def test_a_server_without_ranges(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(os.urandom(200_000))
    plain = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with Server(("127.0.0.1", 0), plain) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with filesystem.open_read(f"http://127.0.0.1:{server.server_address[1]}/a.bin") as file:
                assert file.read() == (tmp_path / "a.bin").read_bytes()
        finally:
            server.shutdown()
            thread.join()
