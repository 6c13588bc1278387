"""A progress bar on stderr with rate and time left, or nothing at all.

The bar shows only on a terminal, unless forced, and never when `PENSTOCK_QUIET` is set. The bar's package is imported
only when a bar is shown; an update of a bar that is off costs one addition.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any, Self

from penstock.core.optional import need


class Progress:
    """Counts what is done, and shows it when there is a bar. Use it as a context manager.

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
        """Says that `n` more units are done."""
        self.done += n
        if self._bar is not None:
            self._bar.update(n)

    def note(self, text: str) -> None:
        """Puts a few words after the bar."""
        if self._bar is not None:
            self._bar.set_postfix_str(text)

    def close(self) -> None:
        """Leaves the bar as it stands and ends its line."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def wanted(enabled: bool | None = None) -> bool:
    """Whether a bar should show: `enabled` if given, else a terminal that was not told to be quiet."""
    if enabled is not None:
        return enabled
    return not os.environ.get("PENSTOCK_QUIET") and sys.stderr is not None and sys.stderr.isatty()


def progress(
    total: int | None, unit: str = "it", description: str = "", enabled: bool | None = None, done: int = 0
) -> Progress:
    """A progress bar over `total` units ("B" for bytes), `done` of which an earlier run has already finished.

    `enabled=None` shows it on a terminal only; `True` forces it (a log file gets it too); `False` hides it.
    """
    if not wanted(enabled):
        return Progress()
    bar = need("tqdm", extra="all").tqdm(
        total=total, unit=unit, unit_scale=True, desc=description or None, initial=done, file=sys.stderr,
        dynamic_ncols=True, mininterval=0.2,
    )  # fmt: skip
    return Progress(bar)
