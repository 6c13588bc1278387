"""`Augment`, `Views`, `Boxes` and `Keypoints` in configurations: every operation and format, commands, Hydra."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import toml
import yaml
from omegaconf import OmegaConf

import penstock as ps
from penstock import augment as a
from penstock.augment import Augment, Boxes, Flip, Keypoints, MixNoise, Op, Rotate, Views
from penstock.augment.config import operations
from penstock.cli.main import main

# Of each operation, arguments that are not defaults.
OPERATIONS = (
    a.FrequencyMask(0.2, 2, p=0.5), a.Gain((0.5, 2.0)), a.Shift(0.2, wrap=False),
    a.SpecAugment(1, 9, 3, 20, fill="mean"), a.TimeMask(0.3), a.Blur(1.5), a.Erase((0.1, 0.2), (0.5, 2.0), 0.5),
    a.Brightness(0.4), a.Contrast((0.5, 0.9)),
    a.Hue(0.2), a.Saturation(0.3), a.Crop((6, 8), 2, 0.5), a.RandomResizedCrop((8, 6), (0.5, 1.0)), a.Resize(9),
    a.FiveCrop((4, 5), flips=True), a.Letterbox((9, 8), 0.5), a.ShorterSide(9, longest=20), Flip("vertical", p=1.0),
    a.Rot90((1, 3)), a.Cutmix(0.5, classes=3), a.Mixup(0.2, labels="y"), a.AudioNoise(0.1), a.Noise((0.1, 0.2)),
    a.AugMix(2, depth=2), a.RandAugment(3, 5), a.TrivialAugment(11), a.Pitch(3.0), a.Speed((0.9, 1.1)),
    a.TokenMask(4, (0, 1), 0.3), a.TokenReplace(90, (0, 1)), a.AutoContrast(p=1.0), a.Equalize(p=0.2),
    a.Grayscale(p=0.4), a.Invert(p=0.1), a.Posterize((2, 3)), a.Sharpness(0.5), a.Solarize((0.2, 0.4)),
    a.Affine(5.0, (0.1, 0.2), (0.9, 1.1), 3.0), a.Perspective(0.3), Rotate((10, 20), 0.5, "nearest"), a.Shear(3.0, 4.0),
    a.Translate(0.2, (0.1, 0.3)),
)  # fmt: skip
IN_MEMORY = {"MixNoise", "RoomImpulse"}  # their recordings are arrays


@dataclass(frozen=True)
class Swirl(Op):
    """An operation of a user's own."""

    turns: float = 1.0
    places: tuple[int, ...] = (1, 2)
    kind: ClassVar[str] = "image"

    def apply(self, xp: Any, x: Any, p: dict[str, Any]) -> Any:
        return x[:, ::-1]


def files(config: dict[str, Any], folder: Path) -> dict[str, Path]:
    """The configuration in each format."""
    (folder / "p.json").write_text(json.dumps(config, sort_keys=True))
    (folder / "p.yaml").write_text(yaml.safe_dump(config))
    (folder / "p.toml").write_text(toml.dumps(config))
    return {path.suffix: path for path in folder.glob("p.*")}


def test_every_operation_comes_back_from_every_format(tmp_path: Path) -> None:
    assert {type(op).__name__ for op in OPERATIONS} | IN_MEMORY == set(operations())
    rows = ps.from_arrays({"image": [[[0, 1], [2, 3]]]})
    for op in OPERATIONS:
        augment = Augment(op, seed=3)
        again = Augment.from_config(json.loads(json.dumps(augment.to_config())))
        assert again.spec() == augment.spec() and again.ops == augment.ops and hash(again.ops) == hash(augment.ops)
        pipeline = rows.map_batches(augment)
        for suffix, path in files(pipeline.to_config(), tmp_path).items():
            found = ps.from_config(path)
            assert found == pipeline and found.to_config() == pipeline.to_config(), (suffix, op)


def test_every_argument_of_augment_comes_back(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "seed": 5, "image": "photo", "channels_first": True, "mean": [0.5, 0.4, 0.3], "std": [0.1, 0.2, 0.3],
        "masks": ["m", "n"], "mask_fill": 255, "ignore": ["depth"],
        "boxes": Boxes("b", "xywh", True, ("c", "d"), 0.1, 2.0, 7, -2), "keypoints": [Keypoints("k", True, ((0, 1),))],
    }  # fmt: skip
    augment = Augment(Flip(), Rotate(5.0), **given)
    config = json.loads(json.dumps(augment.to_config()))
    again = Augment.from_config(config)
    assert again.spec() == augment.spec() and again.to_config() == config
    assert set(config) == {"ops", *given} and again.ignore == ("depth",) and again.channels_first is True
    assert Augment.from_config({"ops": ["Flip"], "channels_first": False}).channels_first is False
    assert set(Augment(Flip()).to_config()) == {"ops"}
    assert Augment.from_config(OmegaConf.create(config)).spec() == augment.spec()
    views = Views({"z": (2, augment), "b": (1, Augment(Flip()))}, image="photo", keep=True)
    pipeline = ps.from_arrays({"x": [1]}).map_batches(views)
    for path in files(pipeline.to_config(), tmp_path).values():
        found = ps.from_config(path)
        assert found == pipeline and found.to_config() == pipeline.to_config()


