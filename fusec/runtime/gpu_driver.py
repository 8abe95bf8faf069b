"""The GPU driver's own interface: binaries to functions, and the address of its launch function.

By ctypes from the driver's library, CUDA's or HIP's: nothing of Triton or a toolkit is needed to
run an artifact. All of it works on the context that is current in the calling thread.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import torch

from fusec.codegen.gpu_binary import GpuBinary
from fusec.errors import LoadError

INVALID_CONTEXT: Final = 201  # the same number in CUDA and HIP
_MAX_DYNAMIC_SHARED: Final = 8  # a function's attribute
_FREE_SHARED: Final = 48 << 10  # bytes that a kernel may have without asking


@dataclass(frozen=True, slots=True)
class _Names:
    """What the functions of one driver are called; prefer_shared empty: there is none to ask."""

    load: str
    function: str
    launch: str
    together: str
    message: str
    attribute: str = ""


_CUDA: Final = _Names(
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuLaunchCooperativeKernel",
    "cuGetErrorString",
    "cuFuncSetAttribute",
)
_HIP: Final = _Names(
    "hipModuleLoadData",
    "hipModuleGetFunction",
    "hipModuleLaunchKernel",
    "hipModuleLaunchCooperativeKernel",
    "hipDrvGetErrorString",
)


class Driver:
    """One driver library. launch, together: addresses of its functions that start a kernel, one of
    them with all programs resident together."""

    def __init__(self, library: ctypes.CDLL, names: _Names) -> None:
        """Raises LoadError for a driver that lacks a function."""
        self._library = library
        self._names = names
        self._functions: dict[tuple[str, str, int, int], int] = {}
        self._lock = threading.Lock()
        try:
            self.launch = _address(library, names.launch)
            self.together = _address(library, names.together)
            for name in (names.load, names.function, names.message):
                _address(library, name)
        except AttributeError as error:
            raise LoadError(
                f"the GPU's driver is too old: {error}", hint="update the driver"
            ) from error

    def function(self, binary: GpuBinary, ordinal: int) -> int:
        """The handle of a kernel on device ``ordinal``, whose context is current; loaded once.

        Raises LoadError with the driver's message.
        """
        digest = hashlib.sha256(binary.image).hexdigest()
        key = (digest, binary.name, binary.shared, ordinal)
        with self._lock:
            found = self._functions.get(key)
            if found is None:
                self.make_current(ordinal)
                found = self._functions[key] = self._load(binary)
            return found

    def _load(self, binary: GpuBinary) -> int:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        call = self._call
        what = f"kernel {binary.name} does not load"
        call(what, self._names.load, ctypes.byref(module), ctypes.c_char_p(binary.image))
        name = ctypes.c_char_p(binary.name.encode())
        call(what, self._names.function, ctypes.byref(function), module, name)
        if binary.shared > _FREE_SHARED and self._names.attribute:
            attribute = ctypes.c_int(_MAX_DYNAMIC_SHARED)
            size = ctypes.c_int(binary.shared)
            call(what, self._names.attribute, function, attribute, size)
        if not function.value:
            raise LoadError(f"{what}: it has no function of that name")
        return function.value

    def make_current(self, ordinal: int) -> None:
        """Make the device's primary context current in this thread, where it has none yet.

        torch's own calls do so as they go; a thread that only starts kernels makes none.
        """
        if self._names is not _CUDA:
            return  # HIP's contexts follow the device
        context, device = ctypes.c_void_p(), ctypes.c_int()
        what = f"GPU {ordinal} cannot be used"
        self._call(what, "cuCtxGetCurrent", ctypes.byref(context))
        if context.value:
            return
        self._call(what, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        self._call(what, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call(what, "cuCtxSetCurrent", context)

    def in_use(self, ordinal: int) -> bool:
        """Whether this process has a context on a device: loading onto another would make one."""
        if self._names is not _CUDA:
            return True
        device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        what = f"GPU {ordinal} cannot be used"
        self._call(what, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        state = ctypes.byref(flags), ctypes.byref(active)
        self._call(what, "cuDevicePrimaryCtxGetState", device, *state)
        return bool(active.value)

    def message(self, code: int) -> str:
        """The driver's words for an error."""
        text = ctypes.c_char_p()
        getattr(self._library, self._names.message)(ctypes.c_int(code), ctypes.byref(text))
        return f"{(text.value or b'unknown').decode(errors='replace')} (error {code})"

    def _call(self, what: str, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise LoadError(
                f"{what}: {self.message(code)}",
                hint="the artifact was made for another GPU, or the driver is too old for it",
            )


def _address(library: ctypes.CDLL, name: str) -> int:
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)


@lru_cache(maxsize=1)
def driver() -> Driver:
    """The driver that this torch's GPUs run by. Raises LoadError where there is none."""
    if not torch.cuda.is_available():
        raise LoadError("torch finds no GPU", hint="this graph needs a machine with a GPU")
    try:
        if torch.version.hip:
            return Driver(ctypes.CDLL(_loaded("libamdhip64.so")), _HIP)
        return Driver(ctypes.CDLL("libcuda.so.1"), _CUDA)
    except OSError as error:
        raise LoadError(
            f"there is no GPU driver: {error}", hint="this graph needs a machine with a GPU"
        ) from error


def _loaded(name: str) -> str:
    """The path of a library that torch has loaded: its wheels bring their own copy."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.split(maxsplit=5)[-1]
        if name in path:
            return path
    return name
