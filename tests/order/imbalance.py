"""How unevenly ranks are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def imbalance(costs: Any, ranks: Sequence[Any]) -> float:
    """Work of the busiest rank divided by the mean work: 1.0 is perfect balance."""
    loads = [float(np.asarray(costs)[np.asarray(rows, np.int64)].sum()) for rows in ranks]
    return max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0
