"""All limits on input data: the memory, nesting depth or time that one piece of data may use.

Readers check sizes from headers and while streaming, before they allocate memory. Each reader takes `limits=`, so
that a user with larger data can raise a limit and a test can lower one.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.arguments import explained_class

MB = 1 << 20
GB = 1 << 30


@explained_class
@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on input data; change one with `dataclasses.replace` or `Limits(line_bytes=...)`.

    >>> Limits().line_bytes == 64 * MB
    True
    >>> Limits(line_bytes=1000).expansion_allowed(compressed=1000, expanded=300 * 1000)
    True
    """

    record_bytes: int = 256 * MB
    """One record of any kind: a file, a paragraph, an archive member, a Parquet value."""
    line_bytes: int = 64 * MB
    """One line of a text or JSONL file."""
    pixels: int = 89_478_485
    """Width times height of one image."""
    audio_seconds: float = 4 * 3600.0
    """Length of one audio recording."""
    expansion: int = 200
    """Decompressed bytes per compressed byte, once more than `expansion_free_bytes` were decompressed."""
    expansion_free_bytes: int = 64 * MB
    """Decompressed bytes that are allowed at any ratio."""
    spool_bytes: int = 64 * GB
    """Temporary disk space for random access to compressed files, per source."""
    row_cache_bytes: int = 256 * GB
    """Disk space of the cache folder for random access to Parquet rows, per source; 0: no rows are stored there."""
    json_depth: int = 64
    """Nesting depth of one JSON value."""
    tar_header_bytes: int = 1 * MB
    """One extended header of a tar archive."""
    manifest_bytes: int = 100 * MB
    """One manifest, index or file footer."""
    template_bytes: int = 64 << 10
    """Source text of one chat or prompt template."""
    template_steps: int = 2_000_000
    """Loop iterations, calls and operators of one template rendering: a count, so the same on every machine."""
    template_seconds: float = 10.0
    """CPU time of one template rendering, in case single steps take long."""

    def expansion_allowed(self, compressed: int, expanded: int) -> bool:
        """Whether `expanded` bytes from `compressed` bytes is plausible, and not a decompression bomb."""
        return expanded <= self.expansion_free_bytes or expanded <= self.expansion * compressed

    def changed(self, *names: str) -> list[str]:
        """Those of these limits that are not the default, for a fingerprint: they decide which records are skipped.

        >>> Limits(line_bytes=1000).changed("line_bytes", "json_depth")
        ['line_bytes=1000']
        """
        return [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) != getattr(LIMITS, name)]


LIMITS = Limits()
