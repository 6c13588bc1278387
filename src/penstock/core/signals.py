"""Tells exceptions that a signal handler raised (a preemption, an alarm) from those of the code it interrupted."""

from __future__ import annotations

import signal
import threading
from types import CodeType
from typing import Any


def raised_by_handler(error: BaseException) -> bool:
    """Whether a Python signal handler raised this exception; only the main thread runs handlers."""
    if threading.current_thread() is not threading.main_thread():
        return False
    codes = {code for number in signal.valid_signals() if (code := _code(signal.getsignal(number))) is not None}
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code in codes:
            return True
        step = step.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    if handler is None or not callable(handler):
        return None
    for function in (
        handler,
        getattr(handler, "__func__", None),
        getattr(handler, "func", None),
        type(handler).__call__,
    ):
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
