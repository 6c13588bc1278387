"""Configuration of Capibara loaders: checked fields with defaults, read from and written to TOML, YAML and JSON.

An unknown key raises an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

from penstock.core.arguments import explained_class
from penstock.core.errors import ArgumentError, UsageError
from penstock.facades.capibara import config_files
from penstock.storage.filesystem import local_only

C = TypeVar("C")
Layout = Literal["documents", "windows"]
Remainder = Literal["drop", "pad", "short"]
Labels = Literal["shifted", "same"]
Sampling = Literal["proportional", "temperature", "unimax"]
Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

_CHOICES: dict[str, tuple[Any, ...]] = {
    "layout": get_args(Layout),
    "remainder": get_args(Remainder),
    "labels": get_args(Labels),
    "sampling": get_args(Sampling),
    "normalize": (None, *get_args(Form)),
}
_LEAST = {"batch_size": 1, "max_length": 1, "num_workers": 0, "prefetch": 1, "micro_batches": 1, "shuffle_buffer": 1}
_OPTIONAL = {"batch_tokens": 1, "train_tokens": 1, "cache_limit": 0, "pad_id": 0}


class _File:
    """Reading and writing, shared by both configurations."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Builds a configuration from plain values; unknown keys raise."""
        known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
        for name in values:
            if name not in known:
                raise _unknown(str(name), list(known), cls.__name__)
        plain = dict(values)
        if "data" in known and isinstance(plain.get("data"), Mapping):
            plain["data"] = DataLoaderConfig.from_dict(plain["data"])
        return cls(**plain)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a .toml, .yaml, .yml or .json file."""
        try:
            return cls.from_dict(config_files.read(path))
        except UsageError as error:
            error.where = error.where or str(path)
            raise

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a .toml, .yaml, .yml or .json file; fields that are None are left out."""
        config_files.write(Path(local_only(path, "the file")), self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, as `from_dict` accepts them; without `storage_options`, which may have secrets."""
        plain: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        for each in (plain, plain.get("data", {})):
            each.pop("storage_options", None)
        return plain


def _names_arguments(cls: type[C]) -> type[C]:
    """A configuration whose constructor answers an unknown argument with the right one."""
    init, known = cls.__init__, [f.name for f in fields(cls)]  # type: ignore[arg-type]

    @wraps(init)
    def checked(self: Any, *args: Any, **values: Any) -> None:
        for name in values:
            if name not in known:
                error = _unknown(name, known, cls.__name__)
                raise ArgumentError(error.expected, got=error.got, fix=error.fix)
        init(self, *args, **values)

    cls.__init__ = checked  # type: ignore[method-assign]
    return cls


@explained_class
@_names_arguments
@dataclass
class DataLoaderConfig(_File):
    """Configuration for the data loader.

    `batch_size` is the global batch size. `num_workers` is the largest number of threads, 0 for none; one core is left
    for the training step. `layout` defines a row: a document, truncated and padded to `max_length`, or a full window
    of the concatenated documents.

    With `labels="shifted"`, `labels[t]` is the token after `input_ids[t]`, for a training step that compares logits and
    labels position by position; the last token that is kept of a document has none. With "same", `labels[t]` is
    `input_ids[t]`, for a model that shifts them itself, as those of transformers do. Labels that rows bring are used as
    they are.

    >>> DataLoaderConfig.from_dict({"batch_sise": 8})
    Traceback (most recent call last):
    penstock.core.errors.UsageError: expected a setting of DataLoaderConfig
      got:   'batch_sise'
      fix:   did you mean 'batch_size'?
    """

    batch_size: int = 32
    shuffle: bool = True
    num_workers: int = 4
    max_length: int = 2048
    dataset_name: Any = "wikitext"
    cache_dir: str | None = None
    # Input.
    split: str = "train"
    streaming: bool = False
    data_dir: str | None = None
    text_field: str | None = None
    # Rows.
    layout: Layout = "documents"
    eos: bool = True
    pad_id: int | None = None
    normalize: Form | None = None
    labels: Labels = "shifted"
    # Order and batches.
    seed: int = 0
    remainder: Remainder = "drop"
    batch_tokens: int | None = None
    shapes: list[int] | None = None
    micro_batches: int = 1
    prefetch: int = 3
    shuffle_buffer: int = 10_000
    # Several languages.
    language_field: str | None = None
    sampling: Sampling = "proportional"
    temperature: float = 3.0
    max_repeats: float | None = None
    train_tokens: int | None = None
    # The cache.
    cache_limit: int | None = None
    # Credentials, endpoint... of URLs; in no repr and no file.
    storage_options: dict[str, Any] | None = field(default=None, repr=False, compare=False)

    def check(self) -> DataLoaderConfig:
        """Raises on the first invalid value."""
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{name}= one of {', '.join(map(repr, choices))}", got=repr(getattr(self, name)))
        for name, least in (_LEAST | _OPTIONAL).items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"a whole number of at least {least} for {name}=", got=repr(value))
        for name in ("shuffle", "streaming", "eos"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"True or False for {name}=", got=repr(getattr(self, name)))
        if self.shapes is not None and self.batch_tokens is None:
            raise UsageError("batch_tokens= with shapes=", got="shapes alone", fix="batch_tokens=rows * longest shape")
        if self.batch_tokens is not None and self.layout != "documents":
            raise UsageError('layout="documents" with batch_tokens=', got=repr(self.layout))
        if self.batch_tokens is None and self.batch_size % self.micro_batches:
            raise UsageError(
                f"a batch that {self.micro_batches} micro-batches can share equally",
                got=f"batch_size={self.batch_size}",
                fix=f"batch_size={-(-self.batch_size // self.micro_batches) * self.micro_batches}",
            )
        return self


@explained_class
@_names_arguments
@dataclass
class CapibaraConfig(_File):
    """The full configuration: `data` configures the loader; `seed` is its seed unless `data` has its own.

    >>> CapibaraConfig().data.batch_size, CapibaraConfig.from_dict({"data": {"max_length": 128}}).data.max_length
    (32, 128)
    """

    seed: int = 0
    data: DataLoaderConfig = field(default_factory=DataLoaderConfig)


def settings_of(config: Any, overrides: Mapping[str, Any]) -> DataLoaderConfig:
    """Returns the loader's settings: `config` with `overrides` applied.

    `config` is either class, a mapping, a path, None, or any object with some of the settings as attributes, its own or
    those of its attribute `data`. Attributes with other names are not settings, unless they are nearly one.

    >>> settings_of(CapibaraConfig(seed=5), {"batch_size": 8}).seed
    5
    """
    if config is None:
        base = DataLoaderConfig()
    elif isinstance(config, DataLoaderConfig):
        base = config
    elif isinstance(config, CapibaraConfig):
        base = replace(config.data, seed=config.data.seed or config.seed)
    elif isinstance(config, str | os.PathLike):
        if Path(config).suffix.lower() not in config_files.SUFFIXES:
            raise UsageError(
                "a configuration, or the path of a settings file, as the first argument of CapibaraDataLoader",
                got=repr(os.fspath(config)),
                fix="name the others: CapibaraDataLoader(tokenizer=..., dataset_name=...); a settings file ends in "
                + ", ".join(config_files.SUFFIXES),
            )
        return settings_of(config_files.read(Path(config)), overrides)
    elif isinstance(config, Mapping):
        nested = isinstance(config.get("data"), Mapping)
        return settings_of((CapibaraConfig if nested else DataLoaderConfig).from_dict(config), overrides)
    else:
        base = _from_attributes(config)
    names = [f.name for f in fields(DataLoaderConfig)]
    for name in overrides:
        if name not in names:
            raise _unknown(name, names, "CapibaraDataLoader")
    return replace(base, **overrides).check()


def _from_attributes(config: Any) -> DataLoaderConfig:
    known = {f.name for f in fields(DataLoaderConfig)}
    values: dict[str, Any] = {}
    for holder in (config, getattr(config, "data", None)):
        names = [name for name in dir(holder) if not name.startswith("_")]
        values |= {name: getattr(holder, name) for name in names if name in known}
        for name in names:
            near = difflib.get_close_matches(name, known - set(names), 1, cutoff=0.85)
            if name not in known and near and not callable(getattr(holder, name)):
                raise _unknown(name, near, type(config).__name__)
    values = {name: value for name, value in values.items() if value is not None and not callable(value)}
    if not values:
        raise UsageError(
            "a CapibaraConfig, a DataLoaderConfig, a dict, the path of a config file, or an object with such settings",
            got=type(config).__name__,
            fix="config=CapibaraConfig()",
        )
    return DataLoaderConfig(**values)


def _unknown(name: str, known: list[str], of: str) -> UsageError:
    data = "" if of != "CapibaraConfig" else next((f.name for f in fields(DataLoaderConfig) if f.name == name), "")
    near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
    fix = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    if data:
        fix = f"it is a setting of DataLoaderConfig: CapibaraConfig(data=DataLoaderConfig({name}=...))"
    return UsageError(f"a setting of {of}", got=repr(name), fix=fix)
