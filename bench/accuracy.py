"""Is a fast answer a right one? Each side against float64, in the run that is timed.

The bound is the project's: an error at most twice eager's own, or within the rounding of the dtype.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.cases import Workload
from bench.step import Step
from fusec.demo.check import Errors, errors
from fusec.demo.float64 import Float64
from fusec.demo.results import Result, Times


@dataclass(frozen=True)
class Verdict:
    """The tensor that uses most of its bound. error, allowed: as `fusec.demo.check` has them."""

    tensor: str
    error: float
    allowed: float

    @property
    def right(self) -> bool:
        return self.error <= self.allowed

    def to_json(self) -> dict[str, object]:
        return {
            "tensor": self.tensor,
            "error": self.error,
            "allowed": self.allowed,
            "right": self.right,
        }


def _double(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x
    return x.detach().double().requires_grad_(x.requires_grad)


def reference(work: Workload, gradients: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Outputs and gradients in float64, by name. Nothing of `work` is changed."""
    function, module = work.function, work.module
    if module is not None:
        module = copy.deepcopy(module).double()
        function = module
    doubled = Workload(function, tuple(_double(x) for x in work.inputs), work.train, module)
    with Float64():
        return Step(doubled, function, tuple(g.double() for g in gradients)).named()


def judge(
    sides: Mapping[str, Mapping[str, Tensor]], exact: Mapping[str, Tensor]
) -> dict[str, Verdict]:
    """Each side's verdict, "eager" among them: results and the reference, by tensor's name.

    Raises ValueError when a side's tensor has another shape or dtype than eager's.
    """
    return {side: _verdict(side, tensors, sides["eager"], exact) for side, tensors in sides.items()}


def _verdict(
    side: str, ours: Mapping[str, Tensor], eager: Mapping[str, Tensor], exact: Mapping[str, Tensor]
) -> Verdict:
    for name, tensor in eager.items():
        got = ours[name]
        if (got.shape, got.dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(
                f"{side}: {name} is {got.dtype} {tuple(got.shape)}, "
                f"eager's is {tensor.dtype} {tuple(tensor.shape)}"
            )
    worst: Errors = errors(_result(ours), _result(eager), _result(exact))[0]
    return Verdict(worst.name, worst.fusec, worst.allowed)


def _result(tensors: Mapping[str, Tensor]) -> Result:
    return Result(Times(), {}, {}, tensors)


def outputs_like(work: Workload, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Random gradients for the outputs of a training step; empty without training."""
    if not work.train:
        return ()
    return tuple(
        torch.randn(y.shape, generator=generator, dtype=y.dtype).to(
            memory_format=torch.channels_last
            if y.dim() == 4 and y.is_contiguous(memory_format=torch.channels_last)
            else torch.contiguous_format
        )
        for y in Step.flat(work.function(*work.inputs))
    )
