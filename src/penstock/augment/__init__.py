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
from penstock.augment.operations.flip import Flip as Flip
from penstock.augment.operations.flip import Rot90 as Rot90
from penstock.augment.operations.mix import Cutmix as Cutmix
from penstock.augment.operations.mix import Mixup as Mixup
from penstock.augment.operations.noise import AudioNoise as AudioNoise
from penstock.augment.operations.noise import Noise as Noise
from penstock.augment.operations.speed import Speed as Speed
from penstock.augment.operations.tokens import TokenMask as TokenMask
from penstock.augment.operations.tokens import TokenReplace as TokenReplace
