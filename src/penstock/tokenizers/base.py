"""The interface of a tokenizer in Penstock, and the functions that tokenizers share.

`encode_batch` runs on the calling thread and returns one values array with offsets; `BulkEncoder` uses many threads.
Special tokens that a tokenizer adds around a text ([CLS], [SEP], BOS) are left out, unless `add_special_tokens=True`;
the end-of-document token is appended by whoever writes the store. Text that spells a special token is that token for
`tokenizers` and transformers, ordinary text for SentencePiece and bytes, and follows `allowed_special` for tiktoken.
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Ragged
from penstock.core.errors import BadRecords, PenstockError, RecordError
from penstock.tokenizers.canonical import canonical

Ids = NDArray[np.uint32]

NO_IDS: Ids = np.empty(0, np.uint32)

# Texts on which two tokenizers that are not the same tend to disagree. Part of identities: changing it changes them.
PROBES = (
    "",
    " ",
    "  leading and trailing  ",
    "\n\n\tdef f(x):\n        return x  # 1234567890\n",
    "It's we'll I'VE don't naïve café Straße ÀÉÎ",
    "e\u0301 \u1e9b\u0323 \ufb01 \uff26\uff35\uff2c\uff2c \u200b\ufeff\u00a0\u2028",
    "日本語のテキスト 한국어 العربية हिन्दी ไทย",
    "🙂👩‍👩‍👧‍👦🇨🇭 \U0001f9ea",
    "\x00\x01\x7f\r\n\r",
    "https://a.b/c?d=e&f=%20 <tag/> {{x}} 3.14e-10 AbcDEF",
    "a" * 300 + " " * 70 + "=" * 70 + "\n" * 20,
)


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back.

    `vocab_size` is the largest id plus one, added tokens included, so every id fits a dtype chosen from it.
    """

    name: str
    vocab_size: int
    eos_id: int | None
    bos_id: int | None
    pad_id: int | None

    @property
    def kind(self) -> str:
        """Which library does the work: bytes, tokenizers, transformers, tiktoken, sentencepiece or object."""
        ...

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text and id of each special token."""
        ...

    def identity(self) -> dict[str, Any]:
        """JSON that is equal exactly when the ids are: kind, sha256, vocab_size, special ids. Same in every process."""
        ...

    def encode(self, text: str) -> Ids:
        """Ids of one text."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        """Ids of many texts: uint32 values and int64 offsets."""
        ...

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Text of ids, special tokens shown where the original shows them."""
        ...


Special = Collection[str] | Literal["all"]


@runtime_checkable
class SpecialTextPolicy(Protocol):
    """A tokenizer with a policy for text that spells a special token."""

    @property
    def special_tokens(self) -> dict[str, int]: ...

    def allowing(self, allowed: Special | None, disallowed: Special | None) -> Tokenizer:
        """The same tokenizer with this policy; None is the default of each."""
        ...


@dataclass(frozen=True)
class Specials:
    """Ids that have a role; None where a tokenizer has no such token."""

    eos: int | None = None
    bos: int | None = None
    pad: int | None = None


_ROLE_NAMES = {
    "eos": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]"),
    "bos": ("<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "[BOS]", "[CLS]"),
    "pad": ("<pad>", "<|pad|>", "<|padding|>", "[PAD]"),
}


def find_specials(vocab: Mapping[str, int], named: Mapping[str, str | None] | None = None) -> Specials:
    """Roles from the names in a configuration, or else from the usual names.

    >>> find_specials({"<s>": 1, "</s>": 2, "a": 3})
    Specials(eos=2, bos=1, pad=None)
    >>> find_specials({"<s>": 1, "</s>": 2}, {"eos": "<s>"}).eos
    1
    """
    found: dict[str, int | None] = {}
    for role, usual in _ROLE_NAMES.items():
        configured = (named or {}).get(role)
        names = (configured,) if configured is not None else usual
        found[role] = next((int(vocab[n]) for n in names if n in vocab), None)
    return Specials(**found)


