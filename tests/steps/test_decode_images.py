"""`.decode_images()` on real files: shapes, values, layouts, bad pictures, quarantine, Parquet and tar columns."""

from __future__ import annotations

import io
import pathlib
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from penstock import BadRecords, UsageError
from penstock.codecs.image.decode import decode
from penstock.codecs.image.geometry import center_crop_params
from penstock.codecs.image.probe import probe
from penstock.core.columns import strings
from penstock.read import from_arrays, read_images, read_parquet, read_tar


def jpeg(height: int = 60, width: int = 80, seed: int = 0, **options: Any) -> bytes:
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=95, **options)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(12):
        place = tmp_path / ("cat" if i % 2 else "dog")
        place.mkdir(exist_ok=True)
        (place / f"{i:02d}.jpg").write_bytes(jpeg(50 + i, 90 - i, seed=i))
    return tmp_path


def one_batch(pipeline: Any, rows: int = 12) -> dict[str, Any]:
    return next(iter(pipeline.batch(rows).to_numpy(threads=0)))  # type: ignore[no-any-return]


def test_a_folder_becomes_images_and_labels(folder: Path) -> None:
    batch = one_batch(read_images(folder).decode_images(32, crop="random"))
    assert batch.keys() == {"image", "path", "label"}
    assert batch["image"].shape == (12, 32, 32, 3)
    assert batch["image"].dtype == np.float32
    assert 0 <= batch["image"].min() < batch["image"].max() <= 1
    assert batch["label"].tolist() == [0] * 6 + [1] * 6


def test_without_crop_a_row_is_the_decoded_picture(folder: Path) -> None:
    batch = one_batch(read_images(folder).decode_images((24, 40), crop=None, dtype="uint8"))
    for path, made in zip(batch["path"], batch["image"], strict=True):
        assert np.array_equal(made, decode((folder / path).read_bytes(), size=(24, 40)))


def test_random_crops_and_flips_come_only_when_asked_for(folder: Path) -> None:
    usual = read_images(folder).shuffle(seed=3).decode_images((24, 40), dtype="uint8").batch(12).to_numpy(threads=0)
    first, second = ({p: i for b in usual for p, i in zip(b["path"], b["image"], strict=True)} for _ in range(2))
    for path, made in first.items():
        assert np.array_equal(made, second[path])
        data = (folder / path).read_bytes()
        box = center_crop_params(*([side] for side in probe(data).oriented), 40 / 24)[0].tolist()
        assert np.array_equal(made, decode(data, crop=tuple(box), size=(24, 40)))


