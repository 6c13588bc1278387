"""The schemes of URLs that are read, and which of them are object stores; nothing is imported to know them."""

from __future__ import annotations

OBJECTS = ("s3", "gs", "az", "abfs")
SCHEMES = ("file", "local", "http", "https", *OBJECTS, "hf", "memory")
