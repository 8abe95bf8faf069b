"""The GPUs of this process as torch knows them: which is current, its stream, its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from fusec.runtime.gpu_driver import Driver, driver


def _public_stream(ordinal: int) -> int:
    return int(torch.cuda.current_stream(ordinal).cuda_stream)


# A `torch.cuda.Stream` is made for each public query; the handle alone costs a tenth of that.
_raw_stream: Final[Callable[[int], int]] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _public_stream
)


class Gpus:
    """All that the runtime asks of a process's GPUs. Ordinals are torch's."""

    def driver(self) -> Driver:
        """Raises LoadError where there is none."""
        return driver()

    def device(self, ordinal: int) -> torch.device:
        return torch.device("cuda", ordinal)

    def ordinal(self, tensor: torch.Tensor) -> int:
        """The GPU that a tensor is on; -1 for the CPU."""
        return tensor.get_device()

    def current(self) -> int:
        return torch.cuda.current_device()

    def select(self, ordinal: int) -> None:
        """Make a GPU the current one."""
        torch.cuda.set_device(ordinal)

    def stream(self, ordinal: int) -> int:
        """The handle of the current stream of a GPU, as the driver takes it."""
        return _raw_stream(ordinal)
