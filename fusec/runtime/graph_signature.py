"""What is known about calls that one recording may serve."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fusec.runtime.graph_pool import GraphPool, Recording
from fusec.runtime.inputs import taking
from fusec.runtime.sizes import Sizes

Where = tuple[int, int, bool]
"""GPU, stream, and whether in inference mode."""


@dataclass
class Signature:
    """What is known about calls of one signature. parameters: their places among the tensor inputs,
    and their addresses; moving: which tensor inputs do not stay (by their place among the tensor
    inputs); fixed: those that the recording reads at an address; buffers: by position of the input,
    the memory that the recording reads it from, in one dimension; returned: the same for inputs
    that are overwritten, as tensors like the input."""

    parameters: tuple[int, ...]
    where: Where
    sizes: Sizes
    addresses: tuple[int, ...]
    calls: int = 0
    seen: list[int] | None = None
    moving: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    recording: Recording | None = None
    pool: GraphPool | None = None
    fixed: list[tuple[int, int]] = field(default_factory=list)
    buffers: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    returned: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    misfits: int = 0
    blocked: int = 0

    def __post_init__(self) -> None:
        self._given = taking(self.parameters)
        self.read = taking(())  # of ``fixed`` the addresses in a call, and those they must be
        self.read_at: tuple[int, ...] = ()

    def fits(self, where: Where, sizes: Sizes, addresses: list[int]) -> bool:
        """Whether a call is of this signature, for one like the last, which most calls are."""
        return (
            (sizes is self.sizes or sizes == self.sizes)
            and where == self.where
            and self._given(addresses) == self.addresses
        )
