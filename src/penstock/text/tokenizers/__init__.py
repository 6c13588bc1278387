"""Tokenizers: `as_tokenizer` takes whatever people have; `BulkEncoder` runs it fast over a corpus."""

from penstock.text.tokenizers.base import Tokenizer
from penstock.text.tokenizers.bulk import BulkEncoder
from penstock.text.tokenizers.resolve import as_tokenizer

__all__ = ["BulkEncoder", "Tokenizer", "as_tokenizer"]
