"""A libturbojpeg 3 for tests, and how to decode with and without one in the same process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

import pytest

from penstock.codecs.image import jpeg_region, turbojpeg

OFF = "off"


def installed() -> str:
    """The library of the wheel `turbojpeg`, which is installed for tests only, or the one of this machine."""
    named = os.environ.get(turbojpeg.VARIABLE)
    if named:
        return named
    try:
        files = metadata.distribution("turbojpeg").files or []
    except metadata.PackageNotFoundError:  # it has no wheels for this Python or processor
        files = []
    for file in files:
        if "libturbojpeg" in file.name:
            return str(file.locate())
    found, why = turbojpeg.load()
    if found is None:
        pytest.skip(f"no libturbojpeg 3 to test with: {why}")
    return found.path


@contextmanager
def using(named: str) -> Iterator[str]:
    """Decodes with the library of this path, or none ("off"), as in a process with that in its environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(turbojpeg.VARIABLE, named)
        jpeg_region.chosen.cache_clear()
        try:
            yield jpeg_region.chosen()[1]
        finally:
            jpeg_region.chosen.cache_clear()
