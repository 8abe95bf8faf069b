"""Scratch memory that stays between calls: one block a thread and device, for all its programs.

Programs of one thread run one after the other, so the largest need is enough for all. On the CPU
fresh pages cost more than the kernels that fill them; on a GPU it is the tensors, the views of the
block that library calls take: they are made once and stay as long as the block.

A GPU's block belongs to the stream that it was made on, where whoever uses it comes after whoever
did before. It stays only while it is small: large ones go back to torch's allocator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import torch

from fusec.runtime.pages import prefer_large_pages

MOST_KEPT: Final = 64 << 20
"""Bytes of a GPU's memory that a thread keeps."""

Views = dict[int, torch.Tensor]
"""Tensors over a block by the numbers that a program gave them."""


class Block:
    """Scratch memory, and what was made over it."""

    __slots__ = ("_elements", "_views", "address", "memory")

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.address = memory.data_ptr()
        self._elements: dict[torch.dtype, torch.Tensor] = {}
        self._views: tuple[WeakKeyDictionary[object, Views], ...] = (
            WeakKeyDictionary(),
            WeakKeyDictionary(),
        )

    def elements(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole block as elements of a type."""
        found = self._elements.get(dtype)
        if found is None:
            found = self._elements[dtype] = self.memory.view(dtype)
        return found

    def views(self, owner: object) -> Views:
        """The views of one program, which go when it goes; those made in inference mode, which
        nobody may write to outside it, by themselves."""
        views = self._views[torch.is_inference_mode_enabled()]
        found = views.get(owner)
        if found is None:
            found = views[owner] = {}
        return found


class Memory(Protocol):
    """A GPU's, as `fusec.runtime.gpu_devices.Gpus` knows it."""

    empty: Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]

    def capturing(self) -> bool: ...


class Kept:
    """The block of a thread on one device. stream: the handle of the one that it is used on."""

    __slots__ = ("block", "busy", "stream")

    def __init__(self) -> None:
        self.block: Block | None = None
        self.busy = False
        self.stream = 0


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.cpu = Kept()
        self.gpus: dict[int, Kept] = {}


_thread: Final = _PerThread()


class Lease:
    """A block for one run, and the views of it that the program made before."""

    __slots__ = ("_kept", "block", "views")

    def __init__(self, block: Block, views: Views, kept: Kept | None) -> None:
        self.block = block
        self.views = views
        self._kept = kept

    def give_back(self) -> None:
        if self._kept is not None:
            self._kept.busy = False


def _cpu(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cpu")


NOTHING: Final = Lease(Block(_cpu(0)), {}, None)
"""What a program without an arena holds."""


def whole_elements(size: int) -> int:
    """``size`` rounded up, so that elements of every type fill it."""
    return (size + 15) // 16 * 16


def lease(size: int, owner: object) -> Lease:
    """At least ``size`` bytes of the CPU's memory, 64-byte aligned, for a program of ``owner``. A
    program inside a program gets its own."""
    kept = _thread.cpu
    if kept.busy:
        return Lease(Block(_cpu(whole_elements(size))), {}, None)
    return _of(kept, whole_elements(size), owner, _cpu_to_keep)


def lease_on_gpu(size: int, owner: object, ordinal: int, stream: int, memory: Memory) -> Lease:
    """The same on the current GPU, ``ordinal``, whose current stream is ``stream``."""

    def empty(size: int) -> torch.Tensor:
        return memory.empty((size,), (1,), torch.uint8)

    size = whole_elements(size)
    # What is recorded has memory of its own, which nobody else writes between two replays.
    if size > MOST_KEPT or memory.capturing():
        return Lease(Block(empty(size)), {}, None)
    kept = _thread.gpus.get(ordinal)
    if kept is None:
        kept = _thread.gpus[ordinal] = Kept()
    if kept.busy:
        return Lease(Block(empty(size)), {}, None)
    if kept.stream != stream:
        kept.block = None
        kept.stream = stream
    return _of(kept, size, owner, empty)


def _of(kept: Kept, size: int, owner: object, empty: Callable[[int], torch.Tensor]) -> Lease:
    block = kept.block
    if block is None or block.memory.numel() < size:
        block = kept.block = None  # give the old one back before asking for more
        block = kept.block = Block(empty(size))
    kept.busy = True
    return Lease(block, block.views(owner), kept)


def _cpu_to_keep(size: int) -> torch.Tensor:
    made = _cpu(size)
    prefer_large_pages(made, size)
    return made
