"""One augmentation, three executions: operations defined once, parameters from record keys, run in NumPy, torch or JAX.

>>> from penstock.augment import Augment, Flip, Noise
>>> Augment(Flip(), Noise(0.02), seed=1).spec()["ops"][1]
{'op': 'Noise', 'level': [0.0, 0.02], 'p': 1.0}
"""

from __future__ import annotations

from penstock.augment.compose import Augment as Augment
from penstock.augment.compose import carry_keys as carry_keys
from penstock.augment.spec import AudioNoise as AudioNoise
from penstock.augment.spec import Blur as Blur
from penstock.augment.spec import Brightness as Brightness
from penstock.augment.spec import Contrast as Contrast
from penstock.augment.spec import Crop as Crop
from penstock.augment.spec import Cutmix as Cutmix
from penstock.augment.spec import Erase as Erase
from penstock.augment.spec import Flip as Flip
from penstock.augment.spec import FrequencyMask as FrequencyMask
from penstock.augment.spec import Gain as Gain
from penstock.augment.spec import Hue as Hue
from penstock.augment.spec import Mixup as Mixup
from penstock.augment.spec import Noise as Noise
from penstock.augment.spec import RandomResizedCrop as RandomResizedCrop
from penstock.augment.spec import Resize as Resize
from penstock.augment.spec import Rot90 as Rot90
from penstock.augment.spec import Saturation as Saturation
from penstock.augment.spec import Shift as Shift
from penstock.augment.spec import Speed as Speed
from penstock.augment.spec import TimeMask as TimeMask
from penstock.augment.spec import TokenMask as TokenMask
from penstock.augment.spec import TokenReplace as TokenReplace
