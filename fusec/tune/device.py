"""A GPU as the choice of variants sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


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
        return cls(**{f.name: data[f.name] for f in fields(cls)})  # type: ignore[arg-type]
