"""Numbers as a person reads them."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def duration(seconds: float) -> str:
    """Seconds: `0.3 s`, `41 s`, `3 min`, `5.2 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"


def size(count: float) -> str:
    """Bytes in the largest unit that leaves at least one: `512 B`, `3.4 MiB`."""
    for unit in _UNITS:
        if abs(count) < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def percent(share: float | None) -> str:
    """A share of 1; a dash where there is none."""
    return "–" if share is None else f"{share:.0%}"
