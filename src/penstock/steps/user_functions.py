"""Calls the functions that a user passes to a step: checks, and errors that name the function and the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.core.errors import UsageError, UserCodeError
from penstock.core.exact import MixedTypes
from penstock.core.functions import function_name
from penstock.core.signals import raised_by_handler
from penstock.steps.node import Node
from penstock.steps.picks import Picks
from penstock.steps.replacement import locate


def check_function(function: Any, verb: str) -> None:
    """Raises unless `function` can be called."""
    if not callable(function):
        raise UsageError(f"a function in .{verb}()", got=repr(function), fix=f".{verb}(lambda record: ...)")


def each_row(function: Callable[[int], Any], rows: int) -> list[Any]:
    """Calls `function(i)` for each row. Raises the first `UserCodeError`; its `more` has those of all other rows.

    All bad rows of a block are found in one pass, so skipping them costs one more pass, not one for each.
    """
    out, errors = [], []
    for i in range(rows):
        try:
            out.append(function(i))
        except UserCodeError as error:
            errors.append(error)
    if errors:
        errors[0].more = tuple(errors[1:])
        raise errors[0]
    return out


def failed_on_row(node: Node, picks: Picks, i: int, function: Any, verb: str, error: Exception) -> UserCodeError:
    """The error for a function that raised on row i: which function, which record, and the original message."""
    fix = "fix the function, drop such records with .filter() before it, or add .skip_errors() after it"
    if isinstance(error, KeyError) and node.facts.unread:
        fix = f"{node.facts.unread}; or {fix}"
    problem = _raised(function, verb, error, "", fix)
    problem.row = i
    locate(problem, node, picks)
    return problem


@contextmanager
def naming_rows(node: Node, picks: Picks) -> Iterator[None]:
    """Inside, an error about values of two types names the record of `picks` that differs from those before it."""
    try:
        yield
    except MixedTypes as error:
        place = node.explain(picks.rows(slice(error.row, error.row + 1)))
        error.where = ", ".join(f"{name} {value}" for name, value in place.items())
        raise


def failed_on_block(picks: Picks, function: Any, verb: str, error: Exception) -> UserCodeError:
    """The error for a function that raised on a block of rows."""
    fix = "fix the function; it gets a dict of arrays, one row per record"
    return _raised(function, verb, error, f"rows {_numbers(picks)}", fix)


def _raised(function: Any, verb: str, error: Exception, where: str, fix: str) -> UserCodeError:
    if raised_by_handler(error):
        raise error  # not the function's own: never a bad record
    kind = type(error).__name__
    text = f"{function_name(function)} raised {kind} in .{verb}()"
    problem = UserCodeError(text, got=f"{kind}: {str(error)[:300]}", where=where, fix=fix)
    problem.raised = True
    return problem


def _numbers(picks: Picks) -> str:
    shown = picks.record[:3].tolist()
    return f"{shown}{'...' if len(picks) > 3 else ''} of the source"
