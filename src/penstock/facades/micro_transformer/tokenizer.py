"""`MicroTransformerTokenizer`: byte-level BPE with `[PAD] [CLS] [SEP] [MASK]`, trainable, `encode` returns a dict.

Every text of real characters round-trips, whatever it was trained on: all 256 bytes are in the vocabulary, so there is
no `[UNK]`. Special tokens are added only on request (`add_special_tokens=True`), because the datasets that use this
tokenizer join the `input_ids` of all samples into one stream; `[SEP]` serves as the end-of-document token there.
Written inside a text, the four names are the special tokens, as in `"the capital is [MASK]"`.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core import local_files
from penstock.core.arguments import explained_class
from penstock.core.errors import UsageError
from penstock.core.limits import LIMITS
from penstock.core.optional import need
from penstock.sources import compressed
from penstock.sources.formats import Options, format_of, names_files
from penstock.storage.filesystem import local_only, scheme
from penstock.tokenizers import hf
from penstock.tokenizers.base import check_texts

SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
SMALLEST_VOCAB = 256 + len(SPECIAL_TOKENS)

Paths = str | os.PathLike[str]
Encoded = dict[str, list[int]]


@explained_class
class MicroTransformerTokenizer:
    """Untrained, it has bytes and the special tokens; `train` learns merges; `from_pretrained` reads saved ones.

    >>> tokenizer = MicroTransformerTokenizer().train(["low lower lowest " * 20], vocab_size=270)
    >>> out = tokenizer.encode("lower", add_special_tokens=True)
    >>> sorted(out), tokenizer.decode(out["input_ids"])
    (['attention_mask', 'input_ids', 'token_type_ids'], '[CLS]lower[SEP]')
    """

    def __init__(self) -> None:
        self._backend = _fresh()

    @classmethod
    def from_pretrained(cls, path: Paths) -> MicroTransformerTokenizer:
        """From a folder `save` wrote, a `tokenizer.json`, or a folder with `vocab.json` and `merges.txt`."""
        place = Path(local_only(path, "the tokenizer"))
        file = place / "tokenizer.json" if place.is_dir() else place
        if file.is_file():
            loaded = hf.from_json_file(file)
        elif place.is_dir() and (place / "vocab.json").is_file() and (place / "merges.txt").is_file():
            loaded = hf.from_vocab_merges(place)
        else:
            got = "a folder without these files" if place.is_dir() else "no such file or folder"
            raise UsageError(
                "a folder with tokenizer.json, or with vocab.json and merges.txt",
                got=got,
                where=str(place),
                fix="train one: MicroTransformerTokenizer().train(files, vocab_size=8192).save(folder)",
            )
        missing = [t for t in SPECIAL_TOKENS if loaded.backend.token_to_id(t) is None]
        if missing:
            raise UsageError(
                f"a tokenizer with the special tokens {' '.join(SPECIAL_TOKENS)}",
                got=f"one without {' '.join(missing)}",
                where=str(place),
                fix="train one with MicroTransformerTokenizer, or pass this one to Penstock as it is",
            )
        made = cls.__new__(cls)
        made._backend = loaded.backend
        return made

    def train(
        self,
        source: Paths | Iterable[Paths],
        *,
        vocab_size: int = 8192,
        min_frequency: int = 2,
        text_field: str = "text",
        storage_options: Mapping[str, Any] | None = None,
    ) -> MicroTransformerTokenizer:
        """Learns merges, replacing earlier ones, and returns itself. The same data makes the same tokenizer.

        `source` is a path or a list of paths (of JSON lines and Parquet the texts in `text_field`, of other files the
        lines), or any iterable of texts. Texts are read once, in a stream. `storage_options` are for URLs.
        """
        if vocab_size < SMALLEST_VOCAB:
            raise UsageError(
                f"vocab_size of at least {SMALLEST_VOCAB}: 256 bytes and {len(SPECIAL_TOKENS)} special tokens",
                got=str(vocab_size),
                fix=f"vocab_size={SMALLEST_VOCAB} or more",
            )
        library = need("tokenizers", extra="tokenizers", purpose="to train a tokenizer")
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        backend = _fresh()
        backend.train_from_iterator(_texts(source, text_field, storage_options), trainer=trainer)
        self._backend = backend
        return self

    def save(self, folder: Paths) -> Path:
        """Writes `tokenizer.json` and `tokenizer_config.json`, which transformers' AutoTokenizer reads too."""
        place = Path(local_only(folder, "the folder"))
        place.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "eos_token": "[SEP]",
            "mask_token": "[MASK]",
            "pad_token": "[PAD]",
        }
        for name, text in (
            ("tokenizer.json", str(self._backend.to_str(pretty=True))),
            ("tokenizer_config.json", json.dumps(config, indent=2)),
        ):
            local_files.atomic_write(str(place / name), text.encode())
        return place

    save_pretrained = save

    def encode(
        self,
        text: str,
        text_pair: str | None = None,
        *,
        add_special_tokens: bool = False,
        max_length: int | None = None,
        truncation: bool = False,
        padding: bool | str = False,
    ) -> Encoded:
        """`input_ids`, `token_type_ids` (1 in the second text) and `attention_mask` (0 on padding), as lists.

        With `add_special_tokens` the form is `[CLS] text [SEP]`, or `[CLS] text [SEP] pair [SEP]`; truncation keeps
        them and cuts the end of the longer text. `padding="max_length"` fills up to `max_length`.
        """
        options = {"add_special_tokens": add_special_tokens, "max_length": max_length}
        pairs = None if text_pair is None else [text_pair]
        batch = self.encode_batch([text], pairs, truncation=truncation, padding=padding, **options)  # type: ignore[arg-type]
        return {name: rows[0] for name, rows in batch.items()}

    def encode_batch(
        self,
        texts: Sequence[str],
        text_pairs: Sequence[str] | None = None,
        *,
        add_special_tokens: bool = False,
        max_length: int | None = None,
        truncation: bool = False,
        padding: bool | str = False,
    ) -> dict[str, list[list[int]]]:
        """As `encode`, for many: lists of lists. `padding=True` (or "longest") fills up to the longest row."""
        _check_options(max_length, truncation, padding, add_special_tokens, text_pairs is not None)
        if text_pairs is not None and len(text_pairs) != len(texts):
            raise UsageError("as many second texts as first ones", got=f"{len(texts)} and {len(text_pairs)}")
        firsts = self._ids(texts)
        seconds: Sequence[list[int] | None] = [None] * len(texts) if text_pairs is None else self._ids(text_pairs)
        room = max_length if truncation else None
        rows = [self._assemble(a, b, add_special_tokens, room) for a, b in zip(firsts, seconds, strict=True)]
        width = max_length if padding == "max_length" else max((len(ids) for ids, _ in rows), default=0)
        out: dict[str, list[list[int]]] = {"input_ids": [], "token_type_ids": [], "attention_mask": []}
        for ids, kinds in rows:
            fill = max(0, (width or 0) - len(ids)) if padding else 0
            out["input_ids"].append(ids + [self.pad_token_id] * fill)
            out["token_type_ids"].append(kinds + [0] * fill)
            out["attention_mask"].append([1] * len(ids) + [0] * fill)
        return out

    def __call__(self, text: str | Sequence[str], **options: Any) -> dict[str, Any]:
        """`encode` for a str, `encode_batch` for a list."""
        return self.encode(text, **options) if isinstance(text, str) else self.encode_batch(text, **options)

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            return [e.ids for e in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        except TypeError:
            check_texts(texts)
            raise

    def _assemble(
        self, first: list[int], second: list[int] | None, special: bool, room: int | None
    ) -> tuple[list[int], list[int]]:
        frame = 0 if not special else 2 if second is None else 3
        if room is not None:
            first, second = _cut(first, second, room - frame)
        cls, sep = ([self.cls_token_id], [self.sep_token_id]) if special else ([], [])
        head = cls + first + sep
        tail = [] if second is None else second + sep
        return head + tail, [0] * len(head) + [1] * len(tail)

    def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
        """Text of ids, or of the dict `encode` gave."""
        ids = ids["input_ids"] if isinstance(ids, dict) else ids
        return str(self._backend.decode(np.asarray(ids, np.int64).tolist(), skip_special_tokens=skip_special_tokens))

    def decode_batch(self, rows: Iterable[Any], *, skip_special_tokens: bool = False) -> list[str]:
        """`decode` of each row."""
        return [self.decode(row, skip_special_tokens=skip_special_tokens) for row in rows]

    def get_vocab(self) -> dict[str, int]:
        """Token text to id."""
        return dict(self._backend.get_vocab(with_added_tokens=True))

    def get_vocab_size(self) -> int:
        """Number of rows an embedding needs: the largest id plus one."""
        return max(self.get_vocab().values()) + 1

    @property
    def vocab_size(self) -> int:
        return self.get_vocab_size()

    def __len__(self) -> int:
        return self.get_vocab_size()

    @property
    def pad_token_id(self) -> int:
        return int(self._backend.token_to_id("[PAD]"))

    @property
    def cls_token_id(self) -> int:
        return int(self._backend.token_to_id("[CLS]"))

    @property
    def sep_token_id(self) -> int:
        return int(self._backend.token_to_id("[SEP]"))

    @property
    def mask_token_id(self) -> int:
        return int(self._backend.token_to_id("[MASK]"))

    @property
    def eos_token_id(self) -> int:
        """`[SEP]`: what ends a document in a stream."""
        return self.sep_token_id

    def penstock_tokenizer(self) -> hf.HFTokenizer:
        """What `as_tokenizer` uses."""
        named: dict[str, str | None] = {"eos": "[SEP]", "bos": "[CLS]", "pad": "[PAD]"}
        return hf.HFTokenizer(self._backend.to_str(), name="MicroTransformerTokenizer", named=named)

    def __getstate__(self) -> dict[str, str]:
        return {"json": str(self._backend.to_str())}

    def __setstate__(self, state: dict[str, str]) -> None:
        self._backend = hf.HFTokenizer(state["json"]).backend

    def __repr__(self) -> str:
        return f"MicroTransformerTokenizer(vocab_size={self.get_vocab_size()})"


def _fresh() -> Any:
    """Byte-level BPE without merges."""
    library = need("tokenizers", extra="tokenizers", purpose="for MicroTransformerTokenizer")
    words = [*SPECIAL_TOKENS, *sorted(library.pre_tokenizers.ByteLevel.alphabet())]
    backend = library.Tokenizer(library.models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[]))
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = library.decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return backend


