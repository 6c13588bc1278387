"""Binds the part of libturbojpeg 3 that decodes a region of a JPEG; the library is one that the machine has, or none.

simplejpeg and the other wheels that decode JPEG have no function for it; conda, Homebrew, Alpine, Fedora, Arch and the
coming Debian 14 have a libturbojpeg with one. It is looked for beside the running Python, then where the system keeps
libraries, never in the working directory: on macOS and Windows a bare name could find a file there, so only full paths
are tried. `PENSTOCK_TURBOJPEG` names another one, or is "off".

A decoder is made for each image and freed after it (0.7 us): libjpeg keeps the tables of one image for the next, so a
file without its own would be decoded with those of whatever came before.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codecs.image.geometry import Box
from penstock.codecs.image.info import Data
from penstock.core.signals import surface

VARIABLE = "PENSTOCK_TURBOJPEG"

_DECOMPRESS, _WIDTH, _HEIGHT = 1, 5, 6  # of TJINIT and TJPARAM
_FORMATS = {3: 0, 1: 6, 4: 7}  # channels to TJPF_RGB, TJPF_GRAY, TJPF_RGBA


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "width", "height")]


class _Scale(ctypes.Structure):
    _fields_ = [("numerator", ctypes.c_int), ("denominator", ctypes.c_int)]


class TurboJpeg:
    """A loaded libturbojpeg; raises OSError if it cannot be loaded, AttributeError if it is older than 3.0."""

    def __init__(self, path: str) -> None:
        self.path = path
        handle, number, size, address = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p

        def function(library: Any, name: str, result: Any, *arguments: Any) -> Any:
            found = library[name]
            found.restype, found.argtypes = result, arguments
            return found

        short = ctypes.PyDLL(path)  # these calls take about a microsecond, less than handing over the GIL
        self._init = function(short, "tj3Init", handle, number)
        self._destroy = function(short, "tj3Destroy", None, handle)
        self._header = function(short, "tj3DecompressHeader", number, handle, address, size)
        self._get = function(short, "tj3Get", number, handle, number)
        self._scale = function(short, "tj3SetScalingFactor", number, handle, _Scale)
        self._crop = function(short, "tj3SetCroppingRegion", number, handle, _Region)
        self._message = function(short, "tj3GetErrorStr", ctypes.c_char_p, handle)
        arguments = (handle, address, size, address, number, number)
        self._decompress = function(ctypes.CDLL(path), "tj3Decompress8", number, *arguments)  # releases the GIL
        self.version = "3.1 or newer" if hasattr(short, "tj3SetICCProfile") else "3.0"

    def decode(self, data: Data, size: tuple[int, int], shrink: int, region: Box, out: NDArray[np.uint8]) -> str | None:
        """Decodes a region (y, x, height, width) at 1/`shrink` into `out`, as long as libturbojpeg finds nothing wrong.

        `size` is (height, width) of the JPEG by the caller's reading of its header. Returns "" or libturbojpeg's first
        message, which may be a warning; None if it reads another size or cannot make a decoder.
        """
        y, x, height, width = region
        channels = out.size // (height * width)
        if not out.flags.c_contiguous or out.size != height * width * channels or channels not in _FORMATS:
            raise AssertionError(f"expected a buffer for {height} x {width} pixels, got {out.size} bytes")
        jpeg = _pointer(data), len(data)
        handle = self._init(_DECOMPRESS)
        if not handle:
            return None
        try:
            if self._header(handle, *jpeg):
                return self._error(handle)
            if (self._get(handle, _HEIGHT), self._get(handle, _WIDTH)) != size:
                return None
            failed = (
                self._scale(handle, _Scale(1, shrink))
                or self._crop(handle, _Region(x, y, width, height))
                or self._decompress(handle, *jpeg, _pointer(out), width * channels, _FORMATS[channels])
            )
            return self._error(handle) if failed else ""
        finally:
            self._destroy(handle)

    def _error(self, handle: int) -> str:
        return (self._message(handle) or b"").decode("latin-1") or "unknown error"


def _pointer(buffer: Any) -> Any:
    """An argument for the first byte of a buffer; 0.3 us, where `ndarray.ctypes` takes 3."""
    if isinstance(buffer, bytes):
        return buffer
    if isinstance(buffer, memoryview) and buffer.readonly:
        return np.frombuffer(buffer, np.uint8).ctypes
    return ctypes.byref(ctypes.c_char.from_buffer(buffer))


def candidates() -> list[str]:
    """Paths, or on Linux names, under which a libturbojpeg may be found; first those of the running Python."""
    prefixes = dict.fromkeys(Path(prefix) for prefix in (sys.prefix, sys.base_prefix))
    if sys.platform == "win32":
        return [str(prefix / "Library/bin/turbojpeg.dll") for prefix in prefixes]
    name = "libturbojpeg.0.dylib" if sys.platform == "darwin" else "libturbojpeg.so.0"
    found = [str(prefix / "lib" / name) for prefix in prefixes]
    if sys.platform == "darwin":
        return found + [f"{folder}/lib/{name}" for folder in ("/opt/homebrew", "/usr/local", "/opt/local")]
    return [*found, name]  # dlopen does not look in the working directory


def load() -> tuple[TurboJpeg | None, str]:
    """The first library that has what is needed, or None, and what was found."""
    named = os.environ.get(VARIABLE, "").strip()
    if named.lower() in ("off", "0"):
        return None, f"switched off by {VARIABLE}={named}"
    why = "no libturbojpeg found"
    for path in [named] if named else candidates():
        if os.path.isabs(path) and not os.path.exists(path):
            why = f"{VARIABLE}: no file {path}" if named else why
            continue
        try:
            library = TurboJpeg(path)
        except OSError as error:
            surface(error)
            why = f"{path} cannot be loaded: {error}" if named or os.path.isabs(path) else why
        except AttributeError:
            why = f"{path} is older than libjpeg-turbo 3.0"
        else:
            return library, f"{path}, libjpeg-turbo {library.version}"
    return None, why