def framed(rows: Ragged, before: Ids, after: Ids) -> Ragged:
    """Each row with the same ids before and behind it.

    >>> framed(Ragged.of([[1, 2], []]), np.array([8]), np.array([9])).tolist()
    [[8, 1, 2, 9], [8, 9]]
    """
    if not len(before) and not len(after):
        return rows
    offsets = rows.offsets + np.arange(len(rows) + 1) * (len(before) + len(after))
    values = np.empty(int(offsets[-1]), rows.values.dtype)
    text = np.ones(len(values), bool)
    for at, number in enumerate(before.tolist()):
        values[offsets[:-1] + at] = number
        text[offsets[:-1] + at] = False
    for at, number in enumerate(after.tolist()[::-1], 1):
        values[offsets[1:] - at] = number
        text[offsets[1:] - at] = False
    values[text] = rows.values
    return Ragged(values, offsets)


def join_rows(rows: Sequence[Ids]) -> Ragged:
    """One Ragged from an array per text."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(r) for r in rows], out=offsets[1:])
    values = np.concatenate(rows).astype(np.uint32, copy=False) if rows else np.empty(0, np.uint32)
    return Ragged(values, offsets)


def first_difference(expected: Ragged, got: Ragged) -> int | None:
    """The first row whose ids differ, or None.

    >>> first_difference(Ragged.of([[1], [2, 3]]), Ragged.of([[1], [2, 4]]))
    1
    """
    if len(expected) != len(got):
        return 0
    used = slice(int(got.offsets[0]), int(got.offsets[-1]))
    if np.array_equal(expected.offsets, got.offsets) and np.array_equal(expected.values[used], got.values[used]):
        return None  # without looking at each row
    for row, (a, b) in enumerate(zip(expected, got, strict=True)):
        if not np.array_equal(a, b):
            return row
    return None


class BaseTokenizer(ABC):
    """The shared part of tokenizers. A kind adds `special_tokens`, `_blob`, `encode_batch` and `decode`."""

    kind = "object"
    concurrent = True
    """Whether many threads may call `encode_batch` at once."""
    adds = False
    """Whether `encode` adds the special tokens that the original adds around a text, such as [CLS] and [SEP]."""

    def __init__(self, name: str, vocab_size: int, specials: Specials) -> None:
        self.name, self.vocab_size = name, vocab_size
        self.eos_id, self.bos_id, self.pad_id = specials.eos, specials.bos, specials.pad

    @property
    @abstractmethod
    def special_tokens(self) -> dict[str, int]:
        """Text and id of each special token."""

    @property
    def added_tokens(self) -> dict[str, int]:
        """Text and id of tokens that are matched in text before anything else: special tokens, and ordinary ones."""
        return self.special_tokens

    @property
    @abstractmethod
    def _blob(self) -> bytes:
        """The tokenizer serialized in a canonical way."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        """Ids of many texts."""

    @abstractmethod
    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Text of ids."""

    def fast_form(self) -> tuple[str, Any] | None:
        """What a bulk engine can be built from: see `giga.builder`; None if only this object can encode."""
        return None

    @property
    def frame(self) -> tuple[Ids, Ids]:
        """The ids that `encode` puts before and behind those of every text; a bulk engine does not know them."""
        return NO_IDS, NO_IDS

    def adding(self, add: bool) -> BaseTokenizer:
        """The same tokenizer with or without the special tokens it adds around a text; most kinds add none."""
        return self

    @cached_property
    def ends_texts(self) -> bool:
        """Whether `encode` itself ends every text with the end token."""
        return self.adds and self.eos_id is not None and self.encode("a")[-1:].tolist() == [self.eos_id]

    def policy(self) -> dict[str, Any]:
        """What decides which texts are refused, beyond their ids: part of a preparation's settings."""
        return {}

    def check(self, texts: Sequence[str]) -> None:  # noqa: B027  most kinds refuse no text
        """Raises `BadRecords` for texts that `encode_batch` would refuse and a bulk engine would not."""

    def identity(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "sha256": hashlib.sha256(self._blob).hexdigest(),
            "vocab_size": self.vocab_size,
            "eos_id": self.eos_id,
            "bos_id": self.bos_id,
            "pad_id": self.pad_id,
            **({"add_special_tokens": True} if self.adds else {}),
        }

    def encode(self, text: str) -> Ids:
        return self.encode_batch([text]).values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, vocab_size={self.vocab_size})"


