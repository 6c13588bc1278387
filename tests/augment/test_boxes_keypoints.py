"""Boxes and keypoints move with their images: found again where the pixels went, in NumPy, torch, JAX and under jit."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import penstock as ps
from penstock.augment import Augment, Boxes, Brightness, Crop, Flip, Keypoints, Mixup, RandomResizedCrop, Resize, Rot90
from penstock.augment.compose import carry_keys
from penstock.core.errors import RecordError, UsageError

MOVES = [
    Flip(p=0.7), Flip("vertical", p=0.7), Rot90(), Crop(40, padding=8), Crop((30, 50)), Crop(24, where="center"),
    RandomResizedCrop((48, 36), scale=(0.3, 1.0)), Resize((33, 90)),
]  # fmt: skip
HOW = ("numpy", "torch", "jax")


def painted(count: int = 12, side: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Black images with one white rectangle each, and the rectangle's corners."""
    rng = np.random.default_rng(3)
    images = np.zeros((count, side, side, 3), np.uint8)
    boxes = np.zeros((count, 1, 4), np.float32)
    for image, box in zip(images, boxes, strict=True):
        (x1, x2), (y1, y2) = (sorted(rng.choice(np.arange(4, side - 4), 2, replace=False)) for _ in range(2))
        x2, y2 = max(x2, x1 + 8), max(y2, y1 + 8)
        image[y1:y2, x1:x2] = 255
        box[0] = (x1, y1, x2, y2)
    return images, boxes


def found(image: np.ndarray) -> list[float] | None:
    """The rectangle about the bright pixels."""
    ys, xs = np.nonzero(image[..., 0] > 127)
    return None if not len(xs) else [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]


def run(augment: Augment, batch: dict[str, Any], how: str = "numpy") -> dict[str, np.ndarray]:
    keys = augment.keys(np.arange(len(batch["image"])))
    return {name: np.asarray(column) for name, column in getattr(augment, how)(batch, keys).items()}


@pytest.mark.parametrize("op", MOVES, ids=lambda op: f"{type(op).__name__}{getattr(op, 'size', '')}")
def test_a_box_stays_around_its_pixels(op: Any) -> None:
    images, boxes = painted()
    batch = {"image": images, "boxes": boxes, "boxes_count": np.ones(len(boxes), np.int32)}
    made = run(Augment(op, seed=5, boxes="boxes"), batch)
    assert made["boxes"].shape == boxes.shape
    for image, (box,), count in zip(made["image"], made["boxes"], made["boxes_count"], strict=True):
        where = found(image)
        assert count == (where is not None) or min(box[2:] - box[:2]) < 1.5
        if where is not None and count:
            assert np.abs(box - where).max() <= (1e-4 if op.exact else 2.0)
    for how in HOW[1:]:
        other = run(Augment(op, seed=5, boxes="boxes"), batch, how)
        np.testing.assert_allclose(other["boxes"], made["boxes"], atol=1e-4)
        assert np.array_equal(other["boxes_count"], made["boxes_count"])


FORMATS = [("xyxy", False), ("xywh", False), ("cxcywh", False), ("xyxy", True), ("cxcywh", True), ("xywh", True)]


def as_format(boxes: np.ndarray, form: str, normalised: bool, height: int, width: int) -> np.ndarray:
    x1, y1, x2, y2 = np.moveaxis(boxes.astype(np.float64), -1, 0)
    parts = {
        "xyxy": (x1, y1, x2, y2), "xywh": (x1, y1, x2 - x1, y2 - y1),
        "cxcywh": ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1),
    }[form]  # fmt: skip
    made = np.stack(parts, -1)
    return (made / ([width, height] * 2 if normalised else 1)).astype(np.float32)


@pytest.mark.parametrize("how", HOW)
def test_every_format_says_the_same(how: str) -> None:
    images, boxes = painted()
    ops = (Flip(), Crop((48, 40), padding=4), Resize((32, 80)))
    ones = {"boxes_count": np.ones(len(boxes), np.int32)}
    want = run(Augment(*ops, seed=1, boxes="boxes"), {"image": images, "boxes": boxes, **ones}, how)
    for form, normalised in FORMATS:
        given = {"image": images, "boxes": as_format(boxes, form, normalised, 64, 64), **ones}
        made = run(Augment(*ops, seed=1, boxes=Boxes("boxes", form, normalised)), given, how)  # type: ignore[arg-type]
        there = np.arange(1) < want["boxes_count"][:, None]
        expected = np.where(there[..., None], as_format(want["boxes"], form, normalised, 32, 80), 0)
        np.testing.assert_allclose(made["boxes"], expected, atol=1e-3)