def test_normalising_and_planes(folder: Path) -> None:
    whole = read_images(folder)
    pixels = one_batch(whole.decode_images(32, crop="center", dtype="uint8"))["image"]
    options: dict[str, Any] = {"crop": "center", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    rows = one_batch(whole.decode_images(32, **options))["image"]
    want = (pixels / 255.0 - np.array([0.5, 0.4, 0.3])) / np.array([0.2, 0.3, 0.4])
    assert np.abs(rows - want).max() < 1e-5
    planes = one_batch(whole.decode_images(32, layout="NCHW", **options))["image"]
    assert planes.shape == (12, 3, 32, 32)
    assert planes.flags.c_contiguous
    assert np.array_equal(planes, rows.transpose(0, 3, 1, 2))
    bytes_ = one_batch(whole.decode_images(32, crop="center", dtype="uint8", layout="NCHW"))["image"]
    assert np.array_equal(bytes_, pixels.transpose(0, 3, 1, 2))
    grey = one_batch(whole.decode_images(32, crop="random", mode="L"))["image"]
    assert grey.shape == (12, 32, 32, 1)


def test_crops_are_what_why_says(folder: Path) -> None:
    loader = (
        read_images(folder).shuffle(seed=5).decode_images(32, crop="random", dtype="uint8").batch(4).to_numpy(threads=0)
    )
    batch = loader.batch_at(7)
    flips = set()
    for row in range(4):
        why = loader.why(7, row)["from"]
        data = Path(why["file"]).read_bytes()
        want = decode(data, crop=tuple(why["crop"]), size=(32, 32))
        assert np.array_equal(batch["image"][row], want[:, ::-1] if why["flip"] else want)
        flips.add(why["flip"])
    assert flips == {True, False}


def test_crops_change_with_epoch_and_seed_and_not_with_the_batch(folder: Path) -> None:
    def epochs(seed: int, rows: int) -> np.ndarray:
        loader = read_images(folder).shuffle(seed=seed).decode_images(16, crop="random").batch(rows).to_numpy(threads=0)
        found = [(p, i) for _ in range(2) for b in loader for p, i in zip(b["path"], b["image"], strict=True)]
        return np.stack([image for _, image in sorted(found[:12], key=lambda f: f[0])] + [
            image for _, image in sorted(found[12:], key=lambda f: f[0])
        ])  # fmt: skip

    one = epochs(1, 4)
    assert np.array_equal(one, epochs(1, 6))
    assert not np.array_equal(one[:12], one[12:])
    assert not np.array_equal(one, epochs(2, 4))


def test_exif_turns_the_crop_too(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a.jpg").write_bytes(jpeg(40, 100, exif=exif.tobytes()))
    upright = read_images(tmp_path, labels=None).decode_images((50, 20), crop=None, dtype="uint8").peek(1)[0]["image"]
    stored = read_images(tmp_path, None).decode_images((20, 50), crop=None, dtype="uint8", exif="ignore").peek(1)
    assert np.abs(upright.astype(int) - np.rot90(stored[0]["image"], -1)).mean() < 2


def test_bad_pictures_are_named_all_of_them(folder: Path) -> None:
    (folder / "cat" / "01.jpg").write_bytes(b"not a picture")
    (folder / "dog" / "04.jpg").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes.fromhex("0000000d49484452") + b"\xff" * 20)
    with pytest.raises(BadRecords) as caught:
        one_batch(read_images(folder).decode_images(32, crop="random"))
    assert [one.row for one in caught.value.errors] == [0, 8]
    assert str(folder / "cat" / "01.jpg") in caught.value.errors[0].where
    assert "pixels" in caught.value.errors[1].expected
    assert str(folder / "cat" / "01.jpg") in str(caught.value)


def test_holes_are_filled_and_the_ledger_can_be_given_back(folder: Path) -> None:
    whole = (folder / "dog" / "04.jpg").read_bytes()
    (folder / "dog" / "04.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "cat" / "03.jpg").write_bytes(b"nothing")
    loader = (
        read_images(folder).shuffle(seed=1).decode_images(16, crop="random").skip_errors().batch(6).to_numpy(threads=0)
    )
    seen = [path for batch in loader for path in batch["path"]]
    assert len(seen) == 12
    assert not {"dog/04.jpg", "cat/03.jpg"} & set(seen)
    assert {Path(entry.file).name for entry in loader.ledger.entries} == {"04.jpg", "03.jpg"}
    for exclude in (loader.ledger, loader.ledger.to_json()["entries"], ["cat/03.jpg", folder / "dog/04.jpg"], [1, 8]):
        clean = read_images(folder, exclude=exclude)
        paths = one_batch(clean.decode_images(16, crop="random"), 10)["path"].tolist()
        assert len(paths) == 10
        assert not {"dog/04.jpg", "cat/03.jpg"} & set(paths)
    assert clean.fingerprint() != read_images(folder).fingerprint()
    assert read_images(folder, exclude=[]).fingerprint() == read_images(folder).fingerprint()


def test_exclude_refuses_what_it_does_not_know(folder: Path) -> None:
    with pytest.raises(UsageError, match="a file of the folder"):
        read_images(folder, exclude=["cat/99.jpg"])
    with pytest.raises(UsageError, match="record numbers from 0 to 11"):
        read_images(folder, exclude=[12])
    with pytest.raises(UsageError, match="exclude= as a list"):
        read_images(folder, exclude="cat/01.jpg")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="some records left"):
        read_images(folder, exclude=range(12))


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_tar_shards_with_text_json_and_classes(tmp_path: Path) -> None:
    for shard in range(2):
        write_tar(tmp_path / f"{shard}.tar", [
            member for i in range(3) for member in (
                (f"{shard}{i}.cls", str(i).encode()), (f"{shard}{i}.jpg", jpeg(seed=i)),
                (f"{shard}{i}.json", b'{"n": %d}' % i), (f"{shard}{i}.txt", "é".encode()), (f"{shard}{i}.pkl", b"no"),
            )
        ])  # fmt: skip
    paths = sorted(map(str, tmp_path.glob("*.tar")))
    batch = one_batch(read_tar(paths).decode_images(16, crop="random", column="jpg"), 6)
    assert batch["image"].shape == (6, 16, 16, 3)
    assert batch["cls"].tolist() == [0, 1, 2, 0, 1, 2]
    assert batch["cls"].dtype == np.int64
    assert batch["json"][1] == {"n": 1}
    assert batch["txt"].tolist() == ["é"] * 6
    assert batch["pkl"].tolist() == [b"no"] * 6
    assert one_batch(read_tar(paths, decode=False), 6)["cls"].tolist()[1] == b"1"
    kept = one_batch(read_tar(paths, exclude=["00", 4]), 4)
    assert kept["key"].tolist() == ["01", "02", "10", "12"]


def test_a_tar_ledger_can_be_given_back_twice(tmp_path: Path) -> None:
    members = [(f"{i}.jpg", jpeg(seed=i)) for i in range(6)]
    members[2] = ("2.jpg", b"nothing")
    members[4] = ("4.jpg", b"nothing either")
    write_tar(tmp_path / "a.tar", members)
    shards = read_tar(tmp_path / "a.tar", exclude=[0])
    loader = shards.decode_images(16, crop="random", column="jpg").skip_errors().batch(5).to_numpy(threads=0)
    assert not {"2", "4", "0"} & set(next(iter(loader))["key"])
    assert sorted(entry.record or 0 for entry in loader.ledger.entries) == [2, 4]
    clean = read_tar(tmp_path / "a.tar", exclude=loader.ledger)
    assert one_batch(clean, 4)["key"].tolist() == ["0", "1", "3", "5"]


@pytest.mark.parametrize(
    ("name", "data", "got"),
    [
        ("cls", b"seven", "invalid literal"),
        ("cls", b"9" * 40, "more than a number"),
        ("txt", b"\xff\xfe", "utf-8"),
        ("json", b"[" * 100 + b"]" * 100, "more than 64 levels deep"),
        ("json", b"{", "unexpected end"),
        ("npy", b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (3,), }" + b" " * 60, "npy"),
    ],
)
def test_parts_that_are_not_what_they_say(tmp_path: Path, name: str, data: bytes, got: str) -> None:
    write_tar(tmp_path / "a.tar", [(f"k.{name}", data)])
    with pytest.raises(BadRecords, match=got) as caught:
        read_tar(tmp_path / "a.tar").peek(1)
    assert "key k" in str(caught.value)


def test_npy_parts(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.arange(6).reshape(2, 3))
    write_tar(tmp_path / "a.tar", [("0.npy", file.getvalue()), ("1.npy", file.getvalue())])
    assert one_batch(read_tar(tmp_path / "a.tar"), 2)["npy"].shape == (2, 2, 3)


def test_parquet_with_image_structs(tmp_path: Path) -> None:
    rows = [{"bytes": jpeg(seed=i), "path": f"{i}.jpg"} for i in range(4)]
    pq.write_table(pa.table({"image": rows, "label": [1, 2, 3, 4]}), tmp_path / "a.parquet")
    batch = one_batch(read_parquet(tmp_path / "a.parquet").decode_images(16, crop="random", column="image"), 4)
    assert batch["image"].shape == (4, 16, 16, 3)
    assert batch["label"].tolist() == [1, 2, 3, 4]
    rows[1] = {"bytes": None, "path": str(tmp_path / "a.parquet")}
    pq.write_table(pa.table({"image": rows}), tmp_path / "b.parquet")
    with pytest.raises(BadRecords, match="a path inside data is never opened"):
        one_batch(read_parquet(tmp_path / "b.parquet").decode_images(16, crop="random", column="image"), 4)


def test_text_is_never_taken_for_a_path(folder: Path) -> None:
    pipeline = from_arrays({"bytes": [str(folder / "cat" / "01.jpg")]}).decode_images(16, crop="random")
    with pytest.raises(BadRecords, match="a path inside data is never opened"):
        pipeline.peek(1)


def test_the_way_to_open_paths_in_data_works(folder: Path) -> None:
    path = str(folder / "cat" / "01.jpg")
    for value in (path, {"path": path, "bytes": None}):
        rows = from_arrays({"bytes": strings([value])})
        with pytest.raises(BadRecords) as caught:
            rows.decode_images(16).peek(1)
        function = eval(caught.value.fix.partition(".map(")[2].removesuffix(")"), {"pathlib": pathlib})
        assert rows.map(function, version="1").decode_images(16).peek(1)[0]["image"].shape == (16, 16, 3)


def test_images_that_arrive_decoded_are_cropped_and_resized(folder: Path) -> None:
    files = sorted(folder.rglob("*.jpg"))
    datas = [file.read_bytes() for file in files]
    arrays = from_arrays({"image": strings([np.asarray(Image.open(file)) for file in files])})
    for options in ({}, {"crop": "random"}, {"crop": None, "layout": "NCHW", "mean": 0.5}):
        how: dict[str, Any] = {"method": "pillow", "column": "image", **options}
        made = arrays.shuffle(seed=1).decode_images(16, **how).batch(12).to_numpy(threads=0)
        encoded = from_arrays({"image": datas}).shuffle(seed=1).decode_images(16, **how).batch(12).to_numpy(threads=0)
        assert np.array_equal(made.batch_at(1)["image"], encoded.batch_at(1)["image"])
        assert made.why(1, 3)["from"]["size"] == encoded.why(1, 3)["from"]["size"]
    dense = from_arrays({"image": np.arange(2 * 8 * 9 * 3, dtype=np.uint8).reshape(2, 8, 9, 3)})
    assert dense.decode_images((8, 9), crop=None, dtype="uint8", column="image").peek(1)[0]["image"].tobytes() == (
        np.arange(8 * 9 * 3, dtype=np.uint8).tobytes()
    )
    with pytest.raises(BadRecords, match="dtype uint8"):
        from_arrays({"image": np.zeros((2, 8, 8, 3))}).decode_images(8, column="image").peek(1)


def test_wrong_arguments_are_refused_while_building(folder: Path) -> None:
    images = read_images(folder)
    for options, text in (
        ({"size": 0}, "a size of at least 1 x 1"),
        ({"size": 8, "crop": "middle"}, "crop= one of 'random', 'center', 'letterbox', None"),
        ({"size": 8, "dtype": "float16"}, "dtype= one of"),
        ({"size": 8, "flip": 2}, "flip from 0 to 1"),
        ({"size": 8, "dtype": "uint8", "mean": 0.5}, "with mean and std"),
        ({"size": 8, "std": 0}, "std above 0"),
        ({"size": 8, "crop": "random", "scale": (0.5, 2)}, "scale as"),
        ({"size": "224"}, "got:   '224', str"),
        ({"size": (8, 8, 3)}, "a size of at least 1 x 1"),
        ({"size": 8, "scale": (0.5, 1.0)}, 'crop="random" with scale='),
        ({"size": 8, "crop": None, "ratio": (1.0, 1.0)}, 'crop="random" with ratio='),
        ({"size": 8, "crop": "random", "share": 0.875}, 'crop="center" with share='),
    ):
        with pytest.raises(UsageError, match=text):
            images.decode_images(**options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"share=size/256") as caught:
        images.decode_images(224, resize=256)  # type: ignore[call-arg]
    assert isinstance(caught.value, UsageError)
    with pytest.raises(UsageError, match=r"a column 'jpg' of files(.|\n)*decode_images\(224, column='bytes'\)"):
        images.decode_images(8, crop="random", column="jpg").peek(1)


@pytest.mark.parametrize("output", ["to_numpy", "to_torch", "to_jax"])
def test_batches_that_are_kept_are_never_written_again(folder: Path, output: str) -> None:
    images = read_images(folder).shuffle(seed=1).repeat(20).decode_images(96, crop="random").batch(6)
    loader = getattr(images, output)(threads=2)
    kept = [batch["image"][1:] if i % 2 else batch["image"] for i, batch in enumerate(loader)]
    assert kept[0].nbytes > 1 << 19  # enough for memory to be used again
    fresh = images.to_numpy(threads=0)  # memory of its own
    for step, (image, batch) in enumerate(zip(kept, fresh, strict=True)):
        assert np.array_equal(np.asarray(image), batch["image"][1:] if step % 2 else batch["image"]), step
