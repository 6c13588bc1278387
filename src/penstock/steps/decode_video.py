"""`decode_video`: clips of frames by time, cropped and resized, from encoded videos (PyAV, the extra `av`).

Where a random clip begins, its crop and its flip are drawn from (seed, epoch, record) before frames are decoded. A bad
file is a bad record: the error names the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.image.geometry import center_crop_params, crop_params, flip_params
from penstock.codecs.image.resize import METHODS
from penstock.codecs.video.decode import VideoInfo, open_video
from penstock.core import randomness
from penstock.core.columns import Columns
from penstock.core.errors import BadRecords, PenstockError, RecordError, UsageError
from penstock.steps.base import Context, Extent, column_field, integer_field
from penstock.steps.media import DecodedMedia, Media, MediaStep
from penstock.steps.node import Node
from penstock.steps.picks import Picks, row_keys

Clip = Literal["uniform", "consecutive", "random"]
START = 200
"""Draw number of a clip's start, far from those of crops and flips."""


@dataclass(frozen=True)
class DecodeVideo(MediaStep):
    """`frames` frames of `size` in the column `out`, uint8 (n, frames, height, width, 3), and their `times` in seconds.

    `clip="uniform"` takes them from the middles of equal parts of the video, "consecutive" from its start on, "random"
    from a random time on, `fps` a second (None: the video's own rate). Past the end the last frame repeats. `crop`,
    `scale`, `ratio` and `flip` are those of `decode_images`, the same for all frames of a clip.
    """

    axes: ClassVar[frozenset[str]] = frozenset({"space", "time"})
    frames: int
    size: tuple[int, int]
    clip: Clip = "uniform"
    fps: float | None = None
    crop: Literal["random", "center"] | None = "center"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float | None = None
    layout: Literal["NHWC", "NCHW"] = "NHWC"
    method: str = "antialias"
    column: str = "video"
    out: str = "video"

    @property
    def name(self) -> str:
        return "decode_video"

    def __post_init__(self) -> None:
        super().__post_init__()
        column_field(self, self.column)
        integer_field(self, "frames", 1, "frames, a count of at least 1, in .decode_video()", ".decode_video(8, 224)")
        sides: Any = self.size if isinstance(self.size, tuple) and len(self.size) == 2 else (None,)
        if any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in sides):
            raise UsageError("a size of at least 1 x 1 in .decode_video()", got=repr(self.size), fix="224")
        choices = {
            "clip": get_args(Clip), "crop": ("random", "center", None), "layout": ("NHWC", "NCHW"), "method": METHODS,
        }  # fmt: skip
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UsageError(f"{name}= one of {', '.join(map(repr, known))}", got=repr(getattr(self, name)))
        if not 0 <= self.mirror <= 1:
            raise UsageError("flip from 0 to 1", got=repr(self.flip))
        if self.fps is not None and (self.clip == "uniform" or not 0 < self.fps <= 10_000):
            got = f"fps={self.fps!r}, clip={self.clip!r}"
            raise UsageError('fps= above 0, with clip="consecutive" or "random"', got=got)
        crop_params(np.zeros(0, np.uint64), [], [], self.scale, self.ratio)

    @property
    def mirror(self) -> float:
        """Probability of a mirror image."""
        return (0.5 if self.crop == "random" else 0.0) if self.flip is None else float(self.flip)

    @property
    def drawn(self) -> frozenset[str]:
        space = {"space"} if self.crop == "random" or self.mirror > 0 else set()
        return frozenset(space | ({"time"} if self.clip == "random" else set()))

    @property
    def draws(self) -> bool:
        return bool(self.drawn)

    @property
    def extent(self) -> Extent:
        return self._extent(self.column, self.out)

    def build(self, child: Node, context: Context) -> Node:
        return _Decoded(child, self, context, ".decode_video(8, 224, column={})")

    def times(self, info: VideoInfo, key: randomness.U64) -> NDArray[np.float64]:
        """The times of the frames, in seconds."""
        if self.clip == "uniform":
            return np.asarray((np.arange(self.frames) + 0.5) * (info.seconds / self.frames), np.float64)
        step = 1 / (self.fps or info.fps or 25.0)
        begin = 0.0
        if self.clip == "random":
            begin = float(randomness.uniform(key, START)[0]) * max(0.0, info.seconds - self.frames * step)
        return np.asarray(begin + np.arange(self.frames) * step, np.float64)

    def box(self, info: VideoInfo, key: randomness.U64) -> tuple[int, int, int, int] | None:
        """The crop of all frames."""
        if self.crop is None:
            return None
        if self.crop == "random":
            made = crop_params(key, [info.height], [info.width], self.scale, self.ratio)
        else:
            made = center_crop_params([info.height], [info.width], self.size[1] / self.size[0])
        y, x, height, width = made[0].tolist()
        return y, x, height, width

    def apply(self, medias: list[Media], keys: randomness.U64, _: Columns, /) -> Columns:
        """Columns of these videos; `BadRecords` names each bad one."""
        out = np.empty((len(medias), self.frames, *self.size, 3), np.uint8)
        times = np.empty((len(medias), self.frames), np.float32)
        errors: list[RecordError] = []
        for row, media in enumerate(medias):
            key = keys[row : row + 1]
            try:
                with open_video(media, limits=self.limits) as video:
                    wanted = self.times(video.info, key)
                    times[row] = wanted
                    video.frames(wanted.tolist(), out[row], self.box(video.info, key), self.method)
            except RecordError as error:
                error.row = row
                errors.append(error.with_traceback(None))
        if errors:
            raise BadRecords(errors)
        if self.mirror:
            for mirrored in np.flatnonzero(flip_params(keys, self.mirror)).tolist():
                out[mirrored] = out[mirrored, :, :, ::-1].copy()
        made = np.ascontiguousarray(out.transpose(0, 1, 4, 2, 3)) if self.layout == "NCHW" else out
        return {self.out: made, "times": times}


class _Decoded(DecodedMedia[DecodeVideo]):
    def explain(self, picks: Picks) -> dict[str, Any]:
        """Also the length, times, crop and mirror of the row, where its file can be opened."""
        facts, key = self.child.explain(picks), row_keys(self.base, picks)
        try:
            with open_video(self.medias(self.child.fetch(picks).columns)[0], limits=self.step.limits) as video:
                info = video.info
        except PenstockError:  # `fetch` reports the bad file; the facts so far are still valid
            return facts
        facts |= {"seconds": info.seconds, "times": self.step.times(info, key).tolist()}
        box = self.step.box(info, key)
        facts |= {"crop": list(box)} if box is not None else {}
        return facts | ({"flip": bool(flip_params(key, self.step.mirror)[0])} if self.step.mirror else {})
