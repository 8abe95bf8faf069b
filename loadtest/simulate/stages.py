"""`farm.workers.Stages` of models that do not exist: results are names, time is charged."""

from __future__ import annotations

from collections.abc import Mapping

from cache.manifest import Manifest
from cache.protocol import pack
from farm.quality_tasks import Quality
from farm.workers import Planned, PlannedKernel
from fusec.artifact.quality import Quality as ArtifactQuality
from fusec.artifact.quality import Tier, with_quality
from fusec.errors import CompileError, WireError
from fusec.options import Options, Target
from fusec.parts import Parts
from loadtest.simulate.host import Host
from loadtest.simulate.quality import SimulatedQuality
from loadtest.simulate.tally import Tally
from loadtest.simulate.virtual import Gone, VirtualLoop
from loadtest.simulate.workload import Catalogue, SimGraph, identity


class WorkerDied(Exception):
    """A kernel has taken the worker that compiled it along."""


class SimulatedStages:
    """The compiler as the workers have it; with a host also as its gateway has it.

    variants: whether kernels have any, so that a GPU is to choose.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        catalogue: Catalogue,
        tally: Tally,
        host: Host | None = None,
        *,
        variants: bool = False,
    ) -> None:
        self._loop = loop
        self._catalogue = catalogue
        self._tally = tally
        self._host = host
        self._variants = variants
        self._entries: dict[bytes, tuple[tuple[str, str], ...]] = {}

    def plan(self, graph: bytes, target: Target, options: Options) -> Parts[PlannedKernel, Planned]:
        """See `Stages`."""
        found = self._graph(graph)
        self._tally.plans(found)
        spent = 0.0
        keys: dict[str, str] = {}
        # Source agrees with the seconds of a build about as well as the size that the compiler goes
        # by (rank correlations of 0.78 and 0.75).
        ahead, rest = found.kernels[: found.plan.ahead], found.kernels[found.plan.ahead :]
        order = (*ahead, *sorted(rest, key=lambda k: -len(k.source)))
        for kernel, seconds in zip(order, found.plan.handed_on_s, strict=True):
            self._loop.charge(seconds - spent)
            spent = seconds
            digest, key = identity(kernel)
            keys[digest] = key
            yield PlannedKernel(digest, key, kernel.source)
        self._loop.charge(found.plan.all_s - spent)
        return Planned(graph, keys)

    def build(self, source: bytes, target: Target) -> bytes:
        """See `Stages`. Raises WorkerDied for a kernel with that fault."""
        kernel = self._catalogue.kernels[source]
        self._tally.builds(kernel)
        self._loop.charge(kernel.cpu_s)
        if kernel.fault == "dies":
            raise WorkerDied
        if kernel.fault == "fails":
            raise CompileError("the simulated compiler says no", output="")
        return identity(kernel)[0].encode()

    @property
    def quality(self) -> Quality:
        """See `Stages`."""
        return SimulatedQuality(self._loop, self._catalogue)

    def assemble(
        self, plan: bytes, binaries: Mapping[str, bytes], device: str = "", tuned: int = 0
    ) -> tuple[Manifest, dict[str, bytes]]:
        """See `Stages`. At a gateway."""
        assert self._host is not None
        if not self._host.lives():
            raise Gone
        self._loop.charge(self._host.core.reserve(self._graph(plan).assemble_s))
        blobs = {"program": pack([plan, sorted(binaries)])}
        manifest = Manifest.of("graph", blobs, pack({}))
        if device:
            self._tally.tuned.append(self._loop.time())
        tier = Tier.TUNED if device else Tier.UNTUNED if self._variants else Tier.SINGLE
        return with_quality(manifest, ArtifactQuality(tier, device, tuned)), blobs

    def fingerprint(
        self, graph: bytes, target: Target, options: Options
    ) -> tuple[tuple[str, str], ...]:
        """See `Stages`. Its time is part of a submit's, as that was measured."""
        if graph not in self._entries:
            self._entries[graph] = self._graph(graph).entries()
        return self._entries[graph]

    def warm(self, *, gpu: bool) -> None:
        """See `Stages`."""

    def _graph(self, data: bytes) -> SimGraph:
        try:
            return self._catalogue.graphs[data]
        except KeyError as error:
            raise WireError("a graph that is in no catalogue") from error