def test_boxes_and_keypoints_of_decoders(tmp_path: Path) -> None:
    rows = ps.from_texts(["a"])
    pipeline = rows.decode_images(
        8, column="text", boxes=[Boxes("b", "xywh", labels="c"), Boxes("e", max=3)],
        keypoints=Keypoints("k", pairs=((0, 1),)),
    )  # fmt: skip
    for path in files(pipeline.to_config(), tmp_path).values():
        assert ps.from_config(path) == pipeline
    assert ps.from_config(rows.decode_images(8, column="text", boxes=Boxes("b")).to_config()).to_config() == (
        rows.decode_images(8, column="text", boxes=Boxes("b")).to_config()
    )


def test_names_of_columns_are_not_read_as_objects() -> None:
    for name in ("function", "pipeline", "limits", "augment", "views", "boxes", "keypoints", "mapping", "ordered"):
        pipeline = ps.from_arrays({name: [1]}).rename({name: "y"})
        again = ps.from_config(json.loads(json.dumps(pipeline.to_config())))
        assert again == pipeline and again.peek() == [{"y": 1}]


def test_the_operations_of_a_user_are_imported_only_if_allowed() -> None:
    augment = Augment(Swirl(2.0, (3, 4)), seed=1)
    config = json.loads(json.dumps(augment.to_config()))
    assert list(config["ops"][0]) == [f"{__name__}:Swirl"]
    with pytest.raises(ps.UsageError, match=r"allow_functions=\["):
        Augment.from_config(config)
    assert Augment.from_config(config, allow_functions=__name__.partition(".")[0]).ops == augment.ops
    pipeline = ps.from_arrays({"image": [[[0, 1]]]}).map_batches(augment)
    assert ps.from_config(pipeline.to_config(), allow_functions=True) == pipeline
    with pytest.raises(ps.UsageError, match="importing runs code"):
        ps.from_config(pipeline.to_config())


def test_recordings_in_memory_are_refused_with_what_to_do() -> None:
    noisy = Augment(MixNoise([np.ones(3)]))
    with pytest.raises(ps.UsageError, match=r"MixNoise, with recordings(.|\n)*my_project.noise:augment"):
        ps.from_arrays({"audio": [[0.0]]}).map_batches(noisy).to_config()


@pytest.mark.parametrize(("config", "text"), [
    ({"ops": [{"Flipp": {}}]}, r"an operation of Augment\n  got:   'Flipp'(.|\n)*fix:   Flip"),
    ({"ops": [{"Augment": {}}]}, "an operation of Augment"),
    ({"ops": [{"Op": {}}]}, "an operation of Augment"),
    ({"ops": [{"os:system": {}}]}, "importing runs code"),
    ({"ops": [{"Flip": {"axes": "x"}}]}, r"arguments of Flip: axis, p\n  got:   'axes'(.|\n)*ops\[0\] Flip(.|\n)*axis"),
    ({"ops": [{"Resize": {}}]}, "no size"),
    ({"ops": [{"Flip": {"p": "often"}}]}, r"ops\[0\] Flip"),
    ({"ops": [{"Flip": {"p": 2}}]}, "a probability from 0 to 1"),
    ({"ops": [{"Flip": {}, "Invert": {}}]}, "one operation, as"),
    ({"ops": [{"Flip": 3}]}, "arguments by name"), ({"ops": [7]}, "one operation, as"),
    ({"ops": "Flip"}, 'a list "ops"'), ({}, 'a list "ops"'), ([], 'a list "ops"'),
    ({"ops": ["Flip"], "sede": 3}, r"'sede'(.|\n)*seed"),
    ({"ops": ["Flip"], "boxes": [{"columns": "b"}]}, "'columns'"),
])  # fmt: skip
def test_wrong_configurations_say_where_and_what(config: Any, text: str) -> None:
    with pytest.raises(ps.UsageError, match=text):
        Augment.from_config(config)
    with pytest.raises(ps.UsageError, match=text):
        ps.from_config(in_views(config))


def in_views(config: Any) -> dict[str, Any]:
    views = {"views": [{"name": "x", "count": 1, "augment": config}]}
    return {
        "source": {"from_texts": {"texts": ["a"]}},
        "steps": [{"map_batches": {"function": {"views": views}}}],
    }


def test_commands_and_hydra_take_an_augmentation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    for i in range(6):
        Image.new("RGB", (12, 10), (i * 40, 9, 9)).save(tmp_path / f"{i}.png")
    path = tmp_path / "train.toml"
    path.write_text(f"""
[source.read_images]
root = {str(tmp_path)!r}
labels = {{none = true}}

[[steps]]
decode_images = {{size = 8, dtype = "uint8"}}

[[steps]]
[steps.map_batches.function.augment]
ops = ["Invert", {{Flip = {{p = 1.0}}}}, {{Rotate = {{degrees = [5, 9]}}}}]
seed = 3

[[steps]]
batch = {{size = 2}}
""")
    ours = Augment(a.Invert(), Flip(p=1.0), Rotate((5, 9)), seed=3)
    expected = ps.read_images(tmp_path, None).decode_images(8, dtype="uint8").map_batches(ours).batch(2)
    found = ps.from_config(path)
    assert found == expected
    assert (found.to_numpy().batch_at(0)["image"] == expected.to_numpy().batch_at(0)["image"]).all()
    assert main(["plan", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps_per_epoch"] == 3
    path.write_text(path.read_text().replace("[[steps]]\nbatch = {size = 2}", ""))
    assert main(["peek", str(path), "-n", "2"]) == 0 and "image" in capsys.readouterr().out
    shown = OmegaConf.create({"degrees": 9, "augment": {"ops": ["Invert", {"Rotate": {"degrees": [5, "${degrees}"]}}]}})
    assert Augment.from_config(shown.augment).ops == (a.Invert(), Rotate((5, 9)))
    assert ps.from_config(OmegaConf.create(expected.to_config())) == expected
