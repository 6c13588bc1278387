"""The state of a run: a few numbers as plain JSON, the same on every rank, under 1 KB.

`n` is the row of the run that comes next, `step` the batch that comes next, `stages` where the batch size changed
([step, n, rows]), `mix` where weights changed. `parts` name what the pipeline was made of, so that a restore on
other data or steps is refused and says what differs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.core.errors import StateError
from penstock.plan.build import Plan
from penstock.plan.definition import Definition, Mix, differences
from penstock.plan.step_ranges import Cuts, Stage

FORMAT = 1


def save(plan: Plan, cuts: Cuts, step: int) -> dict[str, Any]:
    """The state before batch `step`."""
    state = {
        "penstock": FORMAT,
        "fingerprint": plan.fingerprint,
        "parts": [list(part) for part in plan.parts],
        "seed": plan.definition.seed,
        "step": step,
        "n": cuts.row(step),
        "stages": [list(stage) for stage in cuts.stages],
    }
    origin = plan.definition.origin
    if isinstance(origin, Mix) and origin.stages:
        state["mix"] = [[start, list(weights)] for start, weights in origin.stages]
    return state


def reweighted(definition: Definition, stages: Any) -> Definition:
    """The definition with these changes of weights: [row of the run, weights] each."""
    origin = definition.origin
    if not isinstance(origin, Mix):
        raise StateError("a mixture, whose weights can change", got="a single source", fix="penstock.mix([...])")
    bad = next((s.name for s in definition.steps if s.name in ("shuffle", "skip", "repeat")), None)
    if bad is not None:
        raise StateError(
            "a mixture whose rows come in its own order",
            got=f".{bad}() after it",
            fix=f"put .{bad}() inside the mixture",
        )
    try:
        changes = tuple((int(start), tuple(float(w) for w in weights)) for start, weights in stages)
    except (TypeError, ValueError) as error:
        raise StateError("changes of weights as [row, weights]", got=str(stages)[:80]) from error
    if any(len(weights) != len(origin.branches) for _, weights in changes):
        raise StateError(f"{len(origin.branches)} weights, one per source", got=str(changes[-1][1]))
    return replace(definition, origin=replace(origin, stages=changes))


def restore(state: dict[str, Any], plan: Plan, cuts: Cuts, rows: int) -> tuple[Cuts, int]:
    """The cuts and the step to go on from. `rows` is the batch size from here on; it may be another one."""
    _check(state)
    if state["fingerprint"] != plan.fingerprint:
        raise StateError(
            "a state of this very pipeline",
            got=differences(state["parts"], plan.parts),
            where=f"state at step {state['step']}",
            fix="restore with the data and steps it was saved with; batch size, ranks and threads may change",
        )
    step, n = state["step"], state["n"]
    stages = tuple(Stage(*stage) for stage in state["stages"])
    return Cuts(cuts.size, stages, cuts.keep).then(step, n, rows), step


def _check(state: Any) -> None:
    fix = "pass the dict that state_dict() gave, unchanged"
    if not isinstance(state, dict) or "penstock" not in state:
        raise StateError("a state that penstock saved", got=f"{type(state).__name__}: {str(state)[:80]}", fix=fix)
    if state["penstock"] != FORMAT:
        raise StateError(
            f"a state of format {FORMAT}",
            got=f"format {state['penstock']!r}",
            fix="restore with the version that saved it",
        )
    for name in ("step", "n"):
        value = state.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise StateError(f"a whole number of at least 0 as {name!r} in the state", got=repr(value), fix=fix)
    stages = state.get("stages")
    good = (
        isinstance(stages, list)
        and stages
        and all(
            isinstance(s, list | tuple) and len(s) == 3 and all(type(v) is int and v >= 0 for v in s) and s[2] > 0
            for s in stages
        )
    )
    if not good:
        raise StateError("stages as [step, n, rows] in the state", got=str(stages)[:80], fix=fix)
    if not isinstance(state.get("parts"), list) or not isinstance(state.get("fingerprint"), str):
        raise StateError("a fingerprint and parts in the state", got=str(sorted(state)), fix=fix)
