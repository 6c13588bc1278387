"""Object stores that answer wrongly: every source reads what is right, or says which object it could not read."""

import json
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock as ps
from penstock.core.errors import DataError, PenstockError
from penstock.storage.hedge import Hedger
from tests.remote.test_remote_formats import tar
from tests.storage.hostile_answers import NOTICED, Flip, Twisted, endless_listing
from tests.storage.remote_stores import make, upload

QUICK = {
    "retry_config": {
        "max_retries": 3,
        "backoff": {"init_backoff": timedelta(seconds=0.01), "max_backoff": timedelta(seconds=0.05)},
    },
    "client_options": {"read_timeout": timedelta(seconds=1)},
}
SOURCES = {
    "jsonl": ps.read_jsonl,
    "parquet": ps.read_parquet,
    "tar": ps.read_tar,
    "images": lambda place, **more: ps.read_images(place, labels=None, **more).decode_images(8),
    "store": lambda place, **more: ps.open_store(place, **more).windows(64),
}


@pytest.fixture(autouse=True)
def no_hedges(monkeypatch):
    monkeypatch.setattr(Hedger, "allow", lambda _: False)


@pytest.fixture(scope="module")
def places(s3, tmp_path_factory):
    """The folder and the URL of data of each kind."""
    root = tmp_path_factory.mktemp("hostile")
    for name in SOURCES:
        if name != "store":
            (root / name).mkdir()
    rows = [{"text": f"row {n} " + "word " * (n % 40), "n": n} for n in range(120)]
    (root / "jsonl" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(
        pa.Table.from_pylist(rows),
        root / "parquet" / "a.parquet",
        row_group_size=20,
        write_page_checksum=True,
    )
    tar(root / "tar")
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3), np.uint8)):
        Image.fromarray(pixels).save(root / "images" / f"{number:02d}.png")
    make(root / "store", documents=40, shards=2)
    return {name: (root / name, upload(root / name, s3.url(root.name, name), s3.options)) for name in SOURCES}


def batches(pipeline):
    """All batches of an epoch, as lists."""
    loader = pipeline.shuffle(seed=3).batch(8, remainder="short").to_numpy(threads=0)
    return [{name: np.asarray(column).tolist() for name, column in batch.items()} for batch in loader]


def read(kind, place, cache, **options):
    more = {"cache_dir": cache} if kind == "store" and options else {}
    return batches(SOURCES[kind](place, **options, **more))


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("answer", NOTICED, ids=lambda answer: answer.__name__)
def test_a_wrong_answer_ends_in_right_data_or_names_the_object(fault_proxy, places, tmp_path, kind, answer):
    folder, url = places[kind]
    right, options = read(kind, folder, tmp_path / "local"), fault_proxy.options | QUICK
    for number, twist in enumerate((Twisted(answer), Twisted(answer, first=1), Twisted(answer, times=1))):
        fault_proxy.twist = twist
        found, said = None, ""
        try:
            found = read(kind, url, tmp_path / str(number), storage_options=options)
        except PenstockError as error:
            said = str(error)
        assert found == right or url.removeprefix("s3://") in said, (number, twist.made, said)
        assert twist.made


@pytest.mark.parametrize("kind", SOURCES)
def test_a_flipped_bit_is_read_again(fault_proxy, places, tmp_path, kind):
    """One wrong bit in one answer, the first of all or a later one: it never reaches a batch, nor stays in memory."""
    folder, url = places[kind]
    right, options = read(kind, folder, tmp_path / "local"), fault_proxy.options | QUICK
    for first in range(4):
        fault_proxy.twist = Flip(first)
        assert read(kind, url, tmp_path / str(first), storage_options=options) == right, first


def test_a_listing_without_an_end_is_refused(fault_proxy, places):
    _, url = places["images"]
    fault_proxy.twist = endless_listing
    with pytest.raises(DataError, match=r"(?s)a listing with each object once.*00\.png' twice.*where: s3://bucket"):
        ps.read_images(url, storage_options=fault_proxy.options | QUICK)
