"""The parameters of text datasets, read and checked from a configuration's `metadata["text_params"]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from penstock.core.errors import UsageError


@dataclass(frozen=True)
class TextParams:
    """Vocabulary size, row length and special ids.

    >>> TextParams.of(None).max_length
    512
    """

    vocab_size: int = 10000
    max_length: int = 512
    pad_token_id: int = 0
    unk_token_id: int = 1
    bos_token_id: int = 2
    eos_token_id: int = 3
    case_sensitive: bool = False

    @classmethod
    def of(cls, config: Any) -> TextParams:
        """Reads the parameters from a configuration; missing ones have their defaults."""
        if isinstance(config, TextParams):
            return config
        if config is None:
            return cls()
        metadata = getattr(config, "metadata", None)
        kind = getattr(config, "modality_type", "text")
        if not isinstance(metadata, Mapping) or (metadata and "text_params" not in metadata) or kind != "text":
            found = f"metadata with {sorted(map(str, metadata))}" if isinstance(metadata, Mapping) else "no metadata"
            raise UsageError(
                'a text configuration: metadata with "text_params"',
                got=f"{type(config).__name__} of type {kind!r}, {found}",
                where="config of a text dataset",
                fix='ModalityConfiguration("text", "text", metadata={"text_params": {"vocab_size": 10000}})',
            )
        params = metadata.get("text_params", {})
        known = [field.name for field in fields(cls)]
        if not isinstance(params, Mapping) or (unknown := sorted(set(params) - set(known))):
            raise UsageError(
                f"text_params with keys out of {', '.join(known)}",
                got=f"{unknown}" if isinstance(params, Mapping) else type(params).__name__,
                where='config.metadata["text_params"]',
                fix="correct or remove them",
            )
        return cls(**params)

    def __post_init__(self) -> None:
        where = 'config.metadata["text_params"]'
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "case_sensitive" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise UsageError(f"an integer of at least 0 for {field.name}", got=repr(value), where=where)
        if self.max_length < 2:
            raise UsageError("max_length of at least 2, for BOS and EOS", got=str(self.max_length), where=where)
        special = self.special
        if len(set(special)) != len(special) or max(special) >= self.vocab_size or self.vocab_size <= len(special):
            raise UsageError(
                f"four different special ids below vocab_size={self.vocab_size}, and at least one id for words",
                got=f"pad, unk, bos, eos = {special}",
                where=where,
                fix="vocab_size=10000, pad_token_id=0, unk_token_id=1, bos_token_id=2, eos_token_id=3",
            )

    @property
    def special(self) -> tuple[int, int, int, int]:
        """PAD, UNK, BOS and EOS."""
        return self.pad_token_id, self.unk_token_id, self.bos_token_id, self.eos_token_id
