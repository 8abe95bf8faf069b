"""Kernel binaries into this process: shared libraries opened from memory, once each.

A binary never touches the file system: it goes into an anonymous file (memfd) and is opened from
there. What a kernel needs from the process (OpenMP, libm) is resolved against torch's own copies,
so that there is one thread pool.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import threading
from typing import Final

from fusec.errors import LoadError

_opened: dict[str, ctypes.CDLL] = {}
_lock: Final = threading.Lock()
_counter: Final = itertools.count()
_needs: Final[list[ctypes.CDLL]] = []


def function_address(binary: bytes, name: str) -> int:
    """The address of function ``name`` of a shared library given as bytes. Raises LoadError."""
    digest = hashlib.sha256(binary).hexdigest()
    with _lock:
        library = _opened.get(digest)
        if library is None:
            library = _opened[digest] = _open(binary, name)
    try:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError as error:
        raise LoadError(f"the kernel library has no function {name}") from error
    if not address:
        raise LoadError(f"the kernel library has no function {name}")
    return address


def _open(binary: bytes, name: str) -> ctypes.CDLL:
    _provide_symbols()
    descriptor = os.memfd_create(f"fusec-{name}", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(binary)
        return ctypes.CDLL(_unused_path(descriptor))
    except OSError as error:
        raise LoadError(
            f"kernel {name} does not load: {error}",
            hint="the artifact was made for another system; it is compiled here instead",
        ) from error
    finally:
        os.close(descriptor)


def _unused_path(descriptor: int) -> str:
    """A path to the descriptor that was never opened before.

    The loader takes an equal path for an equal library, and descriptor numbers come again: the bits
    of a counter are written as ``/`` or ``/.``, which lead to the same place.
    """
    number = next(_counter)
    steps = "".join("/." if number >> bit & 1 else "/" for bit in range(24))
    return f"/proc/self{steps}/fd/{descriptor}"


def _provide_symbols() -> None:
    """Make OpenMP's and libm's symbols global where torch has not done so."""
    if _needs:
        return
    process = ctypes.CDLL(None)
    for symbol, library in (("GOMP_parallel", "libgomp.so.1"), ("expf", "libm.so.6")):
        if hasattr(process, symbol):
            continue
        try:
            _needs.append(ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL))
        except OSError as error:
            raise LoadError(
                f"{library} is not there: {error}", hint="install the C runtime libraries of gcc"
            ) from error
    _needs.append(process)