@pytest.mark.parametrize("how", HOW)
def test_boxes_are_clipped_and_filtered_with_their_labels(how: str) -> None:
    image = np.zeros((2, 20, 20, 3), np.uint8)
    boxes = np.array([[0, 0, 4, 4], [8, 8, 12, 12], [3, 8, 7, 12], [19, 19, 20, 20]], np.float32)
    batch = {"image": image, "boxes": np.stack([boxes] * 2), "boxes_count": np.array([4, 2]),
             "labels": np.array([[7, 8, 9, 5]] * 2), "id": np.arange(16.0).reshape(2, 4, 2)}  # fmt: skip
    crop = Crop(10, where="center")  # 5..15
    for visible, left in ((0.0, [8, 9]), (0.5, [8, 9]), (0.51, [8])):
        named = Boxes("boxes", labels=("labels", "id"), min_visible=visible)
        made = run(Augment(crop, boxes=named), batch, how)
        assert made["labels"].tolist() == [left + [-1] * (4 - len(left)), [8, -1, -1, -1]]
        assert made["boxes_count"].tolist() == [len(left), 1]
        assert made["boxes"][0, 0].tolist() == [3, 3, 7, 7]
        assert made["id"][0, 0].tolist() == [2, 3]
        assert not made["boxes"][0, len(left) :].any()
    assert run(Augment(crop, boxes=Boxes(min_size=3)), batch, how)["boxes_count"].tolist() == [1, 1]


def test_rows_of_their_own_length_on_the_host() -> None:
    images, _ = painted(3)
    rows = np.empty(3, object)
    rows[:] = [[[0, 0, 10, 10], [30, 30, 40, 40]], [], [[60, 60, 64, 64]]]
    names = np.empty(3, object)
    names[:] = [["cat", "dog"], [], ["cow"]]
    batch = {"image": images, "boxes": rows, "labels": names}
    made = Augment(Crop(32, where="center"), boxes=Boxes(labels="labels"))(batch, np.zeros(3, np.uint64))
    assert [row.tolist() for row in made["boxes"]] == [[[14, 14, 24, 24]], [], []]
    assert [list(row) for row in made["labels"]] == [["dog"], [], []]
    numbers = {**batch, "labels": ps.Ragged.of([np.array([1, 2]), np.array([], np.int64), np.array([3])])}
    padded = Augment(Flip(p=1.0), boxes=Boxes(labels="labels", max=3))(numbers, np.zeros(3, np.uint64))
    assert padded["boxes"].shape == (3, 3, 4)
    assert padded["labels"].tolist() == [[1, 2, -1], [-1, -1, -1], [3, -1, -1]]
    assert padded["boxes_count"].tolist() == [2, 0, 1]
    with pytest.raises(RecordError, match="at most 1 boxes"):
        Augment(Flip(), boxes=Boxes(max=1))({"image": images, "boxes": rows}, np.zeros(3, np.uint64))
    with pytest.raises(RecordError, match="one entry of column 'labels'"):
        wrong = {**batch, "labels": names[::-1]}
        Augment(Flip(), boxes=Boxes(labels="labels"))(wrong, np.zeros(3, np.uint64))
    for bad in ([[3, 3, 1, 5]], [[1, 2, 3]], "box", [[np.nan, 1, 2, 3]]):
        rows[1] = bad
        with pytest.raises(RecordError, match="boxes of 4 finite numbers"):
            Augment(Flip(), boxes=Boxes())({"image": images, "boxes": rows}, np.zeros(3, np.uint64))


@pytest.mark.parametrize("how", HOW)
def test_keypoints_follow_change_sides_and_leave(how: str) -> None:
    image = np.zeros((2, 20, 30, 3), np.uint8)
    points = np.array([[[1, 2], [10, 5], [29, 19]]] * 2, np.float32)
    made = run(Augment(Flip(p=1.0), keypoints="keypoints"), {"image": image, "keypoints": points}, how)
    assert made["keypoints"][0].tolist() == [[29, 2], [20, 5], [1, 19]]
    assert made["keypoints_inside"].all()
    sides = Augment(Flip(p=1.0), keypoints=Keypoints(pairs=((0, 1),)))
    assert run(sides, {"image": image, "keypoints": points}, how)["keypoints"][0].tolist() == [
        [20, 5],
        [29, 2],
        [1, 19],
    ]
    coco = np.concatenate([points, [[[2], [1], [2]], [[0], [2], [2]]]], -1)
    made = run(Augment(Crop(10, where="center"), keypoints="joints"), {"image": image, "joints": coco}, how)
    assert made["joints"].tolist() == [[[0, 0, 0], [0, 0, 1], [0, 0, 0]], [[0, 0, 0], [0, 0, 2], [0, 0, 0]]]
    assert "joints_inside" not in made
    people = np.stack([points] * 4, 1) / [30, 20]
    turned = run(Augment(Flip(p=1.0), keypoints=Keypoints(normalised=True)), {"image": image, "keypoints": people}, how)
    np.testing.assert_allclose(turned["keypoints"][0, 3], np.array([[29, 2], [20, 5], [1, 19]]) / [30, 20], atol=1e-6)


