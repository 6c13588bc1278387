"""Token stores through the page cache in all kinds of storage, on disks that are full and lines that are slow."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.storage import objects
from tests.storage import servers
from tests.storage.fake_gcs import FakeGCS
from tests.storage.fault_proxy import FaultProxy, Faults
from tests.storage.remote_stores import loader, make, upload


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("store") / "s")


def same(url: str, folder: Path, **options: Any) -> int:
    """The number of batches, after each was compared with that of the local store."""
    count = 0
    for a, b in zip(loader(url, 0, 1, **options), loader(folder, 0, 1), strict=True):
        np.testing.assert_array_equal(a["input_ids"], b["input_ids"])
        count += 1
    return count


def exercise(base: str, folder: Path, options: dict[str, Any], cache: Path) -> None:
    upload(folder, f"{base}/s", options)
    for _ in ("cold", "warm"):
        assert same(f"{base}/s", folder, storage_options=options, cache_dir=cache) == 43
    made = ps.prepare(ps.from_texts(["one", "two"]), "bytes", f"{base}/out", storage_options=options)
    store = ps.open_store(f"{base}/out", storage_options=options, cache_dir=cache)
    assert store.definition.origin.manifest.id == made.id
    ps.convert(store, f"{base}/m", "megatron", storage_options=options)
    rows = ps.open_megatron(f"{base}/m", storage_options=options).peek()
    assert [row["input_ids"].tolist() for row in rows] == [row["input_ids"].tolist() for row in store.peek()]


def test_google_cloud_storage(local: Path, tmp_path: Path) -> None:
    with FakeGCS() as server:
        exercise("gs://bucket/x", local, {"endpoint_url": server.endpoint, "bearer_token": "t"}, tmp_path / "cache")


def test_azure(local: Path, tmp_path: Path) -> None:
    with servers.azurite(tmp_path) as (_, connection):
        options = {"connection_string": connection}
        exercise("az://box/x", local, options, tmp_path / "cache")
        with pytest.raises(ps.StoreError, match="no bucket 'no-box'"):
            ps.open_store("az://no-box/s", storage_options=options)


def test_one_megabyte_per_second(s3: Any, local: Path, tmp_path: Path) -> None:
    url = upload(local, s3.url(tmp_path.name), s3.options)
    with FaultProxy(s3.endpoint, Faults(rate=1e6, latency=0.02)) as proxy:
        assert same(url, local, storage_options=proxy.options, cache_dir=tmp_path / "cache") == 43


FULL = """
import json, resource, sys
import penstock as ps
from tests.storage.remote_stores import loader
url, options, cache = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))  # no file may become larger: a full disk
try:
    for batch in loader(url, 0, 1, storage_options=options, cache_dir=cache):
        pass
except ps.StorageError as error:
    print(error)
"""


def test_a_full_disk_under_the_cache_is_said_and_harms_nothing(s3: Any, local: Path, tmp_path: Path) -> None:
    url = upload(local, s3.url(tmp_path.name), s3.options)
    cache = tmp_path / "cache"
    call = [sys.executable, "-c", FULL, url, json.dumps(s3.options), str(cache)]
    child = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 0, child.stderr
    assert "File too large" in child.stdout and str(cache) in child.stdout and "free some space" in child.stdout
    assert same(url, local, storage_options=s3.options, cache_dir=cache) == 43


def test_a_bucket_that_may_only_be_read(s3: Any, local: Path, tmp_path: Path) -> None:
    url = upload(local, s3.url(tmp_path.name), s3.options)
    reader = s3.options | {"access_key_id": "reader", "secret_access_key": "reader-secret"}
    assert same(url, local, storage_options=reader, cache_dir=tmp_path / "cache") == 43
    out = s3.url(tmp_path.name + "-out")
    for write in (
        lambda: ps.prepare(ps.from_texts(["a"]), "bytes", out, storage_options=reader),
        lambda: ps.convert(ps.open_tokens([1, 2]), out, "mds", storage_options=reader),
    ):
        with pytest.raises(ps.StorageError, match="(?s)PermissionDenied.*check the credentials"):
            write()
    assert objects.list_files(out, s3.options) == []


@pytest.mark.soak
def test_more_shards_than_a_manifest_lists_are_fetched_ahead(s3: Any, tmp_path: Path) -> None:
    folder = make(tmp_path / "many", documents=2200, shards=1100)
    url = s3.url(tmp_path.name)
    with ThreadPoolExecutor(8) as pool:
        every = sorted(folder.iterdir())
        assert all(pool.map(lambda path: objects.put_new(f"{url}/{path.name}", path, s3.options), every))
    assert len(every) > 1100
    options = {"storage_options": s3.options, "cache_dir": tmp_path / "cache"}
    remote = loader(url, 0, 1, **options)
    for a, b in zip(remote, loader(folder, 0, 1), strict=True):
        np.testing.assert_array_equal(a["input_ids"], b["input_ids"])
    assert remote.stats()["storage"]["hit_rate"] > 0.5
