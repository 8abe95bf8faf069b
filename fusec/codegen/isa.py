"""The targets that this machine's processor and GPUs are."""

from __future__ import annotations

from functools import lru_cache

from fusec.codegen.c_toolchain import detect_isa
from fusec.options import Target


@lru_cache(maxsize=1)
def host_target() -> Target:
    """The CPU target for this machine: the highest ISA level it has in full."""
    return Target("cpu", detect_isa())


@lru_cache(maxsize=64)
def gpu_target(ordinal: int) -> Target:
    """The target that a GPU of this machine is; torch says cuda for AMD's too.

    The tuned class of devices is no part of it: GPUs of one capability share artifacts.
    """
    import torch  # loaded already by who has tensors there; not by a farm's gateway

    if torch.version.hip:
        name = str(torch.cuda.get_device_properties(ordinal).gcnArchName)
        return Target("cuda", name.split(":")[0])
    major, minor = torch.cuda.get_device_capability(ordinal)
    return Target("cuda", f"sm_{major}{minor}")


def target_of(ordinal: int | None) -> Target:
    """The target of graphs on that GPU; None: on the CPU."""
    return host_target() if ordinal is None else gpu_target(ordinal)
