"""Resident memory of this process, from Linux's own accounts."""

from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
# With it set, malloc gives large blocks back at once, so that resident memory is memory in use.
EXACT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise OSError(f"{_STATUS} has no {name}")


def resident() -> int:
    """Bytes resident now."""
    return _field("VmRSS")


def peak() -> int:
    """Most bytes ever resident, or since `reset_peak`."""
    return _field("VmHWM")


def reset_peak() -> None:
    """Forget the peak. Raises OSError where the kernel does not allow it."""
    _CLEAR.write_text("5")
