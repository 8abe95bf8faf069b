"""What must hold of the demo's runs: same bits, bounded error, nothing compiled when warm.

The bound on the error: against a float64 reference, fusec's error is at most twice eager's own, or
within the rounding of the dtype. Errors are root mean squares over a tensor, so that two sound
orders of summation compare fairly, while one wrong element in a million still shows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fusec.demo.results import Result

# Counters that must be zero in a warm process: each is work that the cold one had done already.
COLD_WORK = (
    "lowerings",
    "kernel_compiles",
    "local_compiles",
    "farm_compiles",
    "front_misses",
    "graph_misses",
    "fallbacks_to_eager",
    "remote_errors",
    "corrupt",
)
# Counters that must be zero in the cold process: it compiles, but on the farm.
NOT_ON_THE_FARM = ("lowerings", "kernel_compiles", "local_compiles", "fallbacks_to_eager")
TWICE = 2.0
# What a value may be off by, whatever eager's error happens to be: a few roundings of its own
# dtype, or one of the lowest dtype in the model (a float32 loss of bfloat16 logits).
OWN_ROUNDINGS = 4.0


@dataclass(frozen=True)
class Errors:
    """Of one tensor, each relative to its reference's root mean square.

    fusec, eager: against float64. largest: of fusec against eager, the greatest single element.
    allowed: the bound on `fusec`.
    """

    name: str
    fusec: float
    eager: float
    largest: float
    allowed: float

    @property
    def within(self) -> bool:
        return self.fusec <= self.allowed


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt()) if x.numel() else 0.0


def _group(name: str) -> str:
    """Tensors of one group share a scale: all gradients are rounded against each other, and so are
    all parameters after a step."""
    return next((g for g in ("gradient of ", "parameter ") if name.startswith(g)), name)


def _sizes(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """What each tensor's errors are relative to: the size of the values that were rounded.

    Mostly its own. Some gradients are zero but for rounding (a bias before a softmax): they are
    rounded against the gradients that they come from. A running mean is what is left of values that
    cancel: it is rounded against their spread.
    """
    squares: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, tensor in tensors.items():
        group = _group(name)
        squares[group] = squares.get(group, 0.0) + float(tensor.square().sum())
        counts[group] = counts.get(group, 0) + tensor.numel()
    sizes = {}
    for name, tensor in tensors.items():
        group = _group(name)
        size = max(_rms(tensor), (squares[group] / max(1, counts[group])) ** 0.5)
        variance = tensors.get(name.removesuffix("running_mean") + "running_var")
        if variance is not None:
            size = max(size, _rms(variance.sqrt()))
        sizes[name] = size or 1.0
    return sizes


def errors(fusec: Result, eager: Result, reference: Result) -> list[Errors]:
    """The errors of every tensor, the worst use of its bound first. NaN counts as infinite."""
    sizes = _sizes(reference.tensors)
    # Half an epsilon: the most by which one rounding moves a value.
    lowest = max(torch.finfo(tensor.dtype).eps for tensor in eager.tensors.values()) / 2
    found = []
    for name, exact in reference.tensors.items():
        dtype = eager.tensors[name].dtype
        ours, theirs = fusec.tensors[name].double(), eager.tensors[name].double()
        scale = sizes[name]
        eager_error = _rms(theirs - exact) / scale
        rounding = max(torch.finfo(dtype).eps / 2 * OWN_ROUNDINGS, lowest)
        largest = float((ours - theirs).abs().max()) / scale if ours.numel() else 0.0
        ours_error = _rms(ours - exact) / scale
        if ours_error != ours_error:
            ours_error = float("inf")
        allowed = max(TWICE * eager_error, rounding)
        found.append(Errors(name, ours_error, eager_error, largest, allowed))
    return sorted(found, key=lambda e: e.fusec / e.allowed, reverse=True)


def different_bits(cold: Result, warm: Result) -> list[str]:
    """Names of tensors that differ between two runs, by one bit or more."""
    return [
        name
        for name, tensor in cold.tensors.items()
        if name not in warm.tensors
        or tensor.shape != warm.tensors[name].shape
        or not torch.equal(
            tensor.flatten().view(torch.uint8), warm.tensors[name].flatten().view(torch.uint8)
        )
    ]


def nonzero(counters: Mapping[str, int], names: tuple[str, ...]) -> dict[str, int]:
    """Those of the named counters that are not zero."""
    return {name: counters[name] for name in names if counters.get(name, 0)}


def violations(cold: Result, warm: Result, eager: Result, reference: Result) -> list[str]:
    """Every broken promise, in words; an empty list is a pass."""
    found = []
    worked = nonzero(warm.counters, COLD_WORK)
    if worked:
        found.append(f"the warm process did work again: {_words(worked)}")
    hits = warm.counters.get("front_hits", 0) + warm.counters.get("graph_hits", 0)
    if not hits:
        found.append("the warm process loaded nothing from the cache")
    local = nonzero(cold.counters, NOT_ON_THE_FARM)
    if local:
        found.append(f"the cold process did not leave it to the farm: {_words(local)}")
    if not cold.counters.get("farm_compiles", 0):
        found.append("the farm compiled nothing for the cold process")
    bits = different_bits(cold, warm)
    if bits:
        found.append(f"cold and warm differ in {len(bits)} tensors, first in {bits[0]!r}")
    for error in errors(cold, eager, reference):
        if not error.within:
            found.append(
                f"{error.name}: error {error.fusec:.2e} against float64 is over the bound "
                f"{error.allowed:.2e} (eager's own error {error.eager:.2e})"
            )
    return found


def _words(counters: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counters.items())
