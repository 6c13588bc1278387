"""States: the position of a run, as plain JSON under 1 KB, the same on every rank. Written, checked and read here only.

Every state has `penstock`, the number of the format, and `kind`, the object it belongs to; the state of a pipeline's
loader has no `kind`. The rest is the position and what identifies the data. `check` is a checksum of all other keys.

Of a pipeline: `n` is the next row of the run, `step` the next batch, `stages` where the batch size changed
([step, n, rows]), `mix` where weights changed; of many changes the last ones, and `drawn` of each source before them.
Of more than 16 sources, weights are float32 and draws are integers of equal width, both as base85 text.
`parts` names the source and the steps, so that a restore on other data or steps is refused with the difference; `code`
is a digest of the helpers and constants that the user's functions use.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b85decode, b85encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from penstock.core.errors import StateError
from penstock.order.weights import normalise
from penstock.plan.branches import Mix, by_name, mixture_of
from penstock.plan.build import Plan
from penstock.plan.definition import Definition, differences
from penstock.plan.step_ranges import Section, StepRanges

FORMAT = 1
UNCHANGED = "pass the dict that state_dict() returned, unchanged"
_MOST = 1 << 62
FEW_PARTS = 20  # parts that are written with their names
MOST_BYTES = 1000  # of a state whose parts are written with their names
HISTORY_BYTES = 320  # of changes of weights that are written
FEW_WEIGHTS = 16  # weights that are written as numbers, with all their digits
FEW_COUNTS_BYTES = 120  # of draws that are written as numbers
MOST_GROUPS = 72  # digests that are written of more

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
    {'penstock': 1, 'kind': 'dataset', 'position': 3, 'check': '2ef42b85fdb2'}
    """
    marked = {"penstock": FORMAT} if kind == "pipeline" else {"penstock": FORMAT, "kind": kind}
    return signed({**marked, **position, **(identity or {})})


