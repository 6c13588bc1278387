"""`to_config`: a pipeline as plain data, from the calls that made it."""

from __future__ import annotations

from typing import Any

from penstock.core.arguments import Call, explained_methods
from penstock.core.errors import UsageError
from penstock.pipeline.base import Verbs


@explained_methods
class ConfigVerbs(Verbs):
    """`to_config`."""

    __slots__ = ()

    def to_config(self) -> dict[str, Any]:
        """Returns the pipeline as plain data, for a JSON, YAML or TOML file that `penstock.from_config` reads.

        Functions are named by module and name, so they must be importable. Data in memory beyond short lists is
        refused. Secrets in `storage_options` are left out.

        >>> ps.open_nanogpt("train.bin").windows(64).shuffle(seed=7).batch(8).to_config() # doctest: +SKIP
        {'source': {'open_nanogpt': {'path': 'train.bin'}}, 'steps': [{'windows': {'length': 64}}, ...]}
        """
        return config_of(self)


def config_of(pipeline: Verbs) -> dict[str, Any]:
    """The configuration of a pipeline: its source call, and its verbs in order."""
    steps: list[dict[str, Any]] = []
    made: Call | None = pipeline._made_by
    while made is not None and made.verb:
        steps.append({made.name: {n: _value(v, f"{made.name}({n}=)") for n, v in made.arguments().items()}})
        before = made.on
        made = before._made_by if isinstance(before, Verbs) else None
    if made is None:
        raise UsageError(
            "a pipeline made by a function of penstock and its verbs", got="a source object or a step of your own",
            fix="begin with read_*, from_* or open_*; .then(step) and Pipeline(source) have no configuration",
        )  # fmt: skip
    source = {made.name: {n: _value(v, f"{made.name}({n}=)") for n, v in made.arguments().items()}}
    return {"source": source, "steps": steps[::-1]}


def _value(value: Any, where: str) -> Any:
    from penstock.pipeline.config_values import NAME, PIPELINE, to_plain

    if isinstance(value, Verbs):
        return {PIPELINE: config_of(value)}
    if isinstance(value, list | tuple) and any(isinstance(item, Verbs) for item in value):
        return [_value(item, where) for item in value]
    if isinstance(value, dict) and any(isinstance(item, Verbs) for item in value.values()):
        # A list, because a file may be written with sorted keys, and the order of a mixture decides its rows.
        return [{NAME: name, **_value(item, where)} for name, item in value.items()]
    return to_plain(value, where)
