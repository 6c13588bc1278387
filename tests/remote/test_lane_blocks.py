"""What a fleet fetches of Parquet files, tar shards and images in an epoch of lanes, counted at a real server."""

import io
import tarfile
from functools import partial
from math import gcd

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock as ps
from penstock.storage import metrics, scattered
from penstock.storage.coalesce import coalesce
from penstock.storage.hedge import Hedger
from tests.storage.remote_stores import upload

LANES, BLOCKS, ROWS, BATCH, SIZE = 12, 36, 192, 96, 7000  # a block is 1.3 MB: longer than a request reads over


@pytest.fixture(autouse=True)
def no_hedges(monkeypatch):
    """A second request beside a slow one is not in the plan, and depends on how busy the machine is."""
    monkeypatch.setattr(Hedger, "allow", lambda _: False)


def noise(rows):
    """Rows of SIZE bytes that nothing makes smaller."""
    return np.random.default_rng(0).integers(0, 256, (rows, SIZE), np.uint8)


@pytest.fixture(scope="module")
def parquet(s3, tmp_path_factory):
    """36 row groups in 3 files."""
    folder = tmp_path_factory.mktemp("lanes") / "parquet"
    folder.mkdir()
    for number, part in enumerate(np.split(noise(BLOCKS * ROWS), 3)):
        rows = pa.array([row.tobytes() for row in part], pa.binary())
        table = pa.table({"row": rows})
        pq.write_table(
            table, folder / f"{number}.parquet", row_group_size=ROWS, compression="none", use_dictionary=False
        )
    return upload(folder, s3.url("lane-parquet"), s3.options)


def fetched(make, hosts, batch):
    """Rows and bytes that a fleet reads in an epoch, after it was opened."""
    rows = sent = 0
    for host in range(hosts):
        pipeline = make()
        loader = pipeline.batch(batch, remainder="short").shard(host, hosts).to_numpy(threads=0)
        before = metrics.counters()
        rows += sum(len(next(iter(columns.values()))) for columns in loader)
        used = metrics.since(before).get("s3")
        sent += used.bytes if used else 0
    return rows, sent


@pytest.mark.parametrize("hosts", [1, 3, 8, 48])
def test_a_fleet_fetches_row_groups_as_the_formula_says(s3, parquet, hosts):
    def make():
        return ps.read_parquet(parquet, storage_options=s3.options).shuffle(seed=5, lanes=LANES, window=2)

    rows, sent = fetched(make, hosts, BATCH)
    plan = make().batch(BATCH).plan(world=hosts, hosts=hosts)
    assert rows == BLOCKS * ROWS
    assert plan.reading is not None and round(plan.reading.bytes) == sent
    formula = 1 + (hosts - gcd(hosts, LANES)) / LANES
    assert sent / (BLOCKS * ROWS * SIZE) == pytest.approx(formula, rel=0.01)


@pytest.fixture(scope="module")
def shards(s3, tmp_path_factory):
    """36 tar shards."""
    folder = tmp_path_factory.mktemp("lanes") / "tar"
    folder.mkdir()
    for number, part in enumerate(np.split(noise(BLOCKS * ROWS), BLOCKS)):
        with tarfile.open(folder / f"{number:03d}.tar", "w") as file:
            for key, row in enumerate(part):
                member = tarfile.TarInfo(f"{number:03d}-{key:04d}.bin")
                member.size = SIZE
                file.addfile(member, io.BytesIO(row.tobytes()))
    return upload(folder, s3.url("lane-tar"), s3.options)


@pytest.mark.parametrize("hosts", [1, 3, 8, 48])
def test_a_fleet_fetches_each_record_of_tar_shards_once(s3, shards, monkeypatch, hosts):
    """Records are requested one by one, so that a shard which several hosts read is still fetched once."""
    monkeypatch.setattr(
        scattered, "coalesce", partial(coalesce, gap=0)
    )  # shards are small, and would be read as a whole
    opened = ps.read_tar(shards, storage_options=s3.options, decode=False)
    rows, sent = fetched(lambda: opened.shuffle(seed=5, lanes=LANES, window=2), hosts, BATCH)
    assert rows == BLOCKS * ROWS
    assert sent == BLOCKS * ROWS * (tarfile.BLOCKSIZE + SIZE)  # with its header, by which a changed shard is noticed


@pytest.fixture(scope="module")
def images(s3, tmp_path_factory):
    """432 images, each an object; returns the URL and the bytes of all."""
    folder = tmp_path_factory.mktemp("lanes") / "images"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (432, 8, 8, 3), np.uint8)
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(folder / f"{number:03d}.png")
    return upload(folder, s3.url("lane-images"), s3.options), sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("hosts", [1, 3, 8, 48])
def test_a_fleet_fetches_each_image_once(s3, images, hosts):
    url, size = images
    opened = ps.read_images(url, labels=None, storage_options=s3.options)
    rows, sent = fetched(lambda: opened.shuffle(seed=5, lanes=LANES, block=12, window=2), hosts, 144)
    assert rows == 432
    assert sent == size
