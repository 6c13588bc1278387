"""`decode_images(boxes=, keypoints=)`: coordinates get the crop, resize and flip of their picture."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock as ps
from penstock.augment import Augment, Brightness, Flip
from penstock.testing import assert_elastic, assert_exact_resume


def saved(pixels: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", **options)
    return file.getvalue()


def record(number: int) -> dict[str, Any]:
    """A picture with a white rectangle, its box among others, and its corners as points."""
    rng = np.random.default_rng(number)
    height, width = (int(v) for v in rng.integers(60, 120, 2))
    x1, y1 = (int(v) for v in rng.integers(5, 25, 2))
    x2, y2 = x1 + int(rng.integers(12, 30)), y1 + int(rng.integers(12, 30))
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[y1:y2, x1:x2] = 255
    boxes = [[x1, y1, x2, y2]] + [[0, 0, 3, 3]] * (number % 3)
    return {
        "bytes": saved(pixels), "boxes": boxes, "classes": list(range(len(boxes))),
        "points": [[x1, y1, 2], [x2, y2, 2]],
    }  # fmt: skip


RECORDS = [record(i) for i in range(40)]
COLUMNS: dict[str, Any] = {}
for _name in RECORDS[0]:
    COLUMNS[_name] = np.empty(len(RECORDS), object)
    COLUMNS[_name][:] = [r[_name] for r in RECORDS]
ROWS = ps.from_arrays(COLUMNS)
BOXES = ps.Boxes("boxes", labels="classes", max=4)


def loaded(crop: str | None, batch: int = 4, **options: Any) -> Any:
    rows = ROWS.shuffle(seed=3).decode_images(
        (40, 56),
        crop=crop,
        dtype="uint8",
        boxes=BOXES,
        keypoints="points",
        flip=0.5,
        **options,  # type: ignore[arg-type]
    )
    return rows.batch(batch)


@pytest.mark.parametrize("crop", ["random", "center", None])
def test_boxes_and_points_stay_on_their_pixels(crop: Any) -> None:
    scale = {"scale": (0.5, 1.0)} if crop == "random" else {}
    seen = 0
    for batch in loaded(crop, **scale).to_numpy(threads=0):
        assert batch["boxes"].shape == (4, 4, 4)
        for image, boxes, count, classes, points in zip(
            *(batch[name] for name in ("image", "boxes", "boxes_count", "classes", "points")), strict=True
        ):
            ys, xs = np.nonzero(image[..., 0] > 127)
            assert (classes[count:] == -1).all()
            assert not boxes[count:].any()
            if len(xs) and 0 in classes[:count]:
                box = boxes[classes.tolist().index(0)]
                assert np.abs(box - [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]).max() <= 2.5
                seen += 1
                for x, y, visible in points.tolist():
                    assert (x, y) == (0, 0) if not visible else min(abs(x - box[0]), abs(x - box[2])) < 0.01
    assert seen > 8


def test_the_law_and_why() -> None:
    assert_exact_resume(lambda: loaded("random"))
    assert_elastic(lambda batch: loaded("random", batch), batch=4, worlds=(1, 2), threads=(0, 2))
    augment = Augment(Flip(), Brightness(0.3), boxes=BOXES, keypoints="points", seed=1)
    rows = ROWS.shuffle(seed=3).decode_images(40, boxes=BOXES, keypoints="points").map_batches(augment)
    assert_elastic(rows.batch, batch=4, worlds=(1, 2), threads=(0, 2))
    facts = rows.batch(4).to_numpy(threads=0).why(1, 2)["from"]
    drawn = facts["drawn"]["image"]
    assert [one["op"] for one in drawn] in (["Flip", "Brightness"], ["Brightness"])
    assert 0.7 <= drawn[-1]["factor"] <= 1.3


def test_exif_turns_the_picture_under_its_boxes() -> None:
    """Boxes are those of the picture as displayed."""
    pixels = np.zeros((30, 50, 3), np.uint8)
    pixels[5:15, 20:45] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter: displayed 50 high, 30 wide
    shown = np.rot90(pixels, -1)
    ys, xs = np.nonzero(shown[..., 0])
    box = [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]]
    rows = ps.from_arrays({"bytes": [saved(pixels, exif=exif.tobytes())], "boxes": np.array([box], np.float32)})
    made = rows.decode_images((50, 30), crop=None, dtype="uint8", boxes="boxes").peek(1)[0]
    assert np.array_equal(made["image"], shown)
    assert made["boxes"].tolist() == box


def test_bad_boxes_are_bad_records() -> None:
    good = RECORDS[0]
    for name, value, text in (
        ("boxes", [[1, 2, 0, 4]], "x1 <= x2"),
        ("boxes", "a box", "boxes of 4"),
        ("boxes", [[0, 0, 20, 20]] * 9, "at most 4 boxes"),
        ("classes", [1, 2, 3], "one entry of column 'classes'"),
        ("points", [1, 2, 3], r"points \(..., 2\)"),
    ):
        columns = {key: np.empty(3, object) for key in good}
        for key, column in columns.items():
            column[:] = [good[key], value if key == name else good[key], good[key]]
        if name == "boxes" and len(value) == 9:
            columns["classes"][1] = [0] * 9
        rows = ps.from_arrays(columns)
        with pytest.raises(ps.BadRecords, match=text) as caught:
            rows.decode_images(40, boxes=BOXES, keypoints="points").batch(3).to_numpy(threads=0).batch_at(0)
        assert caught.value.errors[0].row == 1
        skipped = rows.skip_errors().decode_images(40, boxes=BOXES, keypoints="points").batch(3).to_numpy(threads=0)
        assert skipped.batch_at(0)["boxes_count"].tolist() == [1, 1, 1]
    with pytest.raises(ps.UsageError, match="a column 'gone'"):
        ROWS.decode_images(8, boxes="gone").peek(1)


def test_rows_keep_arrays_of_their_own_without_max() -> None:
    made = ROWS.decode_images(40, crop=None, boxes=ps.Boxes("boxes", "xyxy", labels="classes")).peek(3)
    assert [len(row["boxes"]) for row in made] == [1, 2, 3]
    assert made[2]["classes"].tolist() == [0, 1, 2]


def test_a_letterbox_keeps_the_ratio_and_takes_everything_along() -> None:
    masks = [saved((np.asarray(Image.open(io.BytesIO(r["bytes"])))[..., 0] > 127).astype(np.uint8)) for r in RECORDS]
    rows = ps.from_arrays({**COLUMNS, "mask": masks}).shuffle(seed=3)
    boxed = rows.decode_images(
        (64, 80), crop="letterbox", fill=0.5, mask_fill=7, flip=0.5, dtype="uint8", boxes=BOXES, masks="mask",
        keypoints="points", method="nearest",
    )  # fmt: skip
    loader = boxed.batch(8).to_numpy(threads=0)
    batch = loader.batch_at(0)
    for row in range(8):
        why = loader.why(0, row)["from"]
        (height, width), (y, x, high, wide) = why["size"], why["inside"]
        assert abs(high / wide - height / width) < 0.03
        assert high == 64 or wide == 80
        if why["flip"]:
            x = 80 - x - wide
        outside = np.ones((64, 80), bool)
        outside[y : y + high, x : x + wide] = False
        assert (batch["image"][row][outside] == 128).all()
        assert (batch["mask"][row][outside] == 7).all()
        assert ((batch["image"][row][..., 0] > 200) == (batch["mask"][row] == 1))[~outside].mean() > 0.97
        ys, xs = np.nonzero(batch["mask"][row] == 1)
        box = batch["boxes"][row][batch["classes"][row].tolist().index(0)]
        assert np.abs(box - [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]).max() <= 1.5
    assert_elastic(boxed.batch, batch=4, worlds=(1, 2), threads=(0, 2))
    pictures = rows.select(["bytes"])
    planes = pictures.decode_images((64, 80), crop="letterbox", layout="NCHW", mean=0.5, std=0.5).peek(1)[0]["image"]
    assert planes.shape == (3, 64, 80)
    for wrong in ({"fill": 0.5}, {"crop": "letterbox", "fill": 2.0}, {"crop": "letterbox", "mask_fill": 300}):
        with pytest.raises(ps.UsageError, match="fill"):
            ROWS.decode_images(8, **wrong)  # type: ignore[arg-type]
