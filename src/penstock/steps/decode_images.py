"""`decode_images`: encoded pictures become one array of equal size, cropped, mirrored and normalised.

Which crop and whether to mirror is drawn from (seed, epoch, record) before a picture is decoded, so only the pixels
needed are decoded, at 1/2, 1/4 or 1/8 where that suffices, straight into their row of the batch. Memory is the batch
buffer, reused once no reference to it is left, and one scratch picture per thread. A bad picture is a bad record: the
error names the file, `.skip_errors()` refills its row (and decodes the other rows of that batch once more).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from penstock.augment.masks import MASKS, POINTS, argument_for
from penstock.augment.operations.fit import Letterbox
from penstock.augment.points import Boxes, Keypoints, declared
from penstock.codecs.image.arrays import CHANNELS
from penstock.codecs.image.batch import fill_row
from penstock.codecs.image.decode import ImageOptions, Picture, probe_picture
from penstock.codecs.image.geometry import center_crop_params, crop_params, flip_params, opencv
from penstock.codecs.image.info import ImageInfo
from penstock.codecs.image.mask import decode_mask
from penstock.codecs.image.normalise import Stat, normalise, numbers, table_for
from penstock.codecs.image.resize import METHODS
from penstock.core import randomness
from penstock.core.buffers import Buffers
from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, PenstockError, RecordError, UsageError
from penstock.core.read_budget import spend
from penstock.sources.folders import FilePath, ImageFolder
from penstock.steps.base import Context, Extent, column_field
from penstock.steps.image_points import Placement, moved_columns
from penstock.steps.media import Media, MediaStep, file_column, located, pictures
from penstock.steps.node import ContentNode, Fetched, Node, SourceNode, WrapperNode
from penstock.steps.picks import Picks, row_keys
from penstock.steps.replacement import rows_asked
from penstock.storage.small_files import Arena, read_whole

_local = threading.local()
_NAME_IT = ".decode_images(224, column={})"

Crop = Literal["random", "center", "letterbox"]
ChannelOrder = Literal["NHWC", "NCHW"]
Pixels = Literal["float32", "uint8"]


@dataclass(frozen=True)
class DecodeImages(MediaStep):
    """Pictures of `size` (a side, or (height, width)) in the column `out`; the column of bytes is removed.

    `crop="center"` is the largest centred box of the target's shape, `share` of its sides (often 0.875 in evaluation);
    None resizes the full picture, "letterbox" keeps its ratio and fills the rest with `fill` (`mask_fill` in masks).
    "random" is the random resized crop of most training recipes: `scale` of the area, `ratio` width/height.
    `flip` is the probability of a mirror image: 0.5 with a random crop, else 0.
    `masks` names columns of masks, decoded with the crop and the flip of their picture to uint8 (n, height, width).
    `boxes` and `keypoints` are columns of coordinates in the picture as displayed (as stored with `exif="ignore"`).
    float32 is `(pixels / 255 - mean) / std`; uint8 is the pixels. `exif="apply"` turns pictures upright.
    """

    axes: ClassVar[frozenset[str]] = frozenset({"space"})
    size: tuple[int, int]
    crop: Crop | None = "center"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float | None = None
    share: float = 1.0
    mean: Stat = 0.0
    std: Stat = 1.0
    dtype: Pixels = "float32"
    mode: str = "RGB"
    layout: ChannelOrder = "NHWC"
    exif: str = "apply"
    method: str = "antialias"
    strict: bool = True
    column: str = "bytes"
    out: str = "image"
    masks: tuple[str, ...] = ()
    boxes: tuple[Boxes, ...] = ()
    keypoints: tuple[Keypoints, ...] = ()
    fill: float = 0.0
    mask_fill: int = 0

    @property
    def name(self) -> str:
        return "decode_images"

    @classmethod
    def of(cls, size: int | tuple[int, int], **options: Any) -> DecodeImages:
        """Completes the arguments of `Pipeline.decode_images`."""
        pair: Any = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list) else size
        chosen: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        chosen["masks"] = (chosen["masks"],) if isinstance(chosen["masks"], str) else chosen["masks"]
        for name, kind in (("boxes", Boxes), ("keypoints", Keypoints)):
            chosen[name] = declared(chosen.get(name) or (), kind, "decode_images(...)")
        return cls(pair, **chosen)

    def __post_init__(self) -> None:
        super().__post_init__()
        column_field(self, self.column)
        sides: Any = self.size if isinstance(self.size, tuple) and len(self.size) == 2 else (None,)
        if any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in sides):
            got = f"{self.size!r}, {type(self.size).__name__}"
            raise UsageError("a size of at least 1 x 1 in .decode_images()", got=got, fix="224, or (height, width)")
        choices = {
            "crop": (*get_args(Crop), None), "dtype": get_args(Pixels), "layout": get_args(ChannelOrder),
            "mode": tuple(CHANNELS), "exif": ("apply", "ignore"), "method": METHODS,
        }  # fmt: skip
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UsageError(f"{name}= one of {', '.join(map(repr, known))}", got=repr(getattr(self, name)))
        if not 0 <= self.mirror <= 1 or not 0 < self.share <= 1:
            raise UsageError("flip from 0 to 1 and share above 0, to 1", got=f"{self.flip!r} and {self.share!r}")
        if self.dtype == "uint8" and (self.mean, self.std) != (0.0, 1.0):
            raise UsageError(
                'dtype="float32" with mean and std',
                got='dtype="uint8"',
                fix="leave them out and normalise on the device",
            )
        if not 0 <= self.fill <= 1 or isinstance(self.mask_fill, bool) or not 0 <= self.mask_fill <= 255:
            got = f"fill={self.fill!r}, mask_fill={self.mask_fill!r}"
            raise UsageError("fill from 0 (black) to 1 (white) and mask_fill from 0 to 255", got=got)
        unused = _unused(self)
        if unused:
            name, needed = unused
            raise UsageError(
                f'crop="{needed}" with {name}= in .decode_images()',
                got=f"{name}={getattr(self, name)!r} with crop={self.crop!r}",
                fix=f'crop="{needed}", or leave {name}= out',
            )
        table_for(numbers(self.mean), numbers(self.std), CHANNELS[self.mode])
        crop_params(np.zeros(0, np.uint64), [], [], self.scale, self.ratio)

    def spec(self) -> dict[str, Any]:
        """Without masks, boxes and keypoints where there are none, as before they existed: fingerprints stay."""
        newer = ("masks", "boxes", "keypoints", "fill", "mask_fill")
        return {name: value for name, value in super().spec().items() if name not in newer or value}

    @property
    def joint(self) -> bool:
        """Whether other columns move with the picture."""
        return bool(self.masks or self.boxes or self.keypoints)

    @property
    def moved(self) -> tuple[str, ...]:
        """The columns that are cut like the picture."""
        boxes = [name for one in self.boxes for name in one.columns]
        return (*self.masks, *boxes, *[name for one in self.keypoints for name in one.columns])

    @property
    def mirror(self) -> float:
        """Probability of a mirror image."""
        return (0.5 if self.crop == "random" else 0.0) if self.flip is None else float(self.flip)

    @property
    def draws(self) -> bool:
        return self.crop == "random" or self.mirror > 0

    @property
    def extent(self) -> Extent:
        return self._extent(self.column, self.out, *self.moved)

    def build(self, child: Node, context: Context) -> Node:
        return _Decoded(child, self, randomness.key(context.seed, self.name, context.place))

    def _sizes(self, infos: list[ImageInfo]) -> NDArray[np.int64]:
        """Height and width of each picture, as crops and boxes see it: (n, 2)."""
        sides = [info.oriented if self.exif == "apply" else (info.height, info.width) for info in infos]
        return np.array(sides, np.int64).reshape(-1, 2)

    def crops(self, infos: list[ImageInfo], keys: randomness.U64) -> NDArray[np.int64] | None:
        """The crop box of each picture; None for full pictures."""
        if self.crop in (None, "letterbox"):
            return None
        heights, widths = self._sizes(infos).T
        if self.crop == "random":
            return crop_params(keys, heights, widths, self.scale, self.ratio)
        return center_crop_params(heights, widths, self.size[1] / self.size[0], self.share)

    def inside(self, infos: list[ImageInfo]) -> NDArray[np.int64] | None:
        """Where in `size` the picture of a letterbox is: (n, 4); None for other crops."""
        if self.crop != "letterbox":
            return None
        inner = np.array([Letterbox(self.size).inner(size) for size in self._sizes(infos).tolist()]).reshape(-1, 2)
        return np.concatenate([(np.array(self.size) - inner) // 2, inner], 1)

    def apply(self, columns: Columns, keys: randomness.U64, buffers: Buffers, own: bool = False) -> dict[str, Any]:
        """The arrays of these pictures and what moves with them; `BadRecords` names the bad ones.

        Headers are read before anything is decoded. `own`: no other code reads the bytes.
        """
        datas, infos = self._look(pictures(columns, self.column, _NAME_IT))
        boxes = self.crops(infos, keys)
        flips = flip_params(keys, self.mirror).tolist() if self.mirror else [False] * len(datas)
        crops = [None] * len(datas) if boxes is None else boxes.tolist()
        points: dict[str, Any] = {}
        if self.boxes or self.keypoints:
            sizes = self._sizes(infos)
            cut = np.concatenate([0 * sizes, sizes], 1) if boxes is None else boxes
            placed = Placement(sizes, cut, self.size, flips, self.inside(infos))
            points = moved_columns(columns, self.boxes, self.keypoints, placed)
        self._check_beside(columns)
        made: dict[str, Any] = {self.out: self._decode(datas, infos, crops, flips, buffers, own)} | points
        for name in self.masks:
            made[name] = self._masks(self._look(pictures(columns, name, _NAME_IT))[0], infos, crops, flips)
        return made

    def _check_beside(self, columns: Columns) -> None:
        """Refuses coordinates and masks that would no longer belong to their picture."""
        for name in columns.keys() - {self.column, *self.moved, *self.ignore}:
            mask = bool(self.drawn) and name in MASKS and file_column({name: columns[name]}) is not None
            if mask or name in POINTS:
                argument = argument_for(name)
                raise UsageError(
                    f"to know what to do with column {name!r}, which has to move with the picture",
                    got=f"a crop and a new size of column {self.column!r} alone",
                    where=".decode_images()",
                    fix=f"{argument}={name!r} moves it too; ignore={name!r} leaves it as it is",
                )

    def _masks(
        self, datas: list[Picture], infos: list[ImageInfo], crops: list[Any], flips: list[bool]
    ) -> NDArray[np.uint8]:
        out = np.full((len(datas), *self.size), self.mask_fill, np.uint8)
        inside = self.inside(infos)
        errors: list[RecordError] = []
        for row, (data, info, crop, flip) in enumerate(zip(datas, infos, crops, flips, strict=True)):
            size = info.oriented if self.exif == "apply" else (info.height, info.width)
            box = None if crop is None else tuple(crop)
            try:
                y, x, height, width = (0, 0, *self.size) if inside is None else inside[row].tolist()
                place = out[row, y : y + height, x : x + width]
                place[...] = decode_mask(
                    data, size, box, (height, width), exif=self.exif, strict=self.strict, limits=self.limits
                )
                if flip:
                    out[row] = out[row, :, ::-1].copy()
            except RecordError as error:
                error.row = row
                errors.append(error.with_traceback(None))
        if errors:
            raise BadRecords(errors)
        return out

    def _decode(
        self, datas: list[Picture], infos: list[ImageInfo], crops: list[Any], flips: list[bool], buffers: Buffers,
        own: bool,
    ) -> NDArray[Any]:  # fmt: skip
        how = ImageOptions(self.mode, self.exif, self.method, self.strict, limits=self.limits, own=own)
        planes = self.layout == "NCHW"
        shape = (len(datas), *self.size, CHANNELS[self.mode])
        out = buffers.empty(shape, np.dtype(np.uint8 if planes else self.dtype))
        errors: list[RecordError] = []
        inside = self.inside(infos)
        boxes = [None] * len(datas) if inside is None else inside.tolist()
        fill = round(self.fill * 255)
        for row, (place, data, info, crop, flip) in enumerate(zip(out, datas, infos, crops, flips, strict=True)):
            try:
                fill_row(place, data, how, crop, flip, self.mean, self.std, info=info, inside=boxes[row], fill=fill)
            except RecordError as error:
                error.row = row
                errors.append(error.with_traceback(None))  # its frames would keep what was decoded so far
        if errors:
            raise BadRecords(errors)
        return (
            _planes(out, buffers.empty((shape[0], shape[3], *self.size), np.dtype(self.dtype)), self) if planes else out
        )

    def _look(self, medias: list[Media | NDArray[Any]]) -> tuple[list[Picture], list[ImageInfo]]:
        """Bytes and headers of every picture."""
        datas: list[Picture] = []
        infos: list[ImageInfo] = []
        errors: list[RecordError] = []
        for row, media in enumerate(medias):
            try:
                data = read_whole(media, self.limits) if isinstance(media, FilePath) else media
                spend(len(data) if isinstance(media, FilePath) else 0)
                infos.append(probe_picture(data, limits=self.limits))
                datas.append(data)
            except RecordError as error:
                error.row = row
                errors.append(error.with_traceback(None))  # its frames would keep what was decoded so far
        if errors:
            raise BadRecords(errors)
        return datas, infos


def _planes(pixels: NDArray[np.uint8], out: NDArray[Any], step: DecodeImages) -> NDArray[Any]:
    """(N, H, W, C) bytes to `out` (N, C, H, W) of the step's dtype, a picture at a time."""
    mean, std = (np.broadcast_to(np.asarray(numbers(stat)), out.shape[1]) for stat in (step.mean, step.std))
    split = opencv().split
    for picture, row in zip(pixels, out, strict=True):
        for plane, target, m, s in zip(split(picture), row, mean, std, strict=True):
            if step.dtype == "uint8":
                target[...] = plane
            else:
                normalise(plane[..., None], float(m), float(s), out=target[..., None])
    return out


