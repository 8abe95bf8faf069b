"""The GPUs of this process as torch knows them: which is current, its stream, its memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch

from fusec.runtime.gpu_driver import Driver, driver
from fusec.runtime.seams import empty_gpu, raw_stream

_T = TypeVar("_T")


class Replay(Protocol):
    """Recorded work of a GPU."""

    def replay(self) -> None:
        """Do it again, on the current stream."""
        ...


class Gpus:
    """All that the runtime asks of a process's GPUs. Ordinals are torch's."""

    def driver(self) -> Driver:
        """Raises LoadError where there is none."""
        return driver()

    def device(self, ordinal: int) -> torch.device:
        return torch.device("cuda", ordinal)

    # torch's own functions, since they are called for each input and each result.
    ordinal: Callable[[torch.Tensor], int] = staticmethod(torch.Tensor.get_device)
    """The GPU that a tensor is on; -1 for the CPU."""

    empty: Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor] = staticmethod(
        empty_gpu
    )
    """A new tensor on the current GPU."""

    def current(self) -> int:
        return torch.cuda.current_device()

    def select(self, ordinal: int) -> None:
        """Make a GPU the current one."""
        torch.cuda.set_device(ordinal)

    def stream(self, ordinal: int) -> int:
        """The handle of the current stream of a GPU, as the driver takes it."""
        return raw_stream(ordinal)

    def capturing(self) -> bool:
        """Whether somebody records what is done on the current stream."""
        return torch.cuda.is_current_stream_capturing()

    def side_stream(self, ordinal: int) -> Any:
        """A stream to record on."""
        return torch.cuda.Stream(ordinal)

    def memory_pool(self) -> Any:
        """Memory for recordings alone."""
        return torch.cuda.graph_pool_handle()

    def record(self, side: Any, pool: Any, run: Callable[[], _T]) -> tuple[Replay, _T]:
        """Record what ``run`` does on the current GPU, without doing it.

        Raises RuntimeError, as torch does, where it does something that cannot be recorded.
        """
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        # Other threads (loaders that pin memory) may go on: only this one is held to the rules.
        with torch.cuda.stream(side), _collector_paused():
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                made = run()
            finally:
                graph.capture_end()
        current.wait_stream(side)
        return graph, made


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Without the cyclic garbage collector: what it frees may call the GPU, which ends a recording
    with an error."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
