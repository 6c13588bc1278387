"""Wrong arguments of verbs and readers answer with the nearest right one, in the words of the library people come from.

`@explained` keeps a function's signature, docstring and type. A right call costs one more Python call (about 0.1 us);
only after a `TypeError` is the call compared with the signature.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import update_wrapper
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from penstock.core.errors import ArgumentError, PenstockError

if TYPE_CHECKING:
    import inspect

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_functions: dict[str, Callable[..., Any]] = {}  # every explained function, by the name that the user writes

_OUTPUTS = "to_numpy to_torch to_jax"
_READERS = "read_text read_jsonl read_parquet read_tar read_images read_audio"
_SEED = "put .shuffle(seed={value}) into the pipeline"

# What others call it -> where -> what to write here. "" is any other verb or reader. {value}: what the user passed.
_SPLIT = {"split": '.split({{"train": 0.9, "val": 0.1}}): one dict of names and sizes'}
_PART = '.split({{"part": {value}, "rest": None}})["part"] for a share of the rows'
_EPOCHS = {
    _OUTPUTS: "use for epoch in range({value}): for batch in loader: ..., or put .repeat({value}) before .batch()"
}
SYNONYMS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("train", "val", "valid", "validation", "test", "train_size", "test_size", "fractions"), _SPLIT),
    **dict.fromkeys(("epochs", "num_epochs"), _EPOCHS),
    "batch_size": {"batch": "size={value}: .batch({value})", "": "put .batch({value}) before the output"},
    "per_device_batch_size": {"batch": "per_rank={value}: the rows of each rank", "": "put .batch(per_rank={value})"},
    "drop_last": {
        "batch bucket": 'remainder="drop" for drop_last=True (the default), remainder="short" for drop_last=False',
        "": '.batch(n, remainder="drop") for drop_last=True (the default), .batch(n, remainder="short") for False',
    },
    "drop_remainder": {"batch bucket": 'remainder="drop" (the default), or remainder="short" to keep the last batch'},
    "collate_fn": {"": "put .map_batches(function) after .batch(n), or use .pad()"},
    "num_workers": {
        _OUTPUTS: "threads={value}: threads of this process are the default here; workers={value} for child processes",
        "": "put .to_torch(threads={value}) at the end: threads compute the steps; workers={value} for child processes",
    },
    "num_proc": {
        "tokenize prepare": "threads={value}",
        "": "leave it out: the loader's threads run the steps; .to_torch(threads={value}), or workers={value}",
    },
    "num_parallel_calls": {"": "leave it out: the loader's threads run the steps; .to_numpy(threads={value})"},
    "deterministic": {"": "leave it out: the order is always deterministic"},
    "prefetch_factor": {_OUTPUTS: "prefetch={value}: batches ready ahead, over all threads"},
    "buffer_size": {
        "shuffle": "leave it out: all rows are shuffled without a buffer; block= and window= keep reads close together",
        _OUTPUTS: "prefetch={value}",
    },
    "reshuffle_each_iteration": {"shuffle": "leave it out: each epoch has a different order"},
    "shuffle": {"": _SEED.replace("seed={value}", "seed=7")},
    "generator": {"shuffle": "seed=7", "": ".shuffle(seed=7); .map() passes a keyed generator to a parameter `rng`"},
    "random_state": {"shuffle": "seed={value}", "": _SEED},
    "rng": {"shuffle": "seed=7", "map": "leave it out: a parameter `rng` of the function gets a keyed generator"},
    "batched": {"map": "use .map_batches(function)"},
    "with_indices": {"map map_batches filter": "leave it out: add the numbers as a column of the source"},
    "remove_columns": {"map map_batches": "put .drop({value}) or .select() after it"},
    "fn_kwargs": {"map map_batches filter": "use functools.partial(function, ...)"},
    "load_from_cache_file": {"": "leave it out: only .tokenize() caches, by content"},
    "fn": {"map map_batches filter": "function="},
    "map_func": {"map map_batches": "function="},
    "predicate": {"filter": "function="},
    "frac": {"sample": _PART},
    "fraction": {"sample": _PART},
    "start": {"enumerate": 'leave it out: .map(lambda row: {{**row, "index": row["index"] + {value}}}) after it'},
    "n": {"take skip": "count={value}", "repeat": "times={value}", "peek": "rows={value}"},
    "size": {"take skip": "count={value}"},
    "count": {"repeat": "times={value}"},
    "num_epochs": {"repeat": "times={value}", "": "put .repeat({value}) into the pipeline, or loop over the loader"},
    "num_shards": {"shard": "world={value}"},
    "index": {"shard": "rank={value}"},
    "world_size": {"shard": "world={value}"},
    "num_replicas": {"shard": "world={value}", "": "put .shard(rank, {value}) into the pipeline"},
    "pin_memory_device": {"to_torch": "device={value!r}, with pin_memory=True"},
    "persistent_workers": {_OUTPUTS: "leave it out: threads end with the loop and cost little to start"},
    "multiprocessing_context": {_OUTPUTS: "leave it out: workers=n starts children by spawn"},
    "worker_init_fn": {_OUTPUTS: "leave it out: randomness is keyed by the record, not by the worker"},
    "sampler": {_OUTPUTS: ".shuffle(seed=7), .shard() or ps.mix() before .batch(n)"},
    "batch_sampler": {_OUTPUTS: ".bucket() or .batch_tokens() instead of .batch(n)"},
    "non_blocking": {"to_torch": "leave it out: pin_memory=True makes the copy to device= asynchronous"},
    "dtype": {_OUTPUTS: "ids={value!r} for token ids; .map_batches() converts other columns"},
    "seq_len": {"windows pack": "length={value}", "pad": "to={value}"},
    "seq_length": {"windows pack": "length={value}", "pad": "to={value}"},
    "block_size": {"windows pack": "length={value}", "pad": "to={value}", "shuffle": "block={value}"},
    "max_length": {"windows pack": "length={value}", "pad": "to={value}, truncate=True"},
    "max_seq_length": {"windows pack": "length={value}", "pad": "to={value}, truncate=True"},
    "padding": {"": "put .pad(to='longest') before .batch(n)"},
    "padding_side": {"pad bucket batch_tokens": "side={value!r}"},
    "padding_value": {"pad bucket batch_tokens pack": "pad_id={value}"},
    "pad_token_id": {"pad bucket batch_tokens pack": "pad_id={value}"},
    "pad_to_multiple_of": {"pad batch_tokens": "multiple={value}"},
    "truncation": {"pad": "truncate={value}", "tokenize": "leave it out; .pad(to=n, truncate=True) cuts later"},
    "text_column": {"tokenize prepare": "field={value!r}", "read_jsonl": "field={value!r}"},
    "text_field": {"tokenize prepare": "field={value!r}", "read_jsonl": "field={value!r}"},
    "column": {"tokenize prepare": "field={value!r}"},
    "input_columns": {"map map_batches filter": "leave it out: the function gets the full record"},
    "eos_token_id": {"tokenize prepare": "eos={value}", "open_nanogpt open_dolma": "eos_id={value}"},
    "max_tokens": {"batch_tokens": "budget={value}"},
    "bucket_boundaries": {"bucket": "boundaries={value}"},
    "bucket_batch_sizes": {"bucket": "sizes={value}"},
    "probabilities": {"mix": "weights={value}"},
    "stopping_strategy": {"mix": 'stop="first" for "first_exhausted", stop="all" for "all_exhausted"'},
    "data_files": {_READERS: "the path is the first argument: {value!r}"},
    "data_dir": {_READERS: "the path is the first argument: {value!r}"},
    "streaming": {_READERS: "leave it out: files are read when a batch needs them"},
    "split": {_READERS: ".take(n) for one part and .skip(n) for the other, before .shuffle()"},
    "columns": {"read_jsonl": "fields={value}"},
    "transform": {"": "put .map(function), .map_batches(function) or .decode_images(...) into the pipeline"},
    "sr": {"read_audio decode_audio": "sample_rate={value}"},
    "sampling_rate": {"read_audio decode_audio": "sample_rate={value}"},
    "seconds": {"decode_audio": "duration={value}"},
    "clip_duration": {"decode_audio": "duration={value}"},
    "num_frames": {"decode_audio": "duration={value} / sample_rate: seconds"},
    "hop_length": {"decode_audio": "hop={value}"},
    "num_mel_bins": {"decode_audio": "n_mels={value}"},
    "image_size": {"decode_images": "size={value}"},
    "resize": {
        "decode_images": "crop=None resizes the full image to size; resize {value} then crop: share=size/{value}"
    },
    "random_crop": {"decode_images": 'crop="random"'},
    "ignore_errors": {_READERS: 'on_error="skip"', "": "put .skip_errors() after the step"},
}


def explained(function: F) -> F:
    """The same function; a call with wrong arguments raises an `ArgumentError` that says what to write.

    >>> @explained
    ... def take(count: int) -> int:
    ...     return count
    >>> take(cuont=3)
    Traceback (most recent call last):
    penstock.core.errors.ArgumentError: expected the arguments of take(): count
      got:   cuont=3
      fix:   count=3
    """
    _functions[function.__name__] = function
    return _explained(function)


def explained_call(function: F) -> F:
    """The same for functions outside of pipelines: the answer is their nearest argument, no verb."""
    return _explained(function, function.__name__)


def explained_class(cls: type[T]) -> type[T]:
    """A class whose constructor, its own or an inherited one, is `explained_call` under the name of the class."""
    init = getattr(cls, "__init__")  # noqa: B009
    if isinstance(init, FunctionType):
        setattr(cls, "__init__", _explained(init, cls.__name__))  # noqa: B010
    return cls


_ITEMS = 10_000  # of a list that a call keeps


class Recorded:
    """An object that knows the call that made it, for `Pipeline.to_config`."""

    __slots__ = ()
    _made_by: Call | None


class Call:
    """A call of a public function or verb. `on` is the object whose verb it is; `part` names one of its results."""

    __slots__ = ("args", "function", "named", "part")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any], part: str | None = None
    ) -> None:
        self.function, self.part = function, part
        self.args = tuple(map(_small, args))
        self.named = {name: _small(value) for name, value in named.items()}

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def verb(self) -> bool:
        """Whether it is a method."""
        return "." in self.function.__qualname__

    @property
    def on(self) -> Any:
        return self.args[0] if self.verb else None

    def arguments(self) -> dict[str, Any]:
        """The arguments that are not defaults, by name."""
        import inspect

        signature = inspect.signature(self.function)
        bound = signature.bind(*self.args, **self.named).arguments
        usual = {p.name: p.default for p in signature.parameters.values()}
        found = {n: v for n, v in bound.items() if n != "self" and not _is_default(v, usual[n])}
        return found if self.part is None else {**found, "part": self.part}


class Large:
    """Stands for data in memory, which a call does not keep alive."""

    def __init__(self, value: Any) -> None:
        self.kind = type(value).__name__


def _small(value: Any) -> Any:
    """An argument, unless it is data in memory: long lists, arrays, tables."""
    if isinstance(value, list | tuple | dict | set | frozenset):
        return value if len(value) <= _ITEMS else Large(value)
    kept = value is None or callable(value) or isinstance(value, bool | int | float | str | Recorded | os.PathLike)
    return value if kept or not hasattr(value, "__len__") else Large(value)


def _is_default(value: Any, usual: Any) -> bool:
    plain = isinstance(value, bool | int | float | str | tuple) and type(value) is type(usual)
    return value is usual or bool(plain and value == usual)


def _note(result: Any, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Notes the call in what it made. The outermost call counts: a verb may use other verbs."""
    if isinstance(result, Recorded) and not (args and result is args[0]):
        object.__setattr__(result, "_made_by", Call(function, args, named))
    elif isinstance(result, dict):
        for name, part in result.items():
            if isinstance(part, Recorded):
                object.__setattr__(part, "_made_by", Call(function, args, named, name))
    return result


