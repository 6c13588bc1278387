"""A progress bar on stderr with rate and remaining time.

It shows only on a terminal, unless forced, and not when `PENSTOCK_QUIET` is set. tqdm is imported only when a bar is
shown; updating a hidden bar costs one addition.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any, Self

from penstock.core.optional import need


class Progress:
    """Counts finished units and updates the bar if there is one. Use it as a context manager.

    >>> with progress(10, "B", "reading", enabled=False) as bar:
    ...     bar.update(4)
    >>> bar.done
    4
    """

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar
        self.done = 0

    @property
    def shown(self) -> bool:
        """Whether a bar is on the screen."""
        return self._bar is not None

    def update(self, n: int = 1) -> None:
        """Adds `n` finished units."""
        self.done += n
        if self._bar is not None:
            self._bar.update(n)

    def note(self, text: str) -> None:
        """Shows a short text after the bar."""
        if self._bar is not None:
            self._bar.set_postfix_str(text)

    def close(self) -> None:
        """Ends the bar's line, leaving the bar visible."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def wanted(enabled: bool | None = None) -> bool:
    """Whether to show a bar: `enabled` if set, else only on a terminal and without `PENSTOCK_QUIET`."""
    if enabled is not None:
        return enabled
    return not os.environ.get("PENSTOCK_QUIET") and sys.stderr is not None and sys.stderr.isatty()


def progress(
    total: int | None, unit: str = "it", description: str = "", enabled: bool | None = None, done: int = 0
) -> Progress:
    """Creates a progress bar over `total` units ("B" for bytes); an earlier run has finished `done` of them.

    `enabled=None` shows it on a terminal only; `True` forces it (a log file gets it too); `False` hides it.
    """
    if not wanted(enabled):
        return Progress()
    bar = need("tqdm", extra="all").tqdm(
        total=total, unit=unit, unit_scale=True, desc=description or None, initial=done, file=sys.stderr,
        dynamic_ncols=True, mininterval=0.2,
    )  # fmt: skip
    return Progress(bar)
