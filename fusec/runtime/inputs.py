"""The tensors among the inputs of a program: many, so what is done with each is done in C."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from fusec.ir.program import Program


def taking(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What takes the items at these places, whatever their number, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple([items[i] for i in places])


def addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Of the first element of each."""
    return [*map(torch.Tensor.data_ptr, tensors)]


class TensorInputs:
    """Where they are among the inputs, and where they go."""

    def __init__(self, program: Program) -> None:
        pairs = [(p, slot) for p, slot in enumerate(program.inputs) if isinstance(slot, int)]
        self.positions = [position for position, _ in pairs]
        self.slots = [slot for _, slot in pairs]
        self.of = taking(self.positions)
        """The tensors of a call."""
        self._count = len(pairs)
        self._first = self.slots == list(range(len(pairs)))  # as programs mostly are
        self._pack = struct.Struct(f"{len(pairs)}Q")

    def put(self, slots: list[Any], given: Sequence[torch.Tensor]) -> None:
        """Put the tensors of a call in their slots."""
        if self._first:
            slots[: self._count] = given
        else:
            for slot, tensor in zip(self.slots, given, strict=True):
                slots[slot] = tensor

    def write(self, table: Any, found: Sequence[int]) -> None:
        """Write their addresses into a table of those of the slots."""
        if self._first:
            self._pack.pack_into(table, 0, *found)
        else:
            for slot, address in zip(self.slots, found, strict=True):
                table[slot] = address