# What a value of a wrong kind leads to; a table given as paths is looked for by the names of its columns.
_MISTAKES = (TypeError, ValueError, AttributeError, LookupError, FileNotFoundError)


def _explained(function: F, alone: str = "") -> F:
    # In the closure: the globals below are those of `function`.
    explain, ours, mistakes, note, modules, plain = problem_of, PenstockError, _MISTAKES, _note, sys.modules, _plain

    def call(*args: Any, **named: Any) -> Any:
        if "omegaconf" in modules:
            args, named = tuple(map(plain, args)), {name: plain(value) for name, value in named.items()}
        try:
            made = function(*args, **named)
            return made if alone else note(made, function, args, named)
        except mistakes as error:
            known = isinstance(error, ours) and not isinstance(error, FileNotFoundError)
            if known or (problem := explain(function, args, named, alone, error)) is None:
                raise
            raise problem from problem.__cause__

    # The globals and the name of `function`: doctest finds it in its module, tracebacks and profilers show its name.
    home = getattr(function, "__globals__")  # noqa: B009
    code = call.__code__.replace(co_name=function.__name__, co_qualname=function.__qualname__)
    return cast(F, update_wrapper(FunctionType(code, home, None, None, call.__closure__), function))


def _plain(value: Any) -> Any:
    """Lists, dicts and dataclasses of Hydra as the values that they stand for; everything else as it is."""
    if type(value).__module__.partition(".")[0] != "omegaconf":
        return value
    from omegaconf import Container, OmegaConf

    return OmegaConf.to_object(value) if isinstance(value, Container) else value