def _cut(first: list[int], second: list[int] | None, room: int) -> tuple[list[int], list[int] | None]:
    """Both texts in `room` ids, taken from the end of the longer one."""
    if second is None:
        return first[:room], None
    over = max(0, len(first) + len(second) - room)
    gap = len(first) - len(second)
    # First level the longer down to the other, then share what is left, the second text giving the odd one.
    from_longer = min(over, abs(gap))
    rest = over - from_longer
    off_first = (from_longer if gap > 0 else 0) + rest // 2
    off_second = (from_longer if gap < 0 else 0) + rest - rest // 2
    return first[: len(first) - off_first], second[: len(second) - off_second]


def _check_options(max_length: int | None, truncation: bool, padding: bool | str, special: bool, pair: bool) -> None:
    if padding not in (False, True, "longest", "max_length"):
        raise UsageError('padding of False, True, "longest" or "max_length"', got=repr(padding), fix="padding=True")
    if max_length is None and (truncation or padding == "max_length"):
        wants = "truncation=True" if truncation else 'padding="max_length"'
        raise UsageError(f"max_length together with {wants}", got="max_length=None", fix="max_length=128, for example")
    frame = 0 if not special else 3 if pair else 2
    if max_length is not None and max_length < max(1, frame):
        raise UsageError(f"max_length of at least {max(1, frame)}", got=str(max_length), fix="a larger max_length")


