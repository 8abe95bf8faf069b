"""One block of scratch memory on the CPU a thread, shared by every program that runs in it.

Programs of one thread run one after the other, so the largest need is enough for all. The block
stays between calls: fresh pages cost more than the kernels that fill them.
"""

from __future__ import annotations

import threading

import torch

from fusec.runtime.pages import prefer_large_pages


class _PerThread(threading.local):
    block: torch.Tensor | None = None
    busy: bool = False
    generation: int = 0


_thread = _PerThread()


class Lease:
    """Scratch memory for one run. ``generation`` tells whether the address is the last one's;
    ``shared``: the block is the thread's, used again by its next run."""

    __slots__ = ("_elements", "block", "generation", "shared")

    def __init__(self, block: torch.Tensor, generation: int, shared: bool) -> None:
        self.block = block
        self.generation = generation
        self.shared = shared
        self._elements: dict[torch.dtype, torch.Tensor] = {}

    def elements(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole block as elements of a type."""
        found = self._elements.get(dtype)
        if found is None:
            found = self._elements[dtype] = self.block.view(dtype)
        return found

    def give_back(self) -> None:
        if self.shared:
            _thread.busy = False


def whole_elements(size: int) -> int:
    """``size`` rounded up, so that elements of every type fill it."""
    return (size + 15) // 16 * 16


def lease(size: int) -> Lease:
    """At least ``size`` bytes, 64-byte aligned. A program inside a program gets its own."""
    state = _thread
    size = whole_elements(size)
    if state.busy:
        return Lease(torch.empty(size, dtype=torch.uint8, device="cpu"), -1, shared=False)
    if state.block is None or state.block.numel() < size:
        state.block = None  # give the old one back before asking for more
        state.block = torch.empty(size, dtype=torch.uint8, device="cpu")
        prefer_large_pages(state.block, size)
        state.generation = _next_generation()
    state.busy = True
    return Lease(state.block, state.generation, shared=True)


_counter_lock = threading.Lock()
_counter = [0]


def _next_generation() -> int:
    with _counter_lock:
        _counter[0] += 1
        return _counter[0]
