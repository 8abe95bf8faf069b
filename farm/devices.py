"""Classes of workers: CPUs, which compile for every target, and GPUs by model, which only time and
verify.

A class is a short text that is also the name of Ray's custom resource: ``cpu``, or
``gpu:<capability>:<model>`` such as ``gpu:sm_90:nvidia-h200``. The capability is in it because a
target names no model: whoever may serve a target is found by the class alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from fusec.options import Target
from fusec.tune.device import device_class, visible_gpus

CPU: Final = "cpu"
_GPU: Final = re.compile(r"gpu:([a-z0-9_]{2,16}):([a-z0-9.-]{1,64})")


def is_gpu_class(text: str) -> bool:
    """Whether a text, as of a cluster's resources, is the class of a GPU."""
    return _GPU.fullmatch(text) is not None


def serves(needs: str, target: Target) -> bool:
    """Whether a worker of this class can run what is compiled for a target."""
    if target.device == "cpu":
        return needs == CPU
    match = _GPU.fullmatch(needs)
    return match is not None and match.group(1) == target.isa


def detected() -> dict[str, tuple[int, ...]]:
    """The GPUs of this machine by class, as the numbers by which this process knows them."""
    found: dict[str, tuple[int, ...]] = {}
    for ordinal, (name, isa) in enumerate(visible_gpus()):
        needs = device_class(name, isa)
        found[needs] = (*found.get(needs, ()), ordinal)
    return found


def ray_resources(classes: Iterable[str]) -> dict[str, float]:
    """What a Ray node offers beside CPUs, given the class of each of its GPUs."""
    return {needs: float(count) for needs, count in sorted(Counter(classes).items())}
