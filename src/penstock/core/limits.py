"""Every ceiling in one place: how much memory, depth or time one piece of data may ask for.

Readers check sizes from headers and while they stream, before memory is spent. Each reader takes `limits=`, so
that a user with larger data raises a ceiling on purpose and a test lowers one. Costs nothing: a frozen dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass

MB = 1 << 20
GB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings on what data may ask for; change one with `dataclasses.replace` or `Limits(line_bytes=...)`.

    >>> Limits().line_bytes == 64 * MB
    True
    >>> Limits(line_bytes=1000).expansion_allowed(compressed=1000, expanded=300 * 1000)
    True
    """

    record_bytes: int = 256 * MB
    """One record of any kind: a file, a paragraph, an archive member, a Parquet value."""
    line_bytes: int = 64 * MB
    """One line of a line file."""
    pixels: int = 89_478_485
    """Width times height of one image."""
    audio_seconds: float = 4 * 3600.0
    """Length of one audio recording."""
    expansion: int = 200
    """Expanded bytes per compressed byte, once more than `expansion_free_bytes` have come out."""
    expansion_free_bytes: int = 64 * MB
    """Expanded bytes that are allowed whatever the ratio."""
    spool_bytes: int = 64 * GB
    """Temporary disk that random access to compressed files may take, per source."""
    json_depth: int = 64
    """Objects and arrays inside each other in one JSON value."""
    tar_header_bytes: int = 1 * MB
    """One extended header of a tar archive."""
    manifest_bytes: int = 100 * MB
    """One manifest, index or file footer."""
    template_bytes: int = 64 << 10
    """Source text of one chat or prompt template."""
    template_steps: int = 2_000_000
    """Loop turns, calls and operators of one rendering of a template: counted, so the same on every machine."""
    template_seconds: float = 10.0
    """Processor time one template may take to render, should its steps be long ones."""

    def expansion_allowed(self, compressed: int, expanded: int) -> bool:
        """Whether `expanded` bytes out of `compressed` is honest data rather than a decompression bomb."""
        return expanded <= self.expansion_free_bytes or expanded <= self.expansion * compressed


LIMITS = Limits()
