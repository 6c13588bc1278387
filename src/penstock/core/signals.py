"""Tells exceptions that a signal handler raised (a preemption, an alarm) from those of the code it interrupted.

A handler may raise anything, such as TimeoutError, wherever the main thread is: below an `except OSError` of ours or of
a library. Three things keep it from being lost or taken for trouble of the data. A `PenstockError` that is made while
Penstock handles such an exception raises that exception instead. An `except` that continues calls `surface`. Libraries
in which an exception would be lost are called by `undisturbed`.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import wraps
from types import CodeType
from typing import Any, ParamSpec, TypeVar, cast

from penstock.core.waits import Event

P = ParamSpec("P")
T = TypeVar("T")
# The function of C below the one that looks up an enum for every answer: a twentieth of its time.
_handler_of: Callable[[int], Any] = getattr(sys.modules.get("_signal"), "getsignal", signal.getsignal)
_DEPTH = 20  # exceptions raised while another was handled, at most


def raised_by_handler(error: BaseException) -> bool:
    """Whether a Python signal handler raised this exception; only the main thread runs handlers."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return _passed(error, _handlers())


def surface(error: BaseException) -> None:
    """Raises Ctrl-C or an exception of a signal handler again: it says nothing about the record that was being read.

    Also one that a library replaced by an exception of its own. What the caller of Penstock is handling stays his.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    codes = _handlers()
    step: BaseException | None = error
    for _ in range(_DEPTH):
        if step is None:
            return
        if _inside(step) and (isinstance(step, KeyboardInterrupt) or _passed(step, codes)):
            raise step
        step = step.__cause__ or step.__context__


def surface_handled() -> None:
    """The same for the exception that is being handled, if any."""
    error = sys.exception()
    if error is not None:
        surface(error)


def undisturbed(function: Callable[P, T]) -> Callable[P, T]:
    """A function in which exceptions of signal handlers would be lost, called where no handler runs: in a thread.

    For code that calls back into Python from C, where an exception ends, and Ctrl-C too. The exception is then raised
    when the function has ended. Costs the start of a thread, some 50 us, in the main thread and nothing in others.
    """

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> T:
        if threading.current_thread() is not threading.main_thread():
            return function(*args, **named)
        return _in_thread(lambda: function(*args, **named))

    return call


def undisturbed_by_handlers(function: Callable[P, T]) -> Callable[P, T]:
    """The same for code that catches `Exception` or `OSError` and goes on: only where the user has set a handler."""
    guarded = undisturbed(function)

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> T:
        return (guarded if _handlers() else function)(*args, **named)

    return call


class NoMoreThreads(RuntimeError):
    """The system allows no more threads."""


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread; an exception of a signal handler that interrupts this is raised as it is.

    `Thread.start` may replace it by a KeyError or a RuntimeError of its own, which is also what it raises where there
    are no more threads: that is `NoMoreThreads` here.
    """
    handled = sys.exception()  # what the caller is handling stays his
    try:
        thread.start()
    except BaseException as error:
        step: BaseException | None = error
        while step is not None and step is not handled:
            if isinstance(step, KeyboardInterrupt) or raised_by_handler(step):
                raise step from step.__cause__
            step = step.__cause__ or step.__context__
        if isinstance(error, RuntimeError):
            raise NoMoreThreads(str(error)) from error
        raise


def _in_thread(function: Callable[[], T]) -> T:
    outcome: list[tuple[bool, Any]] = []
    context, ended = copy_context(), Event()
    gate, state = threading.Lock(), {"begun": False, "left": False}

    def run() -> None:
        with gate:
            if state["left"]:  # the caller was interrupted while this thread was being started
                return
            state["begun"] = True
        try:
            outcome.append((True, context.run(function)))
        except BaseException as error:
            outcome.append((False, error))
        ended.set()

    thread = threading.Thread(target=run, name="penstock-undisturbed", daemon=True)
    try:
        start_thread(thread)
        ended.wait()
    except BaseException as error:
        with gate:
            state["left"] = True
        if state["begun"]:
            ended.wait()  # what the function uses is closed by its caller, who must not do so while it runs
        elif isinstance(error, NoMoreThreads):
            return function()
        raise
    good, made = outcome.pop()
    if good:
        return cast(T, made)
    try:
        raise made
    finally:
        del made  # its traceback holds this frame


def _inside(error: BaseException) -> bool:
    """Whether an exception has not yet left Penstock: where it was caught last is the first entry of its traceback."""
    trace = error.__traceback__
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith("penstock.")


def _passed(error: BaseException, codes: set[CodeType]) -> bool:
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code in codes:
            return True
        step = step.tb_next
    return False


def _handlers() -> set[CodeType]:
    """The code of every signal handler that is written in Python."""
    handlers = filter(callable, map(_handler_of, range(1, signal.NSIG)))
    return {code for handler in handlers if (code := _code(handler)) is not None}


def _code(handler: Any) -> CodeType | None:
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
