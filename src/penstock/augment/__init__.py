"""Augmentation: operations defined once, with parameters drawn from record keys, run in NumPy, torch or JAX.

>>> from penstock.augment import Augment, Flip, Noise
>>> Augment(Flip(), Noise(0.02), seed=1).spec()["ops"][1]
{'op': 'Noise', 'level': [0.0, 0.02], 'p': 1.0}

To add an operation, write one file in `operations/` with a subclass of `Op` (fields, `draw`, `apply`), and one line
below. `apply(xp, x, p)` is written once for all frameworks; `arrays.Arrays` lists what `xp` can do. To add a framework,
write one subclass of `Arrays`.
"""

from __future__ import annotations

from penstock.augment.compose import Augment as Augment
from penstock.augment.compose import carry_keys as carry_keys
from penstock.augment.operations.audio import FrequencyMask as FrequencyMask
from penstock.augment.operations.audio import Gain as Gain
from penstock.augment.operations.audio import Shift as Shift
from penstock.augment.operations.audio import SpecAugment as SpecAugment
from penstock.augment.operations.audio import TimeMask as TimeMask
from penstock.augment.operations.base import Op as Op
from penstock.augment.operations.blur import Blur as Blur
from penstock.augment.operations.boxes import Erase as Erase
from penstock.augment.operations.color import Brightness as Brightness
from penstock.augment.operations.color import Contrast as Contrast
from penstock.augment.operations.color import Hue as Hue
from penstock.augment.operations.color import Saturation as Saturation
from penstock.augment.operations.crop import Crop as Crop
from penstock.augment.operations.crop import RandomResizedCrop as RandomResizedCrop
from penstock.augment.operations.crop import Resize as Resize
from penstock.augment.operations.fit import FiveCrop as FiveCrop
from penstock.augment.operations.fit import Letterbox as Letterbox
from penstock.augment.operations.fit import ShorterSide as ShorterSide
from penstock.augment.operations.flip import Flip as Flip
from penstock.augment.operations.flip import Rot90 as Rot90
from penstock.augment.operations.mix import Cutmix as Cutmix
from penstock.augment.operations.mix import Mixup as Mixup
from penstock.augment.operations.noise import AudioNoise as AudioNoise
from penstock.augment.operations.noise import Noise as Noise
from penstock.augment.operations.policy import AugMix as AugMix
from penstock.augment.operations.policy import RandAugment as RandAugment
from penstock.augment.operations.policy import TrivialAugment as TrivialAugment
from penstock.augment.operations.sounds import MixNoise as MixNoise
from penstock.augment.operations.sounds import Pitch as Pitch
from penstock.augment.operations.sounds import RoomImpulse as RoomImpulse
from penstock.augment.operations.sounds import Sounds as Sounds
from penstock.augment.operations.speed import Speed as Speed
from penstock.augment.operations.tokens import TokenMask as TokenMask
from penstock.augment.operations.tokens import TokenReplace as TokenReplace
from penstock.augment.operations.tone import AutoContrast as AutoContrast
from penstock.augment.operations.tone import Equalize as Equalize
from penstock.augment.operations.tone import Grayscale as Grayscale
from penstock.augment.operations.tone import Invert as Invert
from penstock.augment.operations.tone import Posterize as Posterize
from penstock.augment.operations.tone import Sharpness as Sharpness
from penstock.augment.operations.tone import Solarize as Solarize
from penstock.augment.operations.warp import Affine as Affine
from penstock.augment.operations.warp import Perspective as Perspective
from penstock.augment.operations.warp import Rotate as Rotate
from penstock.augment.operations.warp import Shear as Shear
from penstock.augment.operations.warp import Translate as Translate
from penstock.augment.points import Boxes as Boxes
from penstock.augment.points import Keypoints as Keypoints
from penstock.augment.views import Views as Views
