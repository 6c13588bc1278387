"""Progress on stderr with rate and remaining time.

A bar on a terminal or in a notebook (`tqdm.auto`), unless `PENSTOCK_QUIET` is set. Elsewhere (a log file, a pipe)
lines, if they are asked for. tqdm is imported only when a bar is shown; updating a hidden bar costs one addition.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from penstock.core.optional import need
from penstock.core.signals import surface
from penstock.core.sizes import size

STEP, INTERVAL = 0.1, 10.0  # a line is due after this share of the total, or these seconds


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


class Lines:
    """Progress as lines of a log: one for each tenth of the total, one every 10 seconds, and one at the end.

    >>> times = iter([0.0, 1.0, 2.0, 3.0])
    >>> lines = Lines(100, "rows", "writing", file=sys.stdout, clock=lambda: next(times))
    >>> lines.update(5)
    >>> lines.update(45)
    writing: 50%, 50 of 100 rows, 25 rows/s, 2 s left
    """

    def __init__(
        self, total: int | None, unit: str, description: str, done: int = 0, file: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.total, self.unit, self.file, self.clock = total, unit, file or sys.stderr, clock
        self.start = f"{description}: " if description else ""
        self.done = self.first = self.said = done
        self.began = self.at = clock()
        self.more, self.lines = "", 0

    def update(self, n: int = 1) -> None:
        """Adds finished units, and writes a line if one is due."""
        self.done += n
        now = self.clock()
        if now - self.at >= INTERVAL or (self.total and self.done - self.said >= STEP * self.total):
            self._write(now)

    def set_postfix_str(self, text: str) -> None:
        """A note at the end of the next lines."""
        self.more = text

    def close(self) -> None:
        """Writes a last line, unless it would be the one before."""
        if self.done != self.said or not self.lines:
            self._write(self.clock())

    def _write(self, now: float) -> None:
        self.at, self.said, self.lines = now, self.done, self.lines + 1
        seconds = now - self.began
        rate = (self.done - self.first) / seconds if seconds > 0 else 0.0
        parts = [f"{self._amount(self.done)} {self.unit}".removesuffix(" B")]
        if self.total:
            of = f"{self._amount(self.done)} of {self._amount(self.total)} {self.unit}".removesuffix(" B")
            parts = [f"{min(1.0, self.done / self.total):.0%}", of]
        if rate > 0:
            parts.append(f"{self._amount(rate)}{'' if self.unit == 'B' else ' ' + self.unit}/s")
            if self.total and self.done < self.total:
                parts.append(f"{(self.total - self.done) / rate:,.0f} s left")
        try:
            self.file.write(self.start + ", ".join([*parts, *filter(None, [self.more])]) + "\n")
            self.file.flush()
        except (OSError, ValueError) as error:  # whoever reads the log has left: no reason to end the work
            surface(error)

    def _amount(self, count: float) -> str:
        return size(count) if self.unit == "B" else f"{count:,.0f}" if count >= 10 else f"{count:,.3g}"


def wanted(enabled: bool | None = None) -> bool:
    """Whether to show a bar: `enabled` if set, else only on a terminal or in a notebook, without `PENSTOCK_QUIET`."""
    if enabled is not None:
        return enabled
    return not os.environ.get("PENSTOCK_QUIET") and sys.stderr is not None and (sys.stderr.isatty() or in_notebook())


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. Imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def progress(
    total: int | None, unit: str = "it", description: str = "", enabled: bool | None = None, done: int = 0
) -> Progress:
    """Creates a progress bar over `total` units ("B" for bytes); an earlier run has finished `done` of them.

    `enabled=None` shows it on a terminal and in a notebook only; `True` always, as lines where there is neither;
    `False` hides it.
    """
    if not wanted(enabled) or sys.stderr is None:
        return Progress()
    if not sys.stderr.isatty() and not in_notebook():
        return Progress(Lines(total, unit, description, done))
    with warnings.catch_warnings():  # without ipywidgets a notebook gets the bar as text; tqdm would warn
        warnings.simplefilter("ignore")
        tqdm = need("tqdm.auto", extra="all").tqdm
    bar = tqdm(
        total=total, unit=unit, unit_scale=True, desc=description or None, initial=done, file=sys.stderr,
        dynamic_ncols=True, mininterval=0.2,
    )  # fmt: skip
    return Progress(bar)