def test_images_of_different_sizes_take_everything_along() -> None:
    images, boxes = painted(6)
    uneven, masks, rows = (np.empty(6, object) for _ in range(3))
    for i in range(6):
        height = 64 - 5 * i
        uneven[i], masks[i], rows[i] = images[i, :height], images[i, :height, :, 0], boxes[i]
    batch = {"image": uneven, "boxes": rows, "mask": masks, "keypoints": boxes[..., :2]}
    augment = Augment(
        Flip(), RandomResizedCrop(32, scale=(0.5, 1)), seed=2, boxes=Boxes(max=4), masks="mask", keypoints="keypoints"
    )
    made = run(augment, batch)
    assert made["image"].shape == (6, 32, 32, 3)
    assert made["mask"].shape == (6, 32, 32)
    assert made["boxes"].shape == (6, 4, 4)
    for i in range(6):
        alone = augment({name: column[i : i + 1] for name, column in batch.items()}, augment.keys([i]))
        for name, column in made.items():
            assert np.array_equal(column[i], alone[name][0]), name


def test_jit_draws_and_moves_what_numpy_does() -> None:
    images, boxes = painted(4)
    ops = (Flip(), Crop(40, padding=4), Brightness(), RandomResizedCrop(20))
    augment = Augment(*ops, seed=6, boxes=Boxes(labels="labels"), keypoints="keypoints")
    batch = {"image": images, "boxes": boxes, "labels": np.arange(4)[:, None], "keypoints": boxes[..., :2]}
    batch["boxes_count"] = np.ones(4, np.int32)
    keys = augment.keys(np.arange(4))
    want = augment(batch, keys)
    made = jax.jit(augment.jax)(carry_keys(batch, keys))
    for name in ("boxes", "boxes_count", "labels", "keypoints", "keypoints_inside"):
        np.testing.assert_allclose(np.asarray(made[name]), want[name], atol=1e-4)


def test_wrong_declarations_and_shapes_are_refused() -> None:
    images, boxes = painted(2)
    for make, text in (
        (lambda: Boxes(format="yolo"), 'YOLO: "cxcywh"'),  # type: ignore[arg-type]
        (lambda: Boxes(min_visible=2), "min_visible"),
        (lambda: Boxes(max=0), "max="),
        (lambda: Keypoints(pairs=((1, 1),)), "pairs"),
        (lambda: Augment(Flip(), boxes=3), "Boxes"),  # type: ignore[arg-type]
        (lambda: Augment(Mixup(), boxes="boxes"), "no mixing"),
        (lambda: run(Augment(Flip(), boxes="gone", ignore="boxes"), {"image": images, "boxes": boxes}), "'gone'"),
        (lambda: run(Augment(Flip(), boxes="boxes"), {"image": images, "boxes": boxes[..., :3]}, "torch"), "places, 4"),
        (lambda: run(Augment(Flip(), keypoints="boxes"), {"image": images, "boxes": boxes}), "points"),
        (lambda: run(Augment(Flip()), {"image": images, "boxes": boxes}), "boxes='boxes'"),
    ):
        with pytest.raises(UsageError, match=text):
            make()
    assert Augment(Flip(), boxes="boxes").spec() != Augment(Flip(), boxes=Boxes(min_visible=0.1)).spec()


@pytest.mark.parametrize("most", [3, None])
def test_the_form_of_boxes_does_not_depend_on_the_batch(most: int | None) -> None:
    """Rows that have equally many boxes by chance, or none at all, come out as in any other batch."""
    records = [{"image": np.zeros((8, 8, 3), np.uint8), "boxes": [[1, 1, 5, 5]] * n, "labels": [n] * n} for n in KEPT]
    rows = ps.from_records(records).map_batches(Augment(Flip(), boxes=Boxes(labels="labels", max=most)))
    one = rows.batch(12).to_numpy(threads=0).batch_at(0)
    for size in (1, 2, 3):
        made = list(rows.batch(size).to_numpy(threads=0))
        for name in ("boxes", "labels", *(("boxes_count",) if most else ())):
            assert {batch[name].dtype for batch in made} == {one[name].dtype}
            parts = [row for batch in made for row in batch[name]]
            assert all(np.array_equal(a, b) for a, b in zip(parts, one[name], strict=True))
    if most:
        assert one["boxes_count"].tolist() == list(KEPT)
        assert one["boxes"].shape == (12, 3, 4)


KEPT = (0, 0, 2, 2, 1, 3, 1, 1, 1, 0, 0, 0)