def _unused(step: DecodeImages) -> tuple[str, str] | None:
    """An option that the chosen crop would ignore, and the crop that uses it."""
    usual = {field.name: field.default for field in fields(step)}
    users = {"scale": "random", "ratio": "random", "share": "center", "fill": "letterbox", "mask_fill": "letterbox"}
    return next(((n, c) for n, c in users.items() if getattr(step, n) != usual[n] and step.crop != c), None)


def _files_of(node: Node) -> ImageFolder | None:
    """The folder that a node reads from, if no step in between reads the bytes."""
    while isinstance(node, WrapperNode) and not isinstance(node, ContentNode):
        node = node.child
    return node.source if isinstance(node, SourceNode) and isinstance(node.source, ImageFolder) else None


class _Decoded(ContentNode):
    def __init__(self, child: Node, step: DecodeImages, base: int) -> None:
        super().__init__(child)
        self.step, self.base = step, base
        self.buffers = Buffers()
        self.files = _files_of(child) if step.column == "bytes" and not step.joint else None

    def fetch(self, picks: Picks) -> Fetched:
        columns, used = self.child.fetch(picks) if self.files is None else (self._borrowed(self.files, picks), picks)
        if not len(used):
            return Fetched({}, used)
        with rows_asked(picks, used), located(self.child, used):
            own = self.files is not None
            made = self.step.apply(columns, row_keys(self.base, used), self.buffers, own)
        rest = {name: column for name, column in columns.items() if name not in (self.step.column, *made)}
        return Fetched({**made, **rest}, used)

    def _borrowed(self, files: ImageFolder, picks: Picks) -> Columns:
        """The child's rows, with the bytes in a buffer of this thread: they are decoded before the next read."""
        arena: Arena | None = getattr(_local, "arena", None)
        if arena is None:
            arena = _local.arena = Arena()
        arena.clear()
        return files.borrow(picks.record, arena)

    def encoded(self, picks: Picks) -> dict[str, Any]:
        found = pictures(self.child.fetch(picks).columns, self.step.column, _NAME_IT)
        return self.child.encoded(picks) | {self.step.out: found[0]}

    def explain(self, picks: Picks) -> dict[str, Any]:
        """Also the crop and the mirror of the row, where its picture has a readable header."""
        facts = self.child.explain(picks)
        try:
            _, infos = self.step._look(pictures(self.child.fetch(picks).columns, self.step.column, _NAME_IT))
        except PenstockError:  # `fetch` reports the bad file; the facts so far are still valid
            return facts
        keys = row_keys(self.base, picks)
        boxes = self.step.crops(infos, keys)
        facts["size"] = list(infos[0].oriented)
        if boxes is not None:
            facts["crop"] = boxes[0].tolist()
        inside = self.step.inside(infos)
        if inside is not None:
            facts["inside"] = inside[0].tolist()
        if self.step.mirror:
            facts["flip"] = bool(flip_params(keys, self.step.mirror)[0])
        return facts
