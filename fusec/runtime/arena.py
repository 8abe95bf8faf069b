"""One block of scratch memory a thread, shared by every program that runs in it.

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
    """Scratch memory for one run. ``generation`` tells whether the address is the last one's."""

    __slots__ = ("block", "generation", "shared")

    def __init__(self, block: torch.Tensor, generation: int, shared: bool) -> None:
        self.block = block
        self.generation = generation
        self.shared = shared

    def give_back(self) -> None:
        if self.shared:
            _thread.busy = False


def lease(size: int) -> Lease:
    """At least ``size`` bytes, 64-byte aligned. A program inside a program gets its own."""
    state = _thread
    if state.busy:
        return Lease(torch.empty(size, dtype=torch.uint8), -1, shared=False)
    if state.block is None or state.block.numel() < size:
        state.block = None  # give the old one back before asking for more
        state.block = torch.empty(size, dtype=torch.uint8)
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
