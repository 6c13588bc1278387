"""`Augment`, `Views`, `Boxes` and `Keypoints` as plain data, and back: what TOML, YAML and JSON can hold.

An operation is written as verbs are: `{"Rotate": {"degrees": 15}}`, or its name alone. Those of the user are named by
where they are imported from, `{"my_project.ops:Swirl": {...}}`, and imported only if the caller allows it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any

from penstock.augment.compose import Augment
from penstock.augment.operations.base import Op
from penstock.augment.operations.sounds import Sounds
from penstock.augment.points import Boxes, Keypoints
from penstock.augment.views import Views
from penstock.core.errors import UsageError
from penstock.core.import_path import Allowed, import_path, imported

OPS, COUNT = "ops", "count"


def augment_config(augment: Augment, where: str = "Augment") -> dict[str, Any]:
    """The operations with all their arguments, and what else is not a default."""
    image = augment.kinds[0]
    moved = augment.followers
    found: dict[str, Any] = {
        "seed": augment.seed, **augment.names, "channels_first": augment.channels_first,
        "mean": list(image.mean), "std": list(image.std), "masks": list(moved.masks), "mask_fill": moved.mask_fill,
        "boxes": [points_config(one) for one in moved.boxes],
        "keypoints": [points_config(one) for one in moved.keypoints], "ignore": list(augment.ignore),
    }  # fmt: skip
    kept = {name: value for name, value in found.items() if value not in (None, [], 0) or value is False}
    return {OPS: [_op_config(op, where) for op in augment.ops], **kept}


def augment_of(config: Any, allowed: Allowed = False, where: str = "Augment") -> Augment:
    """The `Augment` of such a configuration."""
    if not isinstance(config, Mapping) or not _is_list(config.get(OPS)):
        raise UsageError(
            'a configuration of Augment with a list "ops"', got=repr(config)[:80], where=where,
            fix='{"ops": [{"Flip": {"p": 0.5}}, "Invert"], "seed": 3}',
        )  # fmt: skip
    ops = [_op_of(item, allowed, f"{where}: ops[{i}]") for i, item in enumerate(config[OPS])]
    more = {str(name): value for name, value in config.items() if name != OPS}
    for name, kind in (("boxes", Boxes), ("keypoints", Keypoints)):
        if name in more:
            several = more[name] if _is_list(more[name]) else [more[name]]
            more[name] = [points_of(kind, item, f"{where}: {name}") for item in several]
    made: Augment = _made(lambda **named: Augment(*ops, **named), Augment, more, where)
    return made


def views_config(views: Views, where: str = "Views") -> dict[str, Any]:
    """A list, because a file may be written with sorted keys."""
    each = [
        {"name": name, COUNT: count, "augment": augment_config(augment, f"{where}: {name}")}
        for name, (count, augment) in views.views.items()
    ]
    return {"views": each, "image": views.image, "keep": views.keep}


def views_of(config: Any, allowed: Allowed = False, where: str = "Views") -> Views:
    """The `Views` of such a configuration."""
    each: Any = config.get("views") if isinstance(config, Mapping) else None
    if not _is_list(each) or any(
        not isinstance(one, Mapping) or set(one) != {"name", COUNT, "augment"} for one in each
    ):
        raise UsageError(
            'a configuration of Views: a list of {"name", "count", "augment"}', got=repr(config)[:80], where=where,
            fix='{"views": [{"name": "small", "count": 2, "augment": {"ops": ["Flip"]}}]}',
        )  # fmt: skip
    made = {str(one["name"]): (one[COUNT], augment_of(one["augment"], allowed, where)) for one in each}
    more = {str(name): value for name, value in config.items() if name != "views"}
    views: Views = _made(lambda **named: Views(made, **named), Views, more, where)
    return views


def points_config(points: Boxes | Keypoints) -> dict[str, Any]:
    """The arguments that are not defaults, and the column."""
    found = {f.name: (getattr(points, f.name), f.default) for f in fields(points)}
    return {n: _plain(value) for n, (value, usual) in found.items() if value != usual or n == "column"}


def points_of(kind: type[Boxes] | type[Keypoints], config: Any, where: str) -> Any:
    """`Boxes` or `Keypoints` of their arguments, or of the name of a column."""
    if isinstance(config, str):
        return kind(config)
    return _made(kind, kind, {n: _tuples(v) for n, v in _mapping(config, where).items()}, where)


def operations() -> dict[str, type[Op]]:
    """The operations of the library, by name."""
    import penstock.augment as public

    found = {name: value for name, value in vars(public).items() if isinstance(value, type)}
    return {name: one for name, one in found.items() if issubclass(one, Op) and not inspect.isabstract(one)}


def _op_config(op: Op, where: str) -> dict[str, Any]:
    kind = type(op)
    known = operations().get(kind.__name__) is kind
    values = {f.name: getattr(op, f.name) for f in fields(op) if f.init}  # type: ignore[arg-type]  # all are dataclasses
    if any(isinstance(value, Sounds) for value in values.values()):
        raise UsageError(
            "operations whose arguments a configuration can hold", got=f"{kind.__name__}, with recordings in memory",
            where=where,
            fix=f'make an Augment with {kind.__name__} at the top of a module of yours, and name it in the file: '
            '{"map_batches": {"function": {"function": "my_project.noise:augment"}}}',
        )  # fmt: skip
    kept = {name: _plain(value) for name, value in values.items() if value is not None}
    return {kind.__name__ if known else import_path(kind, where): kept}


def _op_of(item: Any, allowed: Allowed, where: str) -> Op:
    if isinstance(item, Mapping) and len(item) == 1:
        ((name, arguments),) = item.items()
    else:
        name, arguments = item, {}
    if not isinstance(name, str):
        fix = '{"Rotate": {"degrees": 15}}'
        raise UsageError("one operation, as {name: {argument: value}}", got=repr(item)[:80], where=where, fix=fix)
    known = operations()
    kind = known.get(name) or (imported(name, allowed, where) if ":" in name else None)
    if not isinstance(kind, type) or not issubclass(kind, Op):
        near = get_close_matches(name, known, 1, 0.6)
        fix = near[0] if near else f"one of {', '.join(sorted(known))}"
        raise UsageError("an operation of Augment", got=repr(name), where=where, fix=fix)
    op: Op = _made(kind, kind, {n: _tuples(v) for n, v in _mapping(arguments, where).items()}, f"{where} {name}")
    return op


def _made(make: Callable[..., Any], kind: type, arguments: dict[str, Any], where: str) -> Any:
    """`make(**arguments)`; what is wrong with them is said with the place in the configuration."""
    places = inspect.signature(kind).parameters.values()
    names = [p.name for p in places if p.kind is not p.VAR_POSITIONAL]
    unknown = [name for name in arguments if name not in names]
    missing = [p.name for p in places if p.name in _required(kind) and p.name not in arguments]
    if unknown or missing:
        got = ", ".join([*map(repr, unknown), *(f"no {name}" for name in missing)])
        near = get_close_matches(unknown[0], names, 1, 0.6) if unknown else missing
        raise UsageError(
            f"the arguments of {kind.__name__}: {', '.join(names)}", got=got, where=where, fix=", ".join(near)
        )
    try:
        return make(**arguments)
    except TypeError as error:
        raise UsageError(f"the kinds of arguments that {kind.__name__} takes", got=str(error), where=where) from error


def _required(kind: type) -> set[str]:
    if not issubclass(kind, Op):
        return set()
    return {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}  # type: ignore[arg-type]


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError("arguments by name", got=repr(value)[:80], where=where, fix="{p: 0.5}")
    return {str(name): item for name, item in value.items()}


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if _is_list(value) else value