def signed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The same fields with a checksum of them: any later change is refused."""
    fields = {name: value for name, value in state.items() if name != "check"}
    return {**fields, "check": _checksum(fields)}


def _checksum(fields: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(fields, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError("a state of plain JSON values", got=str(error)[:80], fix=UNCHANGED) from error
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


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
    fields = {name: value for name, value in state.items() if name != "check"}
    if "check" in state and state["check"] != _checksum(fields):  # earlier versions wrote none
        raise StateError("a state as it was saved", got="one that was changed or damaged since", fix=UNCHANGED)
    return fields


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


def save(plan: Plan, ranges: StepRanges, step: int, ended: bool = False, code: str = "") -> dict[str, Any]:
    """The state before batch `step`; `ended`: it is the first of an epoch, and the `for` before it has not ended.

    `code` is the id of what the pipeline's functions use, when the loader was made.
    """
    state: dict[str, Any] = {
        "fingerprint": plan.fingerprint,
        "parts": short_parts(plan.parts),
        "seed": plan.definition.seed,
        "step": step,
        "n": ranges.row(step),
        "stages": [list(stage) for stage in ranges.sections],
    }
    if ended:
        state["epoch_end"] = True
    if code:
        state["code"] = code
    origin = plan.definition.origin
    if isinstance(origin, Mix) and origin.stages:
        state |= _changes(origin, ranges)
    made = write("pipeline", state)
    return made if len(json.dumps(made)) <= MOST_BYTES else write("pipeline", state | {"parts": digests_of(plan.parts)})


def _changes(mix: Mix, ranges: StepRanges) -> dict[str, Any]:
    """The changes of weights, of a long history the last ones, with what was drawn of each source before them."""
    changes: list[list[Any]] = [[start, _packed_weights(weights)] for start, weights in mix.stages]
    kept, size = len(changes) - 1, len(json.dumps(changes[-1]))
    while kept and size + len(json.dumps(changes[kept - 1])) <= HISTORY_BYTES:
        kept -= 1
        size += len(json.dumps(changes[kept]))
    if not kept and not mix.drawn:
        return {"mix": changes}
    row = mix.stages[kept][0]
    drawn = mixture_of(mix, (None,) * len(mix.branches)).counts(row).tolist()
    stages = [list(section) for section in ranges.since(row).sections]
    return {"stages": stages, "mix": changes[kept:], "drawn": _packed_counts(drawn)}


def rounded(definition: Definition) -> Definition:
    """The definition with the newest weights as a state will hold them: in float32, if there are many."""
    origin = definition.origin
    if not isinstance(origin, Mix) or len(origin.branches) <= FEW_WEIGHTS:
        return definition
    *before, (row, weights) = origin.stages
    single = np.asarray(weights, np.float64) / max(weights)
    return replace(definition, origin=replace(origin, stages=(*before, (row, tuple(single.astype("<f4").tolist())))))


def _packed_weights(weights: Sequence[float]) -> list[float] | str:
    if len(weights) <= FEW_WEIGHTS:
        return list(weights)
    exact = all(float(np.float32(weight)) == weight for weight in weights)  # not in states of earlier versions
    return b85encode(np.asarray(weights, "<f4" if exact else "<f8").tobytes()).decode()


def _packed_counts(counts: list[int]) -> list[int] | str:
    if len(counts) <= FEW_WEIGHTS and len(json.dumps(counts)) <= FEW_COUNTS_BYTES:
        return counts
    size = -(-len(counts) * max(1, max(counts).bit_length()) // 8)
    bits = size * 8 // len(counts)
    return b85encode(sum(n << bits * at for at, n in enumerate(counts)).to_bytes(size, "little")).decode()


def _unpacked(text: Any, count: int, weights: bool) -> Any:
    """`count` weights or draws from their packed form; anything else is returned as it is, for the checks of lists."""
    if not isinstance(text, str):
        return text
    try:
        data = b85decode(text)
    except ValueError as error:
        raise StateError("packed weights or draws in the state", got=text[:80], fix=UNCHANGED) from error
    width, bits = len(data) // count, len(data) * 8 // count
    if (len(data) != count * width or width not in (4, 8)) if weights else (-(-count * bits // 8) != len(data)):
        raise StateError(f"{count} packed weights or draws in the state", got=f"{len(data)} bytes", fix=UNCHANGED)
    if weights:
        return np.frombuffer(data, f"<f{width}").tolist()
    numbers = int.from_bytes(data, "little")
    return [numbers >> bits * at & (1 << bits) - 1 for at in range(count)]


def reweighted(definition: Definition, stages: Any, drawn: Any = (), packed: bool = False) -> Definition:
    """The definition with other weights from some rows of the run on: [row, weights] each.

    `drawn`: the draws of each source before the first of them, if older ones are not known. `packed`: as in a state.
    """
    origin = definition.origin
    if not isinstance(origin, Mix):
        raise StateError("a mixture, whose weights can change", got="a single source", fix="penstock.mix([...])")
    bad = next((s.name for s in definition.steps if s.rejects or not s.keeps_order), None)
    if bad is not None:
        raise StateError(
            "a mixture whose rows come in its own order, with nothing after it that replaces rows",
            got=f".{bad}() after it",
            fix=f"put .{bad}() inside the mixture",
        )
    if not isinstance(stages, list | tuple) or not all(isinstance(s, list | tuple) and len(s) == 2 for s in stages):
        raise StateError("changes of weights as [row, weights]", got=str(stages)[:80], fix=UNCHANGED)
    drawn = _unpacked(drawn, len(origin.branches), weights=False) if packed else drawn
    changes: list[tuple[int, tuple[float, ...]]] = []
    for row, weights in stages:
        if type(row) is not int or not (changes[-1][0] if changes else -1) < row < _MOST:
            raise StateError("changes of weights at ascending rows of the run", got=str(row)[:80], fix=UNCHANGED)
        count = len(origin.branches)
        values = _unpacked(weights, count, weights=True) if packed else weights
        if isinstance(values, Mapping) and not packed:
            values = by_name(values, origin.names, "weights in set_weights()")
        changes.append((row, _weights(values, count)))
    if drawn not in ((), []) and (
        not isinstance(drawn, list | tuple)
        or len(drawn) != len(origin.branches)
        or not all(type(count) is int and 0 <= count < _MOST for count in drawn)
        or not changes
        or sum(drawn) != changes[0][0]
    ):
        raise StateError("the draws of each source before the first change of weights", got=str(drawn)[:80])
    return replace(definition, origin=replace(origin, stages=tuple(changes), drawn=tuple(drawn)))


def _weights(weights: Any, count: int) -> tuple[float, ...]:
    if isinstance(weights, str | bytes | dict):
        raise StateError(f"{count} weights, one per source", got=repr(weights)[:80])
    try:
        values = tuple(float(weight) for weight in weights)
    except (TypeError, ValueError, OverflowError) as error:
        raise StateError(f"{count} weights, one per source", got=f"{str(weights)[:60]}: {error}"[:120]) from error
    if len(values) != count:
        raise StateError(f"{count} weights, one per source", got=str(values)[:80])
    normalise(values, "set_weights")  # raises unless they are finite, not negative and not all zero
    return values


def restore(value: Any, definition: Definition, plan: Plan, ranges: StepRanges, rows: int, code: str = "") -> Restored:
    """What a state says about a pipeline. `rows` is the batch size from here on; it may differ from before."""
    state = _check(value)
    if state["fingerprint"] != plan.fingerprint:
        raise StateError(
            "a state of this very pipeline",
            got=_differences(state["parts"], plan.parts),
            where=f"state at step {state['step']}",
            fix="restore with the data and steps it was saved with; batch size, ranks and threads may change",
        )
    if state.get("code", code) != code:  # earlier versions wrote none
        raise StateError(
            "functions that use the same helpers and constants as when the state was saved",
            got="other code or values behind a function of .map(), .filter() or .map_batches()",
            where=f"state at step {state['step']}",
            fix="restore with the code it was saved with; a step with version= is compared by that text instead",
        )
    step, n = state["step"], state["n"]
    saved = StepRanges(ranges.size, tuple(Section(*stage) for stage in state["stages"]), ranges.keep)
    if not any(_row(replace(saved, keep=keep), step) == n for keep in (ranges.keep, not ranges.keep)):
        raise StateError(f"the row at which step {step} begins as 'n' in the state", got=str(n), fix=UNCHANGED)
    ended = state.get("epoch_end", False)
    if ended and (ranges.size is None or not n or n % ranges.size):
        raise StateError("the end of an epoch as 'n' in a state with 'epoch_end'", got=str(n), fix=UNCHANGED)
    if isinstance(definition.origin, Mix) or "mix" in state:
        stages = state.get("mix", [])
        drawn = state.get("drawn", [])
        definition = reweighted(definition, stages, drawn, packed=True) if stages or drawn else _unchanged(definition)
        first = definition.origin.stages[0][0] if drawn and isinstance(definition.origin, Mix) else 0
        if saved.sections[0].n != first:
            raise StateError("stages from the first change of weights on", got=str(state["stages"])[:80], fix=UNCHANGED)
    return Restored(definition, saved.then(step, n, rows), step, ended)


class Restored(NamedTuple):
    """What a state says: the definition with its changes of weights, the step ranges, the step, and `epoch_end`."""

    definition: Definition
    ranges: StepRanges
    step: int
    ended: bool


def _unchanged(definition: Definition) -> Definition:
    """The definition with its first weights."""
    origin = definition.origin
    return replace(definition, origin=replace(origin, stages=(), drawn=())) if isinstance(origin, Mix) else definition


def _row(ranges: StepRanges, step: int) -> int | None:
    """The row at which a step begins; None if an epoch has no batch of that size, or the step is before the first."""
    if ranges.size is not None and any(not ranges.steps(section.rows) for section in ranges.sections):
        return None
    return None if step < ranges.sections[0].step else ranges.row(step)


_KEYS_OF_PIPELINE = {
    "penstock", "fingerprint", "parts", "seed", "step", "n", "stages", "mix", "drawn", "epoch_end", "code"
}  # fmt: skip


def _check(saved: Any) -> dict[str, Any]:
    state = read(saved, "pipeline")
    for name in ("step", "n"):
        number(state, name)
    stages = state.get("stages")
    if not isinstance(stages, list) or not stages or not all(map(_is_stage, stages)):
        raise StateError("stages as [step, n, rows] in the state", got=str(stages)[:80], fix=UNCHANGED)
    if any(one[0] >= two[0] or one[1] > two[1] for one, two in pairwise(stages)) or (
        "drawn" not in state and list(stages[0][:2]) != [0, 0]
    ):
        raise StateError("stages in ascending order in the state", got=str(stages)[:80], fix=UNCHANGED)
    if not _are_parts(state.get("parts")) or not isinstance(state.get("fingerprint"), str):
        raise StateError("a fingerprint and parts in the state", got=str(sorted(map(str, state)))[:200], fix=UNCHANGED)
    if not isinstance(state.get("code", ""), str):
        raise StateError("a text as 'code' in the state", got=str(state["code"])[:80], fix=UNCHANGED)
    if type(state.get("seed")) is not int or type(state.get("epoch_end", False)) is not bool:
        raise StateError("an integer as 'seed' and true as 'epoch_end' in the state", got=str(state)[:80])
    unknown = sorted(str(name) for name in state if name not in _KEYS_OF_PIPELINE)
    if unknown:
        raise StateError("only the keys of a state", got=", ".join(unknown)[:80], fix=UNCHANGED)
    return state


def _is_stage(stage: Any) -> bool:
    three = isinstance(stage, list | tuple) and len(stage) == 3
    return three and all(type(value) is int and 0 <= value < _MOST for value in stage) and stage[2] > 0


# Names and digests of the parts, in few bytes.


def short_parts(parts: Sequence[tuple[str, str]]) -> list[list[str]] | dict[str, str]:
    """Name and digest of each part; of many parts, such as a mixture of 40 sources, each name and digest in short.

    >>> short_parts([("source", "ab66fb93")])
    [['source', 'ab66fb93']]
    """
    return [list(part) for part in parts] if len(parts) <= FEW_PARTS else digests_of(parts)


def digests_of(parts: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The parts in short: a digest of all names, and 12 bits of the digest of each."""
    groups = _groups(parts)
    return {"names": _digest([name for name, _ in parts]), "digests": "".join(_digest(group)[:3] for group in groups)}


