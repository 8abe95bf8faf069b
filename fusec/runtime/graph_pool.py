"""Recordings that share memory, and whether one may be replayed.

All recordings for one stream of a GPU, of forward and backward graphs alike, take their memory from
one pool. The outputs of each stay reserved; what it needs only while it runs is used again by those
recorded after it. So a replay overwrites its own outputs, and may overwrite those of recordings
*after* it, never of those before. It is allowed when none of these outputs is in use any more.

An output is in use while anything but the recording holds its storage: a tensor of the user's, a
view of it, a tensor saved for a backward. Outputs that were still in use when the memory was wanted
again (results that the caller collects, gradients that outlive the next forward) are handed out as
copies from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import torch

from fusec.runtime.gpu_devices import Gpus, Replay
from fusec.runtime.seams import holders

MAX_GENERATIONS: Final = 8


class Recording:
    """One recording. number: its place in the order of the pool's; held: its outputs, None where an
    output is none of its own; kept: outputs to hand out as copies, which `GraphPool.free_for` adds
    to."""

    def __init__(
        self,
        number: int,
        graph: Replay,
        held: Sequence[torch.Tensor | None],
        kept: set[int],
    ) -> None:
        self.number = number
        self.graph = graph
        self.held = tuple(held)
        self.kept = kept
        self._storages = [None if t is None else t.untyped_storage() for t in self.held]
        self._own = [0 if s is None else holders(s) for s in self._storages]

    def in_use(self) -> list[int]:
        """The outputs whose memory others hold."""
        return [
            i
            for i, storage in enumerate(self._storages)
            if storage is not None and holders(storage) > self._own[i]
        ]

    def outputs(self) -> list[torch.Tensor | None]:
        """The outputs of the last replay as new tensors."""
        return [
            t if t is None else t.clone() if i in self.kept else t.data
            for i, t in enumerate(self.held)
        ]

    def addresses(self) -> list[int]:
        """Of the outputs that are handed out as they are."""
        return [
            t.data_ptr() for i, t in enumerate(self.held) if t is not None and i not in self.kept
        ]


class GraphPool:
    """The recordings for one stream."""

    def __init__(self, gpus: Gpus, ordinal: int) -> None:
        self.memory = gpus.memory_pool()
        self.side = gpus.side_stream(ordinal)
        self.lock: Final = threading.Lock()
        self.retired = False
        self._count = 0
        self._handed_out: list[Recording] = []  # their outputs may be in use
        self._addresses: dict[int, int] = {}  # of outputs → how many recordings'

    def next_number(self) -> int:
        self._count += 1
        return self._count

    def add(self, recording: Recording) -> None:
        for address in recording.addresses():
            self._addresses[address] = self._addresses.get(address, 0) + 1

    def drop(self, recording: Recording) -> None:
        """Forget a recording. Outputs of it that are in use stay with their users, and are looked
        after here."""
        for t in recording.held:
            if t is not None and t.data_ptr() in self._addresses:
                self._addresses[t.data_ptr()] -= 1
                if not self._addresses[t.data_ptr()]:
                    del self._addresses[t.data_ptr()]

    def owns(self, address: int) -> bool:
        """Whether a recording writes an output to an address: it is the same at each replay."""
        return address in self._addresses

    def free_for(self, number: int) -> bool:
        """Whether the recording of that number may be replayed now."""
        free = True
        for recording in tuple(self._handed_out):
            if recording.number < number:
                continue
            used = recording.in_use()
            if used:
                recording.kept.update(used)
                free = False
            else:
                self._handed_out.remove(recording)
        return free

    def handed_out(self, recording: Recording) -> None:
        """A recording was replayed and its outputs given away."""
        if recording not in self._handed_out:
            self._handed_out.append(recording)


class GraphPools:
    """The pools of a session, one for each stream that graphs are called on."""

    def __init__(self) -> None:
        self._pools: dict[tuple[int, int], GraphPool] = {}
        self._generations: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()

    def of(self, gpus: Gpus, ordinal: int, stream: int) -> GraphPool:
        key = (ordinal, stream)
        found = self._pools.get(key)
        if found is not None:
            return found
        with self._lock:
            return self._pools.setdefault(key, GraphPool(gpus, ordinal))

    def retire(self, ordinal: int, stream: int) -> None:
        """Begin with new memory: somebody keeps outputs of the pool, maybe for good. Its recordings
        are made anew as they are called. Not more often than ``MAX_GENERATIONS``."""
        key = (ordinal, stream)
        with self._lock:
            generation = self._generations.get(key, 0) + 1
            if generation <= MAX_GENERATIONS and key in self._pools:
                self._generations[key] = generation
                self._pools.pop(key).retired = True
