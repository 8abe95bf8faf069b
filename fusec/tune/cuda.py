"""The part of the CUDA driver that timing kernels takes, by ctypes: no toolkit, no torch.

One context on one device, one stream. Errors are numbers of the driver's; after some of them the
context, and so the process, is of no more use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any, Final

from fusec.codegen.gpu_binary import GpuBinary
from fusec.tune.device import CAPABILITY_MAJOR, CAPABILITY_MINOR, CUDA_DRIVER, Device

# Fields of `Device` that are attributes of the driver's, by number.
_ATTRIBUTES: Final = {
    "multiprocessors": 16,
    "threads": 39,
    "programs": 106,
    "registers": 82,
    "shared": 81,
    "shared_program": 97,
    "reserved": 111,
    "cache": 38,
}
_MAX_DYNAMIC_SHARED: Final = 8
_FREE_SHARED: Final = 48 << 10
_NON_BLOCKING: Final = 1
_RELAXED: Final = 2
# The device found a fault in a kernel: every later call fails.
_STICKY: Final = frozenset((700, 702, 709, 710, *range(714, 720), 721))


class CudaError(Exception):
    """A call failed. fatal: the context is lost."""

    def __init__(self, name: str, code: int, text: str) -> None:
        super().__init__(f"{name}: {text} ({code})")
        self.fatal = code in _STICKY


class Kernel:
    """A loaded kernel and its arguments, which are kept alive here."""

    def __init__(
        self, module: c_void_p, function: c_void_p, binary: GpuBinary, grid: tuple[int, ...]
    ) -> None:
        self.module = module
        self.function = function
        self.binary = binary
        self.grid = (*grid, 1, 1)[:3]


class Cuda:
    """A context on device ``ordinal``. Raises OSError where there is no driver, CudaError."""

    def __init__(self, ordinal: int) -> None:
        self._driver: Any = ctypes.CDLL(CUDA_DRIVER)
        self._call("cuInit", c_uint(0))
        device, context = c_int(), c_void_p()
        self._call("cuDeviceGet", byref(device), c_int(ordinal))
        self.device = self._describe(device)
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._stream = c_void_p()
        self._call("cuStreamCreate", byref(self._stream), c_uint(_NON_BLOCKING))
        self._events = (c_void_p(), c_void_p())
        for event in self._events:
            self._call("cuEventCreate", byref(event), c_uint(0))

    def _describe(self, device: c_int) -> Device:
        def attribute(number: int) -> int:
            value = c_int()
            self._call("cuDeviceGetAttribute", byref(value), c_int(number), device)
            return value.value

        name, memory = ctypes.create_string_buffer(256), c_size_t()
        self._call("cuDeviceGetName", name, c_int(len(name)), device)
        self._call("cuDeviceTotalMem_v2", byref(memory), device)
        isa = f"sm_{attribute(CAPABILITY_MAJOR)}{attribute(CAPABILITY_MINOR)}"
        named = {field: attribute(number) for field, number in _ATTRIBUTES.items()}
        return Device(name=name.value.decode(), isa=isa, memory=memory.value, **named)

    def free_memory(self) -> int:
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        """Address of ``size`` bytes."""
        address = c_ulonglong()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address.value

    def release(self, address: int) -> None:
        self._call("cuMemFree_v2", c_ulonglong(address))

    def fill(self, address: int, size: int, pattern: bytes) -> None:
        """Repeat a pattern over ``size`` bytes: once over the bus, then by doubling."""
        done = min(size, len(pattern))
        if done:
            self._call("cuMemcpyHtoD_v2", c_ulonglong(address), c_char_p(pattern), c_size_t(done))
            self._double(address, done, size)

    def fill_from(self, address: int, size: int, copies: int) -> None:
        """Copy the first ``size`` bytes behind themselves until there are ``copies`` of them."""
        self._double(address, size, size * copies)

    def _double(self, address: int, done: int, end: int) -> None:
        """Repeat the first ``done`` bytes over ``end`` bytes."""
        while done < end:
            more = min(done, end - done)
            to, origin = c_ulonglong(address + done), c_ulonglong(address)
            self._call("cuMemcpyDtoD_v2", to, origin, c_size_t(more))
            done += more

    def read(self, address: int, size: int) -> bytes:
        """Bytes of the device's memory."""
        data = ctypes.create_string_buffer(max(1, size))
        self._call("cuMemcpyDtoH_v2", data, c_ulonglong(address), c_size_t(size))
        return data.raw[:size]

    def load(self, binary: GpuBinary, grid: tuple[int, ...]) -> Kernel:
        module, function = c_void_p(), c_void_p()
        self._call("cuModuleLoadData", byref(module), c_char_p(binary.image))
        name = c_char_p(binary.name.encode())
        self._call("cuModuleGetFunction", byref(function), module, name)
        if binary.shared > _FREE_SHARED:
            value = c_int(binary.shared)
            self._call("cuFuncSetAttribute", function, c_int(_MAX_DYNAMIC_SHARED), value)
        return Kernel(module, function, binary, grid)

    def unload(self, kernel: Kernel) -> None:
        self._call("cuModuleUnload", kernel.module)

    def launch(self, kernel: Kernel, arguments: Sequence[Any]) -> None:
        """arguments: ctypes values, without the scratch pointers."""
        binary = kernel.binary
        values = [*arguments, *(c_void_p() for _ in range(binary.scratch))]
        table = (c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        shape = [c_uint(n) for n in (*kernel.grid, binary.threads, 1, 1, binary.shared)]
        if binary.cooperative:
            self._call("cuLaunchCooperativeKernel", kernel.function, *shape, self._stream, table)
        else:
            self._call("cuLaunchKernel", kernel.function, *shape, self._stream, table, c_void_p())

    def wait(self) -> None:
        """Until the device has done everything."""
        self._call("cuCtxSynchronize")

    def begin_capture(self) -> None:
        """Record launches into a graph instead of starting them."""
        self._call("cuStreamBeginCapture_v2", self._stream, c_int(_RELAXED))

    def end_capture(self) -> c_void_p:
        """The recorded launches, to be started by `milliseconds`."""
        graph, executable = c_void_p(), c_void_p()
        self._call("cuStreamEndCapture", self._stream, byref(graph))
        self._call("cuGraphInstantiateWithFlags", byref(executable), graph, c_ulonglong(0))
        self._call("cuGraphDestroy", graph)
        return executable

    def abandon_capture(self) -> None:
        """End a capture in which a launch was refused."""
        graph = c_void_p()
        if not self._driver.cuStreamEndCapture(self._stream, byref(graph)) and graph.value:
            self._call("cuGraphDestroy", graph)

    def destroy(self, graph: c_void_p) -> None:
        self._call("cuGraphExecDestroy", graph)

    def milliseconds(self, graph: c_void_p) -> float:
        """Time of one run of a graph that directly follows another run of it."""
        before, after = self._events
        self._call("cuGraphLaunch", graph, self._stream)
        self._call("cuEventRecord", before, self._stream)
        self._call("cuGraphLaunch", graph, self._stream)
        self._call("cuEventRecord", after, self._stream)
        self._call("cuEventSynchronize", after)
        time = c_float()
        self._call("cuEventElapsedTime", byref(time), before, after)
        return time.value

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            text = c_char_p()
            self._driver.cuGetErrorName(c_int(code), byref(text))
            raise CudaError(name, code, (text.value or b"unknown").decode())
