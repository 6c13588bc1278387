"""Verbs that decode images, audio, video and the parts of tar records."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from penstock.core.arguments import explained_methods
from penstock.pipeline.base import Verbs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from penstock.augment.points import Boxes, Keypoints
    from penstock.core.limits import Limits
    from penstock.steps.base import Step


@explained_methods
class MediaVerbs(Verbs):
    """`decode_images`, `decode_audio`, `decode_video`, `decode_parts`."""

    __slots__ = ()

    def decode_images(
        self, size: int | tuple[int, int], *, crop: Literal["random", "center", "letterbox"] | None = "center",
        scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float | None = None, share: float = 1.0, mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0, dtype: Literal["float32", "uint8"] = "float32",
        mode: Literal["RGB", "L", "RGBA"] = "RGB", layout: Literal["NHWC", "NCHW"] = "NHWC",
        exif: Literal["apply", "ignore"] = "apply",
        method: Literal["antialias", "pillow", "linear", "nearest"] = "antialias", strict: bool = True,
        column: str = "bytes", out: str = "image", masks: str | Sequence[str] = (),
        boxes: str | Boxes | Sequence[Boxes] = (), keypoints: str | Keypoints | Sequence[Keypoints] = (),
        ignore: str | Sequence[str] = (), fill: float = 0.0, mask_fill: int = 0,
        media_root: str | os.PathLike[str] | None = None, limits: Limits | None = None,
    ) -> Self:  # fmt: skip
        """Decodes images to one size. Crop and flip are drawn before decoding, so only the pixels needed are decoded.

        Args:
            size: a side, or (height, width).
            crop: "center" is the largest centred box, "random" a random resized crop, None resizes the full image,
                "letterbox" resizes it to fit, ratio kept, and fills the rest with `fill` (masks with `mask_fill`).
            scale, ratio: of a random crop: its share of the area, and its width / height.
            flip: probability of a mirror image; default 0.5 with a random crop, else 0.
            share: part of the sides that a center crop keeps; 0.875 is common in evaluation.
            mean, std: float32 pixels are `(pixels / 255 - mean) / std`.
            exif, strict: turn images upright; treat damaged image data as a bad record.
            masks: columns of masks that get the crop and flip of their image, as class numbers (n, height, width).
            boxes, keypoints: columns of coordinates that get the crop, resize and flip too: a name, or `ps.Boxes(...)`
                and `ps.Keypoints(...)` with their format and what happens to boxes that leave the image.
            ignore: columns beside the image that do not belong to it: pictures decoded with a crop of their own, boxes
                that are left as they are. Without it both are refused.
            media_root: a folder or URL: paths in `column` and `masks` are opened, if they lead to files below it.
                Without it a path inside data is never opened.

        >>> import cv2, numpy as np
        >>> png = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
        >>> ps.from_arrays({"bytes": [png]}).decode_images(4, crop=None).peek(1)[0]["image"].shape
        (4, 4, 3)
        """
        from penstock.core.limits import LIMITS
        from penstock.steps.decode_images import DecodeImages

        files = [column, *([masks] if isinstance(masks, str) else masks)]
        return self._opened(files, media_root)._decoded(DecodeImages.of(
            size, crop=crop, scale=scale, ratio=ratio, flip=flip, share=share, mean=mean, std=std, dtype=dtype,
            mode=mode, layout=layout, exif=exif, method=method, strict=strict, column=column, out=out,
            masks=masks, boxes=boxes, keypoints=keypoints, fill=fill, mask_fill=mask_fill,
            ignore=ignore, limits=limits or LIMITS,
        ))  # fmt: skip

    def decode_audio(
        self, sample_rate: int = 16000, *, duration: float | None = None,
        offset: Literal["random", "start"] = "random", mono: bool = True, channels: int = 2,
        features: Literal["log_mel", "mel", "mfcc"] | None = None, n_mels: int = 80, n_mfcc: int = 20,
        n_fft: int = 400, hop: int = 160, mel: Literal["librosa", "torchaudio", "whisper"] | None = None,
        mask: bool = False, min_duration: float | None = None, max_duration: float | None = None,
        cut: tuple[str, str] | None = None, column: str = "audio", out: str = "audio",
        ignore: str | Sequence[str] = (),
        media_root: str | os.PathLike[str] | None = None, limits: Limits | None = None,
    ) -> Self:  # fmt: skip
        """Decodes audio to float32 samples at one rate, or to features. Only the slice that is needed is read.

        Args:
            duration: seconds of each row; None keeps full recordings, as ragged rows.
            mono: average the channels; with False rows have `channels` of them.
            features: "mel", "log_mel" or "mfcc" instead of samples, with `n_mels`, `n_mfcc`, `n_fft`, `hop`.
            mel: whose definition of features: None is librosa's filters and a natural logarithm.
            mask: add a column `mask`, True where there is sound.
            min_duration, max_duration: leave out shorter or longer recordings, in seconds: a filter by their headers.
            cut: names of two columns, start and duration in seconds; only that part of each file is decoded.
            ignore: columns of other recordings whose slices are drawn on their own; else two random slices are refused.
            media_root: as in `decode_images`.

        >>> import numpy as np
        >>> from penstock.codecs.audio import wav
        >>> sound = ps.from_arrays({"audio": [wav.encode(np.zeros(800), 8000)]})
        >>> sound.decode_audio(8000, duration=0.05, offset="start").peek(1)[0]["audio"].shape
        (400,)
        """
        from penstock.core.limits import LIMITS
        from penstock.steps.decode_audio import DecodeAudio

        step = DecodeAudio(
            sample_rate, duration, offset, mono, channels, features, n_mels, n_mfcc, n_fft, hop, mask, column, out, mel,
            tuple(cut) if isinstance(cut, list) else cut, limits=limits or LIMITS, ignore=ignore,
        )  # fmt: skip
        if min_duration is None and max_duration is None:
            return self._opened([column], media_root)._decoded(step)
        from penstock.steps.audio_cuts import DurationBetween
        from penstock.steps.filter import Filter

        between = DurationBetween(column, min_duration, max_duration, step.cut, limits=step.limits)
        return self._opened([column], media_root).then(Filter(between, batched=True))._decoded(step)

    def decode_video(
        self, frames: int, size: int | tuple[int, int], *,
        clip: Literal["uniform", "consecutive", "random"] = "uniform", fps: float | None = None,
        crop: Literal["random", "center"] | None = "center",
        scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float | None = None, layout: Literal["NHWC", "NCHW"] = "NHWC",
        method: Literal["antialias", "pillow", "linear", "nearest"] = "antialias", column: str = "video",
        out: str = "video", ignore: str | Sequence[str] = (), limits: Limits | None = None,
    ) -> Self:  # fmt: skip
        """Decodes clips of video (MP4, MOV, WebM, Matroska) to uint8 (rows, frames, height, width, 3), and `times`.

        Args:
            frames, size: how many frames, and their side or (height, width).
            clip: "uniform" over the video, "consecutive" from its start, or from a "random" time on.
            fps: frames a second of consecutive and random clips; None is the video's own rate.
            crop, scale, ratio, flip: as in `decode_images`, the same for all frames of a clip.
            ignore: columns of images, recordings or videos that do not belong to it, as in `decode_images`.

        >>> ps.from_arrays({"video": [b"not a video"]}).decode_video(8, 32).skip_errors().definition.steps[0].name
        'decode_video'
        """
        from penstock.core.limits import LIMITS
        from penstock.steps.decode_video import DecodeVideo

        pair = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list) else size
        return self._decoded(DecodeVideo(
            frames, pair, clip, fps, crop, (scale[0], scale[1]), (ratio[0], ratio[1]), flip, layout, method, column,
            out, limits=limits or LIMITS, ignore=ignore,
        ))  # fmt: skip

    def decode_parts(self, *parts: str) -> Self:
        """Decodes text, JSON, numbers and arrays in the parts of tar records; by default all whose extension says how.

        >>> ps.from_arrays({"key": ["a"], "cls": [b"7"]}).decode_parts("cls").peek(1)
        [{'key': 'a', 'cls': np.int64(7)}]
        """
        from penstock.steps.decode_parts import DecodeParts

        return self.then(DecodeParts(parts or None))

    def _opened(self, columns: Sequence[str], media_root: str | os.PathLike[str] | None) -> Self:
        """Opens the paths in columns, inside of a folder that the caller trusts; without one nothing is opened."""
        if media_root is None:
            return self
        from penstock.steps.open_media import OpenMedia

        opened = self
        for column in columns:
            opened = opened.then(OpenMedia(column, os.fspath(media_root), column))
        return opened

    def _decoded(self, step: Step) -> Self:
        """Adds a decoder; after `skip_errors`, records that it cannot decode are skipped too."""
        policy = next((s for s in reversed(self.definition.steps) if s.name == "skip_errors"), None)
        return self.then(step) if policy is None else self.then(step).then(policy)
