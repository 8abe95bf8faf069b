"""Which compiled variants are worth timing: decided from what they need of the device alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from fusec.codegen.gpu_binary import GpuBinary
from fusec.tune.device import Device

_WARP: Final = 32
_REGISTER_STEP: Final = 8  # registers a thread are handed out in such steps
_SPILL_SLACK: Final = 64  # bytes a thread: device functions use a little memory of their own
_FEWEST_OF_BEST: Final = 0.2


def prune(
    binaries: Mapping[int, GpuBinary], grids: Mapping[int, tuple[int, ...]], device: Device
) -> dict[int, str]:
    """The variants that are not worth timing, with the reason.

    Left out are: what cannot run; what is the same as an earlier one; what spills registers where
    another variant does not; what keeps only a small part of the threads on the device that another
    one keeps. At least one of those that can run is always kept.
    """
    out: dict[int, str] = {}
    for number, binary in binaries.items():
        programs = resident_programs(binary, device)
        if not programs:
            out[number] = "does not fit on the device"
        elif binary.cooperative and _count(grids[number]) > programs * device.multiprocessors:
            out[number] = "its programs are not resident together"
        elif any(not 0 < size <= limit for size, limit in zip(grids[number], _GRID)):
            out[number] = "it has no programs, or too many"
    seen: dict[tuple[object, ...], int] = {}
    for number, binary in binaries.items():
        if number in out:
            continue
        digest = hashlib.sha256(binary.image).digest()
        same = (digest, grids[number], binary.threads, binary.shared)
        earlier = seen.setdefault(same, number)
        if earlier != number:
            out[number] = f"the same as variant {earlier}"
    left = [n for n in binaries if n not in out]
    least = min((binaries[n].spills for n in left), default=0)
    for number in left:
        if binaries[number].spills > least + _SPILL_SLACK:
            out[number] = f"spills {binaries[number].spills} bytes a thread"
    left = [n for n in left if n not in out]
    threads = {n: _threads(binaries[n], grids[n], device) for n in left}
    most = max(threads.values(), default=0)
    for number in left:
        if threads[number] < _FEWEST_OF_BEST * most:
            out[number] = f"keeps {threads[number]} threads on the device, another one {most}"
    return out


_GRID: Final = ((1 << 31) - 1, 65535, 65535)


def resident_programs(binary: GpuBinary, device: Device) -> int:
    """How many programs a multiprocessor holds at once, by NVIDIA's rules: 0 if it holds none."""
    if binary.shared > device.shared_program or binary.threads > device.threads:
        return 0
    limits = [device.programs, device.threads // binary.threads]
    if binary.registers > 0:
        each = -(-binary.registers // _REGISTER_STEP) * _REGISTER_STEP
        limits.append(device.registers // (each * -(-binary.threads // _WARP) * _WARP))
    taken = binary.shared + device.reserved
    if taken:
        limits.append(device.shared // taken)
    return min(limits)


def _threads(binary: GpuBinary, grid: tuple[int, ...], device: Device) -> int:
    """Threads that the device holds at once of a launch."""
    programs = resident_programs(binary, device) * device.multiprocessors
    return min(_count(grid), programs) * binary.threads


def _count(grid: tuple[int, ...]) -> int:
    count = 1
    for size in grid:
        count *= size
    return count
