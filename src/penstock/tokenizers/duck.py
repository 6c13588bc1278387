"""Any object whose `encode` returns a list, an array, an `Encoding` (`.ids`) or a dict with `input_ids`.

`add_special_tokens` is passed when `encode` takes it. Every call goes through the object's Python code, one at a
time; ids are checked against the vocabulary size the object states.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import DataError, UsageError
from penstock.tokenizers.base import PROBES, Ids, SerialTokenizer, Specials

_SIZES = ("vocab_size", "n_vocab", "get_vocab_size", "get_piece_size", "__len__")
_ROLES = {
    "eos": ("eos_token_id", "eos_id", "eot_token"),
    "bos": ("bos_token_id", "bos_id"),
    "pad": ("pad_token_id", "pad_id"),
}

_REFUSALS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, DataError)


class DuckTokenizer(SerialTokenizer):
    """A user's own tokenizer object.

    >>> class Letters:
    ...     vocab_size = 26
    ...     def encode(self, text): return [ord(c) - 97 for c in text]
    ...     def decode(self, ids): return "".join(chr(97 + i) for i in ids)
    >>> DuckTokenizer(Letters()).encode("cab").tolist()
    [2, 0, 1]
    """

    def __init__(self, original: Any, vocab_size: int | None = None, adds: bool = False) -> None:
        specials = Specials(**{role: _role(original, names) for role, names in _ROLES.items()})
        size = vocab_size or _size_of(original)
        super().__init__(original, getattr(original, "name", ""), size, specials)
        self._kwargs = {"add_special_tokens": adds} if parameter_of(original, "encode", "add_special_tokens") else {}
        self.adds = adds and bool(self._kwargs)

    special_tokens: dict[str, int] = {}  # noqa: RUF012  (never changed)

    def adding(self, add: bool) -> DuckTokenizer:
        """The same with or without special tokens, if `encode` takes `add_special_tokens`; else it decides itself."""
        if add == self.adds or not self._kwargs:
            return self
        return DuckTokenizer(self.original, self.vocab_size, add)

    def __reduce__(self) -> tuple[Any, ...]:
        return DuckTokenizer, (self.original, self.vocab_size, self.adds)

    def _facts(self) -> dict[str, Any]:
        vocab = getattr(self.original, "get_vocab", None)
        words = sorted((str(k), int(v)) for k, v in vocab().items()) if callable(vocab) else None
        probes = []
        for text in PROBES:
            try:
                probes.append(self._ids(text).tolist())
            except _REFUSALS as error:  # a small tokenizer may refuse some text; that too identifies it
                probes.append(type(error).__name__)
        return {"vocab": words, "probes": probes}

    def _ids(self, text: str) -> Ids:
        ids = ids_of(self.original.encode(text, **self._kwargs), self.name)
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size):
            bad = int(ids.max()) if int(ids.max()) >= self.vocab_size else int(ids.min())
            raise DataError(
                f"ids from 0 to {self.vocab_size - 1}",
                got=f"id {bad} for the text {text[:40]!r}",
                where=f"tokenizer {self.name}",
                fix="set its vocab_size to its largest id plus one",
            )
        return ids.astype(np.uint32)


def ids_of(out: Any, name: str = "object") -> NDArray[np.int64]:
    """The ids in whatever `encode` returned.

    >>> ids_of({"input_ids": [[1, 2]]}).tolist()
    [1, 2]
    """
    if isinstance(out, Mapping) or (not isinstance(out, Sequence) and hasattr(out, "keys")):
        if "input_ids" not in out:
            raise _bad_output(f"a dict with {sorted(map(str, out))[:5]}", name)
        out = out["input_ids"]
    elif hasattr(out, "ids"):
        out = out.ids
    if isinstance(out, str | bytes) or out is None:
        raise _bad_output(type(out).__name__, name)
    try:
        ids = np.asarray(out)
    except ValueError as error:
        raise _bad_output(f"rows of different lengths ({error})", name) from error
    if ids.ndim == 2 and len(ids) == 1:
        ids = ids[0]
    if ids.size == 0:
        return np.empty(0, np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise _bad_output(f"{type(out).__name__} of shape {ids.shape} and type {ids.dtype}", name)
    return ids.astype(np.int64)


def _bad_output(got: str, name: str) -> UsageError:
    return UsageError(
        "encode(text) to return a list of ints, an Encoding with .ids, or a dict with input_ids",
        got=got,
        where=f"tokenizer {name}",
        fix="wrap it in an object whose encode(text) returns a list of ints",
    )


def parameter_of(obj: Any, method: str, name: str) -> inspect.Parameter | None:
    """The parameter of a method, or None. An override with `**options` has those of the method that it overrides.

    >>> class One:
    ...     def encode(self, text, *, add=True): ...
    >>> class Two(One):
    ...     def encode(self, text, **options): ...
    >>> parameter_of(Two(), "encode", "add").default
    True
    """
    for function in (vars(obj) if hasattr(obj, "__dict__") else {}).get(method), *_in_classes(type(obj), method):
        if function is None:
            continue
        try:
            found = inspect.signature(function).parameters
        except (TypeError, ValueError):  # a builtin without a signature
            return None
        if name in found:
            return found[name]
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in found.values()):
            return None
    return None


def _in_classes(cls: type, method: str) -> list[Any]:
    return [vars(one)[method] for one in cls.__mro__ if method in vars(one)]


def overrides_encode(obj: Any, library: str = "", beside: str = "") -> bool:
    """Whether `encode` of an object is not its library's, or that of the class with the method `beside`.

    Then a subclass overrides it, or it is set on the object, and other methods of the object return other ids.
    """
    if "encode" in getattr(obj, "__dict__", {}):
        return True
    classes = type(obj).__mro__
    owner = next((one for one in classes if "encode" in vars(one)), None)
    if owner is None:
        return False
    return beside not in vars(owner) if beside else owner.__module__.partition(".")[0] != library


ANY_IDS = 1 << 31  # vocabulary size of an object that states none


def with_any_ids(tokenizer: Any) -> Any:
    """The tokenizer; an object that only has `encode`, and no vocabulary size, as one whose ids are below 2**31."""
    found = None if isinstance(tokenizer, type) else getattr(tokenizer, "encode", None)
    if isinstance(tokenizer, str) or not callable(found) or hasattr(tokenizer, "get_vocab") or _sizes(tokenizer):
        return tokenizer
    return DuckTokenizer(tokenizer, ANY_IDS)


def _size_of(original: Any) -> int:
    sizes = _sizes(original)
    vocab = getattr(original, "get_vocab", None)
    if callable(vocab):
        sizes.append(1 + max(map(int, vocab().values()), default=-1))
    if not sizes or max(sizes) < 1:
        raise UsageError(
            "a tokenizer that states its vocabulary size",
            got=f"{type(original).__name__} without any of vocab_size, n_vocab, get_vocab_size(), get_vocab(), len()",
            fix="add an attribute vocab_size: its largest id plus one",
        )
    return max(sizes)


def _sizes(original: Any) -> list[int]:
    sizes = []
    for name in _SIZES:
        value = getattr(original, name, None)
        value = value() if callable(value) else value
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            sizes.append(int(value))
    return sizes


def _role(original: Any, names: Sequence[str]) -> int | None:
    for name in names:
        value = getattr(original, name, None)
        value = value() if callable(value) else value
        if isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 0:
            return int(value)
    return None
