"""torch, imported where it is needed. Modules that import this one need torch; the rest of penstock does not."""

from __future__ import annotations

from typing import Any

from penstock.core.optional import need

torch: Any = need("torch", extra="torch", purpose="for DataLoaders")
data: Any = torch.utils.data


def can_pin() -> bool:
    """Whether there is a device to pin memory for."""
    return bool(torch.cuda.is_available() or (hasattr(torch, "accelerator") and torch.accelerator.is_available()))


def pinned(batch: Any) -> Any:
    """The batch in pinned memory, as torch's DataLoader pins it."""
    return need("torch.utils.data._utils.pin_memory", extra="torch").pin_memory(batch)


def worker() -> tuple[int, int, int]:
    """Number of this DataLoader worker, how many there are (0 outside of workers), and its seed."""
    info: Any = data.get_worker_info()
    return (0, 0, 0) if info is None else (info.id, info.num_workers, info.seed)