def _groups(parts: Sequence[tuple[str, str]]) -> list[Sequence[tuple[str, str]]]:
    """Consecutive parts, in at most MOST_GROUPS groups."""
    size = -(-len(parts) // MOST_GROUPS)
    return [parts[i : i + size] for i in range(0, len(parts), size)]


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=6).hexdigest()


def _are_parts(parts: Any) -> bool:
    if isinstance(parts, dict):
        return set(parts) == {"names", "digests"} and all(isinstance(text, str) for text in parts.values())
    pairs = isinstance(parts, list) and all(isinstance(part, list | tuple) and len(part) == 2 for part in parts)
    return pairs and all(isinstance(text, str) for part in parts for text in part)


def _differences(saved: Any, now: list[tuple[str, str]]) -> str:
    """Names what differs from the parts of a state."""
    if isinstance(saved, list):
        return differences(saved, now)
    current = digests_of(now)
    if saved["names"] != current["names"]:
        return f"other sources or steps than the {len(now)} parts {now[0][0]} ... {now[-1][0]}"
    old, new = saved["digests"], current["digests"]
    changed = [
        " or ".join(name for name, _ in group)
        for i, group in enumerate(_groups(now))
        if old[3 * i : 3 * i + 3] != new[3 * i : 3 * i + 3]
    ]
    return "other data or arguments in: " + ", ".join(changed)
