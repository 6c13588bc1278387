"""Remote Parquet, tar, images and audio: the batches of local files, with few requests, also under faults."""

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.codecs.audio import wav
from penstock.core.errors import StorageError
from penstock.sources.formats import FORMATS, TEXT_FORMATS, Options
from penstock.storage import objects
from penstock.storage.coalesce import coalesce
from tests.remote.test_remote_lines import QUICK, upload
from tests.sources.test_tfrecord_files import example, frame
from tests.storage.fault_proxy import Faults

FAULTS = Faults(refuse=0.2, reset=0.05, stall=0.01, wrong=0.005, short=0.01, seed=21)


def parquet(folder):
    for file in range(3):
        rows = [f"{file}-{n} " + "word " * (n % 50) for n in range(200)]
        table = pa.table({"text": rows, "n": list(range(200)), "unused": [b"x" * 400] * 200})
        pq.write_table(
            table, folder / f"{file}.parquet", row_group_size=20, write_page_checksum=True, compression="none",
            use_dictionary=False,
        )  # fmt: skip


def tar(folder):
    for shard in range(3):
        with tarfile.open(folder / f"{shard}.tar", "w") as made:
            for n in range(60):
                for part, data in (("txt", f"{shard} {n} " * 400), ("cls", str(n % 5))):
                    info = tarfile.TarInfo(f"{shard}-{n:03}.{part}")
                    info.size = len(data)
                    made.addfile(info, io.BytesIO(data.encode()))


def tfrecords(folder):
    for file in range(3):
        rows = ({"text": f"{file} {n} " * (n % 60), "n": n, "ids": [n, -n]} for n in range(90))
        (folder / f"a.tfrecord-0000{file}-of-00003").write_bytes(b"".join(frame(example(row)) for row in rows))


def images(folder):
    from PIL import Image

    for n in range(90):
        path = folder / f"class{n % 3}" / f"{n:03}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.random.default_rng(n).integers(0, 255, (24, 30, 3), dtype=np.uint8)).save(path)


def audio(folder):
    for n in range(40):
        samples = np.sin(np.arange(800 + 100 * n) / (n + 1)).astype(np.float32)
        (folder / f"{n % 4}_{n:03}.wav").write_bytes(wav.encode(samples, 8000))


PIPELINES = {
    "parquet": (parquet, lambda place, o: ps.read_parquet(place, columns=["text", "n"], storage_options=o)),
    "tar": (tar, lambda place, o: ps.read_tar(place, storage_options=o)),
    "tfrecord": (tfrecords, lambda place, o: ps.read_tfrecords(place, shapes={"ids": 2}, storage_options=o)),
    "images": (images, lambda place, o: ps.read_images(place, storage_options=o).decode_images(16)),
    "audio": (
        audio, lambda place, o: ps.read_audio(place, labels="name", storage_options=o).decode_audio(
            sample_rate=8000, duration=0.05
        ),
    ),
    "recordings": (
        audio, lambda place, o: ps.read_audio(place, "name", sample_rate=8000, storage_options=o).bucket(
            [4000, 8000], 4
        ),
    ),
}  # fmt: skip


def batches(pipeline):
    shuffled = pipeline if ".bucket" in str(pipeline) else pipeline.shuffle(seed=3).batch(16)
    loader = shuffled.to_numpy(threads=2)
    steps = [batch for _, batch in zip(range(len(loader)), loader, strict=False)]
    return [{name: np.asarray(column).tolist() for name, column in step.items()} for step in steps]


@pytest.mark.parametrize("kind", PIPELINES)
def test_an_epoch_is_that_of_local_files_also_under_faults(s3, fault_proxy, tmp_path, kind):
    make, read = PIPELINES[kind]
    folder = tmp_path / kind
    folder.mkdir()
    make(folder)
    url = upload(s3, folder, tmp_path.name)
    local = read(folder, None)
    remote = read(url, fault_proxy.options | QUICK)
    expected = batches(local)
    assert len(expected) > 1
    assert remote.definition.origin.fingerprint() == local.definition.origin.fingerprint()
    fault_proxy.clear()
    assert batches(remote) == expected
    clean = fault_proxy.requests
    fault_proxy.clear(FAULTS)
    assert batches(remote) == expected
    assert fault_proxy.requests <= 1.6 * clean
    fault_proxy.clear(Faults(refuse=0.2, reset=0.1, wrong=0.01, seed=4))
    assert batches(read(url, fault_proxy.options | QUICK)) == expected


def test_parquet_reads_merged_column_chunks_of_row_groups(s3, fault_proxy, tmp_path):
    parquet(tmp_path)
    url = upload(s3, tmp_path, tmp_path.name)
    source = ps.read_parquet(url, columns=["n"], storage_options=fault_proxy.options).definition.origin
    opened = fault_proxy.requests
    assert opened <= 3 + 3  # the object, whether its bucket is there, the listing; a footer for each file
    fault_proxy.clear()
    rows = np.arange(0, 600, 2)
    assert source.read(rows)["n"].tolist() == [n % 200 for n in rows]
    spans = [source._footers.get(f).chunks.spans(["n"])[:, 1:3].tolist() for f in range(3)]
    planned = sum(len(coalesce(np.array([a for a, _ in one]), np.array([b for _, b in one]))) for one in spans)
    assert fault_proxy.requests <= 1.2 * planned
    fault_proxy.clear()
    source.read(np.arange(580, 600))
    assert fault_proxy.requests == 0  # kept


