"""One call of a workload as it is timed: forward, or forward and backward."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bench.cases import Workload


class Step:
    """Runs `function`, a side's version of work.function, on the workload's inputs.

    gradients: of each output, for workloads that train. Buffers that a call updates (running
    statistics) are updated by every call.
    """

    def __init__(
        self, work: Workload, function: Callable[..., Any], gradients: Sequence[Tensor]
    ) -> None:
        self._work = work
        self._function = function
        self._gradients = list(gradients)
        self._leaves = [x for x in work.inputs if x.requires_grad]
        self._names = [f"input {i}" for i, x in enumerate(work.inputs) if x.requires_grad]
        if work.module is not None and work.train:
            for name, parameter in work.module.named_parameters():
                self._leaves.append(parameter)
                self._names.append(name)

    @staticmethod
    def flat(result: Any) -> list[Tensor]:
        """A result as a list of tensors."""
        return [result] if isinstance(result, Tensor) else list(result)

    def __call__(self) -> list[Tensor]:
        """The outputs; gradients end in the leaves' `grad`."""
        if not self._work.train:
            with torch.no_grad():
                return self.flat(self._function(*self._work.inputs))
        for leaf in self._leaves:
            leaf.grad = None
        outputs = self.flat(self._function(*self._work.inputs))
        torch.autograd.backward(outputs, self._gradients)
        return outputs

    def named(self) -> dict[str, Tensor]:
        """Outputs and gradients of one call by name, copied."""
        found = {f"output {i}": y.detach().clone() for i, y in enumerate(self())}
        for name, leaf in zip(self._names, self._leaves):
            if leaf.grad is not None:
                found[f"gradient of {name}"] = leaf.grad.clone()
        for leaf in self._leaves:
            leaf.grad = None
        return found
