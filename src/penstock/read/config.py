"""`from_config`: a pipeline from plain data: a dict, or a TOML, YAML or JSON file.

A configuration names functions of `penstock` that begin a pipeline, and verbs. Nothing else is looked up by name, and
code is imported only where the caller allows it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock.core.arguments import explained_call
from penstock.core.errors import DataError, UsageError
from penstock.pipeline import Pipeline

if TYPE_CHECKING:
    import inspect

SUFFIXES = (".toml", ".yaml", ".yml")
_BYTES = 16 << 20


@explained_call
def from_config(
    config: Mapping[str, Any] | str | os.PathLike[str], *, allow_functions: bool | Collection[str] = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Makes a pipeline from a configuration: a dict as `Pipeline.to_config` returns, or a TOML, YAML or JSON file.

    Args:
        config: `{"source": {"read_jsonl": {"paths": "a.jsonl"}}, "steps": [{"shuffle": {"seed": 7}}, ...]}`; a Hydra
            or OmegaConf container works too.
        allow_functions: modules from which functions of the user may be imported, or True for any. Importing runs code.
        storage_options: for readers that have none in the configuration.

    >>> config = {"source": {"from_texts": {"texts": ["one", "two"]}}, "steps": [{"take": {"count": 1}}]}
    >>> ps.from_config(config).peek()
    [{'text': 'one'}]
    """
    if isinstance(allow_functions, str):
        allow_functions = [allow_functions]
    where = os.fspath(config) if isinstance(config, str | os.PathLike) else "the configuration"
    found = read_config(where) if isinstance(config, str | os.PathLike) else config
    return _build(found, allow_functions, dict(storage_options or {}), where)


def read_config(path: str) -> Any:
    """The content of a configuration file."""
    import orjson

    from penstock.core.limits import LIMITS
    from penstock.core.optional import need
    from penstock.storage import filesystem

    with filesystem.open_read(path) as file:
        data = file.read(min(_BYTES, LIMITS.manifest_bytes))
    try:
        text = data.decode("utf-8-sig")
        if path.lower().endswith(".toml"):
            import tomllib

            return tomllib.loads(text)
        if path.lower().endswith((".yaml", ".yml")):
            return need("yaml", extra="yaml", purpose=f"to read {path}").safe_load(text)
        return orjson.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] == "yaml":
            raise _unreadable(path, error) from error
        raise


def _unreadable(path: str, error: Exception) -> DataError:
    return DataError("a configuration in TOML, YAML or JSON", got=" ".join(str(error).split())[:200], where=path)


def is_config(path: str) -> bool:
    """Whether a path is a configuration file: by its name, or a JSON file with the member "source"."""
    if not os.path.isfile(path):
        return False
    if path.lower().endswith(SUFFIXES):
        return True
    if not path.lower().endswith(".json") or os.path.getsize(path) > _BYTES:
        return False
    try:
        found = read_config(path)
    except DataError:
        return False
    return isinstance(found, dict) and isinstance(found.get("source"), dict) and set(found) <= {"source", "steps"}


def _build(config: Any, functions: bool | Collection[str], options: dict[str, Any], where: str) -> Pipeline:
    if not isinstance(config, Mapping) or set(config) - {"source", "steps"} or "source" not in config:
        got = ", ".join(map(str, config)) if isinstance(config, Mapping) else type(config).__name__
        raise UsageError(
            'a configuration with "source" and "steps"', got=got, where=where, fix="see Pipeline.to_config"
        )
    name, arguments = _call(config["source"], f"{where}: source")
    readers = _readers()
    _known(name, list(readers), f"{where}: source", "a function that begins a pipeline")
    values = _arguments(arguments, functions, options, f"{where}: {name}")
    if options and "storage_options" not in values and "storage_options" in _parameters(readers[name]):
        values["storage_options"] = options
    pipeline: Pipeline = readers[name](**values)
    steps = config.get("steps") or []
    if not isinstance(steps, Sequence) or isinstance(steps, str):
        raise UsageError(
            '"steps" as a list', got=type(steps).__name__, where=where, fix="steps: [{shuffle: {seed: 7}}]"
        )
    verbs = _verbs()
    for i, step in enumerate(steps):
        at = f"{where}: steps[{i}]"
        name, arguments = _call(step, at)
        _known(name, verbs, at, "a verb of pipelines")
        values = _arguments(arguments, functions, options, f"{at} {name}")
        verb = verbs[name]
        starred = next((p.name for p in _parameters(verb).values() if p.kind is p.VAR_POSITIONAL), "")
        places = values.pop(starred, [])
        part = values.pop("part", None) if name == "split" else None
        made = verb(pipeline, *places, **values)
        pipeline = _part(made, part, at) if isinstance(made, dict) else made
    return pipeline


