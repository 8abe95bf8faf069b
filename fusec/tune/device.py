"""A GPU as the choice of variants sees it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

CUDA_DRIVER: Final = "libcuda.so.1"


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

    @classmethod
    def from_wire(cls, data: Mapping[str, str | int]) -> Device:
        """Raises KeyError where a field is missing."""
        return cls(**{f.name: data[f.name] for f in fields(cls)})  # type: ignore[arg-type]


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