def explained_methods(cls: type[T]) -> type[T]:
    """A class whose public methods are `explained`."""
    for name, value in list(vars(cls).items()):
        if isinstance(value, FunctionType) and not name.startswith("_"):
            setattr(cls, name, explained(value))
    return cls


def problem_of(
    function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any], alone: str, error: Exception
) -> ArgumentError | None:
    """What is wrong with the arguments of a call that raised `error`, or None if nothing is.

    Args:
        alone: the name of a class or function that is no step of pipelines.
    """
    import inspect

    signature = inspect.signature(function)
    method = "." in function.__qualname__
    verb = alone or f"{'.' if method else ''}{function.__name__}"
    try:
        bound = signature.bind(*args, **named)
    except TypeError as wrong:
        message = str(wrong)
    else:
        if isinstance(error, FileNotFoundError):
            return _wrong_path(verb, signature.parameters, {n: v for n, v in bound.arguments.items() if _of_columns(v)})
        return _wrong_path(verb, signature.parameters, bound.arguments) or _wrong_kind(
            verb, signature.parameters, bound.arguments, error
        )
    own = [p for p in signature.parameters.values() if p.name != "self"]
    positional = args[1:] if method else args
    if unknown := {name: value for name, value in named.items() if name not in signature.parameters}:
        return ArgumentError(
            f"the arguments of {verb}(): {', '.join(p.name for p in own) or 'none'}",
            got=", ".join(f"{name}={_short(value)}" for name, value in unknown.items()),
            fix="; ".join(
                dict.fromkeys(
                    _nearest(name, value, own) if alone else _advice(function.__name__, name, value, own)
                    for name, value in unknown.items()
                )
            ),
        )
    shown = f"{verb}({', '.join(_parameter(p) for p in own)})"
    places = [p for p in own if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(positional) > len(places):
        more = (
            dict(zip([p.name for p in own if p.kind is p.KEYWORD_ONLY], positional[len(places) :], strict=False))
            | named
        )
        numbers = all(isinstance(value, int | float) for value in positional)
        texts = [_short(v) for v in positional[: len(places)]] + [f"{name}={_short(v)}" for name, v in more.items()]
        fix = f"{verb}({', '.join(texts)})"
        if verb == ".split" and numbers:
            fix = _SPLIT["split"].format()
        elif verb == ".rename":
            fix = _renamed(*positional[:2])
        return ArgumentError(
            f"at most {len(places)} positional argument{'s' * (len(places) != 1)} in {shown}",
            got=str(len(positional)),
            fix=fix,
        )
    missing = [p.name for p in places[len(positional) :] if p.default is p.empty and p.name not in named]
    if missing:
        return ArgumentError(shown, got=f"no {' and no '.join(missing)}", fix=f"{missing[0]}=...")
    return ArgumentError(shown, got=message)


def _wrong_path(verb: str, parameters: Any, values: dict[str, Any]) -> ArgumentError | None:
    """The first argument that is no path where the annotation says path, or None if all are."""
    for name, value in values.items():
        kind = str(parameters[name].annotation)
        if "Path" not in kind or isinstance(value, str | os.PathLike) or (value is None and "None" in kind):
            continue
        several = "Paths" in kind or "Sequence" in kind
        items = list(value) if several and isinstance(value, list | tuple | set) else [value]
        if not all(isinstance(item, str | os.PathLike) for item in items):
            return ArgumentError(
                f"a path{' or a list of paths' * several} for {name}= of {verb}()",
                got=_short(value),
                fix=f"{name}=a str or pathlib.Path"
                + ", or a list of them" * several
                + "; penstock.from_records(table) takes rows in memory" * _of_columns(value),
            )
    return None


def _of_columns(value: Any) -> bool:
    """Whether it is a dict or a table, for which iterating names the columns."""
    return hasattr(value, "keys") or hasattr(value, "column_names")


def _wrong_kind(verb: str, parameters: Any, values: dict[str, Any], error: Exception) -> ArgumentError | None:
    """The first argument that is not of the kind that its annotation names, which explains `error`."""
    from penstock.core.argument_kinds import expected_kind

    for name, value in values.items():
        if name != "self" and (kind := expected_kind(str(parameters[name].annotation), value)):
            usual = parameters[name].default
            problem = ArgumentError(
                f"{kind} for {name}= of {verb}()",
                got=f"{type(value).__name__}: {_short(value)}",
                fix=f"pass {kind}" + ("" if usual is parameters[name].empty else f"; the default is {usual!r}"),
            )
            problem.__cause__ = error
            return problem
    return None


def _advice(verb: str, name: str, value: Any, own: list[inspect.Parameter]) -> str:
    """What to write instead of `name=value`."""
    import inspect
    from difflib import get_close_matches

    places = {where: text for wheres, text in SYNONYMS.get(name, {}).items() for where in wheres.split() or [""]}
    if text := places.get(verb) or places.get(""):
        return text.format(value=_Short(value))
    if verb == "rename":
        return _renamed(name, value)
    names = [p.name for p in own]
    near = get_close_matches(name, names, 1, 0.7)
    homes = [other for other, function in _functions.items() if name in inspect.signature(function).parameters]
    if near:
        return f"{near[0]}={_short(value)}"
    if places:
        return "; ".join({f"{_call(where)}: {text.format(value=_Short(value))}": 0 for where, text in places.items()})
    if homes:
        return f"{name}= is an argument of {', '.join(map(_call, homes[:4]))}"
    return _nearest(name, value, own)


def _renamed(old: Any, new: Any) -> str:
    return f".rename({{{_short(old)}: {_short(new)}}})"


def _nearest(name: str, value: Any, own: list[inspect.Parameter]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [p.name for p in own], 1, 0.4)
    sure = near and get_close_matches(name, near, 1, 0.7)
    return f"{near[0]}={_short(value)}{'' if sure else ', if that is meant'}" if near else "leave it out"


def _call(name: str) -> str:
    return f"{'.' if '.' in _functions[name].__qualname__ else ''}{name}()"


class _Short:
    """A value as an error shows it, whether formatted as {value} or {value!r}."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return _short(self.value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _parameter(parameter: inspect.Parameter) -> str:
    kind = parameter.kind
    stars = "*" if kind is parameter.VAR_POSITIONAL else "**" if kind is parameter.VAR_KEYWORD else ""
    return f"{stars}{parameter.name}" + ("" if parameter.default is parameter.empty else f"={parameter.default!r}")


def changed(function: Callable[..., Any], **values: Any) -> dict[str, Any]:
    """Those of `values` that are not the defaults of `function`: what the user chose.

    >>> changed(lambda *, eos=True, threads=None: None, eos=1, threads=None)
    {'eos': 1}
    """
    import inspect

    usual = {p.name: p.default for p in inspect.signature(function).parameters.values()}
    return {n: value for n, value in values.items() if (type(value), value) != (type(usual[n]), usual[n])}


class NeedsOutput:
    """A class whose objects are neither iterated nor counted, because a batch size and an output are missing."""

    __slots__ = ()

    if not TYPE_CHECKING:  # so that type checkers refuse `for batch in pipeline` too

        def __iter__(self) -> None:
            raise ArgumentError(
                "an output before iterating over a pipeline",
                got="for ... in pipeline",
                fix="for batch in pipeline.batch(32).to_numpy(): ... (or .to_torch(), .to_jax()); .peek() shows rows",
            )

        def __len__(self) -> int:
            raise ArgumentError(
                "an output before counting the batches of a pipeline",
                got="len(pipeline)",
                fix="len(pipeline.batch(32).to_numpy()) counts batches, len(pipeline.rows()) rows",
            )

        def __bool__(self) -> bool:
            return True