def _part(made: Mapping[str, Pipeline], name: Any, where: str) -> Pipeline:
    """The part of a split that the configuration names."""
    if name not in made:
        raise UsageError(
            f"part: one of {', '.join(made)}", got="none" if name is None else repr(name), where=f"{where} split",
            fix=f"split: {{parts: ..., part: {next(iter(made))}}}",
        )  # fmt: skip
    return made[name]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    import inspect

    return inspect.signature(function).parameters


@cache
def _readers() -> dict[str, Callable[..., Pipeline]]:
    """The public functions that begin a pipeline."""
    from penstock import read

    found = {name: getattr(read, name) for name in read.__all__ if name != "from_config"}
    return {name: function for name, function in found.items() if _returns(function) == "Pipeline"}


@cache
def _verbs() -> dict[str, Callable[..., Any]]:
    """The public methods of a pipeline that return a pipeline, and `split`, of which a configuration names a part."""
    found = {name: getattr(Pipeline, name) for name in dir(Pipeline) if not name.startswith("_") and name != "then"}
    return {
        name: value
        for name, value in found.items()
        if callable(value) and _returns(value) in ("Self", "dict[str, Self]")
    }


def _returns(function: Any) -> str:
    import inspect

    return str(getattr(inspect.unwrap(function), "__annotations__", {}).get("return", ""))


def _call(item: Any, where: str) -> tuple[str, Any]:
    """A call as `{name: arguments}`, or its name alone."""
    if isinstance(item, str):
        return item, {}
    if isinstance(item, Mapping) and len(item) == 1:
        ((name, arguments),) = item.items()
        return str(name), {} if arguments is None else arguments
    fix = "shuffle: {seed: 7}"
    if item == {}:
        fix = "write the name of the verb: enumerate = {}; some writers of TOML, such as toml, leave an empty table out"
    raise UsageError("one call, as {name: {argument: value}}", got=repr(item)[:80], where=where, fix=fix)


def _arguments(values: Any, functions: Any, options: dict[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise UsageError("arguments by name", got=repr(values)[:80], where=where, fix="{seed: 7}")
    return {str(name): _value(value, functions, options, f"{where}({name}=)") for name, value in values.items()}


def _value(value: Any, functions: Any, options: dict[str, Any], where: str) -> Any:
    from penstock.pipeline.config_values import NAME, PIPELINE, from_plain

    if isinstance(value, Mapping) and set(value) == {PIPELINE}:
        return _build(value[PIPELINE], functions, options, where)
    if isinstance(value, Mapping) and any(_is_pipeline(item) for item in value.values()):
        return {name: _value(item, functions, options, f"{where}[{name!r}]") for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if value and all(isinstance(item, Mapping) and set(item) == {NAME, PIPELINE} for item in value):
            return _named(value, functions, options, where)
        return [_value(item, functions, options, where) for item in value]
    return from_plain(value, functions, where)


def _is_pipeline(value: Any) -> bool:
    from penstock.pipeline.config_values import PIPELINE

    return isinstance(value, Mapping) and set(value) == {PIPELINE} and isinstance(value[PIPELINE], Mapping)


def _named(value: Sequence[Any], functions: Any, options: dict[str, Any], where: str) -> dict[str, Any]:
    """A dict of pipelines from the list of `{name: ..., pipeline: ...}` that `to_config` writes."""
    from penstock.pipeline.config_values import NAME, PIPELINE

    found: dict[str, Any] = {}
    for item in value:
        name = str(item[NAME])
        if name in found:
            raise UsageError("a different name for each pipeline", got=f"{name!r} twice", where=where, fix="rename one")
        found[name] = _build(item[PIPELINE], functions, options, f"{where}[{name!r}]")
    return found


def _known(name: str, known: Collection[str], where: str, what: str) -> None:
    if name not in known:
        from difflib import get_close_matches

        near = get_close_matches(name, known, 1, 0.6)
        fix = near[0] if near else f"one of {', '.join(sorted(known)[:40])}"
        raise UsageError(what, got=repr(name), where=where, fix=fix)
