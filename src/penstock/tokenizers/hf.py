"""Hugging Face `tokenizers`: an object, a `tokenizer.json`, or a folder with it or with `vocab.json` + `merges.txt`.

Penstock keeps its own copy with truncation and padding off: a limit left in a file would silently cut documents.
Loading builds the vocabulary once (about 0.1 s for 50 k tokens); encoding holds no GIL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Ragged
from penstock.core.errors import BadRecords, UsageError
from penstock.core.optional import need
from penstock.core.signals import surface
from penstock.tokenizers.ambiguous import ambiguity
from penstock.tokenizers.base import (
    NO_IDS,
    PROBES,
    BaseTokenizer,
    Ids,
    check_texts,
    each_row,
    find_specials,
    first_difference,
    framed,
    join_rows,
)
from penstock.tokenizers.canonical import canonical
from penstock.tokenizers.configured import read_json

_ROLES = {"eos": "eos_token", "bos": "bos_token", "pad": "pad_token"}


class HFTokenizer(BaseTokenizer):
    """A `tokenizers.Tokenizer` as Penstock sees it; `text` is its JSON.

    `plain_specials` encodes special-token text as ordinary text (the object's `encode_special_tokens`); `adds` keeps
    what its post-processor adds around a text.
    """

    kind = "tokenizers"

    def __init__(
        self, text: str, *, name: str = "tokenizers", named: Mapping[str, str | None] | None = None,
        plain_specials: bool = False, adds: bool = False,
    ) -> None:  # fmt: skip
        library = need("tokenizers", extra="tokenizers", purpose="to read this tokenizer")
        try:
            backend = library.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception for any malformed JSON
            raise UsageError(
                "a tokenizer.json that the tokenizers library reads",
                got=str(error),
                where=name,
                fix="save it again with Tokenizer.save, or upgrade tokenizers if the file is newer",
            ) from error
        if getattr(backend.model, "dropout", None):
            raise UsageError(
                "a tokenizer that returns the same ids every time",
                got=f"BPE dropout {backend.model.dropout}",
                where=name,
                fix="set tokenizer.model.dropout = None before preparing data",
            )
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = plain_specials
        self.backend = backend
        self._named = dict(named or {})
        self._plain = plain_specials
        self.adds = adds and _adds(backend)
        vocab = backend.get_vocab(with_added_tokens=True)
        super().__init__(name, max(vocab.values(), default=-1) + 1, find_specials(vocab, self._named))

    @property
    def special_tokens(self) -> dict[str, int]:
        added = self.backend.get_added_tokens_decoder().items()
        return {str(t.content): int(i) for i, t in added if t.special}

    @property
    def added_tokens(self) -> dict[str, int]:
        return {str(t.content): int(i) for i, t in self.backend.get_added_tokens_decoder().items()}

    @cached_property
    def json_text(self) -> str:
        """The tokenizer.json this copy writes."""
        return str(self.backend.to_str())

    def adding(self, add: bool) -> BaseTokenizer:
        if add == self.adds or (add and not _adds(self.backend)):
            return self
        return _rebuild(self.json_text, self.name, self._named, self._plain, add)

    @cached_property
    def frame(self) -> tuple[Ids, Ids]:
        if not self.adds:
            return NO_IDS, NO_IDS
        added = np.array(self.backend.encode("a").special_tokens_mask, bool)
        inside = np.flatnonzero(~added)
        first, last = (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (len(added), len(added))
        ids = self.encode("a")
        return ids[:first], ids[last:]

    def fast_form(self) -> tuple[str, Any] | None:
        if self.adds and not self._frame_is_constant():
            return None
        if not self._plain:
            return "json", (self.json_text, self._judged[1])
        config = json.loads(self.json_text)
        config["added_tokens"] = [t for t in config["added_tokens"] if not t["special"]]
        return "json", (json.dumps(config), ambiguity(config))

    def _frame_is_constant(self) -> bool:
        """Whether every text gets the same ids around it, tried on the probes."""
        try:
            plain = self.adding(False).encode_batch(PROBES)
            return first_difference(self.encode_batch(PROBES), framed(plain, *self.frame)) is None
        except BadRecords:
            return False

    @property
    def _blob(self) -> bytes:
        return self._judged[0]

    @cached_property
    def _judged(self) -> tuple[bytes, str | None]:
        """What is hashed into the identity, and what makes the vocabulary ambiguous: the JSON is parsed once."""
        config = json.loads(self.json_text)
        ambiguous = ambiguity(config)
        merges = config.get("model", {}).get("merges")
        if merges:  # older versions of the library write "a b", newer ones ["a", "b"]
            config["model"]["merges"] = [m.split(" ", 1) if isinstance(m, str) else m for m in merges]
        return canonical({"tokenizer": config, "plain_specials": self._plain}), ambiguous

    def encode_batch(self, texts: Sequence[str]) -> Ragged:
        # One text per call: `encode` holds the GIL, and a batch of many starts threads nobody asked for.
        run, adds = self.backend.encode_batch_fast, self.adds
        try:
            return join_rows([np.array(run([t], add_special_tokens=adds)[0].ids, np.uint32) for t in texts])
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # bare Exception, such as "Missing [UNK] token", or a panic in native code
            surface(error)
            check_texts(texts)
            return each_row(lambda t: np.array(run([t], add_special_tokens=adds)[0].ids, np.uint32), texts)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        return str(self.backend.decode(np.asarray(ids, np.int64).tolist(), skip_special_tokens=False))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.json_text, self.name, self._named, self._plain, self.adds)


def _rebuild(text: str, name: str, named: dict[str, str | None], plain: bool, adds: bool = False) -> HFTokenizer:
    return HFTokenizer(text, name=name, named=named, plain_specials=plain, adds=adds)


def _adds(backend: Any) -> bool:
    return bool(backend.num_special_tokens_to_add(is_pair=False))


def from_object(backend: Any) -> HFTokenizer:
    """From a live `tokenizers.Tokenizer`; later changes to the object are not seen."""
    try:
        text = backend.to_str()
    except Exception as error:  # the library raises bare Exception
        raise UsageError(
            "a tokenizers.Tokenizer that can be written as JSON",
            got=str(error)[:200],
            fix="build it from the library's own parts; or pass an object whose encode(text) calls it",
        ) from error
    made = HFTokenizer(text, plain_specials=bool(getattr(backend, "encode_special_tokens", False)))
    if (other := difference(made, backend)) is not None:
        raise UsageError(
            "a tokenizers.Tokenizer that returns the same ids after it is saved and loaded",
            got=other,
            fix="use the saved one everywhere: tokenizer = Tokenizer.from_str(tokenizer.to_str())",
        )
    return made


def difference(made: HFTokenizer, original: Any) -> str | None:
    """What saving has changed: the library rounds scores of Unigram pieces, and numbers added tokens anew where the
    ids of a vocabulary have gaps."""
    copy = made.backend
    before, after = original.get_added_tokens_decoder(), copy.get_added_tokens_decoder()
    if str(before) != str(after):
        changed = next((t.content for i, t in before.items() if str(after.get(i)) != str(t)), "a token more")
        return f"other ids of added tokens: {changed!r}"
    if type(original.model).__name__ == "Unigram" and original.model.__getstate__() != copy.model.__getstate__():
        return "other scores of pieces, in the last digit, which decide between two ways to cut a text"
    return None


def from_json_file(path: Path) -> HFTokenizer:
    """From a `tokenizer.json`; roles of special tokens come from the configuration files beside it."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            "a tokenizer.json in UTF-8", got=str(error), where=str(path), fix="pass a JSON text file"
        ) from error
    return HFTokenizer(text, name=str(path), named=read_named(path.parent))