def test_tar_reads_merged_records(s3, fault_proxy, tmp_path):
    tar(tmp_path)
    url = upload(s3, tmp_path, tmp_path.name)
    source = ps.read_tar(url, decode=False, storage_options=fault_proxy.options).definition.origin
    fault_proxy.clear()
    source.read(np.random.default_rng(1).permutation(180))
    assert fault_proxy.requests == 3
    fault_proxy.clear(Faults(wrong=1.0))
    with pytest.raises(StorageError, match="hash differs"):
        for n in range(20):  # a wrong byte in the padding between members does not matter
            source.read(np.array([n]))


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "tar", "images"])
def test_stats_say_what_storage_cost(s3, fault_proxy, tmp_path, kind):
    make, read = PIPELINES.get(kind) or (_lines, lambda at, options: ps.read_jsonl(at, storage_options=options))
    (folder := tmp_path / kind).mkdir()
    make(folder)
    pipeline = read(upload(s3, folder, tmp_path.name), fault_proxy.options | QUICK).batch(16)
    loader = pipeline.to_numpy()
    fault_proxy.clear()
    assert all(loader)
    used = loader.stats()["storage"]
    assert used["requests"] == fault_proxy.requests and used["bytes"] and used["answers_seconds"] > 0
    assert "storage" not in read(folder, None).batch(16).to_numpy().stats()


def _lines(folder):
    (folder / "a.jsonl").write_text("".join(f'{{"text": "{n}"}}\n' for n in range(99)))


def test_images_are_fetched_once_each(s3, fault_proxy, tmp_path):
    images(tmp_path)
    url = upload(s3, tmp_path, tmp_path.name)
    source = ps.read_images(url, storage_options=fault_proxy.options).definition.origin
    assert fault_proxy.requests <= 2
    fault_proxy.clear()
    found = source.read(np.arange(90))
    assert fault_proxy.requests == 90
    assert found["path"].tolist() == [p.relative_to(tmp_path).as_posix() for p in sorted(tmp_path.rglob("*.png"))]
    assert source.locate(3)["file"].startswith(url + "/class0/")
    excluded = ps.read_images(url, exclude=["class0/000.png", url + "/class1/001.png"], storage_options=s3.options)
    assert len(excluded.definition.origin) == 88


def test_a_replaced_image_or_shard_is_refused(s3, tmp_path):
    images(tmp_path)
    url = upload(s3, tmp_path, tmp_path.name)
    source = ps.read_images(url, storage_options=s3.options).definition.origin
    objects.delete([url + "/class0/000.png"], s3.options)
    objects.put_new(url + "/class0/000.png", b"another", s3.options)
    with pytest.raises(StorageError, match="replaced"):
        source.read(np.arange(2))


def test_a_spawned_child_reads_the_same(s3, tmp_path):
    tar(tmp_path)
    url = upload(s3, tmp_path, tmp_path.name)
    pipeline = ps.read_tar(url, storage_options=s3.options).shuffle(seed=1).batch(20)
    expected = [batch["key"].tolist() for _, batch in zip(range(5), pipeline.to_numpy(), strict=False)]
    loader = pipeline.to_numpy(workers=1)
    assert [batch["key"].tolist() for _, batch in zip(range(5), loader, strict=False)] == expected


def test_the_openers_of_the_registry_pass_storage_options(s3, tmp_path):
    """Without them, a URL would be opened with whatever credentials the environment has, or none."""
    texts = [f"text {n}" for n in range(9)]
    table = pa.table({"text": texts})
    files = {
        "text": ("a.txt", "\n".join(texts)), "jsonl": ("a.jsonl", "".join(f'{{"text": "{t}"}}\n' for t in texts)),
        "json": ("b.json", json.dumps([{"text": t} for t in texts])), "csv": ("a.csv", "\n".join(["text", *texts])),
        "tfrecord": ("a.tfrecord", b"".join(frame(example({"text": t})) for t in texts)), "parquet": ("a.parquet", b""),
        "arrow": ("a.arrow", b""),
    }  # fmt: skip
    assert set(files) == set(TEXT_FORMATS)
    for name, data in files.values():
        (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    pq.write_table(table, tmp_path / "a.parquet")
    pa.feather.write_feather(table, str(tmp_path / "a.arrow"), compression="uncompressed")
    url = upload(s3, tmp_path, tmp_path.name)
    for name, (file, _) in files.items():
        for every in (False, True):
            options = Options(every_field=every, by="line", storage_options=s3.options)
            source = FORMATS[name].open(f"{url}/{file}", options)
            found = source.read(np.array([8, 0]))["text"].tolist()
            assert [one.decode() if isinstance(one, bytes) else one for one in found] == ["text 8", "text 0"], name
