"""States: the position of a run, as plain JSON under 1 KB, the same on every rank. Written, checked and read here only.

Every state has `penstock`, the number of the format, and `kind`, the object it belongs to; the state of a pipeline's
loader has no `kind`. The rest is the position and what identifies the data.

Of a pipeline: `n` is the next row of the run, `step` the next batch, `stages` where the batch size changed
([step, n, rows]), `mix` where weights changed. `parts` names the source and the steps, so that a restore on other data
or steps is refused with the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from penstock.core.errors import StateError
from penstock.plan.build import Plan
from penstock.plan.definition import Definition, Mix, differences
from penstock.plan.step_ranges import Section, StepRanges

FORMAT = 1
UNCHANGED = "pass the dict that state_dict() returned, unchanged"
_MOST = 1 << 62

Kind = Literal["pipeline", "stream", "stream loader", "dataset", "two loaders", "passes"]

# How states of each kind were marked before they had a `kind`: by a key of their own, or by their keys alone.
_MARKS: dict[str, Kind] = {"penstock_stream": "stream", "penstock_stream_loader": "stream loader"}
_KEYS: dict[frozenset[str], Kind] = {
    frozenset(("position",)): "dataset",
    frozenset(("position", "draws")): "dataset",
    frozenset(("images", "texts", "given")): "two loaders",
}


# States of every kind.


def write(kind: Kind, position: Mapping[str, Any], identity: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A state of `kind`.

    >>> write("dataset", {"position": 3})
    {'penstock': 1, 'kind': 'dataset', 'position': 3}
    """
    marked = {"penstock": FORMAT} if kind == "pipeline" else {"penstock": FORMAT, "kind": kind}
    return {**marked, **position, **(identity or {})}


def read(state: Any, kind: Kind) -> dict[str, Any]:
    """The fields of a state of `kind`, whatever version of penstock wrote it; StateError for anything else."""
    found, version = _kind_and_version(state)
    if found is None:
        raise StateError("a state that penstock saved", got=f"{type(state).__name__}: {str(state)[:80]}", fix=UNCHANGED)
    if version != FORMAT:
        raise StateError(
            f"a state of format {FORMAT}", got=f"format {version!r}"[:80], fix="restore with the version that saved it"
        )
    if found != kind:
        raise StateError(f"a state of a {kind}", got=f"a state of a {found}"[:80], fix=UNCHANGED)
    return dict(state)


def _kind_and_version(state: Any) -> tuple[Any, Any]:
    if not isinstance(state, dict):
        return None, None
    if state.get("penstock") == "stream 1":
        return "stream loader", 1
    if "penstock" in state:
        return state.get("kind", "pipeline"), state["penstock"]
    marked = next((mark for mark in _MARKS if mark in state), None)
    if marked is not None:
        return _MARKS[marked], state[marked]
    return _KEYS.get(frozenset(state)), FORMAT


def number(state: Mapping[str, Any], name: str) -> int:
    """A field of a state that must be an integer of at least 0."""
    value = state.get(name)
    if type(value) is not int or not 0 <= value < _MOST:
        raise StateError(f"an integer of at least 0 as {name!r} in the state", got=repr(value)[:80], fix=UNCHANGED)
    return value


def counts(value: Any, name: str) -> dict[str, int]:
    """A field of a state that must map names to integers of at least 0."""
    if not isinstance(value, dict):
        raise StateError(f"{name!r} as {{name: count}} in the state", got=repr(value)[:80], fix=UNCHANGED)
    return {str(key): number(value, key) for key in value}


# States of a pipeline.


def save(plan: Plan, ranges: StepRanges, step: int, ended: bool = False) -> dict[str, Any]:
    """The state before batch `step`; `ended`: it is the first of an epoch, and the `for` before it has not ended."""
    state = write(
        "pipeline",
        {
            "fingerprint": plan.fingerprint,
            "parts": [list(part) for part in plan.parts],
            "seed": plan.definition.seed,
            "step": step,
            "n": ranges.row(step),
            "stages": [list(stage) for stage in ranges.sections],
        },
    )
    if ended:
        state["epoch_end"] = True
    origin = plan.definition.origin
    if isinstance(origin, Mix) and origin.stages:
        state["mix"] = [[start, list(weights)] for start, weights in origin.stages]
    return state


def reweighted(definition: Definition, stages: Any) -> Definition:
    """The definition with other weights from some rows of the run on: [row, weights] each."""
    origin = definition.origin
    if not isinstance(origin, Mix):
        raise StateError("a mixture, whose weights can change", got="a single source", fix="penstock.mix([...])")
    bad = next((s.name for s in definition.steps if s.reorders), None)
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


def restore(state: dict[str, Any], plan: Plan, ranges: StepRanges, rows: int) -> tuple[StepRanges, int, bool]:
    """The step ranges, the step to resume from, and whether an epoch ends there.

    `rows` is the batch size from here on; it may differ from before.
    """
    state = _check(state)
    if state["fingerprint"] != plan.fingerprint:
        raise StateError(
            "a state of this very pipeline",
            got=differences(state["parts"], plan.parts),
            where=f"state at step {state['step']}",
            fix="restore with the data and steps it was saved with; batch size, ranks and threads may change",
        )
    step, n = state["step"], state["n"]
    stages = tuple(Section(*stage) for stage in state["stages"])
    return StepRanges(ranges.size, stages, ranges.keep).then(step, n, rows), step, state.get("epoch_end", False)


def _check(given: Any) -> dict[str, Any]:
    state = read(given, "pipeline")
    for name in ("step", "n"):
        number(state, name)
    stages = state.get("stages")
    if not isinstance(stages, list) or not stages or not all(map(_is_stage, stages)):
        raise StateError("stages as [step, n, rows] in the state", got=str(stages)[:80], fix=UNCHANGED)
    if not isinstance(state.get("parts"), list) or not isinstance(state.get("fingerprint"), str):
        raise StateError("a fingerprint and parts in the state", got=str(sorted(state)), fix=UNCHANGED)
    return state


def _is_stage(stage: Any) -> bool:
    three = isinstance(stage, list | tuple) and len(stage) == 3
    return three and all(type(value) is int and value >= 0 for value in stage) and stage[2] > 0