def from_folder(folder: Path) -> HFTokenizer:
    """The tokenizer of a folder with `tokenizer.json`."""
    return from_json_file(folder / "tokenizer.json")


def from_vocab_merges(folder: Path) -> HFTokenizer:
    """From GPT-2 style `vocab.json` + `merges.txt`: byte-level BPE, `<|endoftext|>` and the like matched in text."""
    library = need("tokenizers", extra="tokenizers", purpose="to read this tokenizer")
    vocab_path, merges_path = folder / "vocab.json", folder / "merges.txt"
    try:
        vocab, merges = library.models.BPE.read_file(str(vocab_path), str(merges_path))
        model = library.models.BPE(vocab=vocab, merges=merges)
    except Exception as error:  # the library raises bare Exception
        raise UsageError(
            "vocab.json and merges.txt of one byte-level BPE",
            got=str(error),
            where=str(folder),
            fix="save the tokenizer as one tokenizer.json instead",
        ) from error
    if any(token.endswith("</w>") for token in vocab):
        raise UsageError(
            "a byte-level BPE vocabulary",
            got="a vocabulary with end-of-word marks (</w>), whose splitting rule is not in these files",
            where=str(folder),
            fix="load it with the library it came from and pass the object",
        )
    config = read_json(folder / "tokenizer_config.json")
    backend = library.Tokenizer(model)
    prefix = bool(config.get("add_prefix_space", False))
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = library.decoders.ByteLevel()
    named = read_named(folder)
    roles = find_specials(vocab, named)
    by_id = {i: t for t, i in vocab.items()}
    known = [t for t in ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "<mask>", "<unk>") if t in vocab]
    marked = {by_id[i] for i in (roles.eos, roles.bos, roles.pad) if i is not None} | set(known)
    backend.add_special_tokens(sorted(marked, key=lambda token: int(vocab[token])))
    return HFTokenizer(backend.to_str(), name=str(folder), named=named)


def read_named(folder: Path) -> dict[str, str | None]:
    """Roles a folder's `tokenizer_config.json` or `special_tokens_map.json` defines, as token text."""
    named: dict[str, str | None] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        config = read_json(folder / file)
        for role, key in _ROLES.items():
            value = config.get(key)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                named[role] = value
    return named