class SerialTokenizer(BaseTokenizer):
    """The shared part of tokenizers that call an object's own Python code, one text at a time."""

    concurrent = False

    def __init__(self, original: Any, name: str, vocab_size: int, specials: Specials) -> None:
        super().__init__(str(name or type(original).__name__), vocab_size, specials)
        self.original = original
        self._lock = threading.Lock()

    @abstractmethod
    def _ids(self, text: str) -> Ids:
        """Ids of one text, by the object."""

    @abstractmethod
    def _facts(self) -> dict[str, Any]:
        """What is known of the object that decides its ids."""

    @cached_property
    def _blob(self) -> bytes:
        """Class name, vocabulary and ids on fixed texts: what can be seen of the object."""
        kind = type(self.original)
        return canonical({"class": f"{kind.__module__}.{kind.__qualname__}", **self._facts()})

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        check_texts(texts)
        with self._lock:
            return each_row(self._ids, texts)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        return str(self.original.decode(np.asarray(ids, np.int64).tolist()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.original,)


def each_row(encode: Callable[[str], Ids], texts: Sequence[str]) -> Ragged:
    """Ids of many texts, one at a time; raises `BadRecords` with every text on which a foreign tokenizer fails.

    >>> each_row(lambda text: np.array([{"a": 1}[text]]), ["a", "b"])
    Traceback (most recent call last):
    penstock.core.errors.BadRecords: expected a text that the tokenizer can encode
      got:   KeyError: 'b', for 'b'
      where: row 1 of this call
      fix:   repair or drop the record, or use a tokenizer that knows its characters
    """
    rows, bad = [], []
    for row, text in enumerate(texts):
        try:
            rows.append(encode(text))
        except PenstockError:
            raise
        except BaseException as error:  # a panic in native code is a BaseException
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            bad.append(_failed(row, text, error))
    if bad:
        raise BadRecords(bad)
    return join_rows(rows)


def _failed(row: int, text: str, error: BaseException) -> RecordError:
    made = RecordError(
        "a text that the tokenizer can encode",
        got=f"{type(error).__name__}: {str(error)[:200]}, for {text[:40]!r}",
        where=f"row {row} of this call",
        fix="repair or drop the record, or use a tokenizer that knows its characters",
        row=row,
    )
    made.__cause__ = error
    return made


def is_text(value: Any) -> bool:
    """Whether a value is a str that UTF-8 can hold; half a surrogate pair, as careless JSON makes it, is not.

    >>> is_text("a"), is_text("\\ud800"), is_text(None)
    (True, False, False)
    """
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def check_texts(texts: Sequence[Any]) -> None:
    """Raises `BadRecords` naming every row that is not a str of real characters; costs one UTF-8 pass.

    >>> check_texts(["fine", None])
    Traceback (most recent call last):
    penstock.core.errors.BadRecords: expected text to tokenize, as str
      got:   NoneType
      where: row 1 of this call
      fix:   pass str; filter or convert the rest before tokenizing
    """
    bad = []
    for row, text in enumerate(texts):
        where = f"row {row} of this call"
        if not isinstance(text, str):
            fix = "pass str; filter or convert the rest before tokenizing"
            bad.append(RecordError("text to tokenize, as str", got=type(text).__name__, where=where, fix=fix, row=row))
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            got = f"half a surrogate pair, {text[error.start]!r}, at character {error.start}"
            fix = "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace') repairs such text"
            bad.append(RecordError("text that can be written as UTF-8", got=got, where=where, fix=fix, row=row))
    if bad:
        raise BadRecords(bad)
