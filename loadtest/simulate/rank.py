"""A rank of a training job: the real client's waiting, over the simulated way to the farm.

`fusec.remote.farm.FarmClient` is written for threads. Here each runs in a greenlet: where it would
block, the loop goes on with others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import greenlet

from cache.errors import NotReachable
from cache.protocol import NAMESPACE_HEADER, ROLE_HEADER, Value
from fusec.errors import FarmFailed
from fusec.remote.farm import Cause, FarmClient, FarmUnavailable
from fusec.remote.protocol import FarmJob, Priority
from loadtest.simulate.front import Front
from loadtest.simulate.tally import Tally
from loadtest.simulate.virtual import VirtualLoop
from loadtest.simulate.workload import OPTIONS, Model, SimGraph

T = TypeVar("T")

LOCAL_CORES: Final = 8  # of a rank's machine, for its own compiler


@dataclass(frozen=True, slots=True)
class Rank:
    """``tenant``: its namespace at the service. ``priority``: as of `FarmJob`. ``wait_s``: what the
    user allows the farm for a graph."""

    tenant: str
    name: str
    model: Model
    priority: Priority = Priority.WAITING
    wait_s: float = 1800.0


async def run_rank(loop: VirtualLoop, rank: Rank, front: Front, tally: Tally) -> None:
    """Get every graph of the model as `fusec.remote.ticket` does: look up, farm, compile here."""
    client = FarmClient(
        _Wire(front, rank),
        clock=loop.time,
        sleep=lambda seconds: block_on(asyncio.sleep(seconds)),
    )
    await asyncio.gather(
        *(_one_graph(rank, graph, client, front, tally) for graph in rank.model.graphs)
    )
    tally.is_ready(rank.tenant)


async def _one_graph(
    rank: Rank, graph: SimGraph, client: FarmClient, front: Front, tally: Tally
) -> None:
    await front.look_up()
    if front.has(rank.tenant, graph):
        await front.fetch(graph, fresh=False)
        tally.got("store")
        return
    tally.asks(rank.tenant, graph)
    job = FarmJob(
        graph.fingerprint,
        graph.entries(),
        graph.data,
        graph.target,
        OPTIONS,
        rank.name,
        rank.priority,
        rank.model.name,
    )
    try:
        await in_greenlet(lambda: _from_farm(client, job, rank.wait_s))
    except (FarmFailed, FarmUnavailable) as error:
        cause = error.cause.value if isinstance(error, FarmUnavailable) else Cause.FAILED.value
        await asyncio.sleep(
            graph.plan.all_s + sum(kernel.cpu_s for kernel in graph.kernels) / LOCAL_CORES
        )
        tally.got(f"here: {cause}")
        return
    await front.fetch(graph, fresh=True)
    tally.got("farm")


def _from_farm(client: FarmClient, job: FarmJob, wait_s: float) -> None:
    """As a ticket does: hand over at once, then wait; a full farm is asked again by `wait`."""
    first = None
    try:
        first = client.submit(job)
    except FarmUnavailable as error:
        if error.cause is not Cause.BUSY:
            raise
    client.wait(job, timeout_s=wait_s, first=first)


class _Wire:
    """`fusec.remote.farm.Transport` in a greenlet."""

    def __init__(self, front: Front, rank: Rank) -> None:
        self._front = front
        self._sizes = {graph.fingerprint: graph.size for graph in rank.model.graphs}
        self._headers = {ROLE_HEADER: "submit"}
        if rank.tenant:
            self._headers[NAMESPACE_HEADER] = rank.tenant

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Value = None,
        params: Mapping[str, str | int | float] | None = None,
        timeout: float,
    ) -> tuple[int, Value]:
        """See `Transport`."""
        answer = self._front.compile_route(
            method, path, self._headers, body=body, params=params, size=self._size(body)
        )
        try:
            return block_on(answer, timeout)
        except TimeoutError:
            raise NotReachable(f"no answer within {timeout:g} s") from None

    def _size(self, body: Value) -> int:
        job = body.get("body") if isinstance(body, dict) else None
        return self._sizes.get(str(job["fingerprint"]), 0) if isinstance(job, dict) else 0


async def in_greenlet(work: Callable[[], T]) -> T:
    """Run a function that blocks by `block_on`, and wait for it."""
    inside = greenlet.greenlet(work)
    wanted = inside.switch()
    while not inside.dead:
        what, timeout_s = wanted
        future = asyncio.ensure_future(what)
        await asyncio.wait([future], timeout=timeout_s)
        wanted = inside.switch(future)
    answer: T = wanted
    return answer


def block_on(what: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """In a function that runs `in_greenlet`: wait for what the loop does. Raises TimeoutError."""
    outside = greenlet.getcurrent().parent
    assert outside is not None, "called outside of in_greenlet"
    future: asyncio.Future[T] = outside.switch((what, timeout_s))
    if not future.done():
        future.cancel()
        raise TimeoutError
    return future.result()