def _texts(source: Paths | Iterable[Paths], field: str, options: Mapping[str, Any] | None) -> Iterator[str]:
    """The texts of paths, or the texts themselves; a list of both is refused."""
    if isinstance(source, str | os.PathLike):
        source = [source if scheme(os.fspath(source)) else Path(source)]
    if isinstance(source, list | tuple) and names_files(source):
        for path in source:
            yield from _read(os.fspath(path), field, options)
        return
    for row, text in enumerate(source):
        if not isinstance(text, str):
            raise UsageError("paths or texts to train on", got=type(text).__name__, where=f"item {row} of the source")
        yield text


def _read(path: str, field: str, options: Mapping[str, Any] | None) -> Iterator[str]:
    if not scheme(path) and not os.path.isfile(path):
        raise UsageError("a file to train on", got="no such file", where=path, fix="check the path")
    found = format_of(path, options)
    if found.name == "text":
        yield from _lines(path, options)
        return
    for chunk in found.open(path, Options(field=field, storage_options=options)).iterate():
        if chunk.errors:
            chunk.errors[0].fix += ", or name the field with text_field="
            raise chunk.errors[0]
        yield from chunk.texts


def _lines(path: str, options: Mapping[str, Any] | None) -> Iterator[str]:
    """Lines with their ends, which are part of what is learned."""
    stream = compressed.open_stream(path, compressed.kind_of(path, options), LIMITS, options)
    try:
        with io.TextIOWrapper(io.BufferedReader(_Raw(stream)), encoding="utf-8", newline="") as file:
            yield from file
    finally:
        stream.close()


class _Raw(io.RawIOBase):
    """A decompressed stream as Python's own I/O classes take it."""

    def __init__(self, stream: compressed.Stream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
