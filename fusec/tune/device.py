"""A GPU as the choice of variants sees it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

CUDA_DRIVER: Final = "libcuda.so.1"
CAPABILITY_MAJOR: Final = 75  # the driver's numbers of these attributes
CAPABILITY_MINOR: Final = 76


@dataclass(frozen=True, slots=True)
class Device:
    """name: the model, its class for records; isa: as in `GpuSource`. Memories in bytes; shared
    memory and registers of a multiprocessor, and what one program may have of the former;
    reserved: shared memory that the system takes of each program."""

    name: str
    isa: str
    multiprocessors: int
    threads: int
    programs: int
    registers: int
    shared: int
    shared_program: int
    reserved: int
    cache: int
    memory: int

    @property
    def device_class(self) -> str:
        """See `device_class`."""
        return device_class(self.name, self.isa)

    @classmethod
    def from_wire(cls, data: Mapping[str, str | int]) -> Device:
        """Raises KeyError where a field is missing."""
        return cls(**{f.name: data[f.name] for f in fields(cls)})  # type: ignore[arg-type]


def visible_gpus() -> tuple[tuple[str, str], ...]:
    """Name and capability of each NVIDIA GPU that this process may use, in the driver's order.

    Makes no context, so none of their memory is taken. Empty where there is no driver or no GPU.
    """
    try:
        driver: Any = ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    found: list[tuple[str, str]] = []
    for ordinal in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        name = ctypes.create_string_buffer(256)
        failed = (
            driver.cuDeviceGet(ctypes.byref(device), ordinal)
            or driver.cuDeviceGetName(name, len(name), device)
            or driver.cuDeviceGetAttribute(ctypes.byref(major), CAPABILITY_MAJOR, device)
            or driver.cuDeviceGetAttribute(ctypes.byref(minor), CAPABILITY_MINOR, device)
        )
        if not failed:
            found.append((name.value.decode(), f"sm_{major.value}{minor.value}"))
    return tuple(found)


def device_class(name: str, isa: str) -> str:
    """The class of a GPU by what the driver calls it, ``NVIDIA H200``, and its capability: a short
    text, ``gpu:sm_90:nvidia-h200``."""
    model = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
    return f"gpu:{isa}:{model[:64] or 'unknown'}"


def only_gpu(ordinal: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that show a child one GPU alone: that of this number where ``environment`` holds.

    environment: of this process, whose own choice of GPUs counts.
    """
    order = environment.get("CUDA_DEVICE_ORDER")
    names = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    shown = names[ordinal] if ordinal < len(names) else str(ordinal)
    return {"CUDA_VISIBLE_DEVICES": shown, **({"CUDA_DEVICE_ORDER": order} if order else {})}


def current_gpu() -> int | None:
    """The number of the NVIDIA GPU that is current in this process; None where it has none."""
    try:
        ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        return None
    import torch  # only where there is a driver, and so a use for it

    if torch.version.cuda is None or not torch.cuda.is_available():
        return None
    return int(torch.cuda.current_device())
