from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(scope="session")
def images() -> np.ndarray:
    """Float images with smooth parts, noise, pure grey and saturated pixels."""
    rng = np.random.default_rng(5)
    made = rng.random((6, 16, 16, 3), np.float32)
    made[1] = np.linspace(0, 1, 16, dtype=np.float32)[:, None, None]
    made[2, :8] = 0
    made[2, 8:] = 1
    return made


@pytest.fixture(scope="session")
def waves() -> np.ndarray:
    t = np.arange(2000, dtype=np.float32) / 8000
    return np.stack([0.5 * np.sin(2 * np.pi * f * t) for f in (200, 440, 700, 1000)]).astype(np.float32)
