"""Clients that want graphs compiled, whatever happens, and count how it went."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cache.breaker import DelayBudget
from cache.client import CacheClient
from fusec.artifact.fingerprint import graph_fingerprint, toolchain
from fusec.errors import FarmFailed
from fusec.ir.expr import integer
from fusec.ir.graph import Graph, Node, Ref, TensorType
from fusec.ir.wire import graph_to_bytes
from fusec.options import Options, Target
from fusec.remote.farm import FarmClient, FarmUnavailable
from fusec.remote.protocol import FarmJob, Priority

TARGET: Final = Target("cpu", "x86-64-v3")
PATIENCE_S: Final = 600.0  # of the transport with a remote that is away
PAUSE_S: Final = 0.3


def graphs(count: int, first: int = 0) -> Iterator[FarmJob]:
    """Distinct graphs; neighbours share kernels."""
    for number in range(first, first + count):
        yield _job(number)


def _job(number: int) -> FarmJob:
    """Two reductions over different sizes, a kernel each; the second is the next graph's first."""
    sizes = (8 + number, 9 + number)
    wide = [TensorType("f32", (integer(n), integer(32)), (integer(32), integer(1))) for n in sizes]
    nodes = [Node("input", f"x{place}", type=kind) for place, kind in enumerate(wide)]
    outputs = []
    for place, (rows, kind) in enumerate(zip(sizes, wide, strict=True)):
        nodes.append(Node("call", "aten.tanh.default", (Ref(place),), type=kind))
        row = TensorType("f32", (integer(rows), integer(1)), (integer(1), integer(1)))
        amax = (Ref(len(nodes) - 1), (1,), True)
        nodes.append(Node("call", "aten.amax.default", amax, type=row))
        outputs.append(Ref(len(nodes) - 1))
    data = graph_to_bytes(Graph(tuple(nodes), tuple(outputs)))
    key = graph_fingerprint(data, TARGET, Options(), toolchain())
    return FarmJob(
        key.hex, key.entries, data, TARGET, Options(), "chaos", Priority.WAITING, "chaos"
    )


class Clients:
    """Threads that have jobs done one after the other. ``counts`` by what has happened; a job is
    ``done`` or it ``failed``, and is lost otherwise."""

    def __init__(self, url: str, jobs: Sequence[FarmJob], *, threads: int, seconds: float) -> None:
        self.jobs = jobs
        self.counts: Counter[str] = Counter()
        self.why: list[str] = []
        self._deadline = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._transport = CacheClient(url, budget=DelayBudget(PATIENCE_S, probe_s=(0.1, 0.5)))
        self._farm = FarmClient(self._transport, outage_s=PATIENCE_S)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="chaos-client")
        self._futures = [self._pool.submit(self._want, job) for job in jobs]

    @property
    def ended(self) -> int:
        """Jobs that are over."""
        return sum(1 for future in self._futures if future.done())

    def wait(self) -> None:
        """Return when all are over, at the deadline at the latest."""
        for future in self._futures:
            future.result()
        self._pool.shutdown()
        self._transport.close()

    def _count(self, what: str, why: object = "") -> None:
        with self._lock:
            self.counts[what] += 1
            if why:
                self.why.append(f"{what}: {why}")

    def _want(self, job: FarmJob) -> None:
        accepted = False
        while (left := self._deadline - time.monotonic()) > 0.0:
            try:
                status = self._farm.submit(job)
                if not accepted:
                    self._count("accepted")
                accepted = True
                self._farm.wait(job, timeout_s=left, first=status)
                self._count("done")
                return
            except FarmFailed as error:
                self._count(f"failed {error.kind}", error)
                return
            except FarmUnavailable as error:  # a gateway that is away: the client comes again
                self._count("came again" if accepted else "turned away", error.message)
                time.sleep(PAUSE_S)
        self._count("lost" if accepted else "never accepted")
