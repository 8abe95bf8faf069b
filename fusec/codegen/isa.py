"""The target that this machine's processor is."""

from __future__ import annotations

from functools import lru_cache

from fusec.codegen.c_toolchain import detect_isa
from fusec.options import Target


@lru_cache(maxsize=1)
def host_target() -> Target:
    """The CPU target for this machine: the highest ISA level it has in full."""
    return Target("cpu", detect_isa())
