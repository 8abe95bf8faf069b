"""Tuning in a simulated farm: what it costs to compile and to time the variants of kernels that do
not exist.

These costs are assumptions, not measured ones: `loadtest/costs.json` was taken on a machine without
a GPU. A variant is taken to cost what the kernel's first one does, which is in there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cache import key as keys
from cache.artifacts import Found
from cache.digest import digest
from farm.quality_tasks import Candidate, Chosen, Compiled
from fusec.artifact.quality import Verification
from fusec.options import Target
from fusec.trace import Recorder
from loadtest.simulate.virtual import VirtualLoop
from loadtest.simulate.workload import Catalogue, identity

VARIANTS: Final = 7
"""Of each kernel: about the mean of the models whose kernels `loadtest/costs.json` has."""
LEASE_S: Final = 0.1
"""Of a GPU before the first kernel is timed: binaries come, memory is laid out."""
VARIANT_S: Final = 0.15
"""Of a GPU: to load a variant, to check it, and to time it in all rounds of its race."""


class SimulatedQuality:
    """`farm.quality_tasks.Quality` of the same kernels; the first variant wins."""

    def __init__(self, loop: VirtualLoop, catalogue: Catalogue) -> None:
        self._loop = loop
        self._catalogue = catalogue

    def verify(
        self,
        graph: bytes,
        target: Target,
        found: Found,
        seconds: float,
        gpu: int,
        recorder: Recorder,
    ) -> Verification:
        """See `Quality`. A simulated farm does not: see `World._gateway`."""
        raise AssertionError("a simulated farm has no costs of verifying")

    def candidates(self, plan: bytes, device: str, single: bool) -> list[Candidate]:
        """See `Quality`. It decodes the plan, as assembling does."""
        graph = self._catalogue.graphs[plan]
        self._loop.charge(graph.assemble_s)

        def record(source: bytes, kind: str) -> str:
            return keys.make("tuning", digest(source + device.encode() + kind.encode()))

        return [
            Candidate(
                identity(kernel)[0],
                record(kernel.source, "race"),
                kernel.source,
                VARIANTS,
                record(kernel.source, "descent"),
            )
            for kernel in graph.kernels
        ]

    def variants(
        self, problem: bytes, numbers: Sequence[int]
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """See `Quality`."""
        self._loop.charge(len(numbers) * self._catalogue.kernels[problem].cpu_s)
        return {str(number): digest(problem).encode() for number in numbers}, {}

    def race(self, compiled: Sequence[Compiled], seconds: float, gpu: int) -> dict[str, Chosen]:
        """See `Quality`."""
        self._loop.charge(LEASE_S + len(compiled) * VARIANTS * VARIANT_S)
        return {
            each.candidate.digest: Chosen(each.binaries["0"], b"simulated") for each in compiled
        }

    def step(self, history: Sequence[bytes], record: bytes) -> tuple[bytes, int]:
        """See `Quality`. There is none."""
        return b"", 0

    def warm(self, gpu: int) -> None:
        """See `Quality`. It costs nothing here."""
