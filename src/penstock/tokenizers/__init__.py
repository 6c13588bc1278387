"""Tokenizers: `as_tokenizer` takes whatever people have; `BulkEncoder` runs it fast over a corpus."""

from penstock.tokenizers.base import Tokenizer
from penstock.tokenizers.bulk import BulkEncoder
from penstock.tokenizers.resolve import as_tokenizer

__all__ = ["BulkEncoder", "Tokenizer", "as_tokenizer"]
